//! Snapshots kept as streams on a store: chains of random histories, received and looked up; what is refused; what is damaged.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use oleo::fs::{CloneRange, FileKind, KeepSize, Sharing};
use oleo::receive::Receive;
use oleo::remote::store::{Cond, MemoryStore, Op, Store};
use oleo::remote::streams::{Policy, StreamName, Streams, find};
use oleo::remote::{RemoteError, StoreOptions};
use oleo::send::SendOptions;
use oleo::streams::{Base, FileType, StoredFiles, missing};
use oleo::{Image, SnapshotOptions, TreeId};
use oleo_sim::budget::budget;
use oleo_sim::rng::Rng;

const BLOCK: u64 = 4096;

/// What is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Is {
    Dir,
    /// Contents, and number of names.
    File(Vec<u8>, u32),
    Symlink(Vec<u8>),
    Other,
}

/// A store in memory and the options for it.
fn store(name: &str) -> (StreamName, StoreOptions) {
    let mut options = StoreOptions::default();
    options.bounds.segment_aim = 100_000;
    (StreamName::parse(&format!("memory://{name}/backups")).expect("a name"), options)
}

fn streams(name: &str) -> Streams {
    let (name, options) = store(name);
    Streams::open_or_make(&name.url, &options).expect("streams")
}

/// Everything in a subvolume, by path.
fn all(image: &Image, subvol: &str) -> Result<BTreeMap<Vec<u8>, Is>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        let place = [subvol.as_bytes(), b"/", &dir].concat();
        for entry in image.list(&place)? {
            let path = if dir.is_empty() { entry.name.clone() } else { [&dir, &b"/"[..], &entry.name].concat() };
            let place = [subvol.as_bytes(), b"/", &path].concat();
            let is = match entry.kind {
                FileKind::Dir => {
                    todo.push(path.clone());
                    Is::Dir
                }
                FileKind::File => Is::File(image.read(&place)?, image.attr(&place)?.nlink),
                FileKind::Symlink => {
                    let (dir, name) = image.find_parent(&image.top()?, &place)?;
                    let link = image.fs().lookup(&dir, name)?.context("a link")?;
                    Is::Symlink(image.fs().read_link(&link)?)
                }
                _ => Is::Other,
            };
            out.insert(path, is);
        }
    }
    Ok(out)
}

/// A random change of a subvolume; one that makes no sense is none.
fn change(image: &Image, rng: &mut Rng, subvol: &str, number: usize) -> Result<()> {
    let there = all(image, subvol)?;
    let place = |path: &[u8]| [subvol.as_bytes(), b"/", path].concat();
    let of = |wanted: fn(&Is) -> bool| -> Vec<Vec<u8>> {
        there.iter().filter(|(_, is)| wanted(is)).map(|(path, _)| path.clone()).collect()
    };
    let (files, mut dirs) = (of(|is| matches!(is, Is::File(..))), of(|is| *is == Is::Dir));
    dirs.push(Vec::new());
    let top = image.top()?;
    let dir = rng.pick(&dirs).cloned().unwrap_or_default();
    let new = if dir.is_empty() {
        format!("n{number}").into_bytes()
    } else {
        [&dir, format!("/n{number}").as_bytes()].concat()
    };
    let file = rng.pick(&files).cloned();
    let other = rng.pick(&files).cloned();
    let whole = |rng: &mut Rng| rng.below(30) * BLOCK;
    match (rng.below(16), file) {
        (0 | 1, _) => {
            let len = rng.length(300_000) as usize;
            image.write(place(&new), &rng.bytes(len))?;
        }
        (2, _) => drop(image.create_dir(place(&new))?),
        (3, _) => image.symlink(&top, format!("to/{number}").as_bytes(), place(&new))?,
        (4..=6, Some(file)) => {
            let (at, len) = (rng.below(200_000), rng.length(100_000) as usize);
            image.open_file(place(&file))?.write_at(&rng.bytes(len), at)?;
        }
        (7, Some(file)) => image.open_file(place(&file))?.set_len(rng.below(150_000))?,
        (8, Some(file)) => image.hard_link(&top, place(&file), place(&new))?,
        (9 | 10, Some(file)) => {
            // Onto a new name, or in the place of another file.
            let to = other.filter(|other| *other != file && rng.one_in(3)).unwrap_or(new);
            image.rename(&top, place(&file), place(&to))?;
        }
        (11, _) => {
            let from = rng.pick(&dirs).cloned().unwrap_or_default();
            let below = new.starts_with(&from);
            if !from.is_empty() && !below {
                image.rename(&top, place(&from), place(&new))?;
            }
        }
        (12, Some(file)) => image.remove(&top, place(&file), oleo::fs::Depth::One)?,
        (13, _) if !dir.is_empty() && rng.one_in(3) => image.remove(&top, place(&dir), oleo::fs::Depth::Tree)?,
        (14, Some(file)) => {
            let source = image.find(place(&other.unwrap_or_else(|| file.clone())))?;
            let target = image.find(place(&file))?;
            let range = CloneRange { from: whole(rng), len: BLOCK * rng.between(1, 10), to: whole(rng) };
            if range.from + range.len <= image.fs().attr(&source).size {
                // Ranges of one file that overlap are refused.
                let _refused = image.fs().clone_range(&source, &target, &range);
            }
        }
        (15, Some(file)) => match rng.below(3) {
            0 => image.copy(&top, place(&file), place(&new), oleo::fs::Depth::One, Sharing::Reflink)?,
            1 => image.fs().punch_hole(&image.find(place(&file))?, whole(rng), whole(rng).max(1))?,
            _ => image.fs().zero_range(&image.find(place(&file))?, whole(rng), whole(rng).max(1), KeepSize::No)?,
        },
        _ => {}
    }
    Ok(())
}

