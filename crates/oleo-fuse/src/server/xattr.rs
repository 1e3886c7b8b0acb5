//! Extended attributes.

use oleo::fs::XattrMode;

use super::{Answer, Errno, Server};
use crate::wire::Reply;
use crate::wire::abi;

/// `XATTR_*` of `linux/xattr.h`.
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
/// Names that only the superuser sees.
const TRUSTED: &[u8] = b"trusted.";

/// Replies with a value, or with its length if there is no room for it.
fn value(size: u32, value: &[u8], reply: &mut Reply<'_>) -> Answer {
    if size == 0 {
        reply.put(&abi::GetxattrOut { size: value.len() as u32, padding: 0 });
        return Ok(());
    }
    if value.len() > size as usize || !reply.bytes(value) {
        return Err(Errno::ERANGE);
    }
    Ok(())
}

impl Server {
    pub(super) fn getxattr(&self, node: u64, size: u32, name: &[u8], reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode(node)?;
        let found = self.fs.xattr_get(&inode, name).map_err(|e| self.errno("getxattr", &e))?;
        value(size, &found.ok_or(Errno::ENODATA)?, reply)
    }

    pub(super) fn listxattr(&self, head: &abi::InHeader, size: u32, reply: &mut Reply<'_>) -> Answer {
        let inode = self.inode(head.nodeid)?;
        let mut list = Vec::new();
        for name in self.fs.xattr_list(&inode).map_err(|e| self.errno("listxattr", &e))? {
            if head.uid == 0 || !name.starts_with(TRUSTED) {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        value(size, &list, reply)
    }

    /// The empty directory in place of a subvolume that is elsewhere has none, as with the kernel.
    fn inode_with_xattrs(&self, node: u64) -> Result<oleo_fs::InodeRef, Errno> {
        let inode = self.inode(node)?;
        if inode.is_empty_subvol_dir() { Err(Errno::EOPNOTSUPP) } else { Ok(inode) }
    }

    pub(super) fn setxattr(&self, node: u64, args: &abi::SetxattrIn, name: &[u8], value: &[u8]) -> Answer {
        let inode = self.inode_with_xattrs(node)?;
        let mode = match args.flags {
            0 => XattrMode::Any,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        self.fs.xattr_set(&inode, name, value, mode).map_err(|e| self.errno("setxattr", &e))?;
        if args.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0 {
            self.drop_setgid(&inode).map_err(|e| self.errno("setxattr", &e))?;
        }
        Ok(())
    }

    /// A caller that is not in the group and sets an ACL loses the set-group-id bit.
    fn drop_setgid(&self, inode: &oleo_fs::InodeRef) -> Result<(), oleo_fs::FsError> {
        const SETGID: u32 = 0o2000;
        let mode = self.fs.attr(inode).mode;
        if mode & SETGID != 0 {
            self.fs.set_attr(inode, &oleo::fs::SetAttr::default().mode(Some(mode & !SETGID)))?;
        }
        Ok(())
    }

    pub(super) fn removexattr(&self, node: u64, name: &[u8]) -> Answer {
        let inode = self.inode_with_xattrs(node)?;
        self.fs.xattr_remove(&inode, name).map_err(|e| self.errno("removexattr", &e))
    }
}
