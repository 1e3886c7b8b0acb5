//! Bytes to commands.

use uuid::Uuid;

use super::numbers::ValueLen;
use super::{AttrKind, COMMAND_HEAD_LEN, Command, CommandHead, CommandKind, HEADER_LEN, MAGIC, VERSION_MAX};
use crate::Timespec;
use crate::error::{Corruption, ensure};

/// The version of the stream that this header begins.
pub fn version(header: &[u8; HEADER_LEN]) -> Result<u32, Corruption> {
    let (magic, version) = header.split_at(MAGIC.len());
    ensure!(magic == MAGIC, "stream header", "magic", magic.escape_ascii(), MAGIC.escape_ascii());
    let version = u32::from_le_bytes(version.try_into().expect("four bytes are left"));
    ensure!((1..=VERSION_MAX).contains(&version), "stream header", "version", version, "1, 2 or 3");
    Ok(version)
}

impl CommandHead {
    /// The header that these bytes are.
    pub fn parse(bytes: &[u8; COMMAND_HEAD_LEN]) -> CommandHead {
        let [l0, l1, l2, l3, k0, k1, c0, c1, c2, c3] = *bytes;
        CommandHead {
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: u16::from_le_bytes([k0, k1]),
            crc: u32::from_le_bytes([c0, c1, c2, c3]),
        }
    }
}

/// The attributes of a command, by number.
struct Attrs<'a> {
    structure: &'static str,
    values: [Option<&'a [u8]>; AttrKind::ALL.len()],
}

impl<'a> Attrs<'a> {
    /// Parses the attributes: numbers known, none twice, each as long as its type.
    fn parse(structure: &'static str, version: u32, mut bytes: &'a [u8]) -> Result<Attrs<'a>, Corruption> {
        let mut values = [None; AttrKind::ALL.len()];
        while !bytes.is_empty() {
            let (number, rest) = bytes
                .split_first_chunk::<2>()
                .ok_or_else(|| Corruption::new(structure, "bytes left for an attribute", bytes.len(), "at least 2"))?;
            let number = u16::from_le_bytes(*number);
            let kind = AttrKind::from_number(number)
                .ok_or_else(|| Corruption::new(structure, "attribute", number, "1 to 35"))?;
            let (value, rest) = if kind == AttrKind::Data && version >= 2 {
                (rest, &[][..])
            } else {
                let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(|| {
                    Corruption::new(structure, format!("bytes left for the length of {}", kind.name()), rest.len(), 2)
                })?;
                let len = usize::from(u16::from_le_bytes(*len));
                rest.split_at_checked(len).ok_or_else(|| {
                    let most = format!("at most {}", rest.len());
                    Corruption::new(structure, format!("length of {}", kind.name()), len, most)
                })?
            };
            if let ValueLen::Fixed(want) = kind.value_len() {
                ensure!(value.len() == want, structure, format!("length of {}", kind.name()), value.len(), want);
            }
            ensure!(kind != AttrKind::Data || rest.is_empty(), structure, "bytes after data", rest.len(), 0);
            let place = &mut values[usize::from(number) - 1];
            ensure!(place.is_none(), structure, kind.name(), "there twice", "there once");
            *place = Some(value);
            bytes = rest;
        }
        Ok(Attrs { structure, values })
    }

    fn get(&self, kind: AttrKind) -> Option<&'a [u8]> {
        self.values[usize::from(kind.number()) - 1]
    }
    fn bytes(&self, kind: AttrKind) -> Result<&'a [u8], Corruption> {
        self.get(kind).ok_or_else(|| Corruption::new(self.structure, kind.name(), "missing", "there"))
    }
    /// A value whose length `parse` has verified.
    fn fixed<const N: usize>(&self, kind: AttrKind) -> Result<[u8; N], Corruption> {
        let bytes = self.bytes(kind)?;
        bytes.try_into().map_err(|_| Corruption::new(self.structure, kind.name(), bytes.len(), N))
    }
    fn u64(&self, kind: AttrKind) -> Result<u64, Corruption> {
        self.fixed(kind).map(u64::from_le_bytes)
    }
    fn u32(&self, kind: AttrKind) -> Result<u32, Corruption> {
        self.fixed(kind).map(u32::from_le_bytes)
    }
    fn uuid(&self, kind: AttrKind) -> Result<Uuid, Corruption> {
        self.fixed(kind).map(Uuid::from_bytes)
    }
    fn time(&self, kind: AttrKind) -> Result<Timespec, Corruption> {
        let time = *Timespec::parse(self.bytes(kind)?)?;
        ensure!(time.nsec.get() < 1_000_000_000, self.structure, kind.name(), time.nsec, "nanoseconds below 10⁹");
        Ok(time)
    }
    fn path(&self) -> Result<&'a [u8], Corruption> {
        self.bytes(AttrKind::Path)
    }
    /// A symbolic link's target, which ends at its first zero byte: the kernel sends those that `mkfs.btrfs` stored behind it.
    fn target(&self) -> Result<&'a [u8], Corruption> {
        let bytes = self.bytes(AttrKind::PathLink)?;
        Ok(bytes.split(|&b| b == 0).next().unwrap_or(bytes))
    }
    /// The value, or its default.
    fn u64_or(&self, kind: AttrKind, absent: u64) -> Result<u64, Corruption> {
        if self.get(kind).is_none() { Ok(absent) } else { self.u64(kind) }
    }
    fn u32_or(&self, kind: AttrKind, absent: u32) -> Result<u32, Corruption> {
        if self.get(kind).is_none() { Ok(absent) } else { self.u32(kind) }
    }
}