fn snapshot(image: &Image, name: &str) -> Result<TreeId> {
    Ok(image.snapshot("work", name, &SnapshotOptions::default().read_only(true))?)
}

/// What a snapshot on a store has at every path, looked up.
fn looked_up(files: &mut StoredFiles) -> Result<BTreeMap<Vec<u8>, Is>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        for entry in files.list(&dir)? {
            let path = if dir.is_empty() { entry.name.clone() } else { [&dir, &b"/"[..], &entry.name].concat() };
            let is = match entry.kind {
                FileType::Dir => {
                    todo.push(path.clone());
                    Is::Dir
                }
                FileType::File => {
                    let mut bytes = Vec::new();
                    files.cat(&path, &mut bytes).with_context(|| path.escape_ascii().to_string())?;
                    ensure!(bytes.len() as u64 == entry.size, "{}: {} bytes", path.escape_ascii(), bytes.len());
                    Is::File(bytes, 0)
                }
                FileType::Symlink => Is::Symlink(files.link_target(&path)?),
                FileType::Other => Is::Other,
            };
            out.insert(path, is);
        }
    }
    Ok(out)
}

fn without_names(all: &BTreeMap<Vec<u8>, Is>) -> BTreeMap<Vec<u8>, Is> {
    let plain = |is: &Is| match is {
        Is::File(bytes, _) => Is::File(bytes.clone(), 0),
        other => other.clone(),
    };
    all.iter().map(|(path, is)| (path.clone(), plain(is))).collect()
}

/// Fails unless both have the same, and says where they differ.
fn must_equal(have: &BTreeMap<Vec<u8>, Is>, want: &BTreeMap<Vec<u8>, Is>, what: &str) -> Result<()> {
    for (path, is) in want {
        let shown = path.escape_ascii();
        let other = have.get(path).with_context(|| format!("{what}: {shown} is missing"))?;
        if let (Is::File(a, _), Is::File(b, _)) = (is, other)
            && a != b
        {
            let at = a.iter().zip(b).position(|(a, b)| a != b);
            anyhow::bail!("{what}: {shown} differs at {at:?}, of {} and {} bytes", a.len(), b.len());
        }
        ensure!(is == other, "{what}: {shown} is {other:?}, not {is:?}");
    }
    ensure!(have.len() == want.len(), "{what}: {} paths, not {}", have.len(), want.len());
    Ok(())
}

