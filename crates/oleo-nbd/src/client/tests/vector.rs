//! The client as a vector of bytes, over every kind of server.

use std::time::Duration;

use oleo_device::{Device, ExtentKind, ReadReq, WriteReq, Zeroing};
use oleo_sim::rng::Rng;

use super::scripted::{ALL, Export, MULTI_CONN, SEND_FUA, Scripted, options};
use crate::NbdDevice;

const LEN: usize = 300_032;

/// Random requests on a device and on a vector; what is read is compared.
pub(super) fn model(dev: &NbdDevice, seed: u64) {
    let mut rng = Rng::new(seed);
    let len = dev.len() as usize;
    let mut want = vec![0u8; len];
    for step in 0..120 {
        let at = rng.below(len as u64) as usize;
        let some = (rng.below(40_000) as usize).min(len - at);
        match rng.below(7) {
            0 => {
                let data = rng.bytes(some);
                dev.write_at(at as u64, &data).expect("write");
                want[at..at + some].copy_from_slice(&data);
            }
            1 => {
                let unit = 500 + rng.below(5000) as usize;
                let starts: Vec<usize> = (0..len / unit).filter(|_| rng.below(3) > 0).map(|i| i * unit).rev().collect();
                let data: Vec<Vec<u8>> = starts.iter().map(|_| rng.bytes(unit)).collect();
                let parts: Vec<[&[u8]; 3]> = data.iter().map(|d| [&d[..100], &d[100..100], &d[100..]]).collect();
                let reqs: Vec<_> =
                    starts.iter().zip(&parts).map(|(&s, p)| WriteReq { offset: s as u64, parts: p }).collect();
                match rng.one_in(2) {
                    true => dev.write_batch(&reqs).expect("batch"),
                    false => dev.write_durable(&reqs).expect("durable batch"),
                }
                for (s, d) in starts.iter().zip(&data) {
                    want[*s..*s + unit].copy_from_slice(d);
                }
            }
            2 => {
                dev.discard(at as u64, some as u64).expect("discard");
                let mut have = vec![0; some];
                dev.read_at(at as u64, &mut have).expect("read");
                assert!(have.iter().zip(&want[at..]).all(|(h, w)| *h == 0 || h == w), "zeros or as before");
                want[at..at + some].copy_from_slice(&have);
            }
            3 => {
                let how = Zeroing { keep_allocated: rng.one_in(2), ..Zeroing::default() };
                dev.write_zeroes(at as u64, some as u64, how).expect("zeroes");
                want[at..at + some].fill(0);
            }
            4 => {
                let count_max = 1 + rng.below(5) as usize;
                let extents = dev.extents(at as u64, some as u64, count_max).expect("extents");
                assert!(extents.len() <= count_max && extents.is_empty() == (some == 0), "{extents:?}");
                let mut from = at;
                for extent in extents {
                    let to = from + extent.len as usize;
                    assert!(extent.len > 0 && to <= at + some);
                    assert!(extent.kind == ExtentKind::Data || want[from..to].iter().all(|b| *b == 0));
                    from = to;
                }
            }
            5 => dev.flush().expect("flush"),
            _ => {
                let mut places = Vec::new();
                let mut at = 0;
                while at < len + 5000 {
                    let some = 1 + rng.below(20_000) as usize;
                    places.push((at, vec![0xaa; some]));
                    at += some + if rng.below(2) == 0 { 0 } else { rng.below(9000) as usize };
                }
                places.reverse();
                let mut reqs: Vec<_> = places.iter_mut().map(|(at, b)| ReadReq::new(*at as u64, b)).collect();
                dev.read_batch(&mut reqs);
                for req in &reqs {
                    let (at, end) = (req.offset as usize, req.offset as usize + req.buf.len());
                    match &req.result {
                        Ok(()) => assert!(*req.buf == want[at..end], "seed {seed} step {step} at {at}"),
                        Err(e) => assert!(end > len, "{e}"),
                    }
                }
            }
        }
    }
    let mut all = vec![0; len];
    dev.read_at(0, &mut all).expect("read");
    assert!(all == want, "seed {seed}");
}

/// Goal: reads, writes, batches, zeros, discards and extents equal those of a vector, whatever the server can: chunks
/// or simple replies, blocks, short payloads, several connections, narrow windows, none of the newer options.
#[test]
fn is_as_a_vector() {
    let plain = Export::new(LEN as u64);
    let mut kinds = vec![
        plain,
        Export { structured: false, ..plain },
        Export { status: false, flags: ALL & !SEND_FUA | MULTI_CONN, ..plain },
        // What a client may assume that was told nothing.
        Export { blocks: None, go: false, fixed: false, structured: false, ..plain },
        Export { blocks: None, go: false, ..plain },
        Export { blocks: Some((1, 4096)), flags: ALL | MULTI_CONN, ..plain },
        // No zeros but as bytes.
        Export { flags: ALL & !(1 << 6 | 1 << 11), blocks: Some((512, 1 << 20)), ..plain },
    ];
    for block in [512, 4096] {
        for structured in [false, true] {
            kinds.push(Export { size: 73 << 12, blocks: Some((block, 32 << 20)), structured, ..plain });
        }
    }
    for (seed, export) in kinds.into_iter().enumerate() {
        let server = Scripted::good(export);
        let narrow = options().window_requests(2).window_bytes(5000);
        let wide = options().connections(4).settle_after(Duration::from_millis(2));
        for (kind, options) in [narrow, wide].into_iter().enumerate() {
            server.change_disk(|disk| disk.fill(0));
            let dev = server.try_client(true, &options).expect("connect");
            model(&dev, (seed * 2 + kind) as u64);
            drop(dev);
        }
    }
}

/// Goal: many threads on one device do not get each other's bytes, and narrow windows hold none up for ever. Method:
/// each thread writes and reads its own stripe, whose bytes say whose it is.
#[test]
fn threads_do_not_mix() {
    for (connections, window) in [(1, 1), (1, 64), (4, 2)] {
        let export = Export { flags: ALL | MULTI_CONN, ..Export::new(64 << 20) };
        let server = Scripted::good(export);
        let narrow = options().connections(connections).window_requests(window);
        let dev = server.try_client(true, &narrow).expect("connect");
        std::thread::scope(|scope| {
            for n in 0..8u64 {
                let dev = &dev;
                scope.spawn(move || {
                    let mut rng = Rng::new(n);
                    for _ in 0..15 {
                        // Stripes of all threads on all connections.
                        let places: Vec<u64> = (0..6).map(|i| (i << 20) * 8 + (n << 17) + rng.below(60_000)).collect();
                        let data: Vec<Vec<u8>> =
                            places.iter().map(|_| vec![n as u8 + 1; 1 + rng.below(70_000) as usize]).collect();
                        let parts: Vec<[&[u8]; 1]> = data.iter().map(|d| [&d[..]]).collect();
                        let reqs: Vec<_> =
                            places.iter().zip(&parts).map(|(at, p)| WriteReq { offset: *at, parts: p }).collect();
                        dev.write_batch(&reqs).expect("write");
                        let mut bufs: Vec<Vec<u8>> = data.iter().map(|d| vec![0; d.len()]).collect();
                        let mut reads: Vec<_> =
                            places.iter().zip(&mut bufs).map(|(at, b)| ReadReq::new(*at, b)).collect();
                        dev.read_batch(&mut reads);
                        assert!(reads.iter().all(|r| r.result.is_ok()));
                        assert!(bufs == data, "thread {n}");
                    }
                });
            }
        });
    }
}
