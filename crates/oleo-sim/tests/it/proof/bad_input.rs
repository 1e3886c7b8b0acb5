//! Damaged images: a typed error or the truth, no panic, no endless loop, bounded memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use oleo::check::{Kind, Severity};
use oleo::mkfs::{BuildOptions, build};
use oleo::{Image, OpenOptions};
use oleo_sim::manifest::{Detail, Manifest};
use oleo_sim::oracle::{Oracle, Scratch, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::rot::{Damage, Rot};
use oleo_sim::specimen::aged::{Recipe, make};
use oleo_sim::specimen::{self, Options};

use crate::ours::{OleoTree, open, open_to_read};

/// Operations that take longer count as endless loops. Sound images take a thousandth of it, but the proofs run side by
/// side, on machines that may be busy.
const TIME_MAX: Duration = Duration::from_secs(300);

/// The process may not grow beyond this while it reads damaged images of some MiB, KiB.
const MEMORY_MAX_KIB: u64 = 3 << 20;

/// What the process has held at most so far, KiB.
fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Opens, walks and reads all there is; true when nothing was found wrong.
fn read_all(path: &Path) -> bool {
    let detail = Detail { holes: true, sharing: true, ..Detail::default() };
    let result = open_to_read(&[path.to_owned()]).and_then(|image| {
        let subvols = image.fs().subvol_list();
        let manifest = Manifest::of_damaged(&OleoTree::new(&image)?, detail);
        subvols?;
        manifest
    });
    if let Err(refused) = &result {
        let text = format!("{refused:#}");
        assert!(!text.contains("in use") && !text.contains("has not closed"), "nothing was read: {text}");
    }
    result.is_ok()
}

/// Opens for writing, changes a little and commits: damage that reading does not see must not become worse than an error.
fn change_some(path: &Path) -> bool {
    let change = || -> anyhow::Result<()> {
        let image = open(&[path.to_owned()], OpenOptions::default().access(oleo::Access::Write))?;
        image.write("new", &[1; 70_000])?;
        image.create_dir("newdir")?;
        for entry in image.list("")?.iter().take(3) {
            let _ = image.fs().unlink(&image.top()?, &entry.name);
        }
        image.clean()?;
        image.close()?;
        Ok(())
    };
    change().is_ok()
}

/// How often our check finds each kind of error; `None` if it cannot read the volume at all.
fn errors(path: &Path) -> Option<BTreeMap<Kind, usize>> {
    let report = oleo::check::image(path, &OpenOptions::default(), Default::default(), &Default::default()).ok()?;
    let mut count = BTreeMap::new();
    for finding in report.findings.iter().filter(|f| f.severity == Severity::Error) {
        *count.entry(finding.kind).or_default() += 1;
    }
    Some(count)
}

/// Runs on another thread, so that an endless loop is a failure and not an endless test.
fn within_time<R: Send + 'static>(path: &Path, damage: &Damage, what: fn(&Path) -> R) -> R {
    let (send, receive) = mpsc::channel();
    let path = path.to_owned();
    let thread = std::thread::Builder::new().name("victim".into()).spawn(move || {
        let _ = send.send(what(&path));
    });
    match receive.recv_timeout(TIME_MAX) {
        Ok(sound) => {
            thread.unwrap().join().unwrap();
            sound
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("no end after {TIME_MAX:?}: {damage:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("it panicked: {damage:?}"),
    }
}

/// A small image with every kind of file, as the kernel makes it.
fn specimen_image(oracle: Oracle, scratch: &Scratch) -> PathBuf {
    let image = scratch.image("victim", 128 << 20).unwrap();
    oracle.mkfs(&["-n", "4096", "-m", "single"], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    specimen::make(mounted.path(), &Options { wide: 200, large_len: 300_000, ..Options::default() }).unwrap();
    mounted.unmount().unwrap();
    image
}

fn rot_away(image: &Path, seed: u64, rounds: u32) {
    let rot = Rot::survey(image).unwrap();
    assert!(read_all(image), "the image is sound at first");
    let mut rng = Rng::new(seed);
    let mut noticed = 0;
    for round in 0..rounds {
        let damage = rot.random(&mut rng).unwrap();
        let inflicted = rot.inflict(&damage).unwrap();
        noticed += u32::from(!within_time(image, &damage, read_all));
        drop(inflicted);
        assert!(peak_memory_kib() < MEMORY_MAX_KIB, "round {round}: {} KiB of memory: {damage:?}", peak_memory_kib());
    }
    // Much damage is in fields that reading does not need, but not most of it.
    assert!(noticed * 4 > rounds, "only {noticed} of {rounds} were noticed");
    assert!(read_all(image), "the image is sound again");
}

/// Goal and method: damage to an image full of every kind of file, read whole each time.
#[test]
fn every_kind_of_file() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    rot_away(&specimen_image(oracle, &scratch), 1, 400);
}

/// Goal and method: the same with snapshots, shared trees, bitmaps and dead subvolumes.
#[test]
fn an_aged_file_system() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let aged = make(oracle, &scratch, &Recipe { mkfs: "-n 4096", steps: 300, ..Recipe::default() }).unwrap();
    rot_away(&aged.devices[0], 2, 120);
}

/// Goal: damage met while writing ends in an error, too, and gets no worse: a volume that our check finds sound stays
/// sound, and in one that is not, every kind of error was there before, at least as often. Method: a copy of the image
/// for each round, since it is changed; our check before and after, whether the writer refused or not.
#[test]
fn while_writing() {
    const ROUNDS: u32 = 150;
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = specimen_image(oracle, &scratch);
    let rot = Rot::survey(&image).unwrap();
    let mut rng = Rng::new(3);
    let (mut written, mut sound, mut worse) = (0, 0, Vec::new());
    for round in 0..ROUNDS {
        let damage = rot.random(&mut rng).unwrap();
        let inflicted = rot.inflict(&damage).unwrap();
        let copy = scratch.path().join("copy");
        oleo_sim::oracle::run("cp", ["--sparse=always".as_ref(), image.as_os_str(), copy.as_os_str()]).unwrap();
        drop(inflicted);
        let before = within_time(&copy, &damage, errors);
        let done = within_time(&copy, &damage, change_some);
        let after = within_time(&copy, &damage, errors);
        written += u32::from(done);
        sound += u32::from(before.as_ref().is_some_and(BTreeMap::is_empty));
        let grown = match (&before, &after) {
            (Some(before), Some(after)) => after.iter().any(|(kind, n)| before.get(kind).is_none_or(|old| n > old)),
            (Some(_), None) => true,
            (None, _) => false,
        };
        if grown {
            let what = if done { "written" } else { "refused" };
            worse.push(format!("round {round}, {what}: {before:?} became {after:?}: {damage:?}"));
        }
    }
    assert!(worse.is_empty(), "{} of {ROUNDS} became worse:\n{}", worse.len(), worse.join("\n"));
    // Both are met often enough to prove something.
    assert!(written > ROUNDS / 10 && sound > ROUNDS / 20, "{written} written, {sound} sound before");
    assert!(peak_memory_kib() < MEMORY_MAX_KIB);
}

/// Goal: files that are not btrfs are refused: empty, zeros, noise, and an image cut at every odd place.
#[test]
fn no_image_at_all() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("file");
    for bytes in [Vec::new(), vec![0; 1 << 20], Rng::new(9).bytes(1 << 20), vec![0xff; 65536 + 4096]] {
        std::fs::write(&path, bytes).unwrap();
        assert!(!read_all(&path));
    }
    let error = Image::open(scratch.path().join("missing"), &OpenOptions::default()).err().map(|e| e.to_string());
    assert!(error.is_some_and(|e| e.contains("missing")), "the message names the file");
}

