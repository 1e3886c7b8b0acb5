//! Any bytes as a stream into a small image: it must be refused with a typed error or applied, and the image must be sound
//! afterwards. Used by the fuzz target and, with bytes from a seed, by an ordinary test.

use std::io::Cursor;
use std::sync::{Arc, OnceLock};

use oleo::device::MemDevice;
use oleo::fs::Time;
use oleo::mkfs::MkfsOptions;
use oleo::receive::{Command, Receive, ReceiveOptions, header};
use oleo::{Device, Image, OpenOptions, Uuid};
use oleo_format::Timespec;

/// Bytes of the image.
const IMAGE_LEN: u64 = 128 << 20;
/// Names that commands choose from, so that most meet something.
const PATHS: [&[u8]; 14] =
    [b"a", b"b", b"d", b"d/a", b"d/b", b"d/e", b"d/e/c", b"link", b"link/x", b"", b"..", b"o257-7-0", b"d/../a", b"e"];
/// What subvolumes are called.
const SUBVOLS: [&[u8]; 4] = [b"s", b"t", b"d/s", b"../u"];
const LEN_MAX: u64 = 1 << 20;

/// Takes values off the front of the input; zeros when there is nothing left.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn u8(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }
    fn u64(&mut self) -> u64 {
        (0..8).fold(0, |sum, _| sum << 8 | u64::from(self.u8()))
    }
    fn path(&mut self) -> &'static [u8] {
        PATHS[usize::from(self.u8()) % PATHS.len()]
    }
    fn uuid(&mut self) -> Uuid {
        Uuid::from_u128(u128::from(self.u8() % 4))
    }
    /// Mostly small and on a sector, sometimes anything.
    fn len(&mut self) -> u64 {
        match self.u8() {
            n @ 0..200 => u64::from(n % 40) * 4096,
            n @ 200..240 => u64::from(n) * 977 % LEN_MAX,
            _ => self.u64(),
        }
    }
    fn time(&mut self) -> Timespec {
        Timespec::new(i64::from(self.u8()), 0)
    }
    fn data(&mut self, room: &'a [u8]) -> &'a [u8] {
        let len = usize::from(self.u8()) * 240;
        &room[..len.min(room.len())]
    }

    fn command(&mut self, version: u32, room: &'a [u8], packed: &'a [u8]) -> Command<'a> {
        let path = self.path();
        let command = match self.u8() % 34 {
            0 => Command::Subvol { path: SUBVOLS[usize::from(self.u8()) % 4], uuid: self.uuid(), ctransid: 1 },
            1 => Command::Snapshot {
                path: SUBVOLS[usize::from(self.u8()) % 4],
                uuid: self.uuid(),
                ctransid: 1,
                clone_uuid: self.uuid(),
                clone_ctransid: 1,
            },
            2 | 3 => Command::MkFile { path, ino: 0 },
            4 | 5 => Command::MkDir { path, ino: 0 },
            6 => Command::MkNod { path, ino: 0, mode: self.u64() & 0o177_777, rdev: self.u64() >> 30 },
            7 => Command::MkFifo { path, ino: 0 },
            8 => Command::MkSock { path, ino: 0 },
            9 => Command::Symlink { path, ino: 0, target: self.path() },
            10 | 11 => Command::Rename { path, to: self.path() },
            12 => Command::Link { path, target: self.path() },
            13 => Command::Unlink { path },
            14 => Command::RmDir { path },
            15 => Command::SetXattr { path, name: b"user.x", value: self.data(room) },
            16 => Command::SetXattr { path, name: b"btrfs.compression", value: b"zstd" },
            17 => Command::RemoveXattr { path, name: b"user.x" },
            18..=20 => Command::Write { path, offset: self.len(), data: self.data(room) },
            21..=23 => Command::Clone {
                path,
                offset: self.len(),
                len: self.len(),
                clone_uuid: self.uuid(),
                clone_ctransid: 1,
                clone_path: self.path(),
                clone_offset: self.len(),
            },
            24 => Command::Truncate { path, size: self.len() },
            25 => Command::Chmod { path, mode: self.u64() },
            26 => Command::Chown { path, uid: self.u64() >> 40, gid: self.u64() >> 31 },
            27 => Command::Utimes { path, atime: self.time(), mtime: self.time(), ctime: self.time(), otime: None },
            28 => Command::UpdateExtent { path, offset: self.len(), len: self.len() },
            29 => Command::Fallocate { path, mode: u32::from(self.u8() % 20), offset: self.len(), len: self.len() },
            30 => Command::FileAttr { path, attr: self.u64() >> 50 },
            31 => Command::EncodedWrite {
                path,
                offset: self.len(),
                unencoded_file_len: self.len(),
                unencoded_len: self.len(),
                unencoded_offset: self.len(),
                compression: u32::from(self.u8() % 9),
                encryption: 0,
                data: if self.u8() < 200 { packed } else { self.data(room) },
            },
            32 => Command::EnableVerity { path, algorithm: self.u8(), block_size: 4096, salt: b"", signature: b"" },
            _ => Command::End,
        };
        if command.kind().since() <= version { command } else { Command::Unlink { path } }
    }
}

