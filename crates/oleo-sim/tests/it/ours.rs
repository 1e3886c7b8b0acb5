//! The library as something to walk and to run scripts on.
//!
//! [`Ours`] plays the part that the VFS plays for the kernel: it looks names up and refuses what never reaches a file
//! system. Errors must then be the kernel's, errno for errno.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use oleo::balance::{BalanceArgs, BalanceEnd, Filters};
use oleo::control::{Caller, NewSize, Request, execute};
use oleo::mkfs::Profile;
use oleo::{Image, OpenOptions};
use oleo_format::{BlockGroupFlags, Compression, Corruption, Ino, InodeFlags};
use oleo_fs::data::{CloneRange, ExtentKind, KeepSize};
use oleo_fs::{
    FileKind, Follow, Fs, FsError, InodeRef, NewInode, NewKind, NewSubvol, Rdev, ReadOnly, RenameMode, SetAttr,
    SnapshotOptions, Time as FsTime, XattrMode,
};
use oleo_sim::manifest::{Attr, Detail, Kind, Manifest, Piece, Time, TreeView};
use oleo_sim::script::{ANY_ANSWER, GroupKind, Keep, Op, RenameHow, Style, Target};
use rustix::io::Errno;

/// An open image as a tree to walk.
pub struct OleoTree<'a> {
    fs: &'a Fs,
    top: InodeRef,
}

impl<'a> OleoTree<'a> {
    /// Everything below the top level.
    pub fn new(image: &'a Image) -> Result<OleoTree<'a>> {
        Ok(OleoTree { fs: image.fs(), top: image.top()? })
    }

    /// Everything below a directory.
    pub fn below(image: &'a Image, top: InodeRef) -> OleoTree<'a> {
        OleoTree { fs: image.fs(), top }
    }
}

fn time(t: FsTime) -> Time {
    Time { sec: t.sec, nsec: t.nsec }
}

fn kind(kind: FileKind) -> Result<Kind> {
    Ok(match kind {
        FileKind::File => Kind::File,
        FileKind::Dir => Kind::Dir,
        FileKind::Symlink => Kind::Symlink,
        FileKind::CharDevice => Kind::Char,
        FileKind::BlockDevice => Kind::Block,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
        FileKind::Unknown => anyhow::bail!("an inode of no type"),
    })
}

impl TreeView for OleoTree<'_> {
    type Node = InodeRef;

    fn root(&self) -> Result<InodeRef> {
        Ok(self.top.clone())
    }

    fn list(&self, dir: &InodeRef) -> Result<Vec<(Vec<u8>, InodeRef)>> {
        const BATCH: usize = 100;
        let (mut out, mut after) = (Vec::new(), 0);
        if dir.is_empty_subvol_dir() {
            return Ok(out);
        }
        loop {
            let batch = self.fs.readdir(dir, after, BATCH)?;
            let Some(last) = batch.last() else { return Ok(out) };
            anyhow::ensure!(last.index > after, "listing goes back");
            after = last.index;
            for entry in batch {
                let inode = self.fs.open_entry(dir, &entry)?;
                let inode = inode.ok_or_else(|| anyhow::anyhow!("{} leads nowhere", entry.name.escape_ascii()))?;
                anyhow::ensure!(
                    inode.is_empty_subvol_dir() || self.fs.attr(&inode).kind == entry.kind,
                    "type of entry and inode differ"
                );
                let found = self.fs.lookup(dir, &entry.name)?;
                anyhow::ensure!(found.is_some(), "{} is listed but not found", entry.name.escape_ascii());
                out.push((entry.name, inode));
            }
        }
    }

    fn attr(&self, node: &InodeRef) -> Result<Attr> {
        let a = self.fs.attr(node);
        let device = matches!(a.kind, FileKind::CharDevice | FileKind::BlockDevice);
        Ok(Attr {
            kind: kind(a.kind)?,
            mode: a.mode & 0o7777,
            uid: a.uid,
            gid: a.gid,
            size: a.size,
            nlink: a.nlink.into(),
            rdev: if device { (a.rdev.major, a.rdev.minor) } else { (0, 0) },
            ino: a.ino.0,
            tree: a.subvol.0,
            atime: time(a.atime),
            mtime: time(a.mtime),
            ctime: time(a.ctime),
            otime: Some(time(a.otime)),
            empty_subvol_dir: node.is_empty_subvol_dir(),
        })
    }

    fn read(&self, file: &InodeRef, at: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.fs.read(file, at, buf)?)
    }