/// Goal: an item that assigns a device of the volume to another file system does not get into the superblock by a
/// commit, which would make the volume unreadable. Method: the item's fsid; reading continues, writing is refused.
#[test]
fn a_device_of_another_file_system() {
    const DEV_ITEM: u8 = 216;
    const FSID: usize = 82;
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("image");
    build(&[&path], BuildOptions::default().size(Some(128 << 20))).unwrap();
    let rot = Rot::survey(&path).unwrap();
    let item_of = |block: &[u8]| items(block, DEV_ITEM).first().map(|(at, _)| *at);
    let blocks = (0..rot.blocks()).filter_map(|index| Some((index, item_of(&rot.block(index).unwrap())?)));
    let (index, at) = blocks.into_iter().next().expect("the chunk tree has the item");
    let edits = vec![(at + FSID, vec![0x5a; 16])];
    let inflicted = rot.inflict(&Damage::Block { index, logical: rot.address(index), edits }).unwrap();
    assert!(read_all(&path));
    let refused = open(std::slice::from_ref(&path), OpenOptions::writing()).err().expect("refused").to_string();
    assert!(refused.contains("fsid"), "{refused}");
    drop(inflicted);
    open(&[path], OpenOptions::writing()).unwrap();
}

/// Offsets of the fields of a file extent item, and the key's type.
const RAM_BYTES: usize = 8;
const DISK_LEN: usize = 29;
const PART_OFFSET: usize = 37;
const EXTENT_DATA: u8 = 108;