/// One history: five snapshots with renames, links, deletions and clones between them; each looked up whole and extracted whole.
fn history(seed: u64, options: &SendOptions<'_>) -> Result<()> {
    let mut rng = Rng::new(seed);
    let image = Image::create_in_memory(1 << 30)?;
    image.create_subvol("work")?;
    let streams = streams(&format!("history{seed}"));
    let mut wanted = Vec::new();
    let mut number = 0;
    for round in 0..5 {
        for _ in 0..rng.between(1, if round == 0 { 60 } else { 25 }) {
            number += 1;
            change(&image, &mut rng, "work", number)?;
        }
        let name = format!("snap{round}");
        let id = snapshot(&image, &name)?;
        let stored = image.send_to_store(&streams, id, Base::Best, options)?;
        ensure!(stored.entry.incremental == (round > 0), "{stored:?}");
        wanted.push((name.clone(), all(&image, &name)?));
    }
    let list = streams.list()?;
    for (name, want) in &wanted {
        let mut files = StoredFiles::open(&streams, &list, find(&list, Some(name))?)?;
        must_equal(&looked_up(&mut files)?, &without_names(want), &format!("{name} looked up"))?;
    }
    // The tree as a whole, with the hard links in it.
    let (name, want) = wanted.last().context("snapshots")?;
    let scratch = tempfile::tempdir()?;
    let mut files = StoredFiles::open(&streams, &list, find(&list, Some(name))?)?;
    let dest = scratch.path().join("dest");
    let (_, warnings) = files.restore(b"/", &dest, true)?;
    ensure!(warnings.is_empty(), "{warnings:?}");
    for (path, is) in want {
        let place = dest.join(std::str::from_utf8(path)?);
        match is {
            Is::File(bytes, links) => {
                ensure!(&std::fs::read(&place)? == bytes, "{} restored", place.display());
                ensure!(std::fs::metadata(&place)?.nlink() == u64::from(*links), "names of {}", place.display());
            }
            Is::Symlink(target) => ensure!(std::fs::read_link(&place)?.as_os_str().as_encoded_bytes() == target),
            Is::Dir => ensure!(place.is_dir()),
            Is::Other => {}
        }
    }
    // And received by another image.
    let other = Image::create_in_memory(1 << 30)?;
    let chain = missing(&list, None, &other.subvols()?)?;
    ensure!(chain.len() == 5, "{} streams", chain.len());
    other.receive_from_store(&streams, &chain, &Receive::default())?;
    for (name, want) in &wanted {
        must_equal(&all(&other, name)?, want, &format!("{name} received"))?;
    }
    ensure!(missing(&list, None, &other.subvols()?)?.is_empty(), "it is there");
    Ok(())
}

/// Goal: files that are looked up in a chain of five are those of the snapshots, and so are trees that come out of it and what is received.
/// Method: random histories with renames, hard links, deletions, clones and holes.
#[test]
fn random_histories() {
    for seed in budget().seeds(0, 6, 25) {
        let version = 1 + (seed % 2) as u32;
        let options = SendOptions::default().version(version).compressed(version > 1);
        history(seed, &options).unwrap_or_else(|e| panic!("seed {seed}: {e:#}"));
    }
}

/// Goal: compressed extents, sent as they are stored, are looked up too.
#[test]
fn compressed_extents() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("image");
    drop(Image::create(&path, 300 << 20).expect("an image"));
    let mut options = oleo::OpenOptions::default();
    options.access = oleo::Access::Write;
    options.fs.data.compress = oleo::fs::parse_compress("zstd").expect("zstd");
    let image = Image::open(&path, &options).expect("open");
    image.create_subvol("work").expect("a subvolume");
    let text: Vec<u8> = (0..400_000u32).flat_map(|n| (n / 1000).to_le_bytes()).collect();
    image.write("work/file", &text).expect("write");
    image.sync().expect("sync");
    let id = snapshot(&image, "snap").expect("a snapshot");
    let streams = streams("compressed");
    let options = SendOptions::default().version(2).compressed(true);
    let stored = image.send_to_store(&streams, id, Base::Whole, &options).expect("send");
    assert!(stored.entry.bytes < text.len() as u64 / 2, "{stored:?}");
    let list = streams.list().expect("list");
    let mut files = StoredFiles::open(&streams, &list, &stored.entry).expect("files");
    let mut out = Vec::new();
    files.cat(b"file", &mut out).expect("cat");
    assert!(out == text);
}

