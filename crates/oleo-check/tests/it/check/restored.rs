//! Damaged images are read as far as they can be: an error costs what it concerns, and no more. They are not written to if a
//! commit could not succeed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use oleo::mkfs::{FeatureSet, MkfsOptions};
use oleo::restore::{RestoreOptions, RestoreReport, restore_to_dir, restore_to_tar};
use oleo::{Device, Error, ErrorKind, Image, OpenOptions};
use oleo_format::{DirEntry, FileExtentItem, ItemType, Key, Logical, SuperFlags, TreeId};
use oleo_sim::oracle::Scratch;
use zerocopy::FromBytes;

use crate::check::kit::{Disk, noise};

/// Files in the large directory.
const FILES: u64 = 400;
/// Every other sector of the file with holes is written.
const RUNS: u64 = 150;
const SECTOR: u64 = 4096;

/// Many small files in one directory, a large file, and one with many extents, in small tree blocks.
fn disk() -> Disk {
    Disk::new(&MkfsOptions::default().nodesize(Some(4096)), 1, |image| {
        let top = image.top().unwrap();
        image.create_dirs(&top, b"d").unwrap();
        for i in 0..FILES {
            image.write(format!("d/{i}"), &content(i)).unwrap();
        }
        image.write("large", &noise(300_000, 1)).unwrap();
        image.write("holes", b"").unwrap();
        let file = image.find("holes").unwrap();
        for run in 0..RUNS {
            image.fs().write(&file, 2 * run * SECTOR, &noise(SECTOR as usize, 1000 + run)).unwrap();
        }
        image.write("last", b"last").unwrap();
    })
}

fn content(i: u64) -> Vec<u8> {
    noise(50 + i as usize % 300, i)
}

fn open(disk: &Disk) -> Image {
    let devices = disk.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
    Image::from_devices(devices, &OpenOptions::default()).unwrap()
}

/// The leaves of the file tree.
fn leaves(disk: &Disk) -> Vec<Logical> {
    let mut found = Vec::new();
    let mut stack = vec![disk.root(TreeId::FS)];
    while let Some(at) = stack.pop() {
        let node = disk.node(at);
        match node.is_leaf() {
            true => found.push(at),
            false => stack.extend((0..node.len()).rev().map(|slot| node.child(slot).logical)),
        }
    }
    found
}

/// Restores everything into a directory and to an archive. Both have to report the same errors.
fn restored(disk: &Disk, out: &Path) -> (RestoreReport, Vec<String>, Vec<u8>) {
    let image = open(disk);
    let top = image.top().unwrap();
    let options = |list: &Arc<Mutex<Vec<String>>>| {
        let list = list.clone();
        RestoreOptions::default()
            .on_failure(Some(Box::new(move |error: &Error| list.lock().unwrap().push(error.to_string()))))
    };
    let (to_dir, to_tar) = (Arc::default(), Arc::default());
    let report = report_of(restore_to_dir(&image, &top, b"", out, &options(&to_dir)));
    let mut archive = Vec::new();
    let of_tar = report_of(restore_to_tar(&image, &top, b"", &mut archive, &options(&to_tar)));
    let (mut to_dir, to_tar) = (to_dir.lock().unwrap().clone(), to_tar.lock().unwrap().clone());
    assert_eq!((to_dir.len() as u64, to_tar.len() as u64), (report.failed, of_tar.failed));
    assert_eq!(to_dir.len(), to_tar.len(), "{to_dir:?}\n{to_tar:?}");
    to_dir.sort();
    (report, to_dir, archive)
}

/// The plain files of an archive.
fn members(archive: &[u8]) -> BTreeMap<String, &[u8]> {
    let mut found = BTreeMap::new();
    let mut at = 0;
    while archive[at] != 0 {
        let header = &archive[at..at + 512];
        let text = |range: std::ops::Range<usize>| {
            let bytes = &header[range];
            let len = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..len]).into_owned()
        };
        let len = usize::from_str_radix(text(124..136).trim(), 8).unwrap();
        let body = &archive[at + 512..at + 512 + len];
        if header[156] == b'0' {
            found.insert(text(0..100), body);
        }
        at += 512 + len.next_multiple_of(512);
    }
    found
}

fn report_of(result: oleo::Result<RestoreReport>) -> RestoreReport {
    match result {
        Ok(report) => {
            assert_eq!(report.failed, 0);
            report
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
            let Error::Incomplete { report, .. } = error else { panic!("{error}") };
            assert_ne!(report.failed, 0);
            *report
        }
    }
}

