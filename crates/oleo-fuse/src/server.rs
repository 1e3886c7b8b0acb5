//! Translates each request of the protocol into a call of the file system, and the result into a reply.
//!
//! `oleo-fs` decides what an operation means; this module has the numbers of nodes, the form of replies, and what FUSE
//! requires beyond POSIX. There is one file for each family: `names`, `attr`, `data`, `dir`, `xattr`, `ioctl`.
//!
//! The kernel may cache everything for ever. Nobody else changes the volume, so names (also those that do not exist),
//! attributes, symbolic links, listings and pages stay valid until the kernel changes them itself or a control request
//! does, which notifies it (`invalidate`).
//!
//! Round trips that never happen: OPEN, OPENDIR, FLUSH and CREATE are answered with ENOSYS once, after which the kernel
//! opens and closes files on its own and creates new ones with MKNOD. So there are no file handles: a node names the
//! file. (A file without a name that is still open is held by its node; see `nodes`.) The price: errors that a file
//! system would return from open(2) come from the first write; close(2) returns none, so write(2) refuses if earlier
//! data could not be written out (`oleo_fs::data`).
//!
//! The kernel checks permissions (`default_permissions`, POSIX ACLs included): it knows mode, owner and ACL of every
//! node. The file system checks what only it knows (read-only subvolumes, the immutable flag).
//!
//! Writes go through the kernel's page cache, not into it: ENOSPC, EDQUOT and EROFS come from write(2) itself, times are the file
//! system's, and the order of changes is the order of calls. With `writeback_cache` they go into it: then files are opened and
//! closed (`open`), and the kernel has to write before the server looks at files (`write_out`).
//!
//! Locks: none except those of `nodes` and `writers`.

mod attr;
mod data;
mod dir;
mod errno;
mod flags;
mod init;
mod invalidate;
mod ioctl;
mod ioctl_balance;
mod ioctl_btrfs;
mod ioctl_device;
mod ioctl_info;
mod ioctl_numbers;
mod ioctl_source;
mod names;
mod open;
mod prune;
mod statfs;
mod write_out;
mod xattr;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use oleo::Image;
use oleo::fs::Fs;
use oleo_fs::{FsError, InodeRef};

pub(crate) use errno::Errno;
pub(crate) use write_out::looks_at_files;

use crate::ending::Ending;
use crate::nodes::Nodes;
use crate::options::{Atime, MountOptions};
use crate::transport::{Handler, Notifier, Outcome};
use crate::wire::abi::{self, ROOT_ID};
use crate::wire::{Op, Reply, Request};
use crate::writers::Writers;

/// Receives messages: one line each.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Answers the requests of one mount.
pub struct Server {
    image: Arc<Image>,
    fs: Fs,
    nodes: Nodes,
    /// Above this number of nodes the kernel is asked to forget some.
    nodes_max: usize,
    /// The highest number since the file system's cache of inodes was last swept.
    nodes_most: AtomicUsize,
    options: MountOptions,
    atime: Atime,
    notifier: OnceLock<Arc<dyn Notifier>>,
    /// Tells the kernel of pages, once that was needed.
    notice_thread: OnceLock<invalidate::NoticeThread>,
    /// The path of the control socket.
    control: OnceLock<PathBuf>,
    /// The number that the kernel gave the mount's device, as mountinfo shows it.
    device: OnceLock<String>,
    /// The directory that it is mounted on.
    dir: OnceLock<PathBuf>,
    ending: Ending,
    /// Whether the kernel writes back; known from INIT on.
    write_back: OnceLock<bool>,
    writers: Writers,
    unwritten: write_out::Unwritten,
    following: OnceLock<Arc<dyn Newest>>,
    log: Log,
}

/// Who has later moments of a volume than a server.
pub(crate) trait Newest: Send + Sync {
    /// The server of the newest.
    fn newest(&self) -> Arc<Server>;
    /// Counts, by name.
    fn counts(&self) -> Vec<(String, u64)>;
}

