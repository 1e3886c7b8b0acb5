//! Logs written by the kernel: Oleo's replay gives the same result as the kernel's.
//!
//! Normal path of a case: (1) a kernel mount on a file in memory executes the case; after the last fsync the file is
//! copied while it is mounted, so that the copies are what a power cut leaves; (2) the kernel mounts one copy, which
//! replays its log: that is the wanted result; (3) Oleo opens one for reading: it must show the same, and no byte of
//! the file may change; (4) Oleo opens one for writing: it must show the same, and so must the kernel afterwards, and
//! `btrfs check` and a scrub must be clean.
//!
//! Cases are text, a line an operation. The lines before the line `sync` are committed. All of them are in one image,
//! each in a subvolume, which has a log of its own.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use oleo::inspect::Inspector;
use oleo::{Image, OpenOptions};
use oleo_format::{SUPER_LEN, SUPER_OFFSETS, SuperBlock, TreeId};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{self, Mounted, Oracle, Scratch, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Op, RenameHow, Style, Target, blur_times};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::ours::{OleoTree, open, open_to_read};

mod cases;
mod hostile;
mod random;

use cases::CASES;

const IMAGE_LEN: u64 = 256 << 20;
/// Files of a MiB that make room in chunks of data.
const ROOM_FILES: u64 = 60;

/// How the kernel's file system is made and mounted.
#[derive(Clone, Copy, Debug)]
struct Shape {
    mkfs: &'static [&'static str],
    mount: &'static str,
}

const PLAIN: Shape = Shape { mkfs: &[], mount: "" };
const SMALL_WITH_HOLES: Shape = Shape { mkfs: &["-n", "4096", "-O", "^no-holes"], mount: "" };
const NO_SUMS: Shape = Shape { mkfs: &[], mount: "nodatasum" };
const PACKED: Shape = Shape { mkfs: &[], mount: "compress-force=zstd" };

const DETAIL: Detail = Detail { holes: true, sharing: true, atime_ctime: false, otime: true };

fn manifest_of(image: &Image) -> Manifest {
    try_manifest(image).unwrap()
}

fn try_manifest(image: &Image) -> anyhow::Result<Manifest> {
    Manifest::of_damaged(&OleoTree::new(image)?, DETAIL).map(blurred)
}

fn blurred(mut manifest: Manifest) -> Manifest {
    blur_times(&mut manifest);
    for entry in manifest.entries.values_mut() {
        // Old or new, but not when exactly.
        entry.otime = None;
    }
    manifest
}

fn kernel_manifest(top: &Path) -> Manifest {
    blurred(Manifest::of_dir(top, DETAIL).unwrap())
}

fn super_of(image: &Path) -> SuperBlock {
    let mut bytes = vec![0; SUPER_LEN];
    File::open(image).unwrap().read_exact_at(&mut bytes, SUPER_OFFSETS[0]).unwrap();
    SuperBlock::read(&bytes).unwrap()
}

fn has_log(image: &Path) -> bool {
    super_of(image).log_root.get() != 0
}

/// A sum of all bytes of a file.
fn sum(file: &Path) -> u32 {
    let mut file = File::open(file).unwrap();
    let (mut buf, mut sum) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buf).unwrap() {
            0 => return sum,
            n => sum = crc32c::crc32c_append(sum, &buf[..n]),
        }
    }
}

fn copy(from: &Path, to: &Path) {
    oracle::run("cp", [from.as_os_str(), to.as_os_str()]).unwrap();
}

/// Steps 2 to 4 of the module's text, on an image that is not mounted. Returns whether there was a log.
fn must_agree(oracle: Oracle, crashed: &Path, what: &str) -> bool {
    let logged = has_log(crashed);
    let theirs = crashed.with_extension("theirs");
    copy(crashed, &theirs);
    let mounted = oracle.mount(&[&theirs], "").unwrap_or_else(|e| panic!("{what}: {e:#}"));
    let want = kernel_manifest(mounted.path());
    mounted.unmount().unwrap();
    std::fs::remove_file(&theirs).unwrap();

    let before = sum(crashed);
    let image = open_to_read(&[crashed.to_owned()]).unwrap_or_else(|e| panic!("{what}: reading: {e:#}"));
    want.must_equal(&manifest_of(&image), &Ignore::default(), &format!("{what}: read by us"));
    drop(image);
    assert_eq!(sum(crashed), before, "{what}: opening for reading changed the image");

    let image =
        open(&[crashed.to_owned()], OpenOptions::writing()).unwrap_or_else(|e| panic!("{what}: writing: {e:#}"));
    want.must_equal(&manifest_of(&image), &Ignore::default(), &format!("{what}: replayed by us"));
    image.close().unwrap();
    assert!(!has_log(crashed), "{what}: the log is still there");
    let verdict = oracle.check(&[crashed]).unwrap().but_for_mkfs_6_2();
    assert!(verdict.is_clean(), "{what}: btrfs check: {verdict}");
    let mounted = oracle.mount(&[crashed], "").unwrap_or_else(|e| panic!("{what}: ours: {e:#}"));
    want.must_equal(&kernel_manifest(mounted.path()), &Ignore::default(), &format!("{what}: ours, read by the kernel"));
    let verdict = mounted.scrub().unwrap();
    assert!(verdict.is_clean(), "{what}: scrub: {verdict}");
    mounted.unmount().unwrap();
    logged
}