    fn read_link(&self, link: &InodeRef) -> Result<Vec<u8>> {
        Ok(self.fs.read_link(link)?)
    }

    fn xattrs(&self, node: &InodeRef) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        Ok(self.fs.xattrs(node)?.into_iter().collect())
    }

    fn data_runs(&self, file: &InodeRef, size: u64) -> Result<Vec<(u64, u64)>> {
        let (mut out, mut at) = (Vec::new(), 0);
        while at < size {
            let Some(data) = self.fs.seek_data(file, at)? else { break };
            let hole = self.fs.seek_hole(file, data)?.unwrap_or(size);
            anyhow::ensure!(hole > data, "a hole at {hole}, not after the data at {data}");
            out.push((data, hole - data));
            at = hole;
        }
        Ok(out)
    }

    fn room(&self, file: &InodeRef) -> Result<Option<Vec<(u64, u64, bool)>>> {
        let all = self.fs.extents(file, 0, u64::MAX)?;
        Ok(Some(all.into_iter().map(|e| (e.at, e.len, e.kind == ExtentKind::Unwritten)).collect()))
    }

    fn flags(&self, node: &InodeRef) -> Result<Option<u64>> {
        Ok(Some(self.fs.attr(node).flags.bits()))
    }

    fn pieces(&self, file: &InodeRef) -> Result<Vec<Piece>> {
        let all = self.fs.extents(file, 0, u64::MAX)?;
        let mapped = all.into_iter().filter(|e| e.disk.is_some() || e.kind == ExtentKind::Inline);
        Ok(mapped
            .map(|e| Piece {
                at: e.at,
                len: e.len,
                address: e.disk.map_or(0, |d| d.0),
                unwritten: e.kind == ExtentKind::Unwritten,
                inline: e.kind == ExtentKind::Inline,
                encoded: e.compression != Compression::None,
            })
            .collect())
    }
}

/// The library as a target for scripts.
pub struct Ours {
    image: Option<Arc<Image>>,
    devices: Vec<PathBuf>,
    options: OpenOptions,
    /// The directory in which scripts run, from the top level; empty for all of it.
    top: String,
    /// What moves groups.
    mover: Mover,
}

/// How block groups are moved if a script requests it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mover {
    /// The engine, group by group.
    #[default]
    Engine,
    /// A balance, which has its item on disk meanwhile, and is paused and resumed on the way.
    Balance,
}

impl Ours {
    /// Opens a file system for scripts that play in `top`.
    pub fn open(devices: &[PathBuf], options: OpenOptions, top: &str) -> Result<Ours> {
        let (devices, top) = (devices.to_vec(), top.to_owned());
        let mut ours = Ours { image: None, devices, options, top, mover: Mover::Engine };
        ours.image = Some(Arc::new(ours.opened()?));
        Ok(ours)
    }

    /// Scripts on an image that is open already; it cannot be reopened.
    pub fn around(image: Image) -> Ours {
        Ours::sharing(Arc::new(image), "")
    }

    /// Scripts that play in `top` of an image that others use too; it cannot be reopened or closed here.
    pub fn sharing(image: Arc<Image>, top: &str) -> Ours {
        let (options, top) = (OpenOptions::default(), top.to_owned());
        Ours { image: Some(image), devices: Vec::new(), options, top, mover: Mover::Engine }
    }

    /// The same with another way of moving groups.
    #[allow(dead_code, reason = "for the states of crashes")]
    pub fn moved_by(self, mover: Mover) -> Ours {
        Ours { mover, ..self }
    }

    /// A balance of all groups of one kind; it also moves the changes so far. It begins paused, as after a crash.
    fn balance(&self, kind: GroupKind, convert: Option<Profile>) -> Result<(), FsError> {
        let filters = Some(Filters::default().convert(convert));
        let mut args = BalanceArgs::default().force(true);
        *(match kind {
            GroupKind::Data => &mut args.data,
            GroupKind::Metadata => &mut args.metadata,
            GroupKind::System => &mut args.system,
        }) = filters;
        let balancer = self.image().balancer();
        let wrong = |e: &dyn std::fmt::Display| FsError::Corruption(Corruption::new("balance", "end", e, "done"));
        balancer.start(args).map_err(|e| wrong(&e))?;
        balancer.interrupt();
        match balancer.run() {
            Some(BalanceEnd::Paused) => {}
            end => return Err(wrong(&format!("{end:?}, not paused"))),
        }
        balancer.resume().map_err(|e| wrong(&e))?;
        match balancer.run() {
            Some(BalanceEnd::Done) => Ok(()),
            Some(BalanceEnd::Failed { errno, .. }) if errno == oleo_fs::errno::ENOSPC => Ok(()),
            end => Err(wrong(&format!("{end:?}"))),
        }
    }

