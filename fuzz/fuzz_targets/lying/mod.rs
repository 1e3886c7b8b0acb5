//! Images that lie.
//!
//! The input says which bytes of a sound image's tree blocks and superblocks change, and where it is cut. Checksums are put
//! right, so that the damage gets past them. The image is made once, by the library, and holds every
//! kind of file.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use oleo::mkfs::{BuildOptions, Source, build};
use oleo_sim::oracle::Scratch;
use oleo_sim::rot::{Damage, Rot};
use oleo_sim::specimen::{self, Options};

/// Bytes of the image; most of it is a hole.
const IMAGE_LEN: u64 = 128 << 20;
const SUPER_LEN: usize = 4096;

#[derive(Arbitrary, Debug)]
struct Change {
    /// Which tree block; the superblock for every sixteenth.
    block: u16,
    at: u16,
    bytes: Bytes,
}

#[derive(Arbitrary, Debug)]
enum Bytes {
    One(u8),
    Two(u16),
    Four(u32),
    Eight(u64),
    /// The address of another tree block.
    Address(u16),
}

/// The damage of an image.
#[derive(Arbitrary, Debug)]
pub struct Input {
    changes: Vec<Change>,
    cut: Option<u32>,
}

struct Victim {
    rot: Rot,
    path: PathBuf,
    // Removed at the end.
    _scratch: Scratch,
}

fn victim() -> &'static Victim {
    static VICTIM: OnceLock<Victim> = OnceLock::new();
    VICTIM.get_or_init(|| {
        let scratch = Scratch::new().expect("a scratch directory");
        let source = scratch.dir("source").expect("a directory for the source");
        let small = Options { wide: 100, large_len: 200_000, ..Options::default() };
        specimen::make(&source, &small).expect("the source");
        let path = scratch.path().join("image");
        let mut options = BuildOptions::default().source(Source::Dir(source)).size(Some(IMAGE_LEN));
        options.mkfs.nodesize = Some(4096);
        build(&[&path], options).expect("the image");
        let rot = Rot::survey(&path).expect("its tree blocks");
        Victim { rot, path, _scratch: scratch }
    })
}

/// Calls `each` with the image as the input has it, and puts it right again.
pub fn with(input: &Input, each: impl FnOnce(&Path)) {
    const CHANGES_MAX: usize = 8;
    let victim = victim();
    let mut guards = Vec::new();
    for change in input.changes.iter().take(CHANGES_MAX) {
        let index = usize::from(change.block) % victim.rot.blocks();
        let bytes = match change.bytes {
            Bytes::One(v) => vec![v],
            Bytes::Two(v) => v.to_le_bytes().to_vec(),
            Bytes::Four(v) => v.to_le_bytes().to_vec(),
            Bytes::Eight(v) => v.to_le_bytes().to_vec(),
            Bytes::Address(v) => victim.rot.address(usize::from(v) % victim.rot.blocks()).to_le_bytes().to_vec(),
        };
        let at = usize::from(change.at) % (SUPER_LEN - bytes.len());
        let edits = vec![(at, bytes)];
        let damage = match change.block % 16 {
            0 => Damage::Super(edits),
            _ => Damage::Block { index, logical: victim.rot.address(index), edits },
        };
        guards.push(victim.rot.inflict(&damage).expect("the damage"));
    }
    if let Some(cut) = input.cut {
        let damage = Damage::Truncate(u64::from(cut) % IMAGE_LEN);
        guards.push(victim.rot.inflict(&damage).expect("the cut"));
    }
    each(&victim.path);
    // The last change is undone first.
    while guards.pop().is_some() {}
}
