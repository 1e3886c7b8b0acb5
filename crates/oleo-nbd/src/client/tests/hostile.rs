//! Servers that break the protocol.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use oleo_device::Device;
use oleo_sim::mutate::mutate;
use oleo_sim::rng::Rng;

use super::scripted::{self, Act, Export, READ, STATUS, Scripted, be, chunk, data, options, simple};
use crate::{At, NbdDevice, NbdError, Uri};

const SIZE: u64 = 1 << 20;
const AT: u64 = 4096;

type Reply = fn(u64) -> Vec<u8>;

/// Goal: no reply that is wrong in any way is believed: the connection is ended, and the read is answered by the next
/// one. Method: each kind of wrong reply to the first read of 4096 bytes, whose right answer is zeros.
#[test]
fn wrong_replies() {
    let bad = &[9u8; 4096];
    assert_eq!(bad.len() as u64, AT);
    let chunks: &[(&str, Reply)] = &[
        ("no reply", |_| vec![9; 20]),
        ("another cookie", |c| data(c ^ 1, true, AT, &[9; 4096])),
        ("a cookie of a slot that does not exist", |c| data(c | 1 << 50, true, AT, &[9; 4096])),
        ("simple", |c| simple(c, 0, &[9; 4096])),
        ("before", |c| data(c, true, AT - 1, &[9; 4096])),
        ("behind", |c| data(c, true, AT + 1, &[9; 4096])),
        ("far", |c| data(c, true, u64::MAX, &[9; 4096])),
        ("too long", |c| data(c, true, AT, &[9; 4097])),
        ("too short", |c| data(c, true, AT, &[9; 4095])),
        ("a gap", |c| [data(c, false, AT, &[9; 2000]), data(c, true, AT + 2001, &[9; 2095])].concat()),
        ("twice", |c| [data(c, false, AT, &[9; 2000]), data(c, true, AT + 1999, &[9; 2097])].concat()),
        ("twice, from behind", |c| [data(c, false, AT + 9, &[9; 20]), data(c, false, AT, &[9; 10])].concat()),
        ("in too many pieces", |c| (0..2000).flat_map(|n| data(c, false, AT + n * 2, &[9])).collect()),
        ("no bytes", |c| data(c, false, AT, &[])),
        ("data without an offset", |c| chunk(c, true, 1, &[9; 7])),
        ("nothing", |c| chunk(c, true, 0, &[])),
        ("nothing with something", |c| chunk(c, true, 0, &[9; 8])),
        ("nothing, not done", |c| chunk(c, false, 0, &[])),
        ("a hole of no bytes", |c| chunk(c, true, 2, &be(&[(AT, 8), (0, 4)]))),
        ("a hole outside", |c| chunk(c, true, 2, &be(&[(AT + 1, 8), (4096, 4)]))),
        ("a long hole", |c| chunk(c, true, 2, &[9; 13])),
        ("extents", |c| chunk(c, true, 5, &be(&[(77, 4), (4096, 4), (0, 4)]))),
        ("an unknown kind", |c| chunk(c, true, 99, &[])),
        ("no error", |c| chunk(c, true, 0x8001, &be(&[(0, 4), (0, 2)]))),
        ("an error with half a text", |c| chunk(c, true, 0x8001, &be(&[(5, 4), (9, 2)]))),
        ("an error elsewhere", |c| chunk(c, true, 0x8002, &be(&[(5, 4), (0, 2), (AT + 4097, 8)]))),
        ("a huge error", |c| be(&[(0x668e_33ef, 4), (1, 2), (0x8001, 2), (c, 8), (u64::from(u32::MAX), 4)])),
        ("more after the end", |c| [data(c, true, AT, &[9; 4096]), data(c, true, AT, &[9; 4096])].concat()),
    ];
    let replies: &[(&str, Reply)] = &[
        ("chunks", |c| data(c, true, AT, &[9; 4096])),
        ("another cookie", |c| simple(c ^ 1, 0, &[9; 4096])),
        ("more after the end", |c| [simple(c, 0, &[9; 4096]), simple(c, 0, &[9; 4096])].concat()),
    ];
    for (structured, table) in [(true, chunks), (false, replies)] {
        for (what, reply) in table {
            let reply = *reply;
            let export = Export { structured, ..Export::new(SIZE) };
            let acts = move |req: &scripted::Req| match req.connection {
                0 if req.command == READ => Act::Raw(reply(req.cookie)),
                _ => Act::Answer,
            };
            let server = Scripted::start(SIZE as usize, move |_| Some(export), acts);
            let dev = server.client();
            let mut buf = [1; 4096];
            dev.read_at(AT, &mut buf).unwrap_or_else(|e| panic!("{what}: {e}"));
            if *what == "more after the end" {
                // What came first was right; the rest is an answer to nothing.
                assert_eq!(buf, [9; 4096], "{what}");
                dev.read_at(AT, &mut buf).unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            assert_eq!(buf, [0; 4096], "{what}");
            assert_eq!(dev.stats().expect("stats").reconnects, 1, "{what}");
        }
    }
}

/// Goal: an error of an unknown kind is an error of its request, and of nothing else.
#[test]
fn unknown_errors_are_errors() {
    let acts = |req: &scripted::Req| match req.command {
        READ => Act::Raw(chunk(req.cookie, true, 0x8999, &[be(&[(5, 4), (4, 2)]), b"so\x1b, more".to_vec()].concat())),
        _ => Act::Answer,
    };
    let server = Scripted::start(SIZE as usize, |_| Some(Export::new(SIZE)), acts);
    let dev = server.client();
    let error = dev.read_at(0, &mut [0; 9]).expect_err("an error").to_string();
    assert!(error.contains("error 5: so\\u{1b},"), "{error}");
    assert_eq!(dev.stats().expect("stats").reconnects, 0);
}

/// Goal: extents that are none, of another context, or endless are refused or bounded.
#[test]
fn wrong_extents() {
    let cases: [(Reply, u64); 5] = [
        (|c| chunk(c, true, 5, &be(&[(78, 4), (4096, 4), (0, 4)])), 1),
        (|c| chunk(c, true, 5, &be(&[(77, 4), (0, 4), (0, 4)])), 1),
        (|c| chunk(c, true, 5, &be(&[(77, 4)])), 1),
        (|c| chunk(c, true, 5, &[be(&[(77, 4)]), be(&[(1, 4), (3, 4)]).repeat(100_000)].concat()), 0),
        (|c| chunk(c, true, 5, &be(&[(77, 4), (u64::from(u32::MAX), 4), (3, 4)])), 0),
    ];
    for (nth, (reply, reconnects)) in cases.into_iter().enumerate() {
        let acts = move |req: &scripted::Req| match (req.connection, req.command) {
            (0, STATUS) => Act::Raw(reply(req.cookie)),
            _ => Act::Answer,
        };
        let server = Scripted::start(SIZE as usize, |_| Some(Export::new(SIZE)), acts);
        let dev = server.client();
        let extents = dev.extents(0, SIZE, 10).expect("extents");
        assert!(extents.len() == 1 && extents[0].len <= SIZE && extents[0].len > 0, "{nth}: {extents:?}");
        assert_eq!(dev.stats().expect("stats").reconnects, reconnects, "{nth}");
    }
}

/// Goal: a handshake that is wrong, endless or slow is an error within the agreed time, and allocates no more than it
/// may. Method: a right one, recorded; then each kind of damage, and many random ones.
#[test]
fn wrong_handshakes() {
    let opening = be(&[(0x4e42_444d_4147_4943, 8), (0x4948_4156_454f_5054, 8), (3, 2)]);
    let reply = |option: u64, kind: u64, payload: &[u8]| {
        let head = [(0x0003_e889_0455_65a9, 8), (option, 4), (kind, 4), (payload.len() as u64, 4)];
        [be(&head), payload.to_vec()].concat()
    };
    let export = be(&[(0, 2), (SIZE, 8), (5, 2)]);
    let good = [
        opening.clone(),
        reply(8, 1, &[]),
        reply(10, 4, &[&be(&[(7, 4)])[..], b"base:allocation"].concat()),
        reply(10, 1, &[]),
        reply(7, 3, &export),
        reply(7, 3, &be(&[(3, 2), (1, 4), (4096, 4), (1 << 20, 4)])),
        reply(7, 1, &[]),
    ]
    .concat();
    let no = reply(8, 1 << 31 | 1, &[]);
    let after = |replies: &[u8]| [&opening[..], &no, replies].concat();
    let block = |min: u64, preferred: u64, max: u64| {
        let sizes = be(&[(3, 2), (min, 4), (preferred, 4), (max, 4)]);
        after(&[reply(7, 3, &export), reply(7, 3, &sizes), reply(7, 1, &[])].concat())
    };
    let sized =
        |size: u64, flags: u64| after(&[reply(7, 3, &be(&[(0, 2), (size, 8), (flags, 2)])), reply(7, 1, &[])].concat());
    let cases = [
        (good.clone(), ""),
        (vec![1; 18], "no server"),
        (be(&[(0x4e42_444d_4147_4943, 8), (0x0000_4202_8186_1253, 8), (3, 2)]), "oldstyle"),
        (be(&[(0x4e42_444d_4147_4943, 8), (7, 8), (3, 2)]), "greeting"),
        (opening.clone(), "broken"),
        ([&opening[..], &reply(7, 1, &[])].concat(), "another option"),
        ([&opening[..], &[1; 20]].concat(), "no reply to an option"),
        (
            [&opening[..], &be(&[(0x0003_e889_0455_65a9, 8), (8, 4), (1, 4), (1 << 31, 4)])].concat(),
            "bytes to an option",
        ),
        ([&opening[..], &reply(8, 77, &[]).repeat(2000)].concat(), "endless"),
        (after(&reply(7, 1 << 31 | 6, b"who\x07?")), "who\\u{7}?"),
        (after(&reply(7, 1, &[])), "without a size"),
        (after(&reply(7, 3, &[0])), "information"),
        (block(3, 4096, 1 << 20), "block sizes"),
        (block(1, 100, 1 << 20), "block sizes"),
        (block(1, 4096, 512), "block sizes"),
        (block(1 << 17, 1 << 17, 1 << 20), "block sizes"),
        (sized(1 << 63, 5), "bytes"),
        (sized(SIZE, 4), "without flags"),
    ];
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).expect("listen");
    let (to, from) = std::sync::mpsc::channel::<Vec<u8>>();
    let server = std::thread::spawn(move || {
        for bytes in from {
            let (mut stream, _) = listener.accept().expect("accept");
            // The client may be gone.
            let _sent = stream.write_all(&bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let _read = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let connect = |bytes: Vec<u8>| {
        to.send(bytes).expect("the server is there");
        NbdDevice::connect(&Uri::new(At::Unix(path.clone()), "x"), false, &options())
    };
    for (bytes, why) in cases {
        match connect(bytes) {
            Ok(dev) => assert!(why.is_empty() && dev.len() == SIZE, "{why}"),
            Err(e) => assert!(!why.is_empty() && e.to_string().contains(why), "{why}: {e}"),
        }
    }
    let mut rng = Rng::new(1);
    for _ in 0..3000 {
        let mut bytes = good.clone();
        mutate(&mut rng, &mut bytes);
        if let Ok(dev) = connect(bytes) {
            assert!(dev.len() < 1 << 63);
        }
    }
    drop(to);
    server.join().expect("the server");
}

/// Goal: a server that says nothing, or its greeting one byte at a time, does not hold up who connects.
#[test]
fn a_slow_handshake_ends() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).expect("listen");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { break };
            // One byte at a time, for ever.
            std::thread::spawn(move || {
                while stream.write_all(&[0x4e]).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
    });
    let began = Instant::now();
    let short = options().connect_max(Duration::from_millis(200));
    let result = NbdDevice::connect(&Uri::new(At::Unix(path), "x"), false, &short);
    assert!(matches!(result, Err(NbdError::TimedOut { .. })), "{:?}", result.err());
    assert!(began.elapsed() < Duration::from_secs(30));
}
