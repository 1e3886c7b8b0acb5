//! Whole trees and chains of snapshots.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use oleo_sim::budget::budget;
use oleo_sim::manifest::{HostTree, Ignore, Kind, Piece, TreeView as _};
use oleo_sim::oracle::{Mounted, oracle};
use oleo_sim::script::{Host, Mix, Target as _, generate};
use oleo_sim::specimen;

use crate::receive::common::{Receiver, Sender, must_equal};

/// What the kernel's streams of a version cannot carry, or its own receive changes.
fn ignore() -> Ignore {
    Ignore { dir_sizes: true, ..Ignore::default() }
}

pub fn fill(top: &Path, seed: u64) -> Result<()> {
    specimen::make(top, &specimen::Options { seed, large_len: 5 << 20, wide: 300, ..Default::default() })
}

pub fn change(top: &Path, seed: u64, steps: usize) {
    let mix = Mix { steps, subvolumes: false, names_max: 150, ..Mix::default() };
    let mut host = Host::new(top, 4096);
    for op in generate(seed, &mix) {
        // Many are meant to fail.
        let _answer = host.apply(&op);
    }
}

/// Bytes at the beginning of a file that may be inline, as long as it is no longer, or in a block of its own: both are right. Inline ones
/// that are compressed are no longer so in a block, once the file grows.
const INLINE_MAX: u64 = 4096;

