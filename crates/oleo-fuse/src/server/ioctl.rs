//! Ioctls. The kernel passes those of a fixed size, with the bytes that go in and room for those that come out. This
//! file has those of every file system and Oleo's own; those of btrfs are in `ioctl_btrfs` and `ioctl_info`.

use std::os::unix::ffi::OsStrExt;

use oleo::control::{OLEO_IOC_CONTROL, OLEO_IOC_IDENT};
use oleo_device::process::{CAP_LINUX_IMMUTABLE, Process};
use zerocopy::{FromBytes, IntoBytes};

use super::flags::Fsxattr;
use super::ioctl_btrfs::{Answered, Call, nothing};
use super::{Answer, Errno, Server};
use crate::wire::Reply;
use crate::wire::abi;

/// `FS_IOC_*` of `linux/fs.h`. The kernel asks for flags on behalf of chattr with these numbers and four bytes.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// The result of an ioctl: bytes for the caller, and its return value.
type IoctlAnswer = Result<Answered, Errno>;

impl Server {
    pub(super) fn ioctl(
        &self,
        head: &abi::InHeader,
        args: &abi::IoctlIn,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) -> Answer {
        let Answered { result, bytes: mut out } = self.ioctl_bytes(head, args, data)?;
        out.truncate(args.out_size as usize);
        reply.put(&abi::IoctlOut { result, ..abi::IoctlOut::default() });
        if reply.bytes(&out) { Ok(()) } else { Err(Errno::EIO) }
    }

    fn ioctl_bytes(&self, head: &abi::InHeader, args: &abi::IoctlIn, data: &[u8]) -> IoctlAnswer {
        let inode = self.inode(head.nodeid)?;
        // The kernel has checked the owner already, for the caller of chattr.
        let privileged = || Process::of(head.pid).can(CAP_LINUX_IMMUTABLE);
        match args.cmd {
            FS_IOC_GETFLAGS => Ok(self.fs_flags(&inode).as_bytes().to_vec().into()),
            FS_IOC_SETFLAGS => {
                let (want, _) = u32::read_from_prefix(data).map_err(|_| Errno::EINVAL)?;
                self.write_out_node(head.nodeid)?;
                self.set_fs_flags(&inode, want, &privileged)?;
                Ok(nothing())
            }
            FS_IOC_FSGETXATTR => Ok(self.fsxattr(&inode).as_bytes().to_vec().into()),
            FS_IOC_FSSETXATTR => {
                let (want, _) = Fsxattr::read_from_prefix(data).map_err(|_| Errno::EINVAL)?;
                self.write_out_node(head.nodeid)?;
                self.set_fsxattr(&inode, &want, &privileged)?;
                Ok(nothing())
            }
            OLEO_IOC_CONTROL => {
                let path = self.control.get().ok_or(Errno::ENOTTY)?.as_os_str().as_bytes();
                // Its end is a zero.
                let room = (args.out_size as usize).checked_sub(1).ok_or(Errno::EINVAL)?;
                let mut bytes = path.get(..path.len()).filter(|p| p.len() <= room).ok_or(Errno::ERANGE)?.to_vec();
                bytes.resize(room + 1, 0);
                Ok(bytes.into())
            }
            OLEO_IOC_IDENT => Ok([inode.tree().0, inode.ino().0].as_bytes().to_vec().into()),
            cmd => Call { server: self, head, inode: &inode, data }.answer(cmd),
        }
    }
}
