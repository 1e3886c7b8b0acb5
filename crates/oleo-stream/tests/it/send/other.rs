//! Streams that the kernel here cannot make or receive: version 3, and those without contents.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo::device::MemDevice;
use oleo::receive::{Receive, header};
use oleo::{Device, Image, OpenOptions, Uuid};
use oleo_format::stream::{Command, CommandKind};
use oleo_sim::oracle::oracle;
use oleo_sim::script::Mix;
use oleo_stream::{Commands, Limits, SendOptions, send};

use crate::send::common::{History, Sender, fresh, id_of, kernel_receive};

fn memory() -> Image {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemDevice::new(256 << 20))];
    oleo::mkfs::make(&devices, &oleo::mkfs::MkfsOptions::default().seed(oleo::mkfs::random_seed())).unwrap();
    Image::from_devices(devices, &OpenOptions::writing()).unwrap()
}

/// Goal: fs-verity goes through a send and a receive as it was enabled. Method: a stream of version 3 received; sent again in
/// versions 3 and 2; the command is in the one as it came, and not in the other.
#[test]
fn verity_survives_send_and_receive() {
    let command =
        Command::EnableVerity { path: b"f", algorithm: 1, block_size: 4096, salt: b"pepper", signature: b"signed" };
    let mut stream = header(3).to_vec();
    for command in [
        Command::Subvol { path: b"s", uuid: Uuid::from_u128(3), ctransid: 5 },
        Command::MkFile { path: b"f", ino: 257 },
        Command::Write { path: b"f", offset: 0, data: &[9; 20_000] },
        command,
        Command::End,
    ] {
        command.encode(3, &mut stream);
    }
    let image = memory();
    image.receive(std::io::Cursor::new(stream), &Receive::default()).unwrap();
    for (version, wanted) in [(3, true), (2, false)] {
        let mut out = Vec::new();
        let options = SendOptions::default().version(version);
        send(image.fs(), &[id_of(&image, "s").unwrap()], &options, &mut out).unwrap();
        let mut found = false;
        let mut reader = Commands::new(out.as_slice(), Limits::default());
        while let Some(next) = reader.next().unwrap() {
            found |= next.command == command;
        }
        assert_eq!(found, wanted, "version {version}");
        let again = memory();
        again.receive(std::io::Cursor::new(out), &Receive::default()).unwrap();
        assert_eq!(again.read("s/f").unwrap(), [9; 20_000]);
    }
}

/// Goal: a stream without contents has everything else, and names the ranges that changed. Method: a history sent so;
/// no data in it; the kernel receives it, and sizes are right.
#[test]
fn without_contents() {
    let Some(oracle) = oracle() else { return };
    let history = History::make(oracle, 41, &Mix { subvolumes: false, steps: 600, ..Mix::default() }, 2).unwrap();
    let sender = Sender { no_data: true, ..Sender::default() };
    let streams = history.streams(&sender).unwrap();
    let mut kinds: BTreeMap<CommandKind, usize> = BTreeMap::new();
    for stream in &streams {
        crate::send::roundtrip::commands(stream, &mut kinds);
    }
    assert!(kinds.contains_key(&CommandKind::UpdateExtent), "{kinds:?}");
    for kind in [CommandKind::Write, CommandKind::Clone, CommandKind::EncodedWrite] {
        assert!(!kinds.contains_key(&kind), "{kinds:?}");
    }
    let image = fresh(oracle, &history.scratch, "received").unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    for stream in &streams {
        kernel_receive(&history.scratch, stream, mounted.path()).unwrap();
    }
    let have = oleo_sim::manifest::Manifest::of_dir(mounted.path(), Default::default()).unwrap();
    mounted.unmount().unwrap();
    for (path, entry) in &history.manifest.entries {
        let found = have.entries.get(path).unwrap_or_else(|| panic!("{} is missing", path.escape_ascii()));
        assert_eq!(
            (found.size, found.mode, found.nlink),
            (entry.size, entry.mode, entry.nlink),
            "{}",
            path.escape_ascii()
        );
    }
}
