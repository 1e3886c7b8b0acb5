//! Every command compared with a vector of bytes, and the refusals.

use std::collections::HashMap;
use std::sync::Arc;

use oleo_device::{Device, FileDevice, FileOptions, MemDevice};
use oleo_nbd::{Export, ServeOptions};
use oleo_sim::rng::Rng;

use crate::server::raw::*;

const LEN: usize = 3 << 20;

/// Goal: every command equals a vector of bytes. Method: seeded random commands with all flags, one by one, ranges from
/// a byte to more than a round.
pub fn model(raw: &mut Raw, structured: bool, fast: bool, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut want = vec![0u8; LEN];
    for step in 0..300 {
        let long = rng.below(10) == 0;
        let at = rng.below(LEN as u64 - 1);
        let len = (1 + rng.below(if long { 2 << 20 } else { 30_000 })).min(LEN as u64 - at) as u32;
        let (from, to) = (at as usize, at as usize + len as usize);
        let fua = rng.below(2) as u16 * FUA;
        let what = format!("seed {seed} step {step}: {len} bytes at {at}");
        match rng.below(8) {
            0 | 1 => {
                let data = rng.bytes(len as usize);
                assert_eq!(raw.ask(WRITE, fua, at, len, &data), Ok(vec![]), "{what}");
                want[from..to].copy_from_slice(&data);
            }
            2 => {
                let flags = [0, NO_HOLE, FAST_ZERO, NO_HOLE | FAST_ZERO][rng.below(4) as usize] | fua;
                let result = raw.ask(ZEROES, flags, at, len, &[]);
                if !(flags & FAST_ZERO != 0 && !fast && result == Err(ENOTSUP)) {
                    assert_eq!(result, Ok(vec![]), "{what}");
                    want[from..to].fill(0);
                }
            }
            3 => {
                assert_eq!(raw.ask(TRIM, fua, at, len, &[]), Ok(vec![]), "{what}");
                // Whatever it holds now, it holds from now on.
                want[from..to].copy_from_slice(&raw.read(at, len).expect("read"));
            }
            4 => assert_eq!(raw.ask(CACHE, fua, at, len, &[]), Ok(vec![]), "{what}"),
            5 => assert_eq!(raw.flush(), Ok(vec![]), "{what}"),
            6 if structured => {
                let one = rng.below(2) as u16 * REQ_ONE;
                let data = raw.ask(STATUS, one, at, len, &[]).expect("status");
                let extents: Vec<(u32, u32)> = data
                    .chunks(8)
                    .map(|e| {
                        (u32::from_be_bytes(e[..4].try_into().unwrap()), u32::from_be_bytes(e[4..].try_into().unwrap()))
                    })
                    .collect();
                assert!(!extents.is_empty() && (one == 0 || extents.len() == 1), "{what}");
                let mut at = from;
                for (len, flags) in extents {
                    assert!(len > 0 && flags < 4, "{what}");
                    let run = &want[at..at + len as usize];
                    assert!(flags & 2 == 0 || run.iter().all(|&b| b == 0), "{what}");
                    at += len as usize;
                }
                assert!(at <= to, "{what}");
            }
            _ => {
                let df = if structured { rng.below(2) as u16 * DF } else { 0 };
                match raw.ask(READ, fua | df, at, len, &[]) {
                    Err(EOVERFLOW) => assert!(df != 0 && len > 65536, "{what}"),
                    other => assert!(other.as_deref() == Ok(&want[from..to]), "{what}"),
                }
            }
        }
    }
    for (at, piece) in want.chunks(1 << 20).enumerate() {
        assert!(raw.read((at << 20) as u64, piece.len() as u32).as_deref() == Ok(piece));
    }
}

#[test]
fn memory_is_as_a_vector() {
    for (seed, structured) in [(1, false), (2, true)] {
        let server = Running::of(Arc::new(MemDevice::new(LEN as u64)), ServeOptions::default());
        model(&mut server.client(structured), structured, true, seed);
    }
}