/// How much of each file is compressed on disk, without parts that may be inline; files without any are left out.
fn encoded_bytes(mounted: &Mounted, name: &str) -> Result<BTreeMap<String, u64>> {
    fn walk(tree: &HostTree, dir: &PathBuf, path: &[u8], out: &mut BTreeMap<String, u64>) -> Result<()> {
        for (name, node) in tree.list(dir)? {
            let path = [path, b"/", &name].concat();
            let attr = tree.attr(&node)?;
            match attr.kind {
                Kind::Dir => walk(tree, &node, &path, out)?,
                Kind::File => {
                    let may_be_inline = |piece: &Piece| piece.at == 0 && piece.len <= INLINE_MAX;
                    let pieces = tree.pieces(&node)?;
                    let encoded = pieces.iter().filter(|piece| piece.encoded && !may_be_inline(piece));
                    let bytes = encoded.map(|piece| piece.len).sum();
                    if bytes > 0 {
                        out.insert(path.escape_ascii().to_string(), bytes);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
    let tree = HostTree::new(&mounted.path().join(name));
    let mut out = BTreeMap::new();
    walk(&tree, &tree.root()?, b"", &mut out)?;
    Ok(out)
}

/// Sends a chain of snapshots by the kernel, receives it on both sides, compares each.
fn chain(options: &[&str], mount: &str, mkfs: &[&str], seed: u64, length: usize) -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let sender = Sender::new(oracle, mount)?;
    let top = sender.subvol("work")?;
    fill(&top, seed)?;
    let (ours, theirs) = (Receiver::new(oracle, mkfs)?, Receiver::new(oracle, mkfs)?);
    let mut names: Vec<String> = Vec::new();
    for n in 0..length {
        if n > 0 {
            change(&top, seed * 100 + n as u64, 400);
        }
        let name = format!("s{n}");
        sender.snapshot("work", &name)?;
        let mut with = options.to_vec();
        if let Some(parent) = names.last() {
            with.extend(["-p", parent]);
        }
        let stream = sender.send(&with, &[&name])?;
        theirs.kernel(&stream)?;
        ours.ours(&stream)?;
        std::fs::remove_file(stream)?;
        names.push(name);
    }
    ours.must_be_sound("received")?;
    let (have, want) = (ours.mount()?, theirs.mount()?);
    for name in &names {
        let source = Ignore { sharing: true, holes: true, ..ignore() };
        must_equal(&sender.mounted, &have, name, &source)?;
        // FIEMAP reports overlapping bytes for compressed extents that are not shared: these are counted instead.
        let compressed = encoded_bytes(&want, name)?;
        must_equal(&want, &have, name, &Ignore { sharing: !compressed.is_empty(), holes: true, ..ignore() })?;
        let ours = encoded_bytes(&have, name)?;
        let paths = ours.keys().chain(compressed.keys());
        let differ: Vec<_> = paths.map(|p| (p, ours.get(p), compressed.get(p))).filter(|(_, a, b)| a != b).collect();
        ensure!(differ.is_empty(), "{name}: compressed bytes (path, ours, the kernel's): {differ:?}");
        assert_eq!(mount.contains("compress"), !compressed.is_empty());
    }
    Ok(())
}

/// Goal: what the kernel sends, in version 1 and compressed in version 2, is received as the kernel receives it: contents, metadata,
/// sharing. Method: a specimen of everything, then random changes; each snapshot sent from its predecessor; compared with the source and
/// with the kernel's receive. CI tries one of the versions.
#[test]
fn of_the_kernel() {
    let forms: Vec<(&[&str], &str)> =
        vec![(&["--proto", "1"], ""), (&["--proto", "2", "--compressed-data"], "compress-force=zstd")];
    for (seed, (options, mount)) in (budget().first_seed(1)..).zip(budget().sample(forms, 1)) {
        chain(options, mount, &[], seed, 4).unwrap();
    }
}

/// Goal: several subvolumes in one input, with and without ENDs in between, and clones from other subvolumes, are
/// received as by the kernel; then each side's next incremental is applied to what the other side received, so that
/// chains continue across. Method: two subvolumes that share files, sent together; one more snapshot, sent from its
/// parent and received by the other kind.
#[test]
fn several_and_across() {
    let Some(oracle) = oracle() else { return };
    let run = || -> Result<()> {
        let sender = Sender::new(oracle, "")?;
        let top = sender.subvol("work")?;
        fill(&top, 5)?;
        sender.snapshot("work", "a")?;
        change(&top, 6, 300);
        sender.snapshot("work", "b")?;
        let other = sender.subvol("other")?;
        let clone = ["--reflink=always", "-a"].map(str::to_owned);
        let from = sender.at("b").join("sizes");
        oleo_sim::oracle::run("cp", [&clone[0], &clone[1], from.to_str().unwrap_or(""), other.to_str().unwrap_or("")])?;
        sender.snapshot("other", "c")?;
        let (ours, theirs) = (Receiver::new(oracle, &[])?, Receiver::new(oracle, &[])?);
        let first = sender.send(&[], &["a"])?;
        let rest = sender.send(&["-p", "a"], &["b"])?;
        let cloned = sender.send(&["-p", "b", "-c", "a"], &["c"])?;
        let mut all = Vec::new();
        for stream in [&first, &rest, &cloned] {
            theirs.kernel(stream)?;
            all.extend(std::fs::read(stream)?);
        }
        // One input for ours.
        std::fs::write(&first, &all)?;
        ensure!(ours.ours(&first)?.subvols.len() == 3);
        let both = sender.send(&["-e"], &["a", "b"])?;
        let third = Receiver::new(oracle, &[])?;
        ensure!(third.ours(&both)?.subvols.len() == 2, "without ends between them");
        change(&top, 7, 300);
        sender.snapshot("work", "d")?;
        let next = sender.send(&["-p", "b"], &["d"])?;
        ours.kernel(&next)?;
        theirs.ours(&next)?;
        ours.must_be_sound("ours, then the kernel")?;
        theirs.must_be_sound("the kernel, then ours")?;
        let (have, want) = (ours.mount()?, theirs.mount()?);
        for name in ["a", "b", "c", "d"] {
            must_equal(&sender.mounted, &have, name, &Ignore { sharing: true, holes: true, ..ignore() })?;
            must_equal(&want, &have, name, &ignore())?;
        }
        Ok(())
    };
    run().unwrap();
}
