//! Commands to bytes.

use uuid::Uuid;
use zerocopy::IntoBytes;

use super::{AttrKind, COMMAND_HEAD_LEN, Command, CommandHead, CommandKind};
use crate::Timespec;
use crate::csum::crc32c_raw;

/// Appends the attributes of one command.
struct Attrs<'o> {
    version: u32,
    out: &'o mut Vec<u8>,
}

impl Attrs<'_> {
    fn bytes(&mut self, kind: AttrKind, value: &[u8]) -> &mut Self {
        let len = u16::try_from(value.len())
            .unwrap_or_else(|_| panic!("{} of {} bytes: at most 65535", kind.name(), value.len()));
        self.out.extend_from_slice(&kind.number().to_le_bytes());
        self.out.extend_from_slice(&len.to_le_bytes());
        self.out.extend_from_slice(value);
        self
    }
    fn u64(&mut self, kind: AttrKind, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_le_bytes())
    }
    fn u32(&mut self, kind: AttrKind, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_le_bytes())
    }
    fn uuid(&mut self, kind: AttrKind, value: &Uuid) -> &mut Self {
        self.bytes(kind, value.as_bytes())
    }
    fn time(&mut self, kind: AttrKind, value: &Timespec) -> &mut Self {
        self.bytes(kind, value.as_bytes())
    }
    fn path(&mut self, path: &[u8]) -> &mut Self {
        self.bytes(AttrKind::Path, path)
    }
    /// The head of the last attribute of a command: without a length from version 2 on.
    fn data_head(&mut self, len: usize) {
        self.out.extend_from_slice(&AttrKind::Data.number().to_le_bytes());
        if self.version == 1 {
            let len = u16::try_from(len).unwrap_or_else(|_| panic!("data of {len} bytes: at most 65535 in version 1"));
            self.out.extend_from_slice(&len.to_le_bytes());
        }
    }
    fn data(&mut self, data: &[u8]) {
        self.data_head(data.len());
        self.out.extend_from_slice(data);
    }
}

/// Fills in the header of a whole command.
fn finish(kind: CommandKind, command: &mut [u8]) {
    let len = u32::try_from(command.len() - COMMAND_HEAD_LEN).expect("a command is far below 4 GiB");
    command[..4].copy_from_slice(&len.to_le_bytes());
    command[4..6].copy_from_slice(&kind.number().to_le_bytes());
    let crc = crc32c_raw(0, command);
    command[6..10].copy_from_slice(&crc.to_le_bytes());
}