    /// As `apply`, for devices that may fail: nothing panics.
    pub fn try_apply(&mut self, op: &Op) -> Result<(), FsError> {
        self.run(op)
    }

    fn opened(&self) -> Result<Image> {
        open(&self.devices, self.options.clone().access(oleo::Access::Write))
    }

    /// The open image.
    pub fn image(&self) -> &Image {
        self.image.as_deref().expect("open until closed")
    }

    fn fs(&self) -> &Fs {
        self.image().fs()
    }

    /// Cleans up deleted subvolumes and files, commits and closes.
    pub fn close(mut self) -> Result<()> {
        let image = self.image.take().expect("open until closed");
        image.clean()?;
        let image = Arc::into_inner(image).ok_or_else(|| anyhow::anyhow!("others still use the image"))?;
        Ok(image.close()?)
    }

    fn start(&self) -> Result<InodeRef, FsError> {
        let top = self.fs().root(oleo_format::TreeId::FS)?;
        self.fs().resolve(&top, self.top.as_bytes(), Follow::No)
    }

    fn find(&self, path: &str) -> Result<InodeRef, FsError> {
        self.fs().resolve(&self.start()?, path.as_bytes(), Follow::No)
    }

    /// The directory that the last name of a path is in, and that name.
    fn parent<'p>(&self, path: &'p str) -> Result<(InodeRef, &'p [u8]), FsError> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.fs().resolve(&self.start()?, dir.as_bytes(), Follow::Yes)?;
        if self.fs().attr(&dir).kind != FileKind::Dir {
            return Err(FsError::NotDir);
        }
        Ok((dir, name.as_bytes()))
    }

    /// As `parent`; the name must be free.
    fn free<'p>(&self, path: &'p str) -> Result<(InodeRef, &'p [u8]), FsError> {
        let (dir, name) = self.parent(path)?;
        match self.fs().lookup(&dir, name)? {
            Some(_) => Err(FsError::Exists),
            None => Ok((dir, name)),
        }
    }

    /// A regular file that may be written to.
    fn file(&self, path: &str) -> Result<InodeRef, FsError> {
        let inode = self.find(path)?;
        match self.fs().attr(&inode).kind {
            FileKind::File => Ok(inode),
            FileKind::Dir => Err(FsError::IsDir),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    fn file_or_dir(&self, path: &str) -> Result<InodeRef, FsError> {
        let inode = self.find(path)?;
        match self.fs().attr(&inode).kind {
            FileKind::File | FileKind::Dir => Ok(inode),
            _ => Err(FsError::Invalid("neither a file nor a directory")),
        }
    }

    fn writable(&self, path: &str) -> Result<InodeRef, FsError> {
        let file = self.file(path)?;
        if file.subvol().is_read_only() { Err(FsError::ReadOnly("subvolume")) } else { Ok(file) }
    }

    fn subvol(&self, path: &str) -> Result<InodeRef, FsError> {
        let inode = self.find(path)?;
        if self.fs().attr(&inode).kind != FileKind::Dir {
            return Err(FsError::NotDir);
        }
        if inode.is_empty_subvol_dir() || inode.ino() != Ino::ROOT_DIR {
            return Err(FsError::Invalid("not a subvolume"));
        }
        Ok(inode)
    }

    fn new_inode(&self, path: &str, kind: NewKind<'_>, mode: u32) -> Result<(), FsError> {
        let (dir, name) = self.free(path)?;
        let inode = self.fs().create(&dir, name, &NewInode::new(kind, mode))?;
        if !matches!(kind, NewKind::Symlink(_)) {
            // As the other side does it, in case the directory has a default ACL.
            self.fs().set_attr(&inode, &SetAttr::default().mode(Some(mode)))?;
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str, how: RenameHow) -> Result<(), FsError> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let inside = |path: &str, top: &str| path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
        let source = self.fs().lookup(&from_dir, from_name)?.ok_or(FsError::NotFound)?;
        let target = self.fs().lookup(&to_dir, to_name)?;
        match how {
            RenameHow::NoReplace if target.is_some() => return Err(FsError::Exists),
            RenameHow::Exchange if target.is_none() => return Err(FsError::NotFound),
            _ => {}
        }
        if inside(to, from) || (how == RenameHow::Exchange && inside(from, to)) {
            return Err(FsError::Invalid("into itself"));
        }
        if inside(from, to) {
            return Err(FsError::NotEmpty);
        }
        let is_dir = |inode: &InodeRef| self.fs().attr(inode).kind == FileKind::Dir;
        if let Some(target) = target.as_ref().filter(|_| how == RenameHow::Plain)
            && !from_dir.subvol().is_read_only()
            && !to_dir.subvol().is_read_only()
        {
            match (is_dir(&source), is_dir(target)) {
                (true, false) => return Err(FsError::NotDir),
                (false, true) => return Err(FsError::IsDir),
                _ => {}
            }
        }
        // A directory that gets another parent is written to, and so is one that comes back for it.
        let moved = |inode: &InodeRef| is_dir(inode) && inode.subvol().is_read_only();
        let comes_back = target.as_ref().filter(|_| how == RenameHow::Exchange);
        if !from_dir.same(&to_dir) && (moved(&source) || comes_back.is_some_and(moved)) {
            return Err(FsError::ReadOnly("subvolume"));
        }
        let mode = match how {
            RenameHow::Plain => RenameMode::Replace,
            RenameHow::NoReplace => RenameMode::NoReplace,
            RenameHow::Exchange => RenameMode::Exchange,
        };
        self.fs().rename(&from_dir, from_name, &to_dir, to_name, mode)
    }

    fn run(&mut self, op: &Op) -> Result<(), FsError> {
        let fs = self.fs();
        match op {
            Op::Create { path, mode } => self.new_inode(path, NewKind::File, *mode),
            Op::Mkdir { path, mode } => self.new_inode(path, NewKind::Dir, *mode),
            Op::Symlink { path, target } => self.new_inode(path, NewKind::Symlink(target.as_bytes()), 0o777),
            Op::Mknod { path, mode, major, minor } => {
                let rdev = Rdev { major: *major, minor: *minor };
                self.new_inode(path, if *major == 0 { NewKind::Fifo } else { NewKind::CharDevice(rdev) }, *mode)
            }
            Op::Write { path, at, len, seed, style } => {
                fs.write(&self.writable(path)?, *at, &Style::data(*style, *seed, *len))
            }
            Op::Truncate { path, size } => fs.truncate(&self.writable(path)?, *size),
            Op::Punch { path, at, len } => {
                let file = self.writable(path)?;
                let before = fs.attr(&file).mtime;
                fs.punch_hole(&file, *at, *len)?;
                // The kernel sets the times even if there is nothing to punch.
                if fs.attr(&file).mtime != before {
                    return Ok(());
                }
                let now = fs.options().clock.now();
                fs.set_attr(&file, &SetAttr::default().mtime(Some(now))).map(drop)
            }
            Op::Zero { path, at, len, keep_size } => fs.zero_range(&self.writable(path)?, *at, *len, keep(*keep_size)),
            Op::Prealloc { path, at, len, keep_size } => {
                fs.preallocate(&self.writable(path)?, *at, *len, keep(*keep_size))
            }
            Op::Clone { from, at, len, to, to_at } => {
                let (from, to) = (self.file(from)?, self.writable(to)?);
                // To the ioctl, too, a length of 0 means up to the end; scripts never ask for that.
                fs.clone_range(&from, &to, &CloneRange { from: *at, len: *len, to: *to_at })
            }
            Op::Link { from, to } => {
                let file = self.find(from)?;
                let (dir, name) = self.free(to)?;
                if dir.subvol().is_read_only() {
                    return Err(FsError::ReadOnly("subvolume"));
                }
                if fs.attr(&file).kind == FileKind::Dir {
                    return Err(FsError::NotPermitted("a second name for a directory"));
                }
                fs.link(&file, &dir, name)
            }
            Op::Unlink { path } => {
                let (dir, name) = self.parent(path)?;
                fs.lookup(&dir, name)?.ok_or(FsError::NotFound)?;
                fs.unlink(&dir, name)
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                fs.lookup(&dir, name)?.ok_or(FsError::NotFound)?;
                fs.rmdir(&dir, name)
            }
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::SetXattr { path, name, len, seed } => {
                let inode = self.user_xattrs(path)?;
                fs.xattr_set(&inode, name.as_bytes(), &Style::Random.data(*seed, *len), XattrMode::Any)
            }
            Op::RemoveXattr { path, name } => fs.xattr_remove(&self.user_xattrs(path)?, name.as_bytes()),
            Op::Chmod { path, mode } => {
                let inode = self.find(path)?;
                if fs.attr(&inode).kind == FileKind::Symlink {
                    return Err(FsError::NotSupported("mode of a symlink"));
                }
                fs.set_attr(&inode, &SetAttr::default().mode(Some(*mode))).map(drop)
            }
            Op::Chown { path, uid, gid } => {
                let set = SetAttr::default().uid(Some(*uid)).gid(Some(*gid));
                fs.set_attr(&self.find(path)?, &set).map(drop)
            }
            Op::Times { path, sec, nsec } => {
                let mtime = FsTime { sec: *sec, nsec: *nsec };
                let atime = FsTime { sec: *sec - 3600, nsec: *nsec };
                let set = SetAttr::default().mtime(Some(mtime)).atime(Some(atime));
                fs.set_attr(&self.find(path)?, &set).map(drop)
            }
            // The kernel returns success if the property means nothing.
            Op::Keep { path, keep } => {
                let inode = self.file_or_dir(path)?;
                let flag = match keep {
                    Keep::All => InodeFlags::SYNC,
                    Keep::Names => InodeFlags::DIRSYNC,
                };
                let flags = Some(fs.attr(&inode).flags | flag);
                fs.set_attr(&inode, &SetAttr::default().flags(flags)).map(drop)
            }
            Op::Compress { path, .. } if !self.can_compress(path)? => Ok(()),
            Op::Compress { path, algo } if algo.is_empty() => fs.xattr_remove(&self.find(path)?, oleo_fs::COMPRESSION),
            Op::Compress { path, algo } => {
                fs.xattr_set(&self.find(path)?, oleo_fs::COMPRESSION, algo.as_bytes(), XattrMode::Any)
            }
            Op::Subvol { path } => {
                let (dir, name) = self.free(path)?;
                fs.subvol_create(&dir, name, &NewSubvol::default()).map(drop)
            }
            Op::Snapshot { from, to, read_only } => {
                let source = self.subvol(from)?;
                let (dir, name) = self.free(to)?;
                let options = SnapshotOptions::default().read_only(*read_only);
                fs.snapshot(source.tree(), &dir, name, options).map(drop)
            }
            Op::DeleteSubvol { path } => {
                let subvol = self.subvol(path)?;
                fs.subvol_delete(subvol.tree())
            }
            Op::SetReadOnly { path, read_only } => {
                let options = if *read_only { ReadOnly::Yes } else { ReadOnly::No };
                fs.set_read_only(self.subvol(path)?.tree(), options)
            }
            Op::Fsync { path } => fs.fsync(&self.file_or_dir(path)?),
            Op::Fdatasync { path } => fs.fdatasync(&self.file_or_dir(path)?),
            Op::Tmpfile { path, len, seed, sync } => {
                let (dir, name) = self.free(path)?;
                let file = fs.tmpfile(&dir, &NewInode::new(NewKind::File, 0o644))?;
                fs.write(&file, 0, &Style::Random.data(*seed, *len))?;
                if *sync {
                    fs.fsync(&file)?;
                }
                fs.link(&file, &dir, name)
            }
            Op::Balance { kind } if self.mover == Mover::Balance => self.balance(*kind, None),
            Op::Convert { kind, mirrored } if self.mover == Mover::Balance => {
                self.balance(*kind, Some(if *mirrored { Profile::Raid1 } else { Profile::Single }))
            }
            Op::Balance { kind } => {
                fs.sync()?;
                move_groups(fs, flags_of(*kind)).map(drop)
            }
            Op::Convert { kind, mirrored } => {
                fs.sync()?;
                let profile = if *mirrored { BlockGroupFlags::RAID1 } else { BlockGroupFlags::empty() };
                fs.engine().set_profile(flags_of(*kind) | profile)?;
                move_groups(fs, flags_of(*kind)).map(drop)
            }
            Op::Rescan => self.image().quota_rescan().map_err(|_| FsError::Invalid("quota")),
            Op::Trim => self.request(Request::Trim { start: 0, len: u64::MAX, min_len: 0 }),
            Op::Resize { len } => self.request(Request::Resize { devid: None, to: NewSize::To(*len) }),
            Op::Sync => fs.sync().map(drop),
            Op::Reopen => {
                fs.sync()?;
                self.image = None;
                self.image = Some(Arc::new(self.opened().expect("it was open a moment ago")));
                Ok(())
            }
        }
    }

    /// What the command asks for on whole file systems.
    fn request(&self, request: Request) -> Result<(), FsError> {
        let answer = execute(self.image(), &Caller::owner(), request);
        let wrong = |e: oleo::control::Error| match e.errno {
            oleo_fs::errno::ENOSPC => FsError::NoSpace,
            _ => FsError::Corruption(Corruption::new("request", "answer", &e.message, "done")),
        };
        answer.map(drop).map_err(wrong)
    }

    fn can_compress(&self, path: &str) -> Result<bool, FsError> {
        let inode = self.find(path)?;
        match self.fs().attr(&inode).kind {
            FileKind::File | FileKind::Dir => Ok(true),
            FileKind::Symlink if inode.subvol().is_read_only() => Err(FsError::ReadOnly("subvolume")),
            _ => Ok(false),
        }
    }

    /// Whether a path leads to, or just into, the empty directory in place of a subvolume in its parent's snapshot.
    fn meets_empty_subvol_dir(&self, path: &str) -> bool {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        [path, parent].iter().any(|p| self.find(p).is_ok_and(|inode| inode.is_empty_subvol_dir()))
    }

    /// Attributes of users are for files and directories alone.
    fn user_xattrs(&self, path: &str) -> Result<InodeRef, FsError> {
        let inode = self.find(path)?;
        match self.fs().attr(&inode).kind {
            FileKind::File | FileKind::Dir => Ok(inode),
            _ => Err(FsError::NotPermitted("user attributes are for files and directories")),
        }
    }
}

fn keep(keep_size: bool) -> KeepSize {
    if keep_size { KeepSize::Yes } else { KeepSize::No }
}

impl Target for Ours {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        self.run(op).map_err(|e| match &e {
            FsError::Corruption(_) | FsError::Txn(_) | FsError::Tree(_) => panic!("{op:?}: {e}"),
            // The kernel treats each operation on these differently, and forgets the changes.
            _ if op.paths().iter().any(|p| self.meets_empty_subvol_dir(p)) => ANY_ANSWER,
            _ => Errno::from_raw_os_error(e.errno()),
        })
    }

    fn manifest(&mut self, detail: Detail) -> Result<Manifest> {
        self.fs().sync()?;
        Manifest::of(&OleoTree::below(self.image(), self.start()?), detail)
    }
}