/// One line of a case.
fn apply(host: &mut Host, top: &Path, line: &str, seed: u64) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let word = |i: usize| (*words.get(i).unwrap_or_else(|| panic!("too short: {line}"))).to_owned();
    let n = |i: usize| word(i).parse::<u64>().unwrap_or_else(|e| panic!("{line}: {e}"));
    let rename = |how| Op::Rename { from: word(1), to: word(2), how };
    let style = if words.get(4) == Some(&"text") { Style::Text } else { Style::Random };
    let op = match words[0] {
        "create" => Op::Create { path: word(1), mode: 0o644 },
        "mkdir" => Op::Mkdir { path: word(1), mode: 0o755 },
        "symlink" => Op::Symlink { path: word(1), target: word(2) },
        "mknod" => Op::Mknod { path: word(1), mode: 0o600, major: 0, minor: 0 },
        "write" if !top.join(word(1)).exists() => {
            host.apply(&Op::Create { path: word(1), mode: 0o644 }).unwrap();
            return apply(host, top, line, seed);
        }
        "write" => Op::Write { path: word(1), at: n(2), len: n(3), seed, style },
        "truncate" => Op::Truncate { path: word(1), size: n(2) },
        "punch" => Op::Punch { path: word(1), at: n(2), len: n(3) },
        "zero" => Op::Zero { path: word(1), at: n(2), len: n(3), keep_size: false },
        "prealloc" => Op::Prealloc { path: word(1), at: n(2), len: n(3), keep_size: true },
        "clone" => Op::Clone { from: word(1), at: n(2), len: n(3), to: word(4), to_at: n(5) },
        "link" => Op::Link { from: word(1), to: word(2) },
        "unlink" => Op::Unlink { path: word(1) },
        "rmdir" => Op::Rmdir { path: word(1) },
        "rename" => rename(RenameHow::Plain),
        "exchange" => rename(RenameHow::Exchange),
        "xattr" => Op::SetXattr { path: word(1), name: word(2), len: n(3), seed },
        "rmxattr" => Op::RemoveXattr { path: word(1), name: word(2) },
        "chmod" => Op::Chmod { path: word(1), mode: 0o600 },
        "chown" => Op::Chown { path: word(1), uid: 7, gid: 8 },
        "times" => Op::Times { path: word(1), sec: 1_000_000_007, nsec: 5 },
        "compress" => Op::Compress { path: word(1), algo: word(2) },
        "subvol" => Op::Subvol { path: word(1) },
        "snapshot" => Op::Snapshot { from: word(1), to: word(2), read_only: false },
        "fsync" => {
            let file = File::open(top.join(word(1))).unwrap_or_else(|e| panic!("{line}: {e}"));
            file.sync_all().unwrap();
            return;
        }
        "sync" => Op::Sync,
        // A file without a name, written, which then gets one.
        "tmpfile" => {
            let file = rustix::fs::open(top.join(word(1)), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o640));
            let file = File::from(file.unwrap());
            file.write_all_at(&Rng::new(seed).bytes(n(3) as usize), 0).unwrap();
            if words.get(4) == Some(&"synced") {
                file.sync_all().unwrap();
            }
            use std::os::fd::AsRawFd;
            let proc = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, proc.as_str(), CWD, top.join(word(2)), AtFlags::SYMLINK_FOLLOW).unwrap();
            return;
        }
        // Many files in one log.
        "fill" => {
            for i in 0..n(2) {
                let path = format!("{}/file-{i}", word(1));
                host.apply(&Op::Create { path: path.clone(), mode: 0o600 }).unwrap();
                host.apply(&Op::Write { path, at: 0, len: 100 + i, seed: seed + i, style: Style::Random }).unwrap();
            }
            return;
        }
        other => panic!("unknown operation {other}"),
    };
    host.apply(&op).unwrap_or_else(|e| panic!("{line}: {e}"));
}

