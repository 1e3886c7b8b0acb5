//! Who asks, and what they may do: the rules of btrfs.
//!
//! | to do | needs |
//! |---|---|
//! | make a subvolume | write and search permission for the directory |
//! | make a snapshot | the same, and to own the source's root directory |
//! | delete a subvolume | to be privileged; or the mount's `user_subvol_rm_allowed`, write and search permission for the subvolume's root directory and for the directory that it is in, and the sticky bit's consent; not of a read-only one |
//! | make a subvolume read-only, change properties | to own it |
//! | defragment a file | write permission |
//! | list subvolumes, resolve numbers to names, resize, set the label or the default, trim | to be privileged |
//!
//! | usage, stats, sync | nothing; names of files of the host, and of what nobody has named, are for the privileged |
//!
//! Privileged is who has `CAP_SYS_ADMIN` where the server is, as the kernel asks of callers of btrfs, and the ordinary user who
//! serves the mount: the volume is theirs. Being user 0 is not enough: in a container, or in a user namespace of its
//! own, that is not root. Who comes through the socket must be user 0 besides: what is known of a process there is what it is
//! when it is looked at, and it may have started another program since it connected.
//!
//! A caller who comes through the socket says which inode is meant by its number, not by having opened it. So for those
//! who are not privileged, every directory above it must be searchable ([`Caller::must_reach`]), as it would have to be
//! for opening it by its path, up to the root of the mount, outside of which there is nothing for them.
//! Whoever comes from elsewhere may name at most one entry below an inode, and no links are followed: not even for root, in
//! whose way somebody may have put one.
//! Where the kernel has resolved a path for the caller (an ioctl), this is not looked at again.

use oleo_device::process::{CAP_SYS_ADMIN, Process};
use oleo_format::TreeId;
use oleo_fs::{Attr, FileKind, Follow, Fs, InodeRef, errno};

use super::error::Error;
use super::location::Location;
use crate::Image;

/// The permission to read.
pub(super) const READ: u32 = 4;
/// The permission to write.
pub(super) const WRITE: u32 = 2;
/// The permission to search a directory.
pub(super) const SEARCH: u32 = 1;

/// `CAP_DAC_OVERRIDE` and `CAP_FOWNER` of linux/capability.h.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_FOWNER: u32 = 3;
/// Which of a process's users counts for sockets, and which for files.
const EFFECTIVE: usize = 1;
const FILE_SYSTEM: usize = 3;

/// Directories from anything up to the top level, at most: as deep as a path can be.
const DEPTH_MAX: usize = 4096;
/// Permission bits of a new subvolume before the umask is taken off.
const SUBVOL_MODE: u32 = 0o777;

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files do not get.
    pub umask: u32,
    /// Who may administer the machine, or the ordinary user who serves the mount.
    pub privileged: bool,
    /// Its effective capabilities where the server is, a bit each; only of who is privileged where it came through the socket.
    pub capabilities: u64,
    /// The process, where it is another one.
    pub pid: Option<u32>,
    /// Whoever has opened the image: paths may have several names, and links are followed.
    pub is_owner: bool,
    /// The kernel has resolved the path for this caller.
    pub resolved: bool,
    /// The mount's option `user_subvol_rm_allowed`.
    pub user_subvol_rm_allowed: bool,
    /// The root of the mount. It cannot be deleted, and what is not in it is nothing for those who are not privileged.
    pub keep: Option<TreeId>,
}

impl Caller {
    /// Whoever has opened the image: everything is allowed.
    pub fn owner() -> Caller {
        Caller {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            umask: 0o022,
            privileged: true,
            capabilities: 0,
            pid: None,
            is_owner: true,
            resolved: true,
            user_subvol_rm_allowed: true,
            keep: None,
        }
    }

    /// A thread that waits in a call on the mount. What it may do is looked up; where it is gone, or another user's by now, it
    /// has no groups but its own, and no privileges.
    pub fn by_call(pid: u32, uid: u32, gid: u32) -> Caller {
        let (found, same) = Caller::look_up(pid, uid, FILE_SYSTEM);
        let capabilities = if same && found.is_at_home() { found.effective } else { 0 };
        Caller {
            privileged: capabilities >> CAP_SYS_ADMIN & 1 == 1 || (same && serves(uid, &found)),
            capabilities,
            resolved: true,
            ..Caller::stranger(pid, uid, gid, same.then_some(found))
        }
    }

    /// A process that has connected to the control socket.
    pub fn by_socket(pid: u32, uid: u32, gid: u32) -> Caller {
        let (found, same) = Caller::look_up(pid, uid, EFFECTIVE);
        let is_root = same && uid == 0 && found.can(CAP_SYS_ADMIN);
        Caller {
            privileged: is_root || (same && serves(uid, &found)),
            capabilities: if is_root { found.effective } else { 0 },
            resolved: false,
            ..Caller::stranger(pid, uid, gid, same.then_some(found))
        }
    }