impl<'a> Command<'a> {
    /// The command of this number with these attributes, in a stream of this version. The checksum is the caller's
    /// ([`CommandHead::checksum`]).
    pub fn decode(version: u32, number: u16, attrs: &'a [u8]) -> Result<Command<'a>, Corruption> {
        use AttrKind as A;
        use CommandKind as K;
        let kind =
            K::from_number(number).ok_or_else(|| Corruption::new("stream command", "number", number, "1 to 26"))?;
        let structure = kind.name();
        ensure!(kind.since() <= version, structure, "version of its stream", version, kind.since());
        let a = Attrs::parse(structure, version, attrs)?;
        if kind == K::End {
            return Ok(Command::End);
        }
        let path = a.path()?;
        Ok(match kind {
            K::Subvol => Command::Subvol { path, uuid: a.uuid(A::Uuid)?, ctransid: a.u64(A::Ctransid)? },
            K::Snapshot => Command::Snapshot {
                path,
                uuid: a.uuid(A::Uuid)?,
                ctransid: a.u64(A::Ctransid)?,
                clone_uuid: a.uuid(A::CloneUuid)?,
                clone_ctransid: a.u64(A::CloneCtransid)?,
            },
            K::MkFile => Command::MkFile { path, ino: a.u64_or(A::Ino, 0)? },
            K::MkDir => Command::MkDir { path, ino: a.u64_or(A::Ino, 0)? },
            K::MkFifo => Command::MkFifo { path, ino: a.u64_or(A::Ino, 0)? },
            K::MkSock => Command::MkSock { path, ino: a.u64_or(A::Ino, 0)? },
            K::MkNod => {
                Command::MkNod { path, ino: a.u64_or(A::Ino, 0)?, mode: a.u64(A::Mode)?, rdev: a.u64(A::Rdev)? }
            }
            K::Symlink => Command::Symlink { path, ino: a.u64_or(A::Ino, 0)?, target: a.target()? },
            K::Rename => Command::Rename { path, to: a.bytes(A::PathTo)? },
            K::Link => Command::Link { path, target: a.bytes(A::PathLink)? },
            K::Unlink => Command::Unlink { path },
            K::RmDir => Command::RmDir { path },
            K::SetXattr => Command::SetXattr { path, name: a.bytes(A::XattrName)?, value: a.bytes(A::XattrData)? },
            K::RemoveXattr => Command::RemoveXattr { path, name: a.bytes(A::XattrName)? },
            K::Write => Command::Write { path, offset: a.u64(A::FileOffset)?, data: a.bytes(A::Data)? },
            K::EncodedWrite => Command::EncodedWrite {
                path,
                offset: a.u64(A::FileOffset)?,
                unencoded_file_len: a.u64(A::UnencodedFileLen)?,
                unencoded_len: a.u64(A::UnencodedLen)?,
                unencoded_offset: a.u64(A::UnencodedOffset)?,
                compression: a.u32_or(A::Compression, 0)?,
                encryption: a.u32_or(A::Encryption, 0)?,
                data: a.bytes(A::Data)?,
            },
            K::Clone => Command::Clone {
                path,
                offset: a.u64(A::FileOffset)?,
                len: a.u64(A::CloneLen)?,
                clone_uuid: a.uuid(A::CloneUuid)?,
                clone_ctransid: a.u64(A::CloneCtransid)?,
                clone_path: a.bytes(A::ClonePath)?,
                clone_offset: a.u64(A::CloneOffset)?,
            },
            K::Truncate => Command::Truncate { path, size: a.u64(A::Size)? },
            K::Chmod => Command::Chmod { path, mode: a.u64(A::Mode)? },
            K::Chown => Command::Chown { path, uid: a.u64(A::Uid)?, gid: a.u64(A::Gid)? },
            K::Utimes => Command::Utimes {
                path,
                atime: a.time(A::Atime)?,
                mtime: a.time(A::Mtime)?,
                ctime: a.time(A::Ctime)?,
                otime: a.get(A::Otime).map(|_| a.time(A::Otime)).transpose()?,
            },
            K::UpdateExtent => Command::UpdateExtent { path, offset: a.u64(A::FileOffset)?, len: a.u64(A::Size)? },
            K::Fallocate => Command::Fallocate {
                path,
                mode: a.u32(A::FallocateMode)?,
                offset: a.u64(A::FileOffset)?,
                len: a.u64(A::Size)?,
            },
            K::FileAttr => Command::FileAttr { path, attr: a.u64(A::FileAttr)? },
            K::EnableVerity => Command::EnableVerity {
                path,
                algorithm: a.fixed::<1>(A::VerityAlgorithm)?[0],
                block_size: a.u32(A::VerityBlockSize)?,
                salt: a.get(A::VeritySaltData).unwrap_or_default(),
                signature: a.get(A::VeritySigData).unwrap_or_default(),
            },
            K::End => unreachable!("answered above"),
        })
    }
}