/// The items of a type in a leaf: their offsets in the block, and their lengths.
fn items(block: &[u8], item_type: u8) -> Vec<(usize, usize)> {
    let u32_at = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap()) as usize;
    if block[100] != 0 {
        return Vec::new();
    }
    let entries = (0..u32_at(96)).map(|n| 101 + n * 25).filter(|at| block[at + 8] == item_type);
    entries.map(|at| (101 + u32_at(at + 17), u32_at(at + 21))).collect()
}

/// Those that name extents on disk.
fn extent_items(block: &[u8]) -> Vec<usize> {
    items(block, EXTENT_DATA).into_iter().filter(|(_, len)| *len == 53).map(|(at, _)| at).collect()
}

/// Goal: an uncompressed extent has as many bytes as it takes on disk, whatever `ram_bytes` claims: if that is too
/// small, as some kernels wrote it, the file is read; if it is too large, nobody can read what lies behind the extent.
/// Method: two files side by side; `ram_bytes` of the extents in all leaves is a sector, and then a MiB, with parts
/// that begin where the extent ends.
#[test]
fn uncompressed_extents_end_on_disk() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("image");
    let options = BuildOptions::default().size(Some(128 << 20));
    build(&[&path], options).unwrap();
    let image = open(std::slice::from_ref(&path), OpenOptions::default().access(oleo::Access::Write)).unwrap();
    image.write("mine", &[1; 65536]).unwrap();
    image.write("secret", &[2; 65536]).unwrap();
    image.close().unwrap();

    let rot = Rot::survey(&path).unwrap();
    let damage = |edits_of: fn(&[u8], usize) -> Vec<oleo_sim::rot::Edit>| -> Vec<_> {
        let blocks = (0..rot.blocks()).map(|index| (index, rot.block(index).unwrap()));
        let inflicted = blocks.filter_map(|(index, block)| {
            let edits: Vec<_> = extent_items(&block).into_iter().flat_map(|at| edits_of(&block, at)).collect();
            (!edits.is_empty())
                .then(|| rot.inflict(&Damage::Block { index, logical: rot.address(index), edits }).unwrap())
        });
        inflicted.collect()
    };

    let short = damage(|_, at| vec![(at + RAM_BYTES, 4096_u64.to_le_bytes().to_vec())]);
    assert!(!short.is_empty(), "the extents are found");
    let image = open_to_read(std::slice::from_ref(&path)).unwrap();
    assert!(image.read("mine").unwrap() == [1; 65536] && image.read("secret").unwrap() == [2; 65536]);
    drop((image, short));

    let long = damage(|block, at| {
        let end = block[at + DISK_LEN..at + DISK_LEN + 8].to_vec();
        vec![(at + RAM_BYTES, (1_u64 << 20).to_le_bytes().to_vec()), (at + PART_OFFSET, end)]
    });
    let read = open_to_read(std::slice::from_ref(&path)).and_then(|image| Ok(image.read("mine")?));
    assert!(read.is_err(), "read {} bytes of another's", read.map_or(0, |b| b.len()));
    drop(long);
}

/// Goal: an image that this process has forgotten to close is reported immediately, not waited for.
#[test]
fn a_forgotten_image_is_reported() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("image");
    oleo::mkfs::build(&[&path], oleo::mkfs::BuildOptions::default().size(Some(256 << 20))).unwrap();
    let forgotten = open(std::slice::from_ref(&path), OpenOptions::writing()).unwrap();
    let reported = open(std::slice::from_ref(&path), OpenOptions::writing()).err().unwrap().to_string();
    assert!(reported.contains("has not closed"), "{reported}");
    forgotten.close().unwrap();
    open(&[path], OpenOptions::writing()).unwrap();
}
