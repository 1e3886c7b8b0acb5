//! Parses requests.

use zerocopy::FromBytes;

use super::abi::{self, opcode};

/// A request that breaks the protocol.
#[derive(Debug, thiserror::Error)]
#[error("malformed request {opcode} of {len} bytes")]
pub struct Malformed {
    /// Its number.
    pub opcode: u32,
    /// Its length without the header.
    pub len: usize,
}

/// One request.
#[derive(Debug)]
pub struct Request<'a> {
    /// The caller and the node.
    pub head: abi::InHeader,
    /// What for.
    pub op: Op<'a>,
}

/// The operation.
#[derive(Debug)]
#[allow(missing_docs, reason = "requests of the protocol by their names")]
pub enum Op<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        nlookup: u64,
    },
    BatchForget(&'a [abi::ForgetOne]),
    GetAttr,
    SetAttr(abi::SetattrIn),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: abi::MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: abi::MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        to_dir: u64,
        flags: u32,
        from: &'a [u8],
        to: &'a [u8],
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open(abi::OpenIn),
    Read(abi::ReadIn),
    Write {
        args: abi::WriteIn,
        data: &'a [u8],
    },
    StatFs,
    Release(abi::ReleaseIn),
    Fsync {
        data_only: bool,
    },
    SetXattr {
        args: abi::SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    GetXattr {
        size: u32,
        name: &'a [u8],
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush,
    Init(abi::InitIn),
    OpenDir(abi::OpenIn),
    ReadDir(abi::ReadIn),
    ReadDirPlus(abi::ReadIn),
    ReleaseDir,
    FsyncDir {
        data_only: bool,
    },
    Access,
    Create {
        args: abi::CreateIn,
        name: &'a [u8],
    },
    Tmpfile {
        args: abi::CreateIn,
    },
    Interrupt,
    Destroy,
    Ioctl {
        args: abi::IoctlIn,
        data: &'a [u8],
    },
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyFileRange {
        args: abi::CopyFileRangeIn,
        wide: bool,
    },
    SyncFs,
    Statx(abi::StatxIn),
    /// What this server does not know.
    Unknown(u32),
}

/// Bytes of the fixed struct of a request.
pub fn fixed_len(op: u32) -> usize {
    match op {
        opcode::FORGET | opcode::RENAME | opcode::LINK | opcode::SYNCFS | opcode::INTERRUPT => 8,
        opcode::MKDIR | opcode::OPEN | opcode::OPENDIR | opcode::GETXATTR | opcode::LISTXATTR => 8,
        opcode::ACCESS | opcode::BATCH_FORGET => 8,
        opcode::GETATTR | opcode::MKNOD | opcode::RENAME2 | opcode::CREATE | opcode::TMPFILE => 16,
        opcode::FSYNC | opcode::FSYNCDIR | opcode::SETXATTR => 16,
        opcode::LSEEK | opcode::STATX | opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH => 24,
        opcode::IOCTL | opcode::FALLOCATE => 32,
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS | opcode::WRITE => 40,
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => 56,
        opcode::INIT => 64,
        opcode::SETATTR => 88,
        _ => 0,
    }
}

/// A zero-terminated name at the front, and the bytes after it.
fn name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|b| *b == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

fn fixed<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

impl<'a> Request<'a> {
    /// Takes a request apart that lies in one piece behind its header.
    pub fn parse_whole(head: abi::InHeader, body: &'a [u8]) -> Result<Request<'a>, Malformed> {
        let cut = fixed_len(head.opcode).min(body.len());
        let (args, rest) = body.split_at(cut);
        Request::parse(head, args, rest)
    }

    /// Takes a request apart: its fixed struct, and the rest.
    pub fn parse(head: abi::InHeader, args: &'a [u8], rest: &'a [u8]) -> Result<Request<'a>, Malformed> {
        match op(head.opcode, args, rest) {
            Some(op) => Ok(Request { head, op }),
            None => Err(Malformed { opcode: head.opcode, len: args.len() + rest.len() }),
        }
    }
}

fn op<'a>(code: u32, args: &'a [u8], rest: &'a [u8]) -> Option<Op<'a>> {
    Some(match code {
        opcode::LOOKUP => Op::Lookup { name: name(rest)?.0 },
        opcode::FORGET => Op::Forget { nlookup: fixed::<abi::ForgetIn>(args)?.nlookup },
        opcode::BATCH_FORGET => {
            let count = fixed::<abi::BatchForgetIn>(args)?.count as usize;
            let (list, _) = <[abi::ForgetOne]>::ref_from_prefix_with_elems(rest, count).ok()?;
            Op::BatchForget(list)
        }
        opcode::GETATTR => Op::GetAttr,
        opcode::SETATTR => Op::SetAttr(fixed(args)?),
        opcode::READLINK => Op::ReadLink,
        opcode::SYMLINK => {
            let (name_of, rest) = name(rest)?;
            Op::Symlink { name: name_of, target: name(rest)?.0 }
        }
        opcode::MKNOD => Op::Mknod { args: fixed(args)?, name: name(rest)?.0 },
        opcode::MKDIR => Op::Mkdir { args: fixed(args)?, name: name(rest)?.0 },
        opcode::UNLINK => Op::Unlink { name: name(rest)?.0 },
        opcode::RMDIR => Op::Rmdir { name: name(rest)?.0 },
        opcode::RENAME | opcode::RENAME2 => {
            let (to_dir, flags) = if code == opcode::RENAME {
                (fixed::<abi::RenameIn>(args)?.newdir, 0)
            } else {
                let args = fixed::<abi::Rename2In>(args)?;
                (args.newdir, args.flags)
            };
            let (from, rest) = name(rest)?;
            Op::Rename { to_dir, flags, from, to: name(rest)?.0 }
        }
        opcode::LINK => Op::Link { node: fixed::<abi::LinkIn>(args)?.oldnodeid, name: name(rest)?.0 },
        opcode::OPEN => Op::Open(fixed(args)?),
        opcode::READ => Op::Read(fixed(args)?),
        opcode::WRITE => {
            let args: abi::WriteIn = fixed(args)?;
            Op::Write { args, data: rest.get(..args.size as usize)? }
        }
        opcode::STATFS => Op::StatFs,
        opcode::RELEASE => Op::Release(fixed(args)?),
        opcode::FSYNC | opcode::FSYNCDIR => {
            let data_only = fixed::<abi::FsyncIn>(args)?.fsync_flags & abi::FSYNC_FDATASYNC != 0;
            if code == opcode::FSYNC { Op::Fsync { data_only } } else { Op::FsyncDir { data_only } }
        }
        opcode::SETXATTR => {
            let args: abi::SetxattrIn = fixed(args)?;
            let (name, rest) = name(rest)?;
            Op::SetXattr { args, name, value: rest.get(..args.size as usize)? }
        }
        opcode::GETXATTR => Op::GetXattr { size: fixed::<abi::GetxattrIn>(args)?.size, name: name(rest)?.0 },
        opcode::LISTXATTR => Op::ListXattr { size: fixed::<abi::GetxattrIn>(args)?.size },
        opcode::REMOVEXATTR => Op::RemoveXattr { name: name(rest)?.0 },
        opcode::FLUSH => Op::Flush,
        opcode::INIT => Op::Init(init(args)?),
        opcode::OPENDIR => Op::OpenDir(fixed(args)?),
        opcode::READDIR => Op::ReadDir(fixed(args)?),
        opcode::READDIRPLUS => Op::ReadDirPlus(fixed(args)?),
        opcode::RELEASEDIR => Op::ReleaseDir,
        opcode::ACCESS => Op::Access,
        opcode::CREATE => Op::Create { args: fixed(args)?, name: name(rest)?.0 },
        opcode::TMPFILE => Op::Tmpfile { args: fixed(args)? },
        opcode::INTERRUPT => Op::Interrupt,
        opcode::DESTROY => Op::Destroy,
        opcode::IOCTL => {
            let args: abi::IoctlIn = fixed(args)?;
            Op::Ioctl { args, data: rest.get(..args.in_size as usize)? }
        }
        opcode::FALLOCATE => Op::Fallocate(fixed(args)?),
        opcode::LSEEK => Op::Lseek(fixed(args)?),
        opcode::COPY_FILE_RANGE => Op::CopyFileRange { args: fixed(args)?, wide: false },
        opcode::COPY_FILE_RANGE_64 => Op::CopyFileRange { args: fixed(args)?, wide: true },
        opcode::SYNCFS => Op::SyncFs,
        opcode::STATX => Op::Statx(fixed(args)?),
        other => Op::Unknown(other),
    })
}

/// INIT got longer over time: what an old kernel does not send is zero.
fn init(args: &[u8]) -> Option<abi::InitIn> {
    const OLDEST: usize = 16;
    if args.len() < OLDEST {
        return None;
    }
    let mut whole = [0u8; size_of::<abi::InitIn>()];
    let len = args.len().min(whole.len());
    whole[..len].copy_from_slice(&args[..len]);
    fixed(&whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(code: u32) -> abi::InHeader {
        abi::InHeader { opcode: code, unique: 7, nodeid: 1, ..Default::default() }
    }

    /// Goal: names and fixed structs are found at their place in the protocol, in one piece or in two.
    #[test]
    fn rename_in_one_piece() {
        let mut body = zerocopy::IntoBytes::as_bytes(&9u64).to_vec();
        body.extend([2, 0, 0, 0, 0, 0, 0, 0]);
        body.extend(b"old\0new\0");
        let request = Request::parse_whole(head(opcode::RENAME2), &body).unwrap();
        match request.op {
            Op::Rename { to_dir: 9, flags: 2, from: b"old", to: b"new" } => {}
            other => panic!("{other:?}"),
        }
    }

    /// Goal: no length in a request leads beyond its bytes. Method: every known request, cut at every length, and with
    /// wrong lengths.
    #[test]
    fn short_requests_are_malformed_or_harmless() {
        for code in 0..64 {
            for len in 0..160 {
                let _ = Request::parse_whole(head(code), &vec![0xff; len]);
                let _ = Request::parse_whole(head(code), &vec![0; len]);
            }
        }
        let write = abi::WriteIn { size: 100, ..Default::default() };
        let body = [zerocopy::IntoBytes::as_bytes(&write), &[1; 99]].concat();
        assert!(Request::parse_whole(head(opcode::WRITE), &body).is_err());
        let batch = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
        let body = [zerocopy::IntoBytes::as_bytes(&batch), &[0; 64]].concat();
        assert!(Request::parse_whole(head(opcode::BATCH_FORGET), &body).is_err());
    }
}
