//! Logs that the kernel wrote: what Oleo makes of them is what the kernel makes of them.
//!
//! Normal path of a case: (1) a kernel mount on a file in memory does what the case says; after the last fsync the file is
//! copied while it is mounted, so that the copies are what a power cut leaves; (2) the kernel mounts one copy, which replays
//! its log: that is what is wanted; (3) Oleo opens one for reading: the same must be seen, and no byte of the file may
//! change; (4) Oleo opens one for writing: the same must be seen, by Oleo and by the kernel afterwards, and `btrfs check`
//! and a scrub must be clean.
//!
//! Cases are text, a line an operation. What stands before the line `sync` is committed.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use oleo::{Image, OpenOptions};
use oleo_format::{SUPER_LEN, SUPER_OFFSETS, SuperBlock};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{self, Oracle, Scratch, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Op, RenameHow, Style, Target, blur_times};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::ours::{OleoTree, open, open_to_read};

const IMAGE_LEN: u64 = 256 << 20;

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
    blurred(Manifest::of(&OleoTree::new(image).unwrap(), DETAIL).unwrap())
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
fn sum(file: &Path) -> u64 {
    let mut file = File::open(file).unwrap();
    let (mut buf, mut sum) = (vec![0; 1 << 20], 0u64);
    loop {
        let n = file.read(&mut buf).unwrap();
        if n == 0 {
            return sum;
        }
        for word in buf[..n].chunks(8) {
            let word = word.iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
            sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    oracle::run("cp", [from.as_os_str(), to.as_os_str()]).unwrap();
}

/// Steps 2 to 4 of the module's text, on an image that nobody has mounted. Whether there was a log.
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
        // Many files at once.
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

/// Runs a case on a kernel mount and copies the image while it is mounted.
fn crash(oracle: Oracle, scratch: &Scratch, shape: Shape, name: &str, case: &str) -> PathBuf {
    let image = scratch.image("kernel.img", IMAGE_LEN).unwrap();
    oracle.mkfs(shape.mkfs, &[&image]).unwrap();
    // No commit by the clock. A chunk that is made during the case would be a reason to commit too: there is room already.
    let mounted = oracle.mount(&[&image], &format!("commit=3000,{}", shape.mount)).unwrap();
    let mut host = Host::new(mounted.path(), 4096);
    std::fs::write(mounted.path().join("room"), vec![1; 24 << 20]).unwrap();
    mounted.sync().unwrap();
    std::fs::remove_file(mounted.path().join("room")).unwrap();
    mounted.sync().unwrap();
    for (i, line) in case.lines().map(str::trim).filter(|l| !l.is_empty()).enumerate() {
        apply(&mut host, mounted.path(), line, 1000 * i as u64 + 7);
    }
    let crashed = scratch.path().join(format!("{name}.img"));
    copy(&image, &crashed);
    mounted.unmount().unwrap();
    crashed
}

/// All cases in one shape. Most must have left a log: where the kernel commits instead there is nothing to prove.
fn cases(shape: Shape, cases: &[(&str, &str)]) {
    let Some(oracle) = oracle() else { return };
    let (mut without, mut wrong) = (Vec::new(), Vec::new());
    for (name, case) in cases {
        let one = || {
            let scratch = oracle.scratch().unwrap();
            let crashed = crash(oracle, &scratch, shape, name, case);
            must_agree(oracle, &crashed, &format!("{shape:?} {name}"))
        };
        match std::panic::catch_unwind(one) {
            Ok(true) => {}
            Ok(false) => without.push(*name),
            Err(_) => wrong.push(*name),
        }
    }
    assert!(wrong.is_empty(), "{} cases failed: {wrong:?}", wrong.len());
    // The kernel itself decides to commit in these.
    assert!(without.iter().all(|n| n.ends_with("(commits)")), "no log was left by: {without:?}");
}

const CASES: &[(&str, &str)] = &[
    // Data.
    ("append", "write f 0 5000\n sync\n write f 5000 70000\n fsync f"),
    ("overwrite", "write f 0 200000\n sync\n write f 4096 8192\n write f 100000 50\n fsync f"),
    (
        "twice",
        "write f 0 9000\n sync\n write f 9000 9000\n fsync f\n write f 2000 4000\n fsync f\n write f 40000 1\n fsync f",
    ),
    ("inline grows", "write f 0 100\n sync\n write f 100 200\n fsync f\n write f 300 9000\n fsync f"),
    ("inline stays", "write f 0 100\n sync\n write f 50 300\n fsync f"),
    ("shrink", "write f 0 200000\n sync\n truncate f 70001\n fsync f"),
    ("shrink and grow", "write f 0 200000\n sync\n truncate f 5000\n truncate f 150000\n fsync f"),
    ("to nothing", "write f 0 200000\n sync\n truncate f 0\n fsync f"),
    ("grow by size", "write f 0 5000\n sync\n truncate f 1000000\n fsync f"),
    ("hole", "write f 0 400000\n sync\n punch f 40960 81920\n fsync f"),
    ("hole at odd bytes", "write f 0 400000\n sync\n punch f 40000 81000\n fsync f"),
    ("holes between", "write f 0 4096\n sync\n write f 100000 4096\n write f 300000 4096\n fsync f"),
    ("prealloc within", "write f 0 4096\n sync\n truncate f 500000\n prealloc f 8192 200000\n fsync f"),
    ("prealloc behind the end", "write f 0 4096\n sync\n prealloc f 4096 1000000\n fsync f"),
    ("prealloc written", "write f 0 4096\n prealloc f 4096 1000000\n sync\n write f 50000 60000\n fsync f"),
    (
        "prealloc behind the end, then written",
        "write f 0 4096\n prealloc f 4096 1000000\n sync\n write f 4096 100\n fsync f",
    ),
    ("zeroed", "write f 0 300000\n sync\n zero f 5000 100000\n fsync f"),
    ("clone", "write f 0 262144\n create g\n sync\n clone f 0 262144 g 0\n fsync g"),
    ("clone of new data", "create g\n sync\n write f 0 262144\n fsync f\n clone f 65536 65536 g 131072\n fsync g"),
    ("clone into itself", "write f 0 262144\n sync\n clone f 0 65536 f 131072\n fsync f"),
    (
        "clone over part",
        "write f 0 262144\n write g 0 262144\n sync\n clone f 4096 8192 g 65536\n fsync g\n write g 65536 100\n fsync g",
    ),
    ("compressed", "create f\n compress f zstd\n sync\n write f 0 400000 text\n fsync f"),
    (
        "compressed, overwritten",
        "create f\n compress f lzo\n write f 0 400000 text\n sync\n write f 100000 5000 text\n fsync f\n write f 0 300 text\n fsync f",
    ),
    ("compressed, cut", "create f\n compress f zlib\n write f 0 400000 text\n sync\n truncate f 150000\n fsync f"),
    (
        "many extents",
        "create f\n sync\n write f 0 4096\n fsync f\n write f 8192 4096\n fsync f\n write f 16384 4096\n fsync f\n write f 24576 4096\n fsync f\n write f 4096 4096\n fsync f",
    ),
    ("unsynced neighbour", "write f 0 9000\n write g 0 9000\n sync\n write g 0 5000\n write f 0 5000\n fsync f"),
    // Names.
    ("new file", "mkdir d\n sync\n create d/f\n write d/f 0 300000\n fsync d/f"),
    ("new directories on the path", "sync\n mkdir a\n mkdir a/b\n mkdir a/b/c\n write a/b/c/f 0 7000\n fsync a/b/c/f"),
    ("link", "mkdir d\n write f 0 5000\n sync\n link f d/g\n write f 0 10\n fsync f"),
    (
        "link after fsync",
        "mkdir d\n write f 0 5000\n sync\n write f 0 10\n fsync f\n link f d/g\n write h 0 1\n fsync h",
    ),
    ("links within a directory", "write f 0 5000\n sync\n link f g\n link f h\n link f i\n fsync f"),
    ("new file with links", "mkdir d\n sync\n write f 0 5000\n link f d/g\n link f d/h\n fsync d/g"),
    ("rename", "write f 0 5000\n sync\n rename f g\n fsync g"),
    ("rename after fsync", "write f 0 5000\n sync\n write f 0 10\n fsync f\n rename f g\n write h 0 1\n fsync h"),
    (
        "rename over",
        "write f 0 5000\n write g 0 6000\n sync\n write f 0 10\n fsync f\n rename f g\n write h 0 1\n fsync h",
    ),
    (
        "write, fsync, rename over, fsync directory",
        "mkdir d\n write d/f 0 5000\n sync\n write d/f.new 0 7000\n fsync d/f.new\n rename d/f.new d/f\n fsync d",
    ),
    (
        "rename to another directory (commits)",
        "mkdir a\n mkdir b\n write a/f 0 5000\n sync\n rename a/f b/g\n fsync b/g",
    ),
    ("rename a directory", "mkdir a\n mkdir a/d\n write a/d/f 0 5000\n sync\n rename a/d a/e\n fsync a"),
    (
        "move a directory",
        "mkdir a\n mkdir b\n mkdir a/d\n write a/d/f 0 5000\n sync\n rename a/d b/d\n write b/d/f 0 10\n fsync b/d/f",
    ),
    ("exchange", "write f 0 5000\n write g 0 6000\n sync\n exchange f g\n fsync f"),
    (
        "exchange across",
        "mkdir a\n mkdir b\n write a/f 0 5000\n write b/g 0 6000\n sync\n exchange a/f b/g\n fsync a/f\n fsync b/g",
    ),
    ("exchange new and old", "write f 0 5000\n sync\n write g 0 6000\n fsync g\n exchange f g\n fsync g\n fsync f"),
    (
        "names go round",
        "write a 0 1000\n write b 0 2000\n write c 0 3000\n sync\n rename a x\n rename b a\n rename c b\n rename x c\n fsync a\n fsync b\n fsync c",
    ),
    ("name taken over", "write a 0 1000\n sync\n rename a b\n write a 0 2000\n fsync a"),
    ("unlink and make again", "write f 0 5000\n sync\n unlink f\n write f 0 100\n fsync f"),
    ("unlink of one link", "write f 0 5000\n link f g\n sync\n unlink g\n fsync f"),
    ("unlink, fsync directory", "mkdir d\n write d/f 0 5000\n write d/g 0 10\n sync\n unlink d/f\n fsync d"),
    (
        "unlink a large file, fsync directory",
        "mkdir d\n write d/f 0 1000000\n prealloc d/f 2000000 500000\n sync\n unlink d/f\n write d/g 0 1\n fsync d",
    ),
    ("rmdir, fsync directory", "mkdir d\n mkdir d/e\n write d/f 0 10\n sync\n rmdir d/e\n fsync d"),
    (
        "deleted ancestors",
        "mkdir a\n mkdir a/b\n write a/b/f 0 5000\n sync\n link a/b/f g\n unlink a/b/f\n rmdir a/b\n rmdir a\n write g 0 10\n fsync g",
    ),
    (
        "directory",
        "mkdir d\n write d/old 0 10\n sync\n write d/f 0 5000\n mkdir d/e\n write d/e/g 0 100\n symlink d/s target\n mknod d/p\n fsync d",
    ),
    (
        "directory of many",
        "mkdir d\n fill d 300\n sync\n mkdir e\n fill e 300\n unlink d/file-7\n unlink d/file-200\n fsync d\n fsync e",
    ),
    (
        "directory twice",
        "mkdir d\n write d/a 0 10\n write d/b 0 10\n sync\n unlink d/a\n fsync d\n write d/c 0 10\n unlink d/b\n fsync d",
    ),
    ("new directory", "sync\n mkdir d\n write d/a 0 10\n mkdir d/e\n write d/e/b 0 10\n fsync d"),
    ("old file in a logged directory", "mkdir d\n write d/f 0 5000\n sync\n chmod d/f\n write d/g 0 10\n fsync d"),
    ("symlink", "mkdir d\n sync\n symlink d/s to/somewhere\n write d/f 0 1\n fsync d/f\n fsync d"),
    ("tmpfile", "mkdir d\n sync\n tmpfile d d/f 9000\n fsync d/f"),
    ("tmpfile, synced first", "mkdir d\n sync\n tmpfile d d/f 9000 synced\n fsync d"),
    (
        "tmpfile, not linked durably",
        "mkdir d\n write d/g 0 10\n sync\n tmpfile d d/f 9000 synced\n write d/g 0 9\n fsync d/g",
    ),
    // Attributes.
    (
        "xattrs",
        "write f 0 10\n xattr f user.a 30\n xattr f user.b 40\n sync\n rmxattr f user.a\n xattr f user.b 50\n xattr f user.c 2000\n fsync f",
    ),
    ("xattrs of a directory", "mkdir d\n xattr d user.a 30\n sync\n rmxattr d user.a\n xattr d user.b 20\n fsync d"),
    ("xattrs of a new file", "sync\n write f 0 10\n xattr f user.a 30\n fsync f"),
    (
        "attributes",
        "write f 0 10\n mkdir d\n sync\n chmod f\n chown f\n times f\n fsync f\n times d\n chown d\n fsync d",
    ),
    // Subvolumes.
    (
        "two subvolumes",
        "subvol a\n subvol b\n write a/f 0 5000\n write b/f 0 5000\n write f 0 5000\n sync\n write a/f 5000 9000\n fsync a/f\n write b/g 0 100\n fsync b/g\n write f 0 10\n fsync f",
    ),
    (
        "after a snapshot",
        "subvol a\n write a/f 0 300000\n snapshot a b\n sync\n write a/f 5000 9000\n fsync a/f\n write b/f 100 10\n truncate b/f 20000\n fsync b/f",
    ),
];

#[test]
fn plain() {
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
