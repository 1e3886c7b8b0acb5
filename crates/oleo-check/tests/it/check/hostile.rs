//! Programs that walk damaged images end, with an error or a warning, and write no more than the image holds.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo::fs::{Depth, Sharing};
use oleo::mkfs::MkfsOptions;
use oleo::restore::{RestoreOptions, restore_to_dir, restore_to_tar};
use oleo::{Device, Image, OpenOptions};
use oleo_format::{DirEntry, InodeItem, ItemType, Key, TreeId};
use oleo_sim::oracle::Scratch;
use zerocopy::FromBytes;

use crate::check::kit::Disk;

fn open(disk: &Disk) -> Image {
    let devices = disk.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    Image::from_devices(devices, &OpenOptions::writing()).unwrap()
}

/// The key of the entry of that name by which directories are listed.
fn index_of(disk: &Disk, name: &[u8]) -> Key {
    let named = |key: &Key, item: &[u8]| {
        key.item_type == ItemType::DIR_INDEX && DirEntry::parse(item).is_ok_and(|e| e.name == name)
    };
    disk.find(TreeId::FS, named).0
}

fn ino_of(disk: &Disk, name: &[u8]) -> u64 {
    let key = index_of(disk, name);
    let (_, item) = disk.find(TreeId::FS, |k, _| *k == key);
    DirEntry::parse(&item).unwrap().location.objectid
}

/// Accepts this many bytes and no more.
struct Room(usize);

impl Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("too much"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Goal: directories that lead to a parent, or twice to the same directory, are entered once: restoring and summing up
/// end and report it, copying and removing are refused. Method: entries of a sound volume are redirected, two in each
/// directory, so that a walk that trusts them doubles at each of fifty steps.
#[test]
fn directories_in_a_circle_are_entered_once() {
    let disk = Disk::new(&MkfsOptions::default(), 1, |image| {
        let top = image.top().unwrap();
        image.create_dirs(&top, b"a/b/c").unwrap();
        image.create_dirs(&top, b"a/b/d").unwrap();
        image.write("a/b/file", b"contents").unwrap();
        let deep: Vec<String> = (0..50).map(|n| format!("n{n}")).collect();
        image.create_dirs(&top, deep.join("/").as_bytes()).unwrap();
        for n in 1..50 {
            image.create_dirs(&top, format!("{}/twin{n}", deep[..n].join("/")).as_bytes()).unwrap();
        }
    });
    let lead = |name: &str, to: u64| {
        disk.edit(TreeId::FS, &index_of(&disk, name.as_bytes()), |item| item[..8].copy_from_slice(&to.to_le_bytes()));
    };
    let (a, b) = (ino_of(&disk, b"a"), ino_of(&disk, b"b"));
    lead("c", a);
    lead("d", b);
    for n in 1..50 {
        lead(&format!("twin{n}"), ino_of(&disk, format!("n{n}").as_bytes()));
    }
    let image = open(&disk);
    let top = image.top().unwrap();
    let scratch = Scratch::new().unwrap();
    let began = Instant::now();
    let to_dir = restore_to_dir(&image, &top, b"", &scratch.path().join("out"), &RestoreOptions::default()).unwrap();
    assert_eq!(std::fs::read(scratch.path().join("out/a/b/file")).unwrap(), b"contents");
    assert!(to_dir.warnings.iter().any(|w| w.contains("elsewhere too")), "{:?}", to_dir.warnings);
    assert!(to_dir.done.dirs < 5000, "{:?}", to_dir.done);
    let to_tar = restore_to_tar(&image, &top, b"", Room(64 << 20), &RestoreOptions::default()).unwrap();
    assert!(to_tar.warnings.iter().any(|w| w.contains("elsewhere too")), "{:?}", to_tar.warnings);
    // From inside a circle.
    let inside = image.resolve(&top, b"a/b").unwrap();
    restore_to_dir(&image, &inside, b"b", &scratch.path().join("inside"), &RestoreOptions::default()).unwrap();
    assert!(image.du(&top, |_, _| ()).unwrap().total < 1 << 20);
    image.copy(&top, b"a", b"copy", Depth::Tree, Sharing::Copy).unwrap_err();
    image.remove(&top, b"a", Depth::Tree).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

/// Goal: a file whose inode claims any size, and no holes, is restored with its real contents: a sparse file if it
/// fits, an error if it cannot. Method: sizes from a tebibyte to more than a file can have, with as many bytes claimed.
#[test]
fn forged_sizes() {
    let scratch = Scratch::new().unwrap();
    for (n, size) in [1 << 40, 1 << 62, 18_446_742_974_197_923_851].into_iter().enumerate() {
        let disk = Disk::new(&MkfsOptions::default(), 1, |image| image.write("file", b"contents").unwrap());
        let file = oleo_format::Ino(ino_of(&disk, b"file"));
        disk.edit(TreeId::FS, &Key::inode(file), |item| {
            let inode = InodeItem::mut_from_bytes(item).unwrap();
            (inode.size, inode.nbytes) = (size.into(), u64::MAX.into());
        });
        let image = open(&disk);
        let (top, out) = (image.top().unwrap(), scratch.path().join(n.to_string()));
        let began = Instant::now();
        let done = restore_to_dir(&image, &top, b"", &out, &RestoreOptions::default());
        match std::fs::metadata(out.join("file")).unwrap().len() {
            0 => assert!(done.unwrap_err().to_string().contains("set the size of"), "{size}"),
            len => {
                assert_eq!((len, done.unwrap().done.data_bytes <= 1 << 20), (size, true));
            }
        }
        restore_to_tar(&image, &top, b"", Room(4 << 20), &RestoreOptions::default()).unwrap();
        assert!(began.elapsed() < Duration::from_secs(30), "{size}: {:?}", began.elapsed());
    }
}
