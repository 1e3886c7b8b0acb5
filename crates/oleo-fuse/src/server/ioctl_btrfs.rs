//! The ioctls of btrfs that change something: each becomes the control request of the same meaning.
//!
//! The ioctls that reach a FUSE server have a fixed size; those with pointers (`LOGICAL_INO`, `TREE_SEARCH_V2`, lists
//! of spaces) do not, and fail as unknown. The control socket offers these operations.
//!
//! The kernel has resolved the path of the file that the ioctl is called on, so directories above it are not checked
//! again. `oleo::control` decides what else a caller may do.

use oleo::TreeId;
use oleo::control::{Caller, DefragOptions, Location, NewSize, Property, Reply, Request, SubvolRef};
use oleo::fs::{Compression, FileKind, Ino};
use oleo_fs::InodeRef;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::ioctl_numbers::*;
use super::{Errno, Server};
use crate::wire::abi;

/// A bad address.
const EFAULT: i32 = 14;

/// The result of an ioctl: its return value (0, or a negative errno that comes with data), and bytes for the caller.
pub(super) struct Answered {
    pub result: i32,
    pub bytes: Vec<u8>,
}

impl From<Vec<u8>> for Answered {
    fn from(bytes: Vec<u8>) -> Answered {
        Answered { result: 0, bytes }
    }
}

/// Success without data.
pub(super) fn nothing() -> Answered {
    Answered { result: 0, bytes: Vec::new() }
}

/// One ioctl: its caller, its file, and its bytes.
pub(super) struct Call<'a> {
    pub server: &'a Server,
    pub head: &'a abi::InHeader,
    pub inode: &'a InodeRef,
    pub data: &'a [u8],
}

/// A struct out of the bytes that came in.
pub(super) fn take<T: FromBytes + KnownLayout + Immutable>(data: &[u8], at: usize) -> Result<T, Errno> {
    let bytes = data.get(at..).ok_or(Errno::EINVAL)?;
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| Errno::EINVAL)
}

/// The text up to a zero.
pub(super) fn text(data: &[u8], at: usize) -> Result<&[u8], Errno> {
    let bytes = data.get(at..).ok_or(Errno::EINVAL)?;
    let end = bytes.iter().position(|b| *b == 0).ok_or(Errno::EINVAL)?;
    Ok(&bytes[..end])
}

/// The name of an entry.
fn name(data: &[u8], at: usize) -> Result<&[u8], Errno> {
    let name = text(data, at)?;
    if name.is_empty() || name.contains(&b'/') || name == b"." || name == b".." {
        return Err(Errno::EINVAL);
    }
    if name.len() > NAME_MAX { Err(Errno(oleo_fs::errno::ENAMETOOLONG)) } else { Ok(name) }
}

