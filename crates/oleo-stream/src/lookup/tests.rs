//! Indexes of streams that are made by hand, and such that cannot be.

use oleo_format::stream::{self, Command};

use super::*;
use uuid::Uuid;

/// Streams in memory.
struct Memory(Vec<Vec<u8>>);

impl Places for Memory {
    fn get(&mut self, link: usize, at: u64, len: u32) -> Result<Vec<u8>, LookupError> {
        let bytes = self.0[link].get(at as usize..).and_then(|rest| rest.get(..len as usize));
        Ok(bytes.ok_or_else(|| wrong("place", at, "within"))?.to_vec())
    }
}

const A: Uuid = Uuid::from_u128(1);
const B: Uuid = Uuid::from_u128(2);
/// What indexes may take in memory.
const MEMORY: usize = 1 << 20;

fn stream_of(uuid: Uuid, parent: Option<Uuid>, commands: &[Command<'_>]) -> Vec<u8> {
    let mut out = stream::header(2).to_vec();
    match parent {
        None => Command::Subvol { path: b"s", uuid, ctransid: 1 },
        Some(clone_uuid) => Command::Snapshot { path: b"s", uuid, ctransid: 1, clone_uuid, clone_ctransid: 1 },
    }
    .encode(2, &mut out);
    commands.iter().for_each(|command| command.encode(2, &mut out));
    Command::End.encode(2, &mut out);
    out
}

/// The index, made of pieces of all lengths.
fn index_of(bytes: &[u8], piece: usize) -> Indexed {
    let mut indexer = Indexer::new(MEMORY);
    bytes.chunks(piece).for_each(|some| indexer.add(some));
    indexer.finish()
}

fn two() -> (Vec<u8>, Vec<u8>) {
    let first = stream_of(
        A,
        None,
        &[
            Command::MkDir { path: b"d", ino: 1 },
            Command::MkFile { path: b"d/tmp", ino: 2 },
            Command::Rename { path: b"d/tmp", to: b"d/f" },
            Command::Write { path: b"d/f", offset: 0, data: b"abcd" },
            Command::Write { path: b"d/f", offset: 4, data: b"efgh" },
            Command::Chmod { path: b"d/f", mode: 0o600 },
            Command::Link { path: b"l", target: b"d/f" },
        ],
    );
    let second = stream_of(
        B,
        Some(A),
        &[
            Command::Rename { path: b"d", to: b"e" },
            Command::Write { path: b"l", offset: 2, data: b"XY" },
            Command::MkFile { path: b"c", ino: 3 },
            Command::Clone {
                path: b"c",
                offset: 1,
                len: 6,
                clone_uuid: A,
                clone_ctransid: 1,
                clone_path: b"d/f",
                clone_offset: 1,
            },
            Command::Truncate { path: b"c", size: 9 },
            Command::Write { path: b"l", offset: 6, data: b"Z" },
            Command::Clone {
                path: b"c",
                offset: 0,
                len: 3,
                clone_uuid: B,
                clone_ctransid: 1,
                clone_path: b"l",
                clone_offset: 5,
            },
        ],
    );
    (first, second)
}

fn chain_of(first: &[u8], second: &[u8]) -> Result<Chain, LookupError> {
    let link = |uuid, parent, index| Link { uuid, parent, index };
    Chain::new(&[link(A, None, first), link(B, Some(0), second)], MEMORY)
}

/// Goal: a file is found by all its names, with what was written by each, through a rename of its directory; clones are of their moment. Method: by hand,
/// with an index made of pieces of every length.
#[test]
fn names_and_moments() {
    let (first, second) = two();
    let whole = [index_of(&first, usize::MAX), index_of(&second, usize::MAX)].map(|indexed| indexed.index.unwrap());
    for piece in 1..60 {
        assert_eq!(index_of(&first, piece).index.as_ref(), Some(&whole[0]), "{piece}");
        assert_eq!(index_of(&second, piece).index.as_ref(), Some(&whole[1]), "{piece}");
    }
    assert_eq!(index_of(&second, 7).clone_sources, [A].into());
    let chain = chain_of(&whole[0], &whole[1]).unwrap();
    let mut places = Memory(vec![first, second]);
    let mut cat = |path: &[u8]| {
        let mut out = Vec::new();
        chain.cat(&chain.find(path)?, &mut places, &mut out).map(|()| out)
    };
    assert_eq!(cat(b"e/f").unwrap(), b"abXYefZh");
    assert_eq!(cat(b"l").unwrap(), b"abXYefZh");
    assert_eq!(cat(b"c").unwrap(), b"fZhdefg\0\0");
    for gone in [&b"d/f"[..], b"d", b"e/tmp", b"e/f/x", b"x"] {
        assert!(matches!(cat(gone), Err(LookupError::NotFound(_))), "{}", gone.escape_ascii());
    }
    assert!(matches!(cat(b"e"), Err(LookupError::Type(..))));
    assert_eq!(chain.list(b"").unwrap(), [&b"c"[..], b"e", b"l"]);
    assert_eq!(chain.list(b"e").unwrap(), [b"f"]);
    assert!(chain.list(b"l").is_err());
}

/// Goal: streams that are cut, are several, or do what names do not allow make no index, and are said not to be whole where they are not; a bound on
/// memory is kept.
#[test]
fn no_index() {
    let (first, second) = two();
    assert!(!index_of(&first[..first.len() - 1], 10).complete);
    assert!(!index_of(&[first.clone(), second.clone()].concat(), 10).complete);
    assert!(!index_of(b"something else, long enough", 10).complete);
    assert!(!index_of(b"", 10).complete);
    let odd = stream_of(A, None, &[Command::Unlink { path: b"nothing" }]);
    let indexed = index_of(&odd, 10);
    assert!(indexed.complete && indexed.index.is_none());
    let mut small = Indexer::new(500);
    small.add(&first);
    let indexed = small.finish();
    assert!(indexed.complete && indexed.index.is_none());
}

/// Goal: an index that was changed anywhere is refused, or read as another that can be, and nothing panics, hangs or grows. Method: each byte, each cut,
/// of both, with lookups of everything.
#[test]
fn anything_may_come() {
    let (first, second) = two();
    let whole = [index_of(&first, 99), index_of(&second, 99)].map(|indexed| indexed.index.unwrap());
    let mut refused = 0;
    for which in 0..2 {
        for at in 0..whole[which].len() {
            for flip in [1, 2, 0x40, 0x80, 0xff] {
                let mut bad = whole.clone();
                bad[which][at] ^= flip;
                let Ok(chain) = chain_of(&bad[0], &bad[1]) else {
                    refused += 1;
                    continue;
                };
                let mut places = Memory(vec![first.clone(), second.clone()]);
                let mut out = Vec::new();
                let _any = chain.extract(b"", b"x", &mut places, &mut out);
                for path in [&b"e/f"[..], b"l", b"c", b"d", b""] {
                    let _any = chain.find(path).and_then(|found| chain.cat(&found, &mut places, &mut Limited(1 << 20)));
                }
            }
            let mut cut = whole.clone();
            cut[which].truncate(at);
            assert!(chain_of(&cut[0], &cut[1]).is_err(), "cut at {at}");
        }
    }
    assert!(refused > 100, "{refused}");
}

/// Takes so many bytes.
struct Limited(u64);

impl std::io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len() as u64).ok_or(std::io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Goal: indexes take no more memory than they may, whatever their counts say. Method: two with a bound; one of a million nodes of
/// four bytes.
#[test]
fn memory_is_bounded() {
    let (first, second) = two();
    let whole = [index_of(&first, 99), index_of(&second, 99)].map(|indexed| indexed.index.unwrap());
    let link = |uuid, parent, index| Link { uuid, parent, index };
    let links = [link(A, None, &whole[0]), link(B, Some(0), &whole[1])];
    let least = (0..MEMORY).step_by(100).find(|bytes_max| Chain::new(&links, *bytes_max).is_ok()).unwrap();
    assert!((1000..10_000).contains(&least), "{least}");
    assert!(matches!(Chain::new(&links, 500), Err(LookupError::Unsupported(_))));
    let mut many = super::model::Model::decode(&whole[0], &mut { MEMORY }).unwrap();
    let node = many.nodes.last().unwrap().clone();
    many.nodes.resize(1 << 20, node);
    let many = many.encode();
    assert!(matches!(Chain::new(&[link(A, None, &many)], 64 << 20), Err(LookupError::Unsupported(_))));
}

/// Goal: circles of links and directories are refused.
#[test]
fn circles() {
    let (first, second) = two();
    let index = |bytes: &[u8]| index_of(bytes, 99).index.unwrap();
    let (first, second) = (index(&first), index(&second));
    let link = |uuid, parent, index| Link { uuid, parent, index };
    assert!(Chain::new(&[link(A, None, &first), link(B, Some(1), &second)], MEMORY).is_err());
    assert!(Chain::new(&[link(B, Some(1), &second), link(A, None, &first)], MEMORY).is_err());
    assert!(Chain::new(&[link(B, None, &second)], MEMORY).is_err());
    assert!(Chain::new(&[], MEMORY).is_err());
    let mut model = super::model::Model::decode(&first, &mut { MEMORY }).unwrap();
    let dir = model.nodes[0].entries[&b"d"[..]];
    let super::model::Entry::Node(id) = dir else { panic!("a directory") };
    model.nodes[id as usize].entries.insert(b"x"[..].into(), dir);
    assert!(super::model::Model::decode(&model.encode(), &mut { MEMORY }).is_err());
}