/// What answering came to.
type Answer = Result<(), Errno>;

impl Server {
    /// A server that shows `root` as the root of the mount.
    pub fn new(image: Arc<Image>, root: InodeRef, options: MountOptions, log: Log) -> Server {
        let fs = image.fs().clone();
        let atime = if options.read_only { Atime::Never } else { options.atime };
        Server {
            image,
            fs,
            nodes: Nodes::new(root),
            nodes_max: usize::try_from(options.nodes_max.unwrap_or_else(crate::memory::nodes_max))
                .unwrap_or(usize::MAX),
            nodes_most: AtomicUsize::new(0),
            options,
            atime,
            notifier: OnceLock::new(),
            notice_thread: OnceLock::new(),
            control: OnceLock::new(),
            device: OnceLock::new(),
            dir: OnceLock::new(),
            ending: Ending::default(),
            write_back: OnceLock::new(),
            writers: Writers::default(),
            unwritten: write_out::Unwritten::default(),
            following: OnceLock::new(),
            log,
        }
    }

    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// The image that is served.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Sets how the kernel is notified of changes. Called before the first request.
    pub fn set_notifier(&self, notifier: Arc<dyn Notifier>) {
        let _ = self.notifier.set(notifier);
    }

    /// Sets the path of the control socket, which an ioctl returns.
    pub fn set_control(&self, path: PathBuf) {
        let _ = self.control.set(path);
    }

    /// Sets the device that the kernel made for the mount ("major:minor"), by which open files of this mount are
    /// distinguished from others.
    pub(crate) fn set_device(&self, device: String) {
        let _ = self.device.set(device);
    }

    /// Sets the directory that it is mounted on.
    pub(crate) fn set_dir(&self, dir: PathBuf) {
        let _ = self.dir.set(dir);
    }

    /// The directory that it is mounted on.
    pub(crate) fn dir(&self) -> Option<&PathBuf> {
        self.dir.get()
    }

    /// How far the end has come.
    pub(crate) fn ending(&self) -> &Ending {
        &self.ending
    }

    pub(crate) fn device(&self) -> Option<&str> {
        self.device.get().map(String::as_str)
    }

    /// The inode that shows this number, if the kernel knows it.
    fn inode_shown(&self, number: u64) -> Result<InodeRef, Errno> {
        let root = self.inode(ROOT_ID)?;
        if self.nodes.number(root.tree(), root.ino()) == number { Ok(root) } else { self.inode(number) }
    }

    /// The subvolume that is the root of the mount.
    pub(crate) fn root_tree(&self) -> Option<oleo::TreeId> {
        self.nodes.get(ROOT_ID).map(|root| root.tree())
    }

    /// Writes everything to disk.
    ///
    /// # Errors
    /// A device failed.
    pub fn sync(&self) -> oleo::Result<()> {
        self.image.sync().map(drop)
    }

    /// How many inodes the kernel knows.
    pub(crate) fn nodes_known(&self) -> u64 {
        self.nodes.count() as u64
    }

    /// The path of the control socket.
    pub(crate) fn control_path(&self) -> Option<&PathBuf> {
        self.control.get()
    }

    /// How the kernel is notified.
    pub(crate) fn notifier(&self) -> Option<&Arc<dyn Notifier>> {
        self.notifier.get()
    }

    /// Above how many nodes the kernel is asked to forget some.
    pub(crate) fn nodes_max(&self) -> usize {
        self.nodes_max
    }

    /// The kernel has forgotten all nodes.
    pub fn forget_all(&self) {
        self.nodes.clear();
    }