impl Call<'_> {
    /// Answers what `linux/btrfs.h` has.
    pub(super) fn answer(&self, cmd: u32) -> Result<Answered, Errno> {
        match cmd {
            SUBVOL_CREATE => self.create(NAME_AT, 0),
            SUBVOL_CREATE_V2 => self.create(NAME_AT_V2, take(self.data, FLAGS_AT_V2)?),
            SNAP_CREATE => self.snapshot(NAME_AT, 0),
            SNAP_CREATE_V2 => self.snapshot(NAME_AT_V2, take(self.data, FLAGS_AT_V2)?),
            SNAP_DESTROY => self.destroy(NAME_AT),
            SNAP_DESTROY_V2 => match take::<u64>(self.data, FLAGS_AT_V2)? {
                0 => self.destroy(NAME_AT_V2),
                SUBVOL_SPEC_BY_ID => {
                    let id = TreeId(take(self.data, NAME_AT_V2)?);
                    self.ask(Request::SubvolDelete { which: SubvolRef::Id(id), recursive: false })
                }
                _ => Err(Errno::EOPNOTSUPP),
            },
            SUBVOL_SETFLAGS => self.set_subvol_flags(take(self.data, 0)?),
            DEFAULT_SUBVOL => {
                let id = match take::<u64>(self.data, 0)? {
                    0 => TreeId::FS,
                    id => TreeId(id),
                };
                self.ask(Request::SetDefault { which: SubvolRef::Id(id) })
            }
            SET_RECEIVED_SUBVOL => self.set_received(take(self.data, 0)?),
            SET_FSLABEL => self.ask(Request::SetLabel { label: text(self.data, 0)?.into() }),
            RESIZE => {
                let wish = std::str::from_utf8(text(self.data, NAME_AT)?).map_err(|_| Errno::EINVAL)?;
                let (devid, to) = NewSize::parse(wish).map_err(|_| Errno::EINVAL)?;
                self.ask(Request::Resize { devid, to })
            }
            DEFRAG => self.defragment(DefragOptions::default()),
            DEFRAG_RANGE => self.defragment(defrag_options(&take(self.data, 0)?)?),
            FITRIM => {
                let [start, len, min_len] = take::<[u64; 3]>(self.data, 0)?;
                let sector = u64::from(self.server.image().fs().engine().sectorsize());
                // What the kernel refuses: less than a sector, and a start without a sector behind it.
                if len < sector || start > u64::MAX - sector {
                    return Err(Errno::EINVAL);
                }
                match self.reply(Request::Trim { start, len, min_len })? {
                    Reply::Bytes(done) => Ok([start, done.0, min_len].as_bytes().to_vec().into()),
                    _ => Err(Errno::EIO),
                }
            }
            BALANCE_V2 => self.balance(),
            BALANCE_PROGRESS => self.balance_progress(),
            SYNC | WAIT_SYNC => self.ask(Request::Sync),
            START_SYNC => match self.reply(Request::Sync)? {
                Reply::Generation(generation) => Ok(generation.0.as_bytes().to_vec().into()),
                _ => Err(Errno::EIO),
            },
            _ => self.answer_info(cmd),
        }
    }

    /// The caller.
    pub(super) fn caller(&self) -> Caller {
        Caller::by_call(self.head.pid, self.head.uid, self.head.gid)
    }

    pub(super) fn reply(&self, request: Request) -> Result<Reply, Errno> {
        self.server.control_by_ioctl(self.caller(), request).map_err(|error| Errno(error.errno))
    }

    pub(super) fn ask(&self, request: Request) -> Result<Answered, Errno> {
        self.reply(request).map(|_| nothing())
    }

    /// The inode itself.
    pub(super) fn at(&self) -> Location {
        Location::inode(self.inode.tree(), self.inode.ino())
    }

    /// An entry of the directory that the ioctl is called on.
    fn entry(&self, name_at: usize) -> Result<Location, Errno> {
        if self.kind() != FileKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        Ok(Location { path: name(self.data, name_at)?.into(), ..self.at() })
    }

    pub(super) fn kind(&self) -> FileKind {
        self.server.image().fs().attr(self.inode).kind
    }

    /// Fails if the ioctl is not called on a subvolume's root directory.
    pub(super) fn must_be_subvol(&self) -> Result<(), Errno> {
        let is_root = self.inode.ino() == Ino::ROOT_DIR && !self.inode.is_empty_subvol_dir();
        if is_root { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The quota groups of a new subvolume: in the caller's memory, to which the second form points.
    fn groups(&self, flags: u64) -> Result<Vec<u64>, Errno> {
        /// `struct btrfs_qgroup_inherit` before its list: flags, three counts, a limit of five numbers.
        const HEAD_LEN: usize = 72;
        /// The kernel takes a page at most.
        const SIZE_MAX: u64 = 4096;
        if flags & !(SUBVOL_RDONLY | SUBVOL_QGROUP_INHERIT) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if flags & SUBVOL_QGROUP_INHERIT == 0 {
            return Ok(Vec::new());
        }
        let [size, address] = take::<[u64; 2]>(self.data, INHERIT_AT_V2)?;
        if !(HEAD_LEN as u64..=SIZE_MAX).contains(&size) {
            return Err(Errno::EINVAL);
        }
        let read = |at: u64, bytes: &mut [u8]| -> Result<(), Errno> {
            use std::os::unix::fs::FileExt;
            // The caller waits for the reply, so its number is still its own. If we may not read its memory, the
            // request fails.
            let memory = std::fs::File::open(format!("/proc/{}/mem", self.head.pid)).map_err(|_| Errno::EOPNOTSUPP)?;
            memory.read_exact_at(bytes, at).map_err(|_| Errno(EFAULT))
        };
        let mut head = [0; HEAD_LEN];
        read(address, &mut head)?;
        let [inherit_flags, count, ref_copies, excl_copies] = take::<[u64; 4]>(&head, 0)?;
        if inherit_flags | ref_copies | excl_copies != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if count > (size - HEAD_LEN as u64) / 8 {
            return Err(Errno::EINVAL);
        }
        let mut groups = vec![0u64; count as usize];
        read(address.checked_add(HEAD_LEN as u64).ok_or(Errno(EFAULT))?, groups.as_mut_bytes())?;
        Ok(groups)
    }

    fn create(&self, name_at: usize, flags: u64) -> Result<Answered, Errno> {
        let groups = self.groups(flags)?;
        let at = self.entry(name_at)?;
        let Reply::Made(id) = self.reply(Request::SubvolCreate { at, parents: false, groups })? else {
            return Err(Errno::EIO);
        };
        if flags & SUBVOL_RDONLY != 0 {
            return self.ask(read_only(Location::inode(id, Ino::ROOT_DIR), true));
        }
        Ok(nothing())
    }

    fn snapshot(&self, name_at: usize, flags: u64) -> Result<Answered, Errno> {
        let groups = self.groups(flags)?;
        let at = self.entry(name_at)?;
        let source = self.server.inode_of_fd(self.head.pid, take(self.data, 0)?)?;
        // As with the kernel, anything in a subvolume names it only if it is its root.
        if source.ino() != Ino::ROOT_DIR || source.is_empty_subvol_dir() {
            return Err(Errno::EINVAL);
        }
        let source = SubvolRef::At(Location::inode(source.tree(), source.ino()));
        self.ask(Request::Snapshot { source, at, read_only: flags & SUBVOL_RDONLY != 0, into: false, groups })
    }

    fn destroy(&self, name_at: usize) -> Result<Answered, Errno> {
        self.ask(Request::SubvolDelete { which: SubvolRef::At(self.entry(name_at)?), recursive: false })
    }

    fn set_subvol_flags(&self, flags: u64) -> Result<Answered, Errno> {
        self.must_be_subvol()?;
        if flags & !SUBVOL_RDONLY != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        self.ask(read_only(self.at(), flags & SUBVOL_RDONLY != 0))
    }

    fn set_received(&self, mut args: Received) -> Result<Answered, Errno> {
        self.must_be_subvol()?;
        let stime = (i64::try_from(args.stime.sec).map_err(|_| Errno::EINVAL)?, args.stime.nsec);
        let uuid = oleo::Uuid::from_bytes(args.uuid);
        let request = Request::SetReceived { which: SubvolRef::At(self.at()), uuid, stransid: args.stransid, stime };
        let Reply::Generation(noted) = self.reply(request)? else { return Err(Errno::EIO) };
        let info = self.server.image().fs().subvol_info(self.inode.tree())?;
        args.rtransid = noted.0;
        args.rtime = Timespec { sec: info.rtime.sec.try_into().unwrap_or(0), nsec: info.rtime.nsec, padding: 0 };
        Ok(args.as_bytes().to_vec().into())
    }

    fn defragment(&self, options: DefragOptions) -> Result<Answered, Errno> {
        match self.kind() {
            FileKind::File => self.ask(Request::Defragment { at: self.at(), recursive: false, options }),
            // With the kernel this means the tree, whose blocks are written packed here anyway.
            FileKind::Dir if self.caller().privileged => Ok(nothing()),
            FileKind::Dir => Err(Errno::EPERM),
            _ => Err(Errno::EINVAL),
        }
    }
}

fn read_only(at: Location, yes: bool) -> Request {
    let property = Property { name: "ro".to_owned(), value: yes.to_string() };
    Request::PropertySet { at, property, force: true }
}

fn defrag_options(args: &DefragRange) -> Result<DefragOptions, Errno> {
    if args.flags & !(DEFRAG_COMPRESS | DEFRAG_START_IO) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let compress = match (args.flags & DEFRAG_COMPRESS != 0, args.compress_type) {
        (false, _) => None,
        (true, 0 | 1) => Some((Compression::Zlib, 0)),
        (true, 2) => Some((Compression::Lzo, 0)),
        (true, 3) => Some((Compression::Zstd, 0)),
        (true, _) => return Err(Errno::EINVAL),
    };
    let threshold = u64::from(args.extent_thresh);
    Ok(DefragOptions::default().start(args.start).len(args.len).threshold(threshold).compress(compress))
}
