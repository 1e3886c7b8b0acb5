//! Files of several snapshots in several inputs, at every moment, beside a plain model.

use std::collections::BTreeMap;

use oleo_format::stream::{self, Command};
use oleo_format::{Compression, compress};
use oleo_sim::rng::Rng;
use uuid::Uuid;

use super::*;
use crate::lookup::{Chain, LookupError, Places, Steps};

/// What each file of a snapshot has, by name.
type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// Inputs in memory, and which of them each link is in.
struct Memory<'i>(&'i [Vec<u8>], &'i [usize]);

impl Places for Memory<'_> {
    fn get(&mut self, link: usize, at: u64, len: u32) -> Result<Vec<u8>, LookupError> {
        let bytes = self.0[self.1[link]].get(at as usize..).and_then(|rest| rest.get(..len as usize));
        Ok(bytes.ok_or_else(|| crate::lookup::wrong("place", at, "within"))?.to_vec())
    }
}

fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    file.resize(file.len().max(at + bytes.len()), 0);
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Commands that change some files, and what the files are afterwards.
fn change(rng: &mut Rng, uuid: Uuid, before: &[(Uuid, Files)], files: &mut Files, out: &mut Vec<u8>) {
    let pick = |rng: &mut Rng, files: &Files| {
        let names: Vec<Vec<u8>> = files.keys().cloned().collect();
        rng.pick(&names).cloned()
    };
    for nth in 0..rng.below(14) {
        let mut give = |command: Command<'_>| command.encode(2, out);
        let (at, len) = (rng.below(40), rng.between(1, 30));
        let data = vec![rng.below(255) as u8 + 1; len as usize];
        let Some(path) = pick(rng, files).filter(|_| !rng.one_in(5)) else {
            let path = format!("{}{nth}", uuid.as_u128()).into_bytes();
            give(Command::MkFile { path: &path, ino: 1 });
            files.insert(path, Vec::new());
            continue;
        };
        let file = files.get_mut(&path).unwrap();
        match rng.below(8) {
            0 => {
                file.resize(at as usize, 0);
                give(Command::Truncate { path: &path, size: at });
            }
            1 => {
                let end = file.len().min((at + len) as usize);
                file.get_mut(at as usize..end).into_iter().for_each(|hole| hole.fill(0));
                give(Command::Fallocate { path: &path, mode: 3, offset: at, len });
            }
            2 => {
                let (whole, skip) = (vec![data[0]; 8192], rng.below(8000));
                let packed = compress(Compression::Zlib, 1, &whole, 4096).unwrap();
                put(file, at as usize, &whole[..len as usize]);
                give(Command::EncodedWrite {
                    path: &path,
                    offset: at,
                    unencoded_file_len: len,
                    unencoded_len: 8192,
                    unencoded_offset: skip,
                    compression: 1,
                    encryption: 0,
                    data: &packed,
                });
            }
            3 => {
                let to = [&path[..], b"_"].concat();
                give(Command::Rename { path: &path, to: &to });
                let file = files.remove(&path).unwrap();
                files.insert(to, file);
            }
            4 => {
                let (from, source) = match rng.pick(before).filter(|_| rng.one_in(2)) {
                    Some((from, files)) => (*from, files),
                    None => (uuid, &*files),
                };
                let Some(other) = pick(rng, source).filter(|other| from != uuid || *other != path) else { continue };
                let mut bytes = source[&other].clone();
                bytes.resize(bytes.len().max((at + len) as usize), 0);
                let bytes = bytes[at as usize..(at + len) as usize].to_vec();
                let to = rng.below(40);
                give(Command::Clone {
                    path: &path,
                    offset: to,
                    len,
                    clone_uuid: from,
                    clone_ctransid: 1,
                    clone_path: &other,
                    clone_offset: at,
                });
                put(files.get_mut(&path).unwrap(), to as usize, &bytes);
            }
            _ => {
                put(file, at as usize, &data);
                give(Command::Write { path: &path, offset: at, data: &data });
            }
        }
    }
}

/// Three snapshots, each built on the one before: the first two in one input, with or without an END between them.
fn inputs(rng: &mut Rng) -> (Vec<Vec<u8>>, Vec<(Uuid, Files)>) {
    let mut snapshots: Vec<(Uuid, Files)> = Vec::new();
    let (mut all, mut out) = (Vec::new(), stream::header(2).to_vec());
    for number in 1..=3 {
        let uuid = Uuid::from_u128(number);
        let mut files = snapshots.last().map(|(_, files)| files.clone()).unwrap_or_default();
        match snapshots.last() {
            None => Command::Subvol { path: b"s", uuid, ctransid: 1 },
            Some((parent, _)) => {
                Command::Snapshot { path: b"s", uuid, ctransid: 1, clone_uuid: *parent, clone_ctransid: 1 }
            }
        }
        .encode(2, &mut out);
        change(rng, uuid, &snapshots, &mut files, &mut out);
        snapshots.push((uuid, files));
        if number == 1 && rng.one_in(2) {
            continue;
        }
        Command::End.encode(2, &mut out);
        match number {
            1 => out.extend(stream::header(2)),
            _ => all.push(std::mem::replace(&mut out, stream::header(2).to_vec())),
        }
    }
    (all, snapshots)
}