/// Runs cases on a kernel mount, each in a subvolume of its own, and copies the image while it is mounted.
fn crash(oracle: Oracle, scratch: &Scratch, shape: Shape, cases: &[(&str, &str)]) -> PathBuf {
    let image = scratch.image("kernel.img", IMAGE_LEN).unwrap();
    let mounted = mounted(oracle, &image, shape);
    let top = mounted.path();
    let mut hosts = Vec::new();
    let (mut seed, mut committed) = (7, Vec::new());
    for part in 0..2 {
        for (i, (name, case)) in cases.iter().enumerate() {
            let generation = super_of(&image).generation();
            if part == 0 {
                let dir = top.join(format!("case-{i}"));
                oracle::run("btrfs", ["subvolume".as_ref(), "create".as_ref(), dir.as_os_str()]).unwrap();
                hosts.push((Host::new(&dir, 4096), dir));
            }
            let (host, dir) = &mut hosts[i];
            let (before, after) = case.split_once("sync\n").unwrap_or_else(|| panic!("no sync in {case}"));
            let lines = if part == 0 { before } else { after };
            for line in lines.lines().map(str::trim).filter(|l| !l.is_empty()) {
                seed += 1000;
                apply(host, dir, line, seed);
            }
            if part == 1 && super_of(&image).generation() != generation {
                committed.push(*name);
            }
        }
        if part == 0 {
            mounted.sync().unwrap();
        }
    }
    assert!(committed.iter().all(|name| commits(name)), "the kernel commits in {committed:?}");
    let crashed = scratch.path().join("crashed.img");
    copy(&image, &crashed);
    mounted.unmount().unwrap();
    crashed
}

/// A fresh file system of some shape, mounted by the kernel.
fn mounted(oracle: Oracle, image: &Path, shape: Shape) -> Mounted {
    oracle.mkfs(shape.mkfs, &[image]).unwrap();
    // No commit by the clock. A chunk that is made later would be a reason to commit too: there is room already.
    let mounted = oracle.mount(&[image], &format!("commit=3000,{}", shape.mount)).unwrap();
    let room = |i: u64| mounted.path().join(format!("room-{i}"));
    (0..ROOM_FILES).for_each(|i| std::fs::write(room(i), Rng::new(i).bytes(1 << 20)).unwrap());
    mounted.sync().unwrap();
    // Some stay, or the kernel would take the empty chunks away.
    (0..ROOM_FILES).filter(|i| i % 4 != 0).for_each(|i| std::fs::remove_file(room(i)).unwrap());
    mounted.sync().unwrap();
    mounted
}

/// How many subvolumes have a log.
fn logs(image: &Path) -> usize {
    let inspector = Inspector::open(image, &OpenOptions::default()).unwrap();
    inspector.trees().unwrap().iter().filter(|t| t.tree == TreeId::TREE_LOG && t.key.is_some()).count()
}

/// Whether the kernel commits in a case.
fn commits(name: &str) -> bool {
    name.ends_with("(commits)")
}

/// All cases in one shape: those that leave a log together, the others one by one.
fn cases(shape: Shape, cases: &[(&str, &str)]) {
    let Some(oracle) = oracle() else { return };
    let logged: Vec<_> = cases.iter().copied().filter(|(name, _)| !commits(name)).collect();
    {
        let scratch = oracle.scratch().unwrap();
        let crashed = crash(oracle, &scratch, shape, &logged);
        // Those with several subvolumes have more than one.
        let logs = logs(&crashed);
        assert!(logs >= logged.len(), "{} cases left {logs} logs: the kernel committed on the way", logged.len());
        must_agree(oracle, &crashed, &format!("{shape:?}"));
    }
    for case in cases.iter().filter(|(name, _)| commits(name)) {
        let scratch = oracle.scratch().unwrap();
        let crashed = crash(oracle, &scratch, shape, &[*case]);
        must_agree(oracle, &crashed, &format!("{shape:?} {}", case.0));
    }
}

#[test]
fn default_options() {
    cases(PLAIN, CASES);
}

#[test]
fn small_nodes_and_holes_with_items() {
    cases(SMALL_WITH_HOLES, CASES);
}

/// The cases that are about data.
fn data_cases() -> impl Iterator<Item = (&'static str, &'static str)> {
    CASES.iter().copied().take_while(|(name, _)| *name != "new file")
}

#[test]
fn without_checksums() {
    cases(NO_SUMS, &data_cases().filter(|(_, case)| !case.contains("compress")).collect::<Vec<_>>());
}

#[test]
fn everything_compressed() {
    cases(PACKED, &data_cases().collect::<Vec<_>>());
}
