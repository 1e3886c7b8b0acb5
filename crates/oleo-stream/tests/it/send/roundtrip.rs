//! Streams of ours, received by the kernel and by us.

use std::collections::BTreeMap;

use crate::send::common::{History, Sender, fresh, kernel_receive, same};
use oleo_format::stream::CommandKind;
use oleo_sim::budget::budget;
use oleo_sim::manifest::Manifest;
use oleo_sim::oracle::{Oracle, oracle};
use oleo_sim::script::Mix;
use oleo_stream::{Commands, Limits};

/// A history whose directories move more than anything else happens.
fn mix(steps: usize) -> Mix {
    Mix { subvolumes: false, steps, moves: 25, ..Mix::default() }
}

/// How often each command occurs.
pub fn commands(stream: &[u8], into: &mut BTreeMap<CommandKind, usize>) {
    let mut reader = Commands::new(stream, Limits::default());
    while let Some(next) = reader.next().unwrap() {
        *into.entry(next.command.kind()).or_default() += 1;
    }
}

/// Goal: whatever happened between two snapshots, the kernel's receiver and ours recreate the snapshots from our
/// streams. Method: random histories on the kernel, eleven snapshots, thousands of operations; sent whole and then
/// piece by piece, received by both; names, contents, attributes and sharing compared.
#[test]
fn random_histories() {
    let Some(oracle) = oracle() else { return };
    // Version of the stream, whether it is compressed, whether files have items for holes.
    let forms = vec![(1, false, true), (2, true, true), (2, false, false), (2, false, true), (1, false, false)];
    let forms = budget().sample(forms, 1);
    for (seed, (version, compressed, holes)) in (budget().first_seed(1)..).zip(forms) {
        let mix = Mix { compress: compressed, holes, ..mix(2500) };
        let history = History::make(oracle, seed, &mix, 11).unwrap();
        let sender = Sender { version, compressed, ..Sender::default() };
        history.to_the_kernel(oracle, &sender).unwrap();
        history.to_us(oracle, &sender).unwrap();
        history.kernel_to_us(oracle, version).unwrap();
    }
}

/// Goal: the same with thousands of operations between snapshots, and streams of the kernel's too. Method: as above; a seed decides
/// on the version.
#[test]
fn long_chains() {
    let Some(oracle) = oracle() else { return };
    budget().seeds(100, 1, 2).for_each(|seed| long_chain(oracle, seed));
}

fn long_chain(oracle: Oracle, seed: u64) {
    let version = 1 + u32::try_from(seed % 2).unwrap();
    let compressed = seed % 4 == 3;
    let mix =
        Mix { compress: compressed, holes: !seed.is_multiple_of(3), ..mix(budget().count(10_000, 22_000) as usize) };
    let history = History::make(oracle, seed, &mix, 11).unwrap();
    let sender = Sender { version, compressed, ..Sender::default() };
    history.to_the_kernel(oracle, &sender).unwrap();
    history.to_us(oracle, &sender).unwrap();
    history.kernel_to_us(oracle, version).unwrap();
    eprintln!("long chains: seed {seed}, {sender:?}: equal");
}

/// Goal: with several clone sources, one of which may be the parent, shared data is cloned, the rest arrives. Method:
/// the last snapshot sent whole and on top of the first, with others as sources.
#[test]
fn several_clone_sources() {
    let Some(oracle) = oracle() else { return };
    let mix = Mix { holes: false, ..mix(2000) };
    let history = History::make(oracle, 11, &mix, 6).unwrap();
    let source = history.open().unwrap();
    let sender = Sender::default();
    let image = fresh(oracle, &history.scratch, "received").unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    let mut sent = Vec::new();
    for (name, parent, sources) in [
        ("s0", None, &[][..]),
        ("s1", Some("s0"), &[]),
        // Sources that have no parent in common with it: all have the same here, so it is chosen among them.
        ("s2", None, &["s0", "s1"]),
        ("s3", None, &[]),
        ("s4", Some("s0"), &["s3", "s2"]),
        ("s5", Some("s4"), &["s1"]),
    ] {
        let (stream, report) = sender.send(&source, name, parent, sources).unwrap();
        kernel_receive(&history.scratch, &stream, mounted.path()).unwrap();
        sent.push(report);
    }
    mounted.sync().unwrap();
    let have = Manifest::of_dir(mounted.path(), crate::send::common::DETAIL).unwrap();
    mounted.unmount().unwrap();
    // `s3` was sent whole without sources: it shares nothing with what came before.
    same(&history.manifest, &have, false, "clone sources");
    assert!(sent[4].cloned_bytes > 0 && sent[4].data_bytes < sent[3].data_bytes, "{sent:?}");
    oracle.must_be_sound(&[&image], "received").unwrap();
}

/// Goal: a stream is the same whatever the number of threads. Method: one, two and five.
#[test]
fn the_same_bytes_with_any_number_of_threads() {
    let Some(oracle) = oracle() else { return };
    let history = History::make(oracle, 21, &mix(1000), 3).unwrap();
    let streams = |threads| history.streams(&Sender { version: 2, threads, ..Sender::default() }).unwrap();
    let one = streams(1);
    assert!(one == streams(2));
    assert!(one == streams(5));
}

/// Goal: every command of the streams occurs, and `btrfs receive --dump` reads them all.
/// Method: random histories in both versions; commands counted by our reader and by the original's dump.
#[test]
fn every_command_occurs_and_the_original_reads_it() {
    let Some(oracle) = oracle() else { return };
    let mut seen: BTreeMap<CommandKind, usize> = BTreeMap::new();
    for (seed, version, compressed) in [(31, 1, false), (32, 2, true)] {
        let mix = Mix { compress: compressed, ..mix(2500) };
        let history = History::make(oracle, seed, &mix, 4).unwrap();
        for stream in history.streams(&Sender { version, compressed, ..Sender::default() }).unwrap() {
            let mut here = BTreeMap::new();
            commands(&stream, &mut here);
            let file = history.scratch.path().join("stream");
            std::fs::write(&file, &stream).unwrap();
            let dump = crate::send::common::btrfs(&["receive", "--dump", "-f"], &[&file]).unwrap();
            // A line for each command, but for the end; attributes' values may have lines of their own.
            let words: Vec<&str> =
                here.keys().filter(|kind| **kind != CommandKind::End).map(|kind| kind.name()).collect();
            let lines = dump.lines().filter(|line| words.contains(&line.split(' ').next().unwrap_or(""))).count();
            let reported: usize =
                here.iter().filter(|(kind, _)| **kind != CommandKind::End).map(|(_, count)| count).sum();
            assert_eq!(lines, reported, "seed {seed}");
            for (kind, count) in here {
                *seen.entry(kind).or_default() += count;
            }
        }
    }
    use CommandKind as K;
    let missing: Vec<CommandKind> = [
        K::Subvol,
        K::Snapshot,
        K::MkFile,
        K::MkDir,
        K::MkNod,
        K::MkFifo,
        K::Symlink,
        K::Rename,
        K::Link,
        K::Unlink,
        K::RmDir,
        K::SetXattr,
        K::RemoveXattr,
        K::Write,
        K::EncodedWrite,
        K::Clone,
        K::Truncate,
        K::Chmod,
        K::Chown,
        K::Utimes,
        K::Fallocate,
        K::FileAttr,
        K::End,
    ]
    .into_iter()
    .filter(|kind| !seen.contains_key(kind))
    .collect();
    assert!(missing.is_empty(), "{missing:?} of {seen:?}");
}