#[test]
fn a_file_is_as_a_vector() {
    let dir = tempfile::tempdir().expect("dir");
    let opts = FileOptions::default().write(true).create(true);
    let dev = FileDevice::open(&dir.path().join("img"), &opts).expect("open");
    dev.set_len(LEN as u64).expect("grow");
    let server = Running::of(Arc::new(dev), ServeOptions::default());
    model(&mut server.client(true), true, false, 3);
}

/// Goal: many requests under way end as if they had come one by one. Method: batches of disjoint writes, then of reads,
/// sent without waiting; answers matched by their cookies. The batches are of all sizes, so that rounds of all kinds
/// come to be.
#[test]
fn many_under_way() {
    for structured in [false, true] {
        let server = Running::of(Arc::new(MemDevice::new(LEN as u64)), ServeOptions::default());
        let mut raw = server.client(structured);
        let mut rng = Rng::new(9);
        let mut want = vec![0u8; LEN];
        for _ in 0..30 {
            let long = rng.below(4) == 0;
            let unit = 1 + rng.below(if long { 200_000 } else { 6000 }) as usize;
            let count = (1 + rng.below(64) as usize).min(LEN / unit);
            let mut waiting = HashMap::new();
            for index in 0..count {
                let data = rng.bytes(unit);
                let flags = u16::from(rng.below(8) == 0);
                let cookie = raw.request(WRITE, flags, (index * unit) as u64, unit as u32, &data);
                want[index * unit..][..unit].copy_from_slice(&data);
                waiting.insert(cookie, ());
            }
            while !waiting.is_empty() {
                let (cookie, last, message) = raw.message(|_| None);
                assert!(last && message == Message::Done);
                waiting.remove(&cookie).expect("one of ours, once");
            }
            let mut reads: HashMap<u64, usize> = HashMap::new();
            for index in 0..count {
                let cookie = raw.request(READ, 0, (index * unit) as u64, unit as u32, &[]);
                reads.insert(cookie, index * unit);
            }
            while !reads.is_empty() {
                let (cookie, last, message) = raw.message(|_| Some(unit));
                assert!(last, "each fits a chunk");
                let at = reads.remove(&cookie).expect("one of ours, once");
                let data = match message {
                    Message::Whole(data) => data,
                    Message::Data(from, data) => {
                        assert_eq!(from, at as u64);
                        data
                    }
                    other => panic!("{other:?}"),
                };
                assert!(data == want[at..at + unit]);
            }
        }
    }
}

/// Goal: of writes in one round that overlap each is whole, and a refused one among them harms no other. Method: three
/// in one send: two over another, one beyond the end.
#[test]
fn overlapping_and_refused_writes() {
    let server = Running::of(Arc::new(MemDevice::new(LEN as u64)), ServeOptions::default());
    let mut raw = server.client(true);
    let mut bytes = Vec::new();
    for (cookie, offset, fill) in [(1u64, 0u64, 1u8), (2, 50, 2), (3, LEN as u64 - 50, 3), (4, 200, 4)] {
        bytes.extend(0x25609513u32.to_be_bytes());
        bytes.extend([0, 0, 0, 1]);
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(100u32.to_be_bytes());
        bytes.extend([fill; 100]);
    }
    raw.send(&bytes);
    let mut results = HashMap::new();
    for _ in 0..4 {
        let (cookie, last, message) = raw.message(|_| None);
        assert!(last);
        results.insert(cookie, message);
    }
    assert_eq!(results[&3], Message::Error(ENOSPC));
    assert!([1, 2, 4].iter().all(|c| results[c] == Message::Done));
    let data = raw.read(0, 300).expect("read");
    assert!(data[..50] == [1; 50] && data[100..150] == [2; 50] && data[200..] == [4; 100]);
    assert!(data[50..100] == [1; 50] || data[50..100] == [2; 50]);
}

