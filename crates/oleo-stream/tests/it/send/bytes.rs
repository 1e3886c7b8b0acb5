//! How many bytes of contents are sent: those that the receiver lacks, each once.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::send::common::{History, Sender};
use anyhow::Result;
use oleo_sim::manifest::{HostTree, TreeView};
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Op, Target};

const S: u64 = 4096;

/// Files of random bytes, no two alike; parts overwritten, and ranges cloned between and within them.
fn change(top: &Path, rng: &mut Rng, operations: usize) -> Result<()> {
    let name = |n: u64| format!("f{n}");
    for _ in 0..operations {
        let path = top.join(name(rng.below(40)));
        match rng.below(10) {
            0..3 => {
                let sectors = if rng.one_in(3) { 1 } else { 1 + rng.below(60) };
                // Never so small that it would be inline.
                let len = sectors * S - if rng.one_in(2) { rng.below(2000) } else { 0 };
                fs::write(&path, rng.bytes(usize::try_from(len)?))?;
                File::open(&path)?.sync_all()?;
            }
            3 => {
                let _ = fs::remove_file(&path);
            }
            4..6 => {
                let Ok(file) = OpenOptions::new().write(true).open(&path) else { continue };
                let sectors = file.metadata()?.len() / S;
                if sectors > 0 {
                    let at = rng.below(sectors);
                    let len = 1 + rng.below(sectors - at);
                    file.write_all_at(&rng.bytes(usize::try_from(len * S)?), at * S)?;
                    file.sync_all()?;
                }
            }
            _ => {
                let (from, to) = (name(rng.below(40)), name(rng.below(40)));
                let Ok(source) = File::open(top.join(&from)) else { continue };
                source.sync_all()?;
                let size = source.metadata()?.len();
                if size == 0 {
                    continue;
                }
                let target = OpenOptions::new().write(true).create(true).truncate(false).open(top.join(&to))?;
                target.sync_all()?;
                let at = rng.below(size.div_ceil(S)) * S;
                let whole = rng.one_in(2) || size - at < S;
                let len = if whole { size - at } else { (1 + rng.below((size - at) / S)) * S };
                let to_at = rng.below(30) * S;
                // The kernel refuses some, overlapping ones for example.
                let _ = Host::new(top, S).apply(&Op::Clone { from, at, len, to, to_at });
            }
        }
    }
    Ok(())
}

/// Ranges of the disk, and for files in the tree nothing.
fn on_disk(top: &Path) -> Result<(BTreeMap<u64, u64>, u64)> {
    let mut sectors: BTreeMap<u64, u64> = BTreeMap::new();
    let mut inline = 0;
    let tree = HostTree::new(top);
    for (_, node) in tree.list(&tree.root()?)? {
        let size = tree.attr(&node)?.size;
        for piece in tree.pieces(&node)? {
            if piece.inline {
                inline += size;
                continue;
            }
            for at in (0..piece.len).step_by(S as usize) {
                let bytes = size.saturating_sub(piece.at + at).min(S);
                if bytes > 0 && !piece.unwritten {
                    let known = sectors.entry(piece.address + at).or_default();
                    *known = bytes.max(*known);
                }
            }
        }
    }
    Ok((sectors, inline))
}

/// Goal: the data in a stream is what the receiver lacks, each byte once, and nothing else. Method: random trees with
/// clones, whole, partial, and within files; FIEMAP reports what is on disk, sector by sector; the parent's sectors are
/// subtracted.
#[test]
fn are_those_the_receiver_lacks() {
    let Some(oracle) = oracle() else { return };
    for seed in 1..=4 {
        let mut rng = Rng::new(seed);
        let history = History::with(oracle, seed, 4, |work, _| {
            change(work, &mut rng, 150)?;
            Ok(Vec::new())
        })
        .unwrap();
        let mounted = oracle.mount(&[&history.image], "ro").unwrap();
        let disks: Vec<_> = history.snapshots.iter().map(|name| on_disk(&mounted.path().join(name)).unwrap()).collect();
        mounted.unmount().unwrap();
        let image = history.open().unwrap();
        for (number, name) in history.snapshots.iter().enumerate() {
            let (sectors, inline) = &disks[number];
            assert_eq!(*inline, 0, "every file is on disk");
            let whole: u64 = sectors.values().sum();
            let (stream, sent) = Sender::default().send(&image, name, None, &[]).unwrap();
            assert_eq!(sent.data_bytes, whole, "seed {seed}, {name}, whole: {sent:?}");
            assert!(stream.len() as u64 > whole);
            let Some(before) = number.checked_sub(1) else { continue };
            let lacks: u64 =
                sectors.iter().filter(|(at, _)| !disks[before].0.contains_key(*at)).map(|(_, len)| len).sum();
            let parent = &history.snapshots[before];
            // Version 1 has no holes: if the parent has data, zeros are sent.
            let sender = Sender { version: 2, ..Sender::default() };
            let (_, sent) = sender.send(&image, name, Some(parent), &[]).unwrap();
            assert_eq!(sent.data_bytes, lacks, "seed {seed}, {name} on {parent}: {sent:?}");
        }
        history.to_the_kernel(oracle, &Sender { version: 2, ..Sender::default() }).unwrap();
    }
}