impl Command<'_> {
    /// Appends the whole command, its header and checksum included, in the form of this version. `otime` is left out in
    /// version 1.
    ///
    /// # Panics
    /// If the version does not have the command, or an attribute (in version 1 also the data) is longer than 65535
    /// bytes: that is a bug of the sender.
    pub fn encode(&self, version: u32, out: &mut Vec<u8>) {
        let kind = self.kind();
        assert!(kind.since() <= version, "{} is not in version {version}", kind.name());
        let at = out.len();
        out.extend_from_slice(&[0; COMMAND_HEAD_LEN]);
        self.encode_attrs(&mut Attrs { version, out });
        finish(kind, &mut out[at..]);
    }

    /// Appends a [`Command::Write`] whose data, `len` bytes, is written in place by `fill`: data that is read for a
    /// stream need not be copied. If `fill` fails, `out` is as before.
    ///
    /// # Panics
    /// As [`Command::encode`].
    /// As [`Command::encode`].
    pub fn encode_write<E>(
        version: u32,
        path: &[u8],
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let at = out.len();
        out.extend_from_slice(&[0; COMMAND_HEAD_LEN]);
        let mut attrs = Attrs { version, out };
        attrs.path(path).u64(AttrKind::FileOffset, offset);
        attrs.data_head(len);
        let data = out.len();
        out.resize(data + len, 0);
        if let Err(error) = fill(&mut out[data..]) {
            out.truncate(at);
            return Err(error);
        }
        finish(CommandKind::Write, &mut out[at..]);
        Ok(())
    }

    /// Attributes in the order in which the kernel writes them.
    fn encode_attrs(&self, a: &mut Attrs<'_>) {
        use AttrKind as A;
        match *self {
            Command::Subvol { path, uuid, ctransid } => {
                a.path(path).uuid(A::Uuid, &uuid).u64(A::Ctransid, ctransid);
            }
            Command::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                a.path(path).uuid(A::Uuid, &uuid).u64(A::Ctransid, ctransid);
                a.uuid(A::CloneUuid, &clone_uuid).u64(A::CloneCtransid, clone_ctransid);
            }
            Command::MkFile { path, ino }
            | Command::MkDir { path, ino }
            | Command::MkFifo { path, ino }
            | Command::MkSock { path, ino } => {
                a.path(path).u64(A::Ino, ino);
            }
            Command::MkNod { path, ino, mode, rdev } => {
                a.path(path).u64(A::Ino, ino).u64(A::Rdev, rdev).u64(A::Mode, mode);
            }
            Command::Symlink { path, ino, target } => {
                a.path(path).u64(A::Ino, ino).bytes(A::PathLink, target);
            }
            Command::Rename { path, to } => {
                a.path(path).bytes(A::PathTo, to);
            }
            Command::Link { path, target } => {
                a.path(path).bytes(A::PathLink, target);
            }
            Command::Unlink { path } | Command::RmDir { path } => {
                a.path(path);
            }
            Command::SetXattr { path, name, value } => {
                a.path(path).bytes(A::XattrName, name).bytes(A::XattrData, value);
            }
            Command::RemoveXattr { path, name } => {
                a.path(path).bytes(A::XattrName, name);
            }
            Command::Write { path, offset, data } => {
                a.path(path).u64(A::FileOffset, offset).data(data);
            }
            Command::EncodedWrite {
                path,
                offset,
                unencoded_file_len,
                unencoded_len,
                unencoded_offset,
                compression,
                encryption,
                data,
            } => {
                a.path(path).u64(A::FileOffset, offset).u64(A::UnencodedFileLen, unencoded_file_len);
                a.u64(A::UnencodedLen, unencoded_len).u64(A::UnencodedOffset, unencoded_offset);
                a.u32(A::Compression, compression).u32(A::Encryption, encryption).data(data);
            }
            Command::Clone { path, offset, len, clone_uuid, clone_ctransid, clone_path, clone_offset } => {
                a.u64(A::FileOffset, offset).u64(A::CloneLen, len).path(path);
                a.uuid(A::CloneUuid, &clone_uuid).u64(A::CloneCtransid, clone_ctransid);
                a.bytes(A::ClonePath, clone_path).u64(A::CloneOffset, clone_offset);
            }
            Command::Truncate { path, size } => {
                a.path(path).u64(A::Size, size);
            }
            Command::Chmod { path, mode } => {
                a.path(path).u64(A::Mode, mode);
            }
            Command::Chown { path, uid, gid } => {
                a.path(path).u64(A::Uid, uid).u64(A::Gid, gid);
            }
            Command::Utimes { path, atime, mtime, ctime, otime } => {
                a.path(path).time(A::Atime, &atime).time(A::Mtime, &mtime).time(A::Ctime, &ctime);
                if let Some(otime) = otime.filter(|_| a.version >= 2) {
                    a.time(A::Otime, &otime);
                }
            }
            Command::UpdateExtent { path, offset, len } => {
                a.path(path).u64(A::FileOffset, offset).u64(A::Size, len);
            }
            Command::Fallocate { path, mode, offset, len } => {
                a.path(path).u32(A::FallocateMode, mode).u64(A::FileOffset, offset).u64(A::Size, len);
            }
            Command::FileAttr { path, attr } => {
                a.path(path).u64(A::FileAttr, attr);
            }
            Command::EnableVerity { path, algorithm, block_size, salt, signature } => {
                a.path(path).bytes(A::VerityAlgorithm, &[algorithm]).u32(A::VerityBlockSize, block_size);
                a.bytes(A::VeritySaltData, salt).bytes(A::VeritySigData, signature);
            }
            Command::End => {}
        }
    }

    /// Which command this is.
    pub fn kind(&self) -> CommandKind {
        use CommandKind as K;
        match self {
            Command::Subvol { .. } => K::Subvol,
            Command::Snapshot { .. } => K::Snapshot,
            Command::MkFile { .. } => K::MkFile,
            Command::MkDir { .. } => K::MkDir,
            Command::MkNod { .. } => K::MkNod,
            Command::MkFifo { .. } => K::MkFifo,
            Command::MkSock { .. } => K::MkSock,
            Command::Symlink { .. } => K::Symlink,
            Command::Rename { .. } => K::Rename,
            Command::Link { .. } => K::Link,
            Command::Unlink { .. } => K::Unlink,
            Command::RmDir { .. } => K::RmDir,
            Command::SetXattr { .. } => K::SetXattr,
            Command::RemoveXattr { .. } => K::RemoveXattr,
            Command::Write { .. } => K::Write,
            Command::EncodedWrite { .. } => K::EncodedWrite,
            Command::Clone { .. } => K::Clone,
            Command::Truncate { .. } => K::Truncate,
            Command::Chmod { .. } => K::Chmod,
            Command::Chown { .. } => K::Chown,
            Command::Utimes { .. } => K::Utimes,
            Command::UpdateExtent { .. } => K::UpdateExtent,
            Command::Fallocate { .. } => K::Fallocate,
            Command::FileAttr { .. } => K::FileAttr,
            Command::EnableVerity { .. } => K::EnableVerity,
            Command::End => K::End,
        }
    }

    /// The path that the command is about; none for the end.
    pub fn path(&self) -> Option<&[u8]> {
        match *self {
            Command::Subvol { path, .. }
            | Command::Snapshot { path, .. }
            | Command::MkFile { path, .. }
            | Command::MkDir { path, .. }
            | Command::MkNod { path, .. }
            | Command::MkFifo { path, .. }
            | Command::MkSock { path, .. }
            | Command::Symlink { path, .. }
            | Command::Rename { path, .. }
            | Command::Link { path, .. }
            | Command::Unlink { path }
            | Command::RmDir { path }
            | Command::SetXattr { path, .. }
            | Command::RemoveXattr { path, .. }
            | Command::Write { path, .. }
            | Command::EncodedWrite { path, .. }
            | Command::Clone { path, .. }
            | Command::Truncate { path, .. }
            | Command::Chmod { path, .. }
            | Command::Chown { path, .. }
            | Command::Utimes { path, .. }
            | Command::UpdateExtent { path, .. }
            | Command::Fallocate { path, .. }
            | Command::FileAttr { path, .. }
            | Command::EnableVerity { path, .. } => Some(path),
            Command::End => None,
        }
    }
}

impl CommandHead {
    /// The checksum that a command with this header and these attributes must have.
    pub fn checksum(&self, attrs: &[u8]) -> u32 {
        let mut head = [0; COMMAND_HEAD_LEN];
        head[..4].copy_from_slice(&self.len.to_le_bytes());
        head[4..6].copy_from_slice(&self.kind.to_le_bytes());
        crc32c_raw(crc32c_raw(0, &head), attrs)
    }
}
