//! Tests of the stream format.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

/// Every command, with attributes that are not their defaults.
fn every_command() -> Vec<Command<'static>> {
    let path: &[u8] = b"dir/name";
    let uuid = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    let time = Timespec::new(-5, 999_999_999);
    vec![
        Command::Subvol { path, uuid, ctransid: 7 },
        Command::Snapshot { path, uuid, ctransid: 9, clone_uuid: Uuid::from_u128(1), clone_ctransid: 7 },
        Command::MkFile { path, ino: 257 },
        Command::MkDir { path, ino: 258 },
        Command::MkNod { path, ino: 259, mode: 0o20644, rdev: 0x103 },
        Command::MkFifo { path, ino: 260 },
        Command::MkSock { path, ino: 261 },
        Command::Symlink { path, ino: 262, target: b"../elsewhere" },
        Command::Rename { path, to: b"other" },
        Command::Link { path, target: b"other" },
        Command::Unlink { path },
        Command::RmDir { path: b"" },
        Command::SetXattr { path, name: b"user.x", value: b"\0v" },
        Command::RemoveXattr { path, name: b"user.x" },
        Command::Write { path, offset: 4096, data: b"data" },
        Command::Clone {
            path,
            offset: 8192,
            len: 4096,
            clone_uuid: uuid,
            clone_ctransid: 7,
            clone_path: b"source",
            clone_offset: 12288,
        },
        Command::Truncate { path, size: 5 },
        Command::Chmod { path, mode: 0o4755 },
        Command::Chown { path, uid: 1000, gid: 100 },
        Command::Utimes { path, atime: time, mtime: time, ctime: time, otime: None },
        Command::UpdateExtent { path, offset: 0, len: 4096 },
        Command::End,
        Command::Fallocate { path, mode: 1, offset: 4096, len: 1 << 20 },
        Command::FileAttr { path, attr: 1 << 3 },
        Command::EncodedWrite {
            path,
            offset: 0,
            unencoded_file_len: 4096,
            unencoded_len: 131_072,
            unencoded_offset: 4096,
            compression: 2,
            encryption: 0,
            data: b"compressed",
        },
        Command::Utimes { path, atime: time, mtime: time, ctime: time, otime: Some(Timespec::new(1, 2)) },
        Command::EnableVerity { path, algorithm: 1, block_size: 4096, salt: b"salt", signature: b"" },
    ]
}

fn decode(version: u32, bytes: &[u8]) -> Result<Command<'_>, crate::Corruption> {
    let (head, attrs) = bytes.split_first_chunk().expect("a header");
    let head = CommandHead::parse(head);
    assert_eq!(head.len as usize, attrs.len());
    assert_eq!(head.crc, head.checksum(attrs));
    Command::decode(version, head.kind, attrs)
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// Goal: our bytes are those of the kernel. Method: commands from a stream of Linux 6.18, decoded and encoded again.
#[test]
fn our_bytes_are_those_of_the_kernel() {
    assert_eq!(header(2)[..], unhex("6274 7266 732d 7374 7265 616d 0002 0000 00"));
    let subvol = unhex(
        "26000000 0100 c39d9627 0f00 0200 7331 0100 1000 f2a8547cde6d5d459b6df1f1f58c1eda 0200 0800 0800000000000000",
    );
    let uuid = Uuid::parse_str("f2a8547c-de6d-5d45-9b6d-f1f1f58c1eda").unwrap();
    assert_eq!(decode(2, &subvol).unwrap(), Command::Subvol { path: b"s1", uuid, ctransid: 8 });
    let chown_root = unhex("1c000000 1300 02372d8c 0f00 0000 0600 0800 0000000000000000 0700 0800 0000000000000000");
    assert_eq!(decode(1, &chown_root).unwrap(), Command::Chown { path: b"", uid: 0, gid: 0 });
    let fifo = unhex(
        "30000000 0600 9bd90b3a 0f00 0800 6f3235372d372d30 0300 0800 0101000000000000
         0800 0800 0000000000000000 0500 0800 a411000000000000",
    );
    assert_eq!(decode(2, &fifo).unwrap(), Command::MkFifo { path: b"o257-7-0", ino: 257 });
    let device = unhex(
        "30000000 0500 70fe92dc 0f00 0800 6f3235382d372d30 0300 0800 0201000000000000
         0800 0800 0301000000000000 0500 0800 a421000000000000",
    );
    assert_eq!(decode(2, &device).unwrap(), Command::MkNod { path: b"o258-7-0", ino: 258, mode: 0o20644, rdev: 0x103 });
    for golden in [subvol, chown_root, device] {
        let mut again = Vec::new();
        decode(2, &golden).unwrap().encode(2, &mut again);
        assert_eq!(again, golden);
    }
}