    /// Answers a request that has a reply.
    pub(crate) fn answered(&self, head: &abi::InHeader, op: &Op<'_>, reply: &mut Reply<'_>) -> Outcome {
        match guarded(&self.fs, &self.log, "a request", || self.answer(head, op, reply)).unwrap_or(Err(Errno::EIO)) {
            Ok(()) => Outcome::Done,
            Err(errno) => Outcome::Failed(errno.0),
        }
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Sets who has later moments of the volume, which control requests are about.
    pub(crate) fn set_following(&self, following: Arc<dyn Newest>) {
        let _ = self.following.set(following);
    }

    pub(crate) fn following(&self) -> Option<&dyn Newest> {
        self.following.get().map(|following| &**following)
    }

    fn inode(&self, node: u64) -> Result<InodeRef, Errno> {
        self.nodes.get(node).ok_or(Errno::ESTALE)
    }

    /// The errno of an error for the caller; errors that need attention are also logged.
    fn errno(&self, what: &str, error: &FsError) -> Errno {
        let errno = Errno::from(error);
        if is_serious(errno) {
            (self.log)(&format!("{what}: {error}"));
        }
        errno
    }

    /// The same for a file, which the log names.
    fn errno_of(&self, what: &str, inode: &InodeRef, error: &FsError) -> Errno {
        if !is_serious(Errno::from(error)) {
            return Errno::from(error);
        }
        let paths = self.image.paths(inode).unwrap_or_default();
        let path = paths.first().map_or_else(|| "a file without a name".to_owned(), |p| p.escape_ascii().to_string());
        self.errno(&format!("{what} {path}"), error)
    }

    fn answer(&self, head: &abi::InHeader, op: &Op<'_>, reply: &mut Reply<'_>) -> Answer {
        let node = head.nodeid;
        match op {
            Op::Lookup { name } => self.lookup(node, name, reply),
            Op::GetAttr => self.getattr(node, reply),
            Op::Statx(args) => self.statx(node, args, reply),
            Op::SetAttr(args) => self.setattr(node, args, reply),
            Op::ReadLink => self.readlink(node, reply),
            Op::Symlink { name, target } => self.symlink(head, name, target, reply),
            Op::Mknod { args, name } => self.mknod(head, args, name, reply),
            Op::Mkdir { args, name } => self.mkdir(head, args, name, reply),
            Op::Unlink { name } => self.unlink(node, name),
            Op::Rmdir { name } => self.rmdir(node, name),
            Op::Rename { to_dir, flags, from, to } => self.rename(head, from, *to_dir, to, *flags),
            Op::Link { node: file, name } => self.link(*file, node, name, reply),
            Op::Tmpfile { args } => self.tmpfile(head, args, reply),
            Op::Read(args) => self.read(node, args, reply),
            Op::Write { args, data } => self.write(node, args, data, reply),
            Op::Fallocate(args) => self.fallocate(node, args),
            Op::Lseek(args) => self.lseek(node, args, reply),
            Op::CopyFileRange { args, wide } => self.copy_file_range(node, args, *wide, reply),
            Op::Fsync { data_only } | Op::FsyncDir { data_only } => self.fsync(node, *data_only),
            Op::SyncFs if self.is_own_sync(head.pid) => Ok(()),
            Op::SyncFs => self.sync_fs(),
            Op::ReadDir(args) => self.readdir(node, args, reply),
            Op::ReadDirPlus(args) => self.readdir_plus(node, args, reply),
            Op::GetXattr { size, name } => self.getxattr(node, *size, name, reply),
            Op::ListXattr { size } => self.listxattr(head, *size, reply),
            Op::SetXattr { args, name, value } => self.setxattr(node, args, name, value),
            Op::RemoveXattr { name } => self.removexattr(node, name),
            Op::Ioctl { args, data } => self.ioctl(head, args, data, reply),
            Op::StatFs => self.statfs(reply),
            Op::Release(args) => {
                self.release(node, args);
                Ok(())
            }
            Op::ReleaseDir => Ok(()),
            // The end of a mount whose source the kernel holds: umount(2) returns when this is answered.
            Op::Destroy if self.ending().is_waited_for() => Ok(()),
            Op::Destroy => self.sync_fs(),
            Op::Forget { .. } | Op::BatchForget(_) | Op::Interrupt => Ok(()),
            Op::Open(args) if self.writes_back() => self.open(node, args, reply),
            Op::Create { args, name } if self.writes_back() => self.create(head, args, name, reply),
            // The kernel does without from now on; see above.
            Op::Open(_) | Op::OpenDir(_) | Op::Flush | Op::Create { .. } | Op::Access => Err(Errno::ENOSYS),
            Op::Init(_) | Op::Unknown(_) => Err(Errno::ENOSYS),
        }
    }
}

/// Runs code that may panic. After a panic it is unknown what was changed: from then on nothing is changed or
/// committed, so that the image stays as of its last commit. The panic itself has been reported on standard error.
pub(crate) fn guarded<R>(fs: &Fs, log: &Log, what: &str, work: impl FnOnce() -> R) -> Option<R> {
    let done = catch_unwind(AssertUnwindSafe(work)).ok();
    if done.is_none() {
        let why = format!("{what} panicked, which is a bug");
        log(&format!("the volume is read-only from now on, as of its last commit: {why}"));
        fs.refuse_changes(&why);
    }
    done
}

/// Whether the error needs attention, whatever the caller does with it.
fn is_serious(errno: Errno) -> bool {
    matches!(errno.0, oleo_fs::errno::EIO | oleo_fs::errno::EUCLEAN | oleo_fs::errno::EOVERFLOW)
}

impl Handler for Server {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        match request.op {
            Op::Forget { nlookup } => {
                self.nodes.forget(request.head.nodeid, nlookup);
                return Outcome::Silent;
            }
            Op::BatchForget(list) => {
                for one in list {
                    self.nodes.forget(one.nodeid, one.nlookup);
                }
                return Outcome::Silent;
            }
            // Operations are short, or cannot be taken back.
            Op::Interrupt => return Outcome::Silent,
            _ => {}
        }
        self.answered(&request.head, &request.op, reply)
    }