/// Goal: what is already there, or is to be built on what is not, is refused; a clone source that is used is needed, one that is not is not; only the parts that
/// hold a file are read for it.
#[test]
fn what_is_built_on_what() {
    let image = Image::create_in_memory(1 << 30).expect("an image");
    image.create_subvol("work").expect("a subvolume");
    let mut rng = Rng::new(5);
    let large = rng.bytes(1 << 20);
    image.write("work/large", &large).expect("write");
    image.write("work/small", b"small").expect("write");
    let first = snapshot(&image, "first").expect("a snapshot");
    image.create_subvol("other").expect("a subvolume");
    image
        .copy(&image.top().expect("top"), "work/large", "other/copy", oleo::fs::Depth::One, Sharing::Reflink)
        .expect("copy");
    let read_only = SnapshotOptions::default().read_only(true);
    let other = image.snapshot("other", "other1", &read_only).expect("a snapshot");
    let second = snapshot(&image, "second").expect("a snapshot");
    let streams = streams("built");
    let options = SendOptions::default();
    let error = image.send_to_store(&streams, second, Base::Parent(first), &options).expect_err("no parent");
    assert!(error.to_string().contains("first is not among the streams"), "{error}");
    image.send_to_store(&streams, first, Base::Best, &options).expect("send");
    for base in [Base::Best, Base::Whole] {
        let again = image.send_to_store(&streams, first, base, &options).expect_err("again");
        assert!(
            matches!(again, oleo::Error::Remote(ref e) if matches!(**e, RemoteError::SnapshotExists { .. })),
            "{again}"
        );
    }
    let no_data = SendOptions::default().no_data(true);
    assert!(image.send_to_store(&streams, second, Base::Best, &no_data).is_err());
    let unrelated = SendOptions::default().clone_sources(vec![second]);
    assert!(image.send_to_store(&streams, other, Base::Whole, &unrelated).is_err(), "a source that is not there");
    let second = image.send_to_store(&streams, second, Base::Best, &options).expect("send").entry;
    assert!(second.bytes < 10_000 && second.needs.len() == 1, "{second:?}");
    let cloning = SendOptions::default().clone_sources(vec![first]);
    let other = image.send_to_store(&streams, other, Base::Whole, &cloning).expect("send").entry;
    let list = streams.list().expect("list");
    assert_eq!((other.incremental, &other.needs), (false, &vec![list.streams[0].id]));
    assert!(other.bytes < 10_000, "{other:?}");
    let before = streams.counts();
    let mut files = StoredFiles::open(&streams, &list, &other).expect("files");
    let mut out = Vec::new();
    files.cat(b"copy", &mut out).expect("cat");
    assert!(out == large);
    let mut files = StoredFiles::open(&streams, &list, &second).expect("files");
    assert_eq!(files.find(b"small").expect("found").size, 5);
    let gets = |counts: &[(&str, u64)]| counts.iter().find(|(name, _)| *name == "requests: get").expect("counted").1;
    let (whole, between) = (gets(&before), gets(&streams.counts()));
    out.clear();
    files.cat(b"small", &mut out).expect("cat");
    assert_eq!(out, b"small");
    assert_eq!(gets(&streams.counts()) - between, 2, "a manifest and a part, of {}", between - whole);
    assert!(
        files.cat(b"work", &mut out).is_err()
            && files.cat(b"../small", &mut out).is_err()
            && files.cat(b"", &mut out).is_err()
    );
    // Kept by what clones from it.
    let pruned = streams.prune(&Policy { last: 1, ..Policy::default() }).expect("prune");
    assert_eq!(pruned.removed.len(), 0, "{pruned:?}");
}

/// Goal: a part that is damaged is said to be, before anything of it is applied; what was received before it is whole, what was cut is marked and not
/// taken for whole, and goes on when the part is there again.
#[test]
fn a_damaged_link() {
    let image = Image::create_in_memory(1 << 30).expect("an image");
    image.create_subvol("work").expect("a subvolume");
    let streams = streams("damaged");
    for round in 0..3 {
        image.write(format!("work/{round}"), &Rng::new(round).bytes(500_000)).expect("write");
        let id = snapshot(&image, &format!("snap{round}")).expect("a snapshot");
        image.send_to_store(&streams, id, Base::Best, &SendOptions::default()).expect("send");
    }
    let list = streams.list().expect("list");
    let memory = MemoryStore::open("damaged", "backups");
    let key = format!("stream/{}/part-000003", list.streams[1].id.simple());
    let get = |key: &str| Op::Get { key: key.into(), range: None, len_max: u64::MAX, if_changed: None };
    let forever = std::time::Duration::MAX;
    let Ok(oleo::remote::store::Answer::Object { body: good, .. }) = memory.submit(get(&key), forever).wait() else {
        panic!("no part");
    };
    let put = |body: Vec<u8>| Op::Put { key: key.clone(), body: body.into(), cond: Cond::None };
    let mut bad = good.clone();
    bad[1000] ^= 1;
    memory.submit(put(bad), forever).wait().expect("put");
    let other = Image::create_in_memory(1 << 30).expect("an image");
    let chain = missing(&list, None, &[]).expect("chain");
    let error = other.receive_from_store(&streams, &chain, &Receive::default()).expect_err("damaged");
    assert_eq!(error.kind(), oleo::ErrorKind::Corruption, "{error}");
    assert!(error.to_string().contains("part-000003"), "{error}");
    let there = other.subvols().expect("subvolumes");
    let cut = there.iter().find(|subvol| subvol.name.0 == b"snap1").expect("the one that was cut");
    assert!(!cut.read_only && cut.received_uuid.is_nil(), "{cut:?}");
    memory.submit(put(good), forever).wait().expect("put");
    let chain = missing(&list, None, &there).expect("chain");
    assert_eq!(chain.len(), 2, "the first is there");
    let resume = Receive::default().options(oleo::receive::ReceiveOptions::default().resume(true));
    other.receive_from_store(&streams, &chain, &resume).expect("receive");
    for round in 0..3 {
        let name = format!("snap{round}");
        must_equal(&all(&other, &name).expect("all"), &all(&image, &name).expect("all"), &name).expect("equal");
    }
}