    /// A process, and whether it is still of that user.
    fn look_up(pid: u32, uid: u32, which: usize) -> (Process, bool) {
        let found = Process::of(pid);
        let same = found.uids.get(which) == Some(&uid);
        (found, same)
    }

    fn stranger(pid: u32, uid: u32, gid: u32, found: Option<Process>) -> Caller {
        let found = found.unwrap_or(Process { umask: 0o022, ..Process::default() });
        Caller {
            uid,
            gid,
            groups: found.groups,
            umask: found.umask,
            privileged: false,
            capabilities: 0,
            pid: Some(pid),
            is_owner: false,
            resolved: false,
            user_subvol_rm_allowed: false,
            keep: None,
        }
    }

    fn has_capability(&self, number: u32) -> bool {
        self.privileged || self.capabilities >> number & 1 == 1
    }

    /// Permission bits of a new subvolume's root directory.
    pub(super) fn subvol_mode(&self) -> u32 {
        SUBVOL_MODE & !self.umask
    }

    /// Fails for everybody but root and the server's owner.
    pub(super) fn must_be_privileged(&self, what: &str) -> Result<(), Error> {
        if self.privileged { Ok(()) } else { Err(denied(format!("only root and the mount's owner may {what}"))) }
    }

    /// Fails for everybody but the owner of a file.
    pub(super) fn must_own(&self, attr: &Attr) -> Result<(), Error> {
        if attr.uid == self.uid || self.has_capability(CAP_FOWNER) {
            Ok(())
        } else {
            Err(denied("only its owner may do that"))
        }
    }

    /// Fails without all of these permissions.
    pub(super) fn must_have(&self, fs: &Fs, inode: &InodeRef, wanted: u32) -> Result<(), Error> {
        if self.may(fs, inode, wanted)? {
            return Ok(());
        }
        Err(Error::refused(errno::EACCES, "permission denied"))
    }

    /// Whether a caller has all of these permissions for a file: 4 to read, 2 to write, 1 to search.
    ///
    /// # Errors
    /// The file's ACL cannot be read.
    pub fn may(&self, fs: &Fs, inode: &InodeRef, wanted: u32) -> Result<bool, Error> {
        Ok(self.has_capability(CAP_DAC_OVERRIDE) || self.has(fs, inode, wanted)?)
    }

    fn has(&self, fs: &Fs, inode: &InodeRef, wanted: u32) -> Result<bool, Error> {
        let attr = fs.attr(inode);
        let granted = |bits: u32| bits & wanted == wanted;
        if attr.uid == self.uid {
            return Ok(granted(attr.mode >> 6));
        }
        let in_group = |id: u32| id == self.gid || self.groups.contains(&id);
        if attr.mode & 0o070 != 0
            && let Some(acl) = fs.xattr_get(inode, b"system.posix_acl_access")?
            && let Some(answer) = acl_answer(&acl, self.uid, attr.gid, &in_group, wanted)
        {
            return Ok(answer);
        }
        Ok(granted(if in_group(attr.gid) { attr.mode >> 3 } else { attr.mode }))
    }

    /// Fails where a directory above an inode may not be searched. A file is reached when one of its names can be.
    pub(super) fn must_reach(&self, fs: &Fs, inode: &InodeRef) -> Result<(), Error> {
        if self.privileged || self.resolved {
            return Ok(());
        }
        if fs.attr(inode).kind == FileKind::Dir {
            return self.must_search_above(fs, inode.clone());
        }
        let mut denied = Error::refused(errno::ENOENT, "not found");
        for name in fs.names(inode)? {
            let dir = fs.inode(inode.subvol(), name.parent)?;
            let reached = self.must_have(fs, &dir, SEARCH).and_then(|()| self.must_search_above(fs, dir));
            match reached {
                Ok(()) => return Ok(()),
                Err(error) => denied = error,
            }
        }
        Err(denied)
    }

