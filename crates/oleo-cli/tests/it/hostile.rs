//! Images that lie, given to everything that follows what they say: `check`, `ls`, `restore` to directories and archives, `send`,
//! `inspect`, and programs on a mount.
//!
//! Each must end by itself: with a code of the help's table and no panic, in bounded time, with bounded memory, and having written
//! no more than the image could hold. The walkers of the tests are not asked here, and have no limit that could hide anything.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use oleo_sim::oracle::{self, Oracle, Scratch};
use oleo_sim::rng::Rng;
use oleo_sim::rot::{Damage, Inflicted, Lie, Rot};
use oleo_sim::served::{Limits, Served};

use crate::common::{Bounds, ok};

/// What sound images of this size need a hundredth of; machines may be busy.
const TIME_MAX: Duration = Duration::from_secs(240);
/// What the command may hold at most; the image has some MiB in it.
const MEMORY_MAX_KIB: u64 = 1 << 20;
/// What may be written out of an image with some MiB in it.
const ROOM: &str = "size=64M";
/// Commands that each image is given to.
const COMMANDS: usize = 9;

/// A file system in memory that is full soon; unmounted with the guard.
struct Small(PathBuf);

impl Small {
    fn new(scratch: &Scratch) -> Small {
        let dir = scratch.dir("out").unwrap();
        let args = ["-t", "tmpfs", "-o", ROOM, "tmpfs"].map(OsStr::new);
        oracle::run("mount", args.into_iter().chain([dir.as_os_str()])).unwrap();
        Small(dir)
    }

    /// Takes away what was written.
    fn clear(&self) {
        for entry in fs::read_dir(&self.0).unwrap().flatten() {
            // Restored directories may be deeper than a path can be.
            oracle::run("rm", ["-rf".as_ref(), entry.path().as_os_str()]).unwrap();
        }
    }

    fn free_blocks(&self) -> u64 {
        rustix::fs::statvfs(&self.0).unwrap().f_bfree
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if let Err(e) = oracle::run("umount", ["-l".as_ref(), self.0.as_os_str()]) {
            eprintln!("{} stays mounted: {e:#}", self.0.display());
        }
    }
}

/// Runs a program to its end; its code and what it complained of.
fn bounded(command: Command, out: &Path, what: &str) -> (Option<i32>, String) {
    let (status, text, _) =
        crate::common::bounded(command, out, what, &Bounds { time: TIME_MAX, memory_kib: MEMORY_MAX_KIB });
    (status.code(), text)
}

struct Fixture {
    // Goes before the directory that it is in.
    small: Small,
    image: PathBuf,
    rot: Rot,
    _scratch: Scratch,
}

impl Fixture {
    /// An image with files of all kinds, directories in directories, and a read-only snapshot.
    fn new(oracle: Oracle) -> Fixture {
        let scratch = oracle.scratch().unwrap();
        let (dir, source) = (scratch.path(), scratch.dir("src").unwrap());
        fs::create_dir_all(source.join("one/two/three")).unwrap();
        for n in 0..20 {
            fs::write(source.join(format!("one/file{n}")), vec![n; 5000 * usize::from(n)]).unwrap();
            fs::write(source.join(format!("one/two/small{n}")), "x").unwrap();
        }
        std::os::unix::fs::symlink("one/two", source.join("link")).unwrap();
        fs::hard_link(source.join("one/file3"), source.join("one/two/three/again")).unwrap();
        fs::File::create(source.join("one/sparse")).unwrap().set_len(1 << 30).unwrap();
        ok(dir, &["mkfs", "--rootdir", "src", "--size", "128M", "i"]);
        ok(dir, &["subvolume", "snapshot", "-r", "i", "/", "/snap"]);
        let image = dir.join("i");
        let rot = Rot::survey(&image).unwrap();
        let small = Small::new(&scratch);
        Fixture { small, image, rot, _scratch: scratch }
    }

    /// Every kind of command that reads, once; how many of them were content.
    fn commands(&self, what: &str) -> u32 {
        let (image, out) = (self.image.to_str().unwrap(), self.small.0.join("stdout"));
        let tree = self.small.0.join("tree");
        let tree = tree.to_str().unwrap();
        let lines: [&[&str]; COMMANDS] = [
            &["check", image],
            &["ls", "-lR", image],
            &["restore", image, tree],
            &["restore", image, "-"],
            &["send", "--subvol", "snap", image],
            &["subvolume", "list", image],
            &["inspect", "dump-tree", image],
            &["filesystem", "du", image, "/"],
            &["map", image],
        ];
        let mut content = 0;
        for args in lines {
            let mut command = Command::new(env!("CARGO_BIN_EXE_oleo"));
            command.args(args);
            let (code, complaints) = bounded(command, &out, what);
            assert!(matches!(code, Some(0..=4)), "{what}: {args:?}: {code:?}: {complaints}");
            let void = complaints.contains("panicked") || complaints.contains("in use");
            assert!(!void, "{what}: {args:?}: {complaints}");
            assert!(self.small.free_blocks() > 0, "{what}: {args:?}: it fills whatever it is given: {complaints}");
            content += u32::from(code == Some(0));
            self.small.clear();
        }
        content
    }