/// A stream from any bytes.
fn stream(bytes: &[u8]) -> Vec<u8> {
    static ROOM: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    let (room, packed) = ROOM.get_or_init(|| {
        let room: Vec<u8> = (0..80_000u32).map(|n| (n / 7 % 251) as u8).collect();
        let packed = oleo_format::compress(oleo_format::Compression::Zstd, 3, &room, 4096).unwrap();
        (room, packed)
    });
    let mut input = Bytes(bytes);
    let version = u32::from(input.u8() % 3) + 1;
    let mut out = header(version).to_vec();
    let uuid = Uuid::from_u128(1);
    Command::Subvol { path: b"s", uuid, ctransid: 1 }.encode(version, &mut out);
    while !input.0.is_empty() {
        let command = input.command(version, room, packed);
        command.encode(version, &mut out);
        if command == Command::End {
            out.extend(header(version));
        }
    }
    Command::End.encode(version, &mut out);
    let flip = bytes.last().copied().unwrap_or_default();
    if flip < 8 {
        // Now and then the stream is damaged.
        let at = bytes.len() * 31 % out.len();
        out[at] ^= 1 << flip;
    }
    out
}

/// Receives these bytes, in one of the possible ways, and checks the image.
pub fn receive_anything(bytes: &[u8]) {
    let device = Arc::new(MemDevice::new(IMAGE_LEN));
    let devices: Vec<Arc<dyn Device>> = vec![device];
    oleo::mkfs::make(&devices, &MkfsOptions::default().seed([7; 32])).expect("an empty image");
    let clock = Arc::new(oleo::fs::FixedClock(Time { sec: 1, nsec: 0 }));
    let mut open = OpenOptions::writing();
    open.fs.clock = clock;
    let (way, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let how = Receive::default().atomic(way % 4 == 1).options(
        ReceiveOptions::default()
            .errors_passed_max(if way % 8 >= 4 { None } else { Some(0) })
            .one_stream(way % 16 == 8),
    );
    let image = Image::from_devices(devices.clone(), &how.open_options(open.clone())).expect("it opens");
    let input = stream(rest);
    let (_, result) = image.receive_report(Cursor::new(input.clone()), &how).expect("the top level is there");
    image.close().expect("it closes");
    must_be_sound(&devices);
    if result.is_err() && !how.atomic {
        // Once more, from where it stopped if that is known.
        let image = Image::from_devices(devices.clone(), &open).expect("it opens again");
        let mut how = how.atomic(false);
        how.options.resume = true;
        let _refused = image.receive_report(Cursor::new(input), &how).expect("the top level is there");
        image.close().expect("it closes again");
        must_be_sound(&devices);
    }
}

fn must_be_sound(devices: &[Arc<dyn Device>]) {
    let image = Image::from_devices(devices.to_vec(), &OpenOptions::default()).expect("it can be read");
    let options = oleo::check::CheckOptions::default().threads(1).data(true);
    let report = oleo::check::volume(image.volume(), &options).expect("it can be checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}