    fn must_search_above(&self, fs: &Fs, dir: InodeRef) -> Result<(), Error> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if self.keep == Some(at.tree()) && at.ino() == oleo_format::Ino::ROOT_DIR {
                return Ok(());
            }
            let Some(parent) = fs.parent(&at)? else {
                return match self.keep {
                    None => Ok(()),
                    Some(_) => Err(Error::refused(errno::EACCES, "it is not on this mount")),
                };
            };
            self.must_have(fs, &parent, SEARCH)?;
            at = parent;
        }
        Err(Error::refused(errno::ELOOP, "too many directories above it"))
    }

    /// Fails where an entry of a directory may not be removed: permission, and the sticky bit.
    pub(super) fn must_remove(&self, fs: &Fs, dir: &InodeRef, victim: &Attr) -> Result<(), Error> {
        const STICKY: u32 = 0o1000;
        self.must_have(fs, dir, WRITE | SEARCH)?;
        let attr = fs.attr(dir);
        if self.has_capability(CAP_FOWNER) || attr.mode & STICKY == 0 || attr.uid == self.uid || victim.uid == self.uid
        {
            return Ok(());
        }
        Err(denied("the directory is sticky, and the subvolume belongs to another user"))
    }

    /// The inode that is meant.
    pub(super) fn find(&self, image: &Image, at: &Location) -> Result<InodeRef, Error> {
        let start = self.start(image, at)?;
        let path = &at.path.0;
        if path.is_empty() {
            return Ok(start);
        }
        if self.is_owner {
            return Ok(image.fs().resolve(&start, path, Follow::Yes)?);
        }
        single_name(path)?;
        self.must_have(image.fs(), &start, SEARCH)?;
        image.fs().lookup(&start, path)?.ok_or_else(not_found)
    }

    /// The directory that is meant, and the name in it.
    pub(super) fn find_parent<'a>(&self, image: &Image, at: &'a Location) -> Result<(InodeRef, &'a [u8]), Error> {
        let start = self.start(image, at)?;
        if !self.is_owner {
            single_name(&at.path.0)?;
            return Ok((start, &at.path.0));
        }
        let end = at.path.0.iter().rposition(|&b| b != b'/').map_or(0, |last| last + 1);
        let path = &at.path.0[..end];
        let (dir, name) = path.split_at(path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1));
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::refused(errno::EINVAL, "does not end in a name"));
        }
        Ok((image.fs().resolve(&start, dir, Follow::Yes)?, name))
    }

    fn start(&self, image: &Image, at: &Location) -> Result<InodeRef, Error> {
        let fs = image.fs();
        let start = fs.inode(&fs.subvol(at.tree)?, at.ino)?;
        self.must_reach(fs, &start)?;
        Ok(start)
    }
}

/// Whether a process is the ordinary user's who runs this one, and not in a user namespace of its own. Of root more is asked.
fn serves(uid: u32, found: &Process) -> bool {
    let own = rustix::process::geteuid();
    !own.is_root() && uid == own.as_raw() && found.is_at_home()
}

/// What an access ACL says to somebody who does not own the file: the first of the entries that apply, as acl(5) has it.
/// `None` where it says nothing that the mode does not say.
fn acl_answer(acl: &[u8], uid: u32, file_gid: u32, in_group: &dyn Fn(u32) -> bool, wanted: u32) -> Option<bool> {
    const USER: u16 = 0x02;
    const GROUP_OBJ: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    let body = acl.get(4..)?;
    let u16_at = |e: &[u8], at: usize| u16::from_le_bytes([e[at], e[at + 1]]);
    let entries: Vec<(u16, u32, u32)> = body
        .chunks_exact(8)
        .map(|e| (u16_at(e, 0), u32::from(u16_at(e, 2)), u32::from_le_bytes([e[4], e[5], e[6], e[7]])))
        .collect();
    let mask = entries.iter().find(|e| e.0 == MASK).map_or(7, |e| e.1);
    if let Some(user) = entries.iter().find(|e| e.0 == USER && e.2 == uid) {
        return Some(user.1 & mask & wanted == wanted);
    }
    let mut matched = false;
    for (tag, perm, id) in &entries {
        if (*tag == GROUP_OBJ && in_group(file_gid)) || (*tag == GROUP && in_group(*id)) {
            matched = true;
            if perm & mask & wanted == wanted {
                return Some(true);
            }
        }
    }
    if matched {
        return Some(false);
    }
    entries.iter().find(|e| e.0 == OTHER).map(|e| e.1 & wanted == wanted)
}

fn single_name(path: &[u8]) -> Result<(), Error> {
    if path.is_empty() || path.contains(&b'/') || path == b"." || path == b".." {
        return Err(Error::refused(errno::EINVAL, "one name, not a path, goes with an inode"));
    }
    Ok(())
}

fn not_found() -> Error {
    oleo_fs::FsError::NotFound.into()
}

fn denied(message: impl Into<String>) -> Error {
    Error::refused(errno::EPERM, message)
}

/// Whether an inode is the root directory of a subvolume.
pub(super) fn is_subvol_root(inode: &InodeRef) -> bool {
    inode.ino() == oleo_format::Ino::ROOT_DIR && !inode.is_empty_subvol_dir()
}