    fn waits_for_another(&self, head: &abi::InHeader, args: &[u8]) -> bool {
        match head.opcode {
            abi::opcode::WRITE => self.drops_pages(head.nodeid, args),
            abi::opcode::LSEEK => self.writes_back() && self.writers.has(head.nodeid),
            abi::opcode::IOCTL => self.writes_back() && self.writers.any(),
            _ => false,
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: after a panic nothing is changed or committed any more, and the disk keeps its state; reading continues.
    #[test]
    fn a_panic_ends_changes() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("image");
        let options = oleo::mkfs::BuildOptions::default().size(Some(128 << 20));
        oleo::mkfs::build(&[&path], options).unwrap();
        let image = Image::open(&path, &oleo::OpenOptions::writing()).unwrap();
        let make = |image: &Image, name: &[u8]| image.symlink(&image.top().unwrap(), b"target", name);
        make(&image, b"before").unwrap();
        image.sync().unwrap();
        make(&image, b"after").unwrap();
        let found = |image: &Image, name: &[u8]| image.fs().lookup(&image.top().unwrap(), name).unwrap();
        let log: Log = Arc::new(|_| {});
        assert_eq!(guarded(image.fs(), &log, "a test", || 7), Some(7));
        assert!(image.fs().poisoned_by().is_none());
        assert_eq!(guarded(image.fs(), &log, "a test", || -> u8 { panic!("here") }), None);
        assert!(image.fs().poisoned_by().unwrap().contains("a test panicked"));
        assert!(make(&image, b"more").is_err() && image.sync().is_err());
        assert!(found(&image, b"after").is_some());
        drop(image);
        let image = Image::open(&path, &oleo::OpenOptions::default()).unwrap();
        assert!(found(&image, b"before").is_some() && found(&image, b"after").is_none());
    }
}