    /// The same for programs on a mount; whether there was one.
    fn programs(&self, what: &str) -> bool {
        let oleo = Path::new(env!("CARGO_BIN_EXE_oleo"));
        let served = match Served::mount(oleo, &[&self.image], "ro", Limits { life: TIME_MAX * 5, ..Limits::default() })
        {
            Ok(served) => served,
            Err(refused) => {
                let text = format!("{refused:#}");
                let void = ["panicked", "in use", "not mounted after"].iter().any(|word| text.contains(word));
                assert!(!void, "{what}: {text}");
                println!("{what}: not mounted: {text}");
                return false;
            }
        };
        let (top, out) = (served.path().as_os_str(), self.small.0.join("stdout"));
        // The beginnings of all files: whoever wants to read a file to the end must know that it has one, and a mount shows
        // the size and the blocks that an inode claims, as the kernel does.
        let heads = ["-type", "f", "-exec", "head", "-c", "1M", "{}", "+"].map(OsStr::new);
        let heads: Vec<&OsStr> = [top].into_iter().chain(heads).collect();
        let lines: [(&str, &[&OsStr]); 3] =
            [("find", &[top, "-ls".as_ref()]), ("ls", &["-laR".as_ref(), top]), ("find", &heads)];
        for (program, args) in lines {
            let mut command = Command::new(program);
            command.args(args);
            // Whether a program is content is its own affair; that it ends is ours.
            bounded(command, &out, what);
            assert!(self.small.free_blocks() > 0, "{what}: {program} fills whatever it is given");
            self.small.clear();
        }
        served.unmount().unwrap_or_else(|e| panic!("{what}: the server: {e:#}"));
        true
    }

    fn inflict(&self, damage: &[Damage]) -> Vec<Inflicted> {
        damage.iter().map(|d| self.rot.inflict(d).unwrap()).collect()
    }
}

/// The sound image is read by all, or the tests below would prove nothing.
fn sound(bed: &Fixture) {
    assert_eq!(bed.commands("sound"), COMMANDS as u32, "all are content with the sound image");
}

/// Goal: as above, where the lies are such as readers follow: circles, directories that are called files, absurd sizes, last numbers, names that are paths.
/// Method: several of each kind; commands, then programs on a mount.
#[test]
fn lies_end() {
    let Some(oracle) = oracle::oracle() else { return };
    let bed = Fixture::new(oracle);
    sound(&bed);
    assert!(bed.programs("sound"));
    let (mut noticed, mut mounted) = (0, 0);
    for lie in Lie::ALL {
        for seed in 0..3 {
            let what = format!("{lie:?}, seed {seed}");
            let damage = bed.rot.lie(lie, &mut Rng::new(seed)).unwrap().expect("the image has all that it takes");
            let inflicted = bed.inflict(&damage);
            noticed += u32::from(bed.commands(&what) < COMMANDS as u32);
            mounted += u32::from(bed.programs(&what));
            drop(inflicted);
        }
    }
    assert!(noticed >= 14, "only {noticed} of 18 lies were noticed by anybody");
    assert!(mounted >= 5, "only {mounted} of 18 images could be mounted at all");
    sound(&bed);
}

/// Goal: what changes the image and walks through it ends, too, where directories lead in circles, whatever their entries call them. Method: defragmentation
/// of everything, of copies.
#[test]
fn defragmentation_ends() {
    let Some(oracle) = oracle::oracle() else { return };
    let bed = Fixture::new(oracle);
    let copy = bed.image.with_extension("copy");
    let out = bed.image.with_extension("stdout");
    let mut content = 0;
    for lie in [Lie::Circle, Lie::FalseFile] {
        for seed in 0..4 {
            let what = format!("{lie:?}, seed {seed}");
            let damage = bed.rot.lie(lie, &mut Rng::new(seed)).unwrap().expect("the image has all that it takes");
            let inflicted = bed.inflict(&damage);
            fs::copy(&bed.image, &copy).unwrap();
            drop(inflicted);
            let mut command = Command::new(env!("CARGO_BIN_EXE_oleo"));
            command.args(["filesystem", "defragment", "-r", copy.to_str().unwrap(), "/"]);
            let (code, complaints) = bounded(command, &out, &what);
            assert!(matches!(code, Some(0..=4)) && !complaints.contains("panicked"), "{what}: {code:?}: {complaints}");
            content += u32::from(code == Some(0));
        }
    }
    assert!(content >= 2, "only {content} of 8 got as far as a circle");
}