/// Command, flags, offset, length, data, and the error.
type Refused = (u16, u16, u64, u32, &'static [u8], u32);

/// Goal: what makes no sense is refused with the error that the protocol has for it, and the connection goes on.
/// Method: a table, on a writable and on a read-only export, with and without structured replies.
#[test]
fn refusals() {
    let end = LEN as u64;
    for structured in [false, true] {
        let server = Running::of(Arc::new(MemDevice::new(end)), ServeOptions::default());
        let mut raw = server.connect();
        let (size, flags) = raw.shake_hands(structured);
        let df = u16::from(structured) << 7;
        assert_eq!((size, flags), (end, 0b1101_0110_1101 | df), "{flags:#b}");
        #[rustfmt::skip]
        let table: &[Refused] = &[
            (READ, 0, end - 1, 2, &[], EINVAL), (READ, 0, u64::MAX, 2, &[], EINVAL), (READ, 0, 0, 0, &[], EINVAL),
            (READ, 0, 0, (32 << 20) + 1, &[], EINVAL), (READ, 0, 0, u32::MAX, &[], EINVAL),
            (READ, REQ_ONE, 0, 2, &[], EINVAL), (READ, 32, 0, 2, &[], EINVAL), (READ, 1 << 15, 0, 2, &[], EINVAL),
            (WRITE, 0, end - 1, 2, b"ab", ENOSPC), (WRITE, 0, u64::MAX, 2, b"ab", ENOSPC), (WRITE, FUA, end, 2, b"ab", ENOSPC),
            (WRITE, DF, 0, 2, b"ab", EINVAL), (WRITE, NO_HOLE, 0, 2, b"ab", EINVAL),
            (FLUSH, 0, 1, 0, &[], EINVAL), (FLUSH, 0, 0, 1, &[], EINVAL), (FLUSH, DF, 0, 0, &[], EINVAL),
            (TRIM, 0, end - 1, 2, &[], EINVAL), (CACHE, 0, end, 1, &[], EINVAL), (TRIM, FAST_ZERO, 0, 2, &[], EINVAL),
            (ZEROES, 0, end - 1, 2, &[], ENOSPC), (ZEROES, REQ_ONE, 0, 2, &[], EINVAL),
            (8, 0, 0, 2, &[], EINVAL), (77, 0, 0, 2, &[], EINVAL),
            (STATUS, 0, end - 1, 2, &[], EINVAL), (STATUS, 0, 0, 0, &[], EINVAL),
        ];
        for &(command, flags, offset, len, data, error) in table {
            assert_eq!(raw.ask(command, flags, offset, len, data), Err(error), "{command} {flags} {offset} {len}");
        }
        if !structured {
            assert_eq!(raw.ask(STATUS, 0, 0, 2, &[]), Err(EINVAL), "no context");
        }
        for command in [WRITE, TRIM, CACHE, ZEROES] {
            assert_eq!(raw.ask(command, 0, end, 0, &[]), Ok(vec![]), "nothing at the end is nothing");
        }
        assert_eq!(raw.flush(), Ok(vec![]));
        raw.request(DISC, 0, 0, 0, &[]);
        assert!(raw.is_closed());
        drop(raw);
        assert_eq!(*server.log.lock().unwrap(), Vec::<String>::new());
    }
}

#[test]
fn read_only_is_read_only() {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(LEN as u64));
    let export = Export { name: String::new(), description: String::new(), device: device.clone(), read_only: true };
    let server = Running::with(vec![export], ServeOptions::default());
    let mut raw = server.connect();
    let (_, flags) = raw.shake_hands(true);
    assert_eq!(flags & 2, 2);
    for flags in [0, FUA] {
        assert_eq!(raw.ask(WRITE, flags, 5, 3, b"abc"), Err(EPERM));
        assert_eq!(raw.ask(ZEROES, flags, 0, 5, &[]), Err(EPERM));
        assert_eq!(raw.ask(TRIM, flags, 0, 5, &[]), Err(EPERM));
    }
    assert_eq!(raw.read(5, 3), Ok(vec![0; 3]));
    assert_eq!(raw.flush(), Ok(vec![]));
    // Readers may be many.
    assert_eq!(server.client(false).read(5, 3), Ok(vec![0; 3]));
}
