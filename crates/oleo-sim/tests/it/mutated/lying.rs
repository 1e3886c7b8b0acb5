//! Images that lie.
//!
//! The input names bytes of a sound image's tree blocks and superblocks to change, and where to cut the image. Checksums are
//! corrected, so that readers get past them. The library makes each image once per process, with every kind of file in it; one
//! of them is the copy of an image in use, with a log.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use oleo::fs::Depth;
use oleo::inspect::{Inspector, Step};
use oleo::mkfs::{BuildOptions, Source, build};
use oleo::{Image, OpenOptions, TreeId};
use oleo_sim::oracle::{self, Scratch};
use oleo_sim::rot::{Damage, Rot};
use oleo_sim::specimen::{self, Options};

/// Bytes of the image; most of it is a hole.
const IMAGE_LEN: u64 = 128 << 20;
const SUPER_LEN: usize = 4096;
/// Bytes of the input for each change.
const CHANGE_LEN: usize = 13;
const CHANGES_MAX: usize = 8;

/// Which image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code)]
pub enum Which {
    /// Committed and closed.
    Closed,
    /// The same after more changes with fsyncs, as a crash leaves it.
    Logged,
}

/// A damaged image.
pub struct Damaged<'a> {
    pub path: &'a Path,
    /// Whether the damage is only in the trees of the log.
    #[allow(dead_code)]
    pub only_log: bool,
}

struct Victim {
    rot: Rot,
    /// Indices of the blocks of the log.
    log: Vec<usize>,
    path: PathBuf,
    // The file has no other name: nothing is left when the process ends.
    _file: File,
}

impl Victim {
    fn new(which: Which) -> Victim {
        let scratch = Scratch::new().expect("a scratch directory");
        let mut path = make(&scratch);
        if which == Which::Logged {
            path = log_some(&path);
        }
        let file = File::open(&path).expect("the image");
        // Other processes use this name, too.
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        drop(scratch);
        let rot = Rot::survey(&path).expect("its tree blocks");
        let addresses = log_blocks(&path);
        let log = (0..rot.blocks()).filter(|&index| addresses.contains(&rot.address(index))).collect();
        Victim { rot, log, path, _file: file }
    }

    fn damage(&self, change: &[u8; CHANGE_LEN]) -> Damage {
        let [kind, b0, b1, a0, a1, value @ ..] = *change;
        let (block, at) = (u16::from_le_bytes([b0, b1]), u16::from_le_bytes([a0, a1]));
        let number = u64::from_le_bytes(value);
        let bytes = match kind % 6 {
            0 => value[..1].to_vec(),
            1 => value[..2].to_vec(),
            2 => value[..4].to_vec(),
            3 => value.to_vec(),
            4 => {
                let other = usize::try_from(number % self.rot.blocks() as u64).expect("an index");
                self.rot.address(other).to_le_bytes().to_vec()
            }
            _ => return Damage::Truncate(number % (IMAGE_LEN + 1)),
        };
        let edits = vec![(usize::from(at) % (SUPER_LEN - bytes.len()), bytes)];
        // Most changes to an image with a log are to the log.
        let index = match self.log.get(usize::from(block / 4) % self.log.len().max(1)) {
            Some(&index) if block % 4 != 0 => index,
            _ if block % 16 == 0 => return Damage::Super(edits),
            _ => usize::from(block) % self.rot.blocks(),
        };
        Damage::Block { index, logical: self.rot.address(index), edits }
    }

    fn is_of_log(&self, damage: &Damage) -> bool {
        matches!(damage, Damage::Block { index, .. } if self.log.contains(index))
    }
}

fn make(scratch: &Scratch) -> PathBuf {
    let source = scratch.dir("source").expect("a directory for the source");
    let small = Options { wide: 100, large_len: 200_000, ..Options::default() };
    specimen::make(&source, &small).expect("the source");
    let path = scratch.path().join("image");
    let mut options = BuildOptions::default().source(Source::Dir(source)).size(Some(IMAGE_LEN));
    options.mkfs.nodesize = Some(4096);
    build(&[&path], options).expect("the image");
    path
}

/// Changes the image in the ways that a log records, and copies it before they are committed.
fn log_some(path: &Path) -> PathBuf {
    let image = Image::open(path, &OpenOptions::writing()).expect("the image");
    let sync = |name: &str| image.fs().fsync(&image.find(name).expect(name)).expect("fsync");
    let top = image.top().expect("the top directory");
    for name in ["changed", "replaced", "removed", "renamed", "short", "linked"] {
        image.write(name, &[1; 30_000]).expect("write");
    }
    image.create_dir("dir").expect("a directory");
    image.create_subvol("subvol").expect("a subvolume");
    image.write("subvol/file", &[2; 9000]).expect("write");
    image.sync().expect("commit");
    let changed = image.open_file("changed").expect("changed");
    changed.write_at(&[3; 5000], 10_000).expect("write");
    changed.write_at(&[4; 5000], 70_000).expect("write");
    sync("changed");
    image.open_file("short").expect("short").set_len(5000).expect("truncate");
    sync("short");
    image.write("dir/new", &[5; 20_000]).expect("write");
    image.write("dir/small", b"inline").expect("write");
    sync("dir/small");
    image.rename(&top, "renamed", "dir/renamed").expect("rename");
    sync("dir/renamed");
    image.hard_link(&top, "linked", "dir/linked").expect("link");
    image.rename(&top, "dir/new", "replaced").expect("rename");
    sync("replaced");
    image.remove(&top, "removed", Depth::One).expect("remove");
    sync("dir");
    sync("linked");
    image.open_file("subvol/file").expect("a file").write_at(&[6; 100], 9000).expect("write");
    sync("subvol/file");
    let copy = path.with_extension("logged");
    oracle::run("cp", ["--sparse=always".as_ref(), path.as_os_str(), copy.as_os_str()]).expect("a copy");
    copy
}

/// The addresses of the blocks of the log.
fn log_blocks(path: &Path) -> Vec<u64> {
    let inspector = Inspector::open(path, &OpenOptions::default()).expect("the image");
    let mut blocks = Vec::new();
    for tree in inspector.trees().expect("its trees").iter().filter(|tree| tree.tree == TreeId::TREE_LOG) {
        inspector
            .walk(tree, |node| {
                blocks.push(node.logical().0);
                Step::Into
            })
            .expect("a tree of the log");
    }
    blocks
}

fn victim(which: Which) -> &'static Victim {
    static CLOSED: OnceLock<Victim> = OnceLock::new();
    static LOGGED: OnceLock<Victim> = OnceLock::new();
    let place = if which == Which::Closed { &CLOSED } else { &LOGGED };
    place.get_or_init(|| Victim::new(which))
}

/// Calls `each` with the image as the input has it, and restores it.
pub fn with<R>(which: Which, data: &[u8], each: impl FnOnce(&Damaged<'_>) -> R) -> R {
    let victim = victim(which);
    let changes = data.as_chunks::<CHANGE_LEN>().0.iter().take(CHANGES_MAX);
    let damages: Vec<Damage> = changes.map(|change| victim.damage(change)).collect();
    let only_log = damages.iter().all(|damage| victim.is_of_log(damage));
    let mut guards = Vec::new();
    for damage in &damages {
        guards.push(victim.rot.inflict(damage).expect("the damage"));
    }
    let done = each(&Damaged { path: &victim.path, only_log });
    // The last change is undone first.
    while guards.pop().is_some() {}
    done
}