/// Goal: a tree block that cannot be read costs the entries that have an item in it; all others are restored whole, into a
/// directory and to an archive. Method: each third leaf in turn is destroyed; the items that it had say what may be lost.
#[test]
fn a_leaf_that_cannot_be_read() {
    let sound = disk();
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    for (key, item) in sound.items(TreeId::FS) {
        if key.item_type == ItemType::DIR_INDEX {
            let entry = DirEntry::parse(&item).unwrap();
            names.insert(entry.location.objectid, String::from_utf8(entry.name.to_vec()).unwrap());
        }
    }
    let all = leaves(&sound);
    assert!(all.len() > 40, "{}", all.len());
    let scratch = Scratch::new().unwrap();
    let (mut costs, mut parts) = (0, 0);
    for (n, &leaf) in all.iter().enumerate().skip(1).step_by(3) {
        let mut lost = BTreeSet::new();
        let mut lost_extents = BTreeSet::new();
        for (key, item) in sound.node(leaf).iter() {
            match key.item_type {
                ItemType::DIR_INDEX => {
                    lost.insert(String::from_utf8(DirEntry::parse(item).unwrap().name.to_vec()).unwrap());
                }
                ItemType::EXTENT_DATA if names.get(&key.objectid).is_some_and(|name| name == "holes") => {
                    lost_extents.insert(key.offset);
                }
                _ => lost.extend(names.get(&key.objectid).cloned()),
            }
        }
        if lost.contains("d") || lost.contains("holes") {
            continue; // Entries of a directory, and bytes of a file, need its inode.
        }
        let damaged = sound.copy();
        damaged.edit_copies(leaf, usize::MAX, false, |bytes| bytes.fill(0));
        let out = scratch.path().join(n.to_string());
        let (report, failures, archive) = restored(&damaged, &out);
        let members = members(&archive);
        assert!(report.failed > 0, "leaf {n}");
        for i in 0..FILES {
            let found = fs::read(out.join(format!("d/{i}")));
            if !lost.contains(&i.to_string()) {
                assert_eq!(found.unwrap(), content(i), "leaf {n}, file {i}: {failures:?}");
                assert_eq!(members[&format!("./d/{i}")], content(i), "leaf {n}, file {i}");
            } else if found.is_err() || found.unwrap() != content(i) {
                costs += 1;
            }
        }
        assert_eq!(fs::read(out.join("large")).ok(), (!lost.contains("large")).then(|| noise(300_000, 1)));
        let holes = fs::read(out.join("holes")).unwrap();
        for run in 0..RUNS {
            let at = 2 * run * SECTOR;
            if !lost_extents.contains(&at) {
                let want = noise(SECTOR as usize, 1000 + run);
                assert!(holes[at as usize..].starts_with(&want), "leaf {n}, sector {run}: {failures:?}");
            }
        }
        if !lost_extents.is_empty() {
            assert!(failures.iter().any(|text| text.starts_with("holes: up to ")), "{failures:?}");
            parts += 1;
        }
    }
    assert!(costs > 50 && parts > 0, "something was lost: {costs}, {parts}");
}

/// Goal: bytes that do not fit their checksum are zeros, all others of the file are kept, and the file is named.
#[test]
fn a_sector_that_is_wrong() {
    let disk = disk();
    let is_large = |key: &Key, item: &[u8]| {
        let extent = (key.item_type == ItemType::EXTENT_DATA).then(|| FileExtentItem::parse(item).ok()).flatten();
        extent.is_some_and(|extent| extent.num_bytes.get() > 300_000)
    };
    let (_, item) = disk.find(TreeId::FS, is_large);
    let start = FileExtentItem::parse(&item).unwrap().disk_bytenr.get();
    let bad = 3 * SECTOR;
    for (device, offset) in disk.places(Logical(start)).into_iter().map(|(device, at)| (device, at + bad)) {
        disk.devices[device].write_at(offset + 17, b"rotten").unwrap();
    }
    let scratch = Scratch::new().unwrap();
    let (report, failures, archive) = restored(&disk, &scratch.path().join("out"));
    assert_eq!((report.failed, report.done.files), (1, FILES + 3));
    assert!(failures[0].starts_with("large: up to 4096 bytes could not be read and are zeros: "), "{failures:?}");
    let mut want = noise(300_000, 1);
    want[bad as usize..(bad + SECTOR) as usize].fill(0);
    assert_eq!(fs::read(scratch.path().join("out/large")).unwrap(), want);
    assert_eq!(members(&archive)["./large"], want);
}

/// Goal: an entry whose inode is not there is an error, and not the last entry that is restored. Method: the entry leads to a
/// number that no inode has.
#[test]
fn an_entry_without_an_inode() {
    let disk = disk();
    let named = |key: &Key, item: &[u8]| {
        key.item_type == ItemType::DIR_INDEX && DirEntry::parse(item).is_ok_and(|entry| entry.name == b"7")
    };
    let (key, _) = disk.find(TreeId::FS, named);
    disk.edit(TreeId::FS, &key, |item| item[..8].copy_from_slice(&999_999u64.to_le_bytes()));
    let scratch = Scratch::new().unwrap();
    let (report, failures, _) = restored(&disk, &scratch.path().join("out"));
    assert_eq!((report.failed, report.done.files), (1, FILES + 2));
    assert!(failures[0].contains("d/7: ") && failures[0].contains("999999"), "{failures:?}");
    assert_eq!(fs::read(scratch.path().join("out/last")).unwrap(), b"last");
}