/// Goal: the same for damage of any kind. Method: random changes behind sound checksums.
#[test]
fn random_damage_ends() {
    let Some(oracle) = oracle::oracle() else { return };
    let bed = Fixture::new(oracle);
    let (mut rng, mut mounted) = (Rng::new(11), 0);
    for round in 0..24 {
        let damage = bed.rot.random(&mut rng).unwrap();
        let what = format!("round {round}: {damage:?}");
        let inflicted = bed.inflict(std::slice::from_ref(&damage));
        bed.commands(&what);
        if round % 4 == 0 {
            mounted += u32::from(bed.programs(&what));
        }
        drop(inflicted);
    }
    println!("{mounted} of 6 mounted");
    sound(&bed);
}

/// Goal: a tree that is deeper than a process may have open files is restored, into a directory and to an archive, in memory
/// that grows with the depth and not with its square; links from level to level, and attributes, are right. Method: 2000
/// directories in each other with long names, whose paths together have 400 MiB, restored with 400 descriptors.
#[test]
fn deep_directories() {
    const LEVELS: usize = 2000;
    const FILES_MAX: u32 = 400;
    /// The archive has the path of each entry, so only its size grows with the square.
    const BOUNDS: Bounds = Bounds { time: TIME_MAX, memory_kib: 160 << 10 };
    let scratch = Scratch::new().unwrap();
    let (dir, name) = (scratch.path(), "d".repeat(200));
    let image = oleo::Image::create(dir.join("i"), 256 << 20).unwrap();
    let mut at = image.top().unwrap();
    let first = image.fs().create(&at, b"first", &oleo::fs::NewInode::new(oleo::fs::NewKind::File, 0o600)).unwrap();
    for level in 0..LEVELS {
        let new = oleo::fs::NewInode::new(oleo::fs::NewKind::Dir, 0o750 + (level % 8) as u32);
        at = image.fs().create(&at, name.as_bytes(), &new).unwrap();
        if level % 100 == 99 {
            image.fs().link(&first, &at, b"link").unwrap();
        }
    }
    let leaf = image.fs().create(&at, b"leaf", &oleo::fs::NewInode::new(oleo::fs::NewKind::File, 0o640)).unwrap();
    image.fs().write(&leaf, 0, b"bottom").unwrap();
    drop((at, first, leaf));
    image.close().unwrap();
    for dest in ["out", "-"] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {FILES_MAX}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_oleo")]);
        command.args(["restore", "i", dest]).current_dir(dir);
        let (status, complaints, _) = crate::common::bounded(command, &dir.join("archive"), dest, &BOUNDS);
        assert!(status.success(), "{dest}: {complaints}");
    }
    let end = [&[0; 512][..], b"bottom"].concat();
    let archive = fs::read(dir.join("archive")).unwrap();
    assert!(archive.len() > LEVELS * LEVELS * 200 / 2);
    assert!(archive.windows(6).any(|window| window == &end[512..]));
    drop(archive);
    // Deeper than a path can be: step by step.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let open =
        |at: std::os::fd::BorrowedFd<'_>, name: &str| rustix::fs::openat(at, name, flags, rustix::fs::Mode::empty());
    let mut at = rustix::fs::open(dir.join("out"), flags, rustix::fs::Mode::empty()).unwrap();
    let first = rustix::fs::statat(&at, "first", rustix::fs::AtFlags::empty()).unwrap();
    assert_eq!(first.st_nlink as usize, 1 + LEVELS / 100);
    for level in 0..LEVELS {
        at = open(std::os::fd::AsFd::as_fd(&at), &name).unwrap();
        let mode = rustix::fs::fstat(&at).unwrap().st_mode & 0o7777;
        assert_eq!(mode, 0o750 + (level % 8) as u32, "level {level}");
        if level % 100 == 99 {
            let link = rustix::fs::statat(&at, "link", rustix::fs::AtFlags::empty()).unwrap();
            assert_eq!(link.st_ino, first.st_ino, "level {level}");
        }
    }
    let leaf = rustix::fs::statat(&at, "leaf", rustix::fs::AtFlags::empty()).unwrap();
    assert_eq!((leaf.st_size, leaf.st_mode & 0o7777), (6, 0o640));
    oracle::run("rm", ["-rf".as_ref(), dir.join("out").as_os_str()]).unwrap();
}