/// Opens an image for reading and writes down everything in it.
pub fn manifest_of(devices: &[PathBuf], detail: Detail) -> Result<Manifest> {
    let image = open_to_read(devices)?;
    Manifest::of(&OleoTree::new(&image)?, detail)
}

fn flags_of(kind: GroupKind) -> BlockGroupFlags {
    match kind {
        GroupKind::Data => BlockGroupFlags::DATA,
        GroupKind::Metadata => BlockGroupFlags::METADATA,
        GroupKind::System => BlockGroupFlags::SYSTEM,
    }
}

/// Moves everything in the groups of some kinds that are there now; how many extents and blocks moved.
pub fn move_groups(fs: &Fs, kinds: BlockGroupFlags) -> Result<u64, FsError> {
    let engine = fs.engine();
    let mut all = 0;
    for group in engine.space().groups().into_iter().filter(|group| group.flags.intersects(kinds)) {
        let moved = engine.relocate_group(group.start, &|_| true)?.unwrap_or_default();
        all += moved.blocks + moved.extents;
    }
    Ok(all)
}

/// Opens an image for reading.
pub fn open_to_read(devices: &[PathBuf]) -> Result<Image> {
    open(devices, OpenOptions::default())
}

/// Opens an image. Another test of this process may just be starting a tool: until that child has executed its program,
/// it holds what we have closed, and the image is in use. So opening is retried for a while, unless this process itself
/// still has the image open: that is a leaked descriptor.
pub fn open(devices: &[PathBuf], options: OpenOptions) -> Result<Image> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let options = options.devices(devices[1..].to_vec());
    let begun = Instant::now();
    loop {
        match Image::open(&devices[0], &options) {
            Err(e) if e.to_string().contains("in use") && begun.elapsed() < PATIENCE => {
                let ours = devices.iter().find(|device| is_open_here(device));
                anyhow::ensure!(ours.is_none(), "this process has not closed {ours:?}: {e}");
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return Ok(result?),
        }
    }
}

/// Whether this process has a descriptor of the file.
fn is_open_here(file: &Path) -> bool {
    let Ok(want) = file.canonicalize() else { return false };
    let all = std::fs::read_dir("/proc/self/fd").expect("a process sees its descriptors");
    all.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == want))
}