/// Goal: the inode decides whether an entry is a directory, not the type that the entry states. Method: an entry of a file that
/// states a directory, and the other way round.
#[test]
fn entries_that_state_another_type() {
    let disk = disk();
    for (name, stated) in [(&b"7"[..], oleo_format::FileType::Dir), (b"d", oleo_format::FileType::RegFile)] {
        let named = |key: &Key, item: &[u8]| {
            key.item_type == ItemType::DIR_INDEX && DirEntry::parse(item).is_ok_and(|entry| entry.name == name)
        };
        let (key, _) = disk.find(TreeId::FS, named);
        disk.edit(TreeId::FS, &key, |item| {
            oleo_format::DirItem::mut_from_prefix(item).unwrap().0.r#type = stated as u8
        });
    }
    let scratch = Scratch::new().unwrap();
    let (report, failures, archive) = restored(&disk, &scratch.path().join("out"));
    assert_eq!((report.failed, report.done.files, failures), (0, FILES + 3, vec![]));
    assert_eq!(fs::read(scratch.path().join("out/d/7")).unwrap(), content(7));
    assert_eq!(members(&archive)["./d/7"], content(7));
}

/// Goal: a volume without a tree that each commit changes is not opened for writing, and the error names the tree; for reading
/// it is opened, with a notice, and all files are restored. Method: the root block of each of these trees is destroyed in turn,
/// with block groups in the extent tree and in a tree of their own.
#[test]
fn trees_that_commits_need() {
    let groups = |on| MkfsOptions::default().features(FeatureSet::default().block_group_tree(on));
    for (options, tree, name, notices_want) in [
        (groups(false), TreeId::EXTENT, "the extent tree", 1),
        (groups(true), TreeId::EXTENT, "the extent tree", 0),
        (groups(true), TreeId::BLOCK_GROUP, "the block-group tree", 1),
        (groups(true), TreeId::DEV, "the device tree", 1),
        (groups(true), TreeId::FREE_SPACE, "the free-space tree", 0),
        (groups(true), TreeId::UUID, "the UUID tree", 0),
        (groups(true), TreeId::CSUM, "the checksum tree", 0),
    ] {
        let disk = Disk::new(&options, 1, |image| {
            image.write("small", b"inline").unwrap();
            image.write("large", &noise(100_000, 1)).unwrap();
        });
        disk.edit_copies(disk.root(tree), usize::MAX, false, |bytes| bytes.fill(0));
        let devices = || disk.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
        let error = Image::from_devices(devices(), &OpenOptions::writing()).err().expect("a refusal");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("only for reading"), "{name}: {text}");
        assert_eq!(error.kind(), ErrorKind::Corruption, "{text}");

        let notices: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = notices.clone();
        let on_notice = oleo::OnNotice::new(move |line| heard.lock().unwrap().push(line.to_owned()));
        let image = Image::from_devices(devices(), &OpenOptions::default().on_notice(on_notice)).unwrap();
        assert_eq!(image.read("small").unwrap(), b"inline", "{name}");
        assert_eq!(image.read("large").is_ok(), tree != TreeId::CSUM, "{name}");
        assert_eq!(notices.lock().unwrap().len(), notices_want, "{name}: {:?}", notices.lock().unwrap());
    }
}

/// Goal: a volume on which a conversion was interrupted can be read, and is not written to. Method: a sound volume
/// with each flag that such tools leave in the superblock.
#[test]
fn interrupted_conversions() {
    for (flag, what) in [
        (SuperFlags::CHANGING_FSID, "a change of the fsid"),
        (SuperFlags::CHANGING_FSID_V2, "a change of the fsid"),
        (SuperFlags::CHANGING_BG_TREE, "a conversion of the block-group tree"),
        (SuperFlags::CHANGING_DATA_CSUM, "a change of the checksum type"),
        (SuperFlags::CHANGING_META_CSUM, "a change of the checksum type"),
    ] {
        let disk = Disk::new(&MkfsOptions::default(), 1, |image| image.write("file", b"content").unwrap());
        disk.edit_super(0, None, true, |sb| sb.flags = (sb.flags.get() | flag.bits()).into());
        let devices = || disk.devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
        let error = Image::from_devices(devices(), &OpenOptions::writing()).err().expect("a refusal");
        assert!(error.to_string().contains(what) && error.kind() == ErrorKind::Refusal, "{error}");
        let image = Image::from_devices(devices(), &OpenOptions::default()).unwrap();
        assert_eq!(image.read("file").unwrap(), b"content");
    }
}