/// Goal: what is encoded is decoded as it was. Method: every command in every version that has it.
#[test]
fn round_trip() {
    for version in 1..=VERSION_MAX {
        let mut kinds = std::collections::BTreeSet::new();
        for command in every_command().iter().filter(|c| c.kind().since() <= version) {
            let mut bytes = b"before".to_vec();
            command.encode(version, &mut bytes);
            let want = match *command {
                Command::Utimes { path, atime, mtime, ctime, .. } if version == 1 => {
                    Command::Utimes { path, atime, mtime, ctime, otime: None }
                }
                other => other,
            };
            assert_eq!(decode(version, &bytes[6..]).unwrap(), want);
            kinds.insert(command.kind());
        }
        assert_eq!(kinds.len(), CommandKind::ALL.iter().filter(|k| k.since() <= version).count());
    }
}

/// Goal: data longer than 64 KiB needs no length from version 2 on, and version 1 has its length.
#[test]
fn data_length() {
    let data = vec![7; WRITE_LEN_MAX_V2];
    let mut long = Vec::new();
    Command::Write { path: b"f", offset: 0, data: &data }.encode(2, &mut long);
    assert_eq!(long.len(), COMMAND_HEAD_LEN + 5 + 12 + 2 + data.len());
    assert!(matches!(decode(2, &long).unwrap(), Command::Write { data: d, .. } if d == data));
    assert!(decode(1, &long).is_err());
}

/// Goal: each thing that can be wrong is named. Method: one wrong thing at a time.
#[test]
fn each_error_is_named() {
    let says = |version, kind: CommandKind, attrs: &[u8], text: &str| {
        let error = Command::decode(version, kind.number(), attrs).unwrap_err().to_string();
        assert!(error.contains(text), "{error:?} does not say {text:?}");
    };
    let path = [15, 0, 1, 0, b'f'];
    let with = |more: &[u8]| [&path[..], more].concat();
    assert!(Command::decode(3, 0, &[]).is_err());
    assert!(Command::decode(3, 27, &[]).is_err());
    says(1, CommandKind::Fallocate, &path, "version of its stream is 1, want 2");
    says(1, CommandKind::Unlink, &[], "path is missing");
    says(1, CommandKind::Unlink, &[15], "bytes left for an attribute is 1");
    says(1, CommandKind::Unlink, &[15, 0, 1], "bytes left for the length of path is 1");
    says(1, CommandKind::Unlink, &[15, 0, 2, 0, b'f'], "length of path is 2, want at most 1");
    says(1, CommandKind::Unlink, &with(&path), "path is there twice");
    says(1, CommandKind::Unlink, &with(&[0, 0, 0, 0]), "attribute is 0");
    says(3, CommandKind::Unlink, &with(&[36, 0, 0, 0]), "attribute is 36");
    says(1, CommandKind::Truncate, &with(&[4, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0]), "length of size is 7, want 8");
    says(1, CommandKind::Write, &with(&[19, 0, 0, 0, 15, 0, 0, 0]), "bytes after data is 4");
    let late = with(&[9, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xca, 0x9a, 0x3b]);
    says(1, CommandKind::Utimes, &late, "atime is missing");
    let late: Vec<u8> = [11, 10, 9].iter().fold(path.to_vec(), |sum, n| {
        [&sum[..], &[*n, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xca, 0x9a, 0x3b]].concat()
    });
    says(1, CommandKind::Utimes, &late, "atime is 1000000000");
    assert!(version(b"btrfs-stream\0\x04\0\0\0").is_err());
    assert!(version(b"btrfs-stream\0\0\0\0\0").is_err());
    assert!(version(b"btrfs-strean\0\x01\0\0\0").is_err());
    assert!(EncodedCompression::from_number(8).is_err());
}

/// Goal: compression numbers are those of the UAPI header. Method: there and back for each sector size.
#[test]
fn compression_numbers_of_the_header() {
    for number in 0..8 {
        let c = EncodedCompression::from_number(number).unwrap();
        assert_eq!(EncodedCompression::number(c.kind, c.lzo_sectorsize.unwrap_or(4096)), Some(number));
    }
    assert_eq!(EncodedCompression::number(crate::Compression::Lzo, 2048), None);
}

proptest! {
    /// Goal: no bytes make decoding panic, and what it accepts it would write again.
    #[test]
    fn any_bytes(version in 1u32..=3, number in 0u16..30, attrs in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(command) = Command::decode(version, number, &attrs) {
            let mut bytes = Vec::new();
            command.encode(version, &mut bytes);
            prop_assert_eq!(decode(version, &bytes).unwrap(), command);
        }
    }
}