fn chain(inputs: &[Vec<u8>]) -> Result<(Chain, Vec<usize>), LookupError> {
    let mut found = Vec::new();
    // What is built on another comes first.
    for number in (0..inputs.len()).rev() {
        found.extend(scan(&inputs[number][..], &mut (1 << 20))?.into_iter().map(|subvol| (number, subvol)));
    }
    Chain::of_scanned(found)
}

/// Goal: any range of any file of any snapshot is what the commands made of it, and what is packed comes out as the stream has it. Method: random commands beside
/// a plain model; every name of every snapshot, in all of them, in random ranges.
#[test]
fn any_range_of_any_moment() {
    let (mut read, mut packed) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let (inputs, snapshots) = inputs(&mut rng);
        let (chain, links) = chain(&inputs).unwrap();
        assert_eq!((chain.links(), &links[..]), (3, &[0, 0, 1][..]));
        let mut places = Memory(&inputs, &links);
        let names: Vec<&Vec<u8>> = snapshots.iter().flat_map(|(_, files)| files.keys()).collect();
        for (link, (_, files)) in snapshots.iter().enumerate() {
            for name in &names {
                let (at, len) = (rng.below(50), rng.between(1, 40) as usize);
                let have = chain.read_at(link, name, (at, len), &mut places, &mut Steps::default()).unwrap();
                let want = files.get(*name).filter(|file| at < file.len() as u64).map(|file| {
                    let mut file = file.clone();
                    file.resize(at as usize + len, 0);
                    file[at as usize..].to_vec()
                });
                assert_eq!(have, want, "seed {seed}, snapshot {link}, {}, {at}, {len}", name.escape_ascii());
                read += usize::from(have.is_some());
                let as_stored = chain.packed_at(link, name, at, &mut places, &mut Steps::default()).unwrap();
                if let Some((kind, bytes)) = as_stored {
                    let value = files[*name][at as usize];
                    assert_eq!(kind, Compression::Zlib, "seed {seed}");
                    assert_eq!(bytes, compress(kind, 1, &[value; 8192], 4096).unwrap(), "seed {seed}");
                    packed += 1;
                }
            }
        }
    }
    assert!(read > 1000 && packed > 50, "{read}, {packed}");
}

/// Goal: what does not fit together is refused: a stream that is built on one that is not there, one that is cut or changed, one whose commands do what names
/// do not allow, one with too much; and a file in too many pieces is left.
#[test]
fn refused() {
    let (mut inputs, snapshots) = inputs(&mut Rng::new(3));
    let text = |inputs: &[Vec<u8>]| chain(inputs).err().unwrap().to_string();
    assert!(text(&inputs[1..]).contains("which another is built on"), "{}", text(&inputs[1..]));
    assert!(text(&[inputs[0][..inputs[0].len() - 1].to_vec()]).contains("the stream ends"));
    assert!(matches!(scan(&inputs[0][..], &mut 100), Err(LookupError::Unsupported(_))));
    let mut odd = stream::header(2).to_vec();
    Command::Unlink { path: b"x" }.encode(2, &mut odd);
    assert!(text(&[odd.clone()]).contains("byte 17 of the stream"), "{}", text(&[odd]));
    let (whole, links) = chain(&inputs).unwrap();
    let name = snapshots[2].1.keys().next().unwrap();
    let mut places = Memory(&inputs, &links);
    assert!(whole.read_at(2, name, (0, 10), &mut places, &mut Steps::new(0)).is_err());
    inputs[0][60] ^= 1;
    assert!(text(&inputs).contains("of the stream"), "{}", text(&inputs));
    assert!(Chain::of_scanned(Vec::new()).is_err());
    for far in [
        Command::Write { path: b"f", offset: u64::MAX, data: b"x" },
        Command::Truncate { path: b"f", size: 1 << 63 },
        Command::Fallocate { path: b"f", mode: 0, offset: 1 << 63, len: 1 },
    ] {
        let mut one = stream::header(2).to_vec();
        Command::Subvol { path: b"s", uuid: Uuid::from_u128(9), ctransid: 1 }.encode(2, &mut one);
        Command::MkFile { path: b"f", ino: 1 }.encode(2, &mut one);
        far.encode(2, &mut one);
        assert!(text(&[one]).contains(far.kind().name()), "{far:?}");
    }
    let many = (0..1025).map(|_| {
        let mut one = stream::header(2).to_vec();
        Command::Subvol { path: b"s", uuid: Uuid::from_u128(9), ctransid: 1 }.encode(2, &mut one);
        Command::End.encode(2, &mut one);
        one
    });
    assert!(text(&[many.collect::<Vec<_>>().concat()]).contains("more than 1024"));
}
