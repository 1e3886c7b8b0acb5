//! The client against a server that does what a test says.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oleo_format::{Classified, ErrorKind};

use super::link::NoSink;
use super::slots::Ask;
use super::state::{Connection, Phase};
use super::*;

mod hostile;
mod scripted;
mod served;
mod vector;

use scripted::{Act, Export, FLUSH, READ, Req, SEND_FUA, Scripted, WRITE, options};

const SIZE: usize = 1 << 20;

fn export() -> Export {
    Export::new(SIZE as u64)
}

fn phase(dev: &NbdDevice) -> Phase {
    dev.shared.state.phase()
}

fn read(dev: &NbdDevice, offset: u64) -> Result<Vec<u8>, DeviceError> {
    let mut buf = vec![0; 4096];
    dev.read_at(offset, &mut buf).map(|()| buf)
}

/// What an error says, which is not to be an error of the data.
fn says(result: Result<impl std::fmt::Debug, DeviceError>) -> String {
    let error = result.expect_err("an error");
    assert_eq!(error.class().kind, ErrorKind::Device, "{error}");
    error.to_string()
}

/// Does something once, to the `nth` request of a command.
fn once(command: u16, nth: usize, act: impl Fn() -> Act + Send + Sync + 'static) -> impl Fn(&Req) -> Act {
    let seen = AtomicUsize::new(0);
    move |req| match req.command == command && seen.fetch_add(1, Ordering::SeqCst) == nth {
        true => act(),
        false => Act::Answer,
    }
}

/// Goal: with nothing unflushed a lost connection is no loss: reads and writes wait and go on. Method: the server hangs
/// up at a read.
#[test]
fn clean_goes_on() {
    let server = Scripted::start(SIZE, |_| Some(export()), once(READ, 1, || Act::Close));
    let dev = server.client();
    dev.write_at(8192, &[7; 4096]).expect("write");
    dev.flush().expect("flush");
    assert_eq!(phase(&dev), Phase::Clean);
    assert_eq!(read(&dev, 8192).expect("read"), [7; 4096]);
    assert_eq!(read(&dev, 8192).expect("read again, elsewhere"), [7; 4096]);
    dev.write_at(0, &[8; 4096]).expect("write");
    dev.flush().expect("flush");
    assert_eq!(dev.stats().expect("stats").reconnects, 1);
    assert_eq!(server.disk()[..4096], [8; 4096]);
}

/// Goal: the same for a server that says that it ends.
#[test]
fn an_ending_server_is_left() {
    let server = Scripted::start(SIZE, |_| Some(export()), once(READ, 0, || Act::Fail(108)));
    let dev = server.client();
    read(&dev, 0).expect("read");
    assert_eq!(dev.stats().expect("stats").reconnects, 1);
}

/// Goal: a flush without anything to flush is asked again.
#[test]
fn an_empty_flush_is_asked_again() {
    let server = Scripted::start(SIZE, |_| Some(export()), once(FLUSH, 0, || Act::Close));
    let dev = server.client();
    dev.flush().expect("flush");
    assert_eq!((server.log(FLUSH).len(), phase(&dev)), (2, Phase::Clean));
}

/// Goal: that the server closed an idle connection is noticed before the first byte of a write leaves, so the write
/// goes through. Method: the server hangs up while nobody receives: at a request whose answer nobody waits for.
#[test]
fn a_write_after_a_quiet_restart_goes_through() {
    let server = Scripted::start(SIZE, |_| Some(export()), once(READ, 0, || Act::Close));
    let dev = server.client();
    let session = dev.shared.state.session().expect("session");
    let ask = Ask { command: Command::Read, flags: CommandFlags::empty(), offset: 0, len: 4096 };
    let ticket = session.links()[0].reserve(&ask, u64::MAX, 0).expect("alive").expect("a place");
    let mut caller = link::Caller { number: u64::MAX, sink: &mut NoSink };
    session.links()[0].send(&[(ticket, ask, &[])], &mut caller).expect("sent");
    while !session.has_hung_up() {
        std::thread::sleep(Duration::from_millis(1));
    }
    dev.write_at(0, &[1; 512]).expect("write");
    assert_eq!((server.log(WRITE).len(), dev.stats().expect("stats").reconnects), (1, 1));
}

/// Goal: a connection that breaks before a flush ends writing for good; what was confirmed and not flushed is read
/// with an error, the rest as before.
#[test]
fn dirty_is_lost() {
    let server = Scripted::start(SIZE, |_| Some(export()), once(READ, 0, || Act::Close));
    let dev = server.client();
    dev.write_at(0, &[1; 4096]).expect("write");
    dev.flush().expect("flush");
    dev.write_at(8192, &[2; 4096]).expect("confirmed, not flushed");
    read(&dev, 65536).expect("the connection breaks, the read is repeated");
    assert_eq!(phase(&dev), Phase::Lost);
    assert_eq!(read(&dev, 0).expect("was flushed"), [1; 4096]);
    assert!(says(read(&dev, 8192)).contains("may be lost"));
    assert!(says(read(&dev, 8192 + 4095)).contains("may be lost"));
    let mut bufs = [vec![0; 4096], vec![0; 4096], vec![9; 4096]];
    let mut reqs: Vec<_> = bufs.iter_mut().zip([4096, 8192, 12288]).map(|(b, at)| ReadReq::new(at, b)).collect();
    dev.read_batch(&mut reqs);
    assert_eq!(reqs.iter().map(|r| r.result.is_ok()).collect::<Vec<_>>(), [true, false, true]);
    assert!(says(dev.write_at(0, &[3; 4096])).contains("4096 written bytes"));
    assert!(says(dev.flush()).contains("may be lost"));
    assert!(says(dev.discard(0, 4096)).contains("may be lost"));
    assert_eq!(server.log(WRITE).len(), 2, "nothing is sent any more");
    assert_eq!(dev.extents(0, 65536, 9).expect("extents").len(), 1, "of what may be lost nothing is known");
}

/// Goal: no change is sent twice, wherever the connection breaks, and each that was not answered is an error. Method:
/// batches and single changes of every kind; the server hangs up at the nth, having done it or not; all that it ever
/// got on all connections is counted.
#[test]
fn never_twice() {
    for nth in 0..24 {
        for done in [false, true] {
            let seen = AtomicUsize::new(0);
            let acts = move |req: &Req| match req.command != READ && seen.fetch_add(1, Ordering::SeqCst) == nth {
                true if done => Act::DoAndClose,
                true => Act::Close,
                false => Act::Answer,
            };
            let server = Scripted::start(SIZE, |_| Some(export()), acts);
            let dev = server.client();
            let mut failed = 0;
            for n in 0..4u8 {
                let parts: Vec<[u8; 512]> = (0..4).map(|i| [n * 16 + i + 1; 512]).collect();
                let parts: Vec<[&[u8]; 1]> = parts.iter().map(|p| [&p[..]]).collect();
                let at = |i: usize| u64::from(n) * 65536 + i as u64 * 4096;
                let reqs: Vec<_> =
                    parts.iter().enumerate().map(|(i, p)| WriteReq { offset: at(i), parts: p }).collect();
                failed += usize::from(dev.write_batch(&reqs).is_err());
                failed +=
                    usize::from(dev.write_durable(&[WriteReq { offset: at(9), parts: &[&[99 + n; 7]] }]).is_err());
                failed += usize::from(dev.discard(at(10), 4096).is_err());
                failed += usize::from(dev.write_zeroes(at(11), 4096, Zeroing::default()).is_err());
            }
            drop(dev);
            let mut changes: Vec<_> = [WRITE, scripted::TRIM, scripted::ZEROES]
                .iter()
                .flat_map(|c| server.log(*c))
                .map(|req| (req.command, req.offset, req.len))
                .collect();
            let all = changes.len();
            changes.sort_unstable();
            changes.dedup();
            assert_eq!(all, changes.len(), "{nth} {done}: sent twice");
            assert!(failed > 0, "{nth} {done}: the break was an error");
        }
    }
}

/// Goal: a flush that the server refuses ends writing, even if it would accept the next: that one proves nothing.
#[test]
fn a_refused_flush_is_final() {
    let server = Scripted::start(SIZE, |_| Some(export()), once(FLUSH, 0, || Act::Fail(5)));
    let dev = server.client();
    dev.write_at(0, &[1; 4096]).expect("write");
    assert!(says(dev.flush()).contains("error 5"));
    assert!(says(dev.flush()).contains("error 5"));
    assert!(says(dev.write_at(0, &[1; 4096])).contains("error 5"));
    assert_eq!(server.log(FLUSH).len(), 1);
    assert!(says(read(&dev, 0)).contains("error 5"));
    read(&dev, 8192).expect("the rest");
}

/// Goal: a server that does not come back is given up after the agreed time, and then immediately.
#[test]
fn gone_is_gone() {
    let server = Scripted::start(SIZE, |n| (n == 0).then(export), once(READ, 0, || Act::Close));
    let dev = server.try_client(true, &options().reconnect_max(Duration::from_millis(300))).expect("connect");
    let began = Instant::now();
    says(read(&dev, 0));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(30), "{took:?}");
    assert_eq!(phase(&dev), Phase::Gone);
    says(dev.write_at(0, &[1]));
    says(dev.flush());
    let none = Scripted::start(SIZE, |_| Some(export()), once(READ, 0, || Act::Close));
    let dev = none.try_client(true, &options().reconnect_max(Duration::ZERO)).expect("connect");
    says(read(&dev, 0));
    assert_eq!(phase(&dev), Phase::Gone, "not waited for");
    server.vanish();
    assert!(matches!(server.try_client(true, &options()), Err(NbdError::Connect { .. })));
}

/// Goal: a server that stops answering holds nobody longer than agreed, though it goes on receiving; reads, writes,
/// flushes, and the end.
#[test]
fn a_stalling_server_is_left() {
    for command in [READ, WRITE, FLUSH] {
        for stall in [|| Act::Stall, || Act::Hold] {
            let server = Scripted::start(
                SIZE,
                |n| (n == 0).then(export),
                move |req| match req.command == command {
                    true => stall(),
                    false => Act::Answer,
                },
            );
            let short = Duration::from_millis(300);
            let dev = server.try_client(true, &options().request_max(short).reconnect_max(short));
            let dev = dev.expect("connect");
            let began = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| match command {
                        READ => says(read(&dev, 0)),
                        WRITE => says(dev.write_at(0, &vec![1; SIZE])),
                        _ => says(dev.write_at(0, &[1; 512]).and_then(|()| dev.flush())),
                    });
                }
            });
            drop(dev);
            assert!(began.elapsed() < Duration::from_secs(30), "{command}: {:?}", began.elapsed());
        }
    }
}

/// Goal: a server that comes back with something else is not used. Method: each difference; the connection breaks when
/// everything is flushed.
#[test]
fn another_export_is_refused() {
    let other = |change: fn(&mut Export)| {
        let mut now = export();
        change(&mut now);
        now
    };
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Export, Change); 6] = [
        ("others now", export(), |disk| disk[4096 + 5] ^= 1),
        ("long, was", other(|e| e.size -= 512), |_| {}),
        ("read-only", other(|e| e.flags |= scripted::READ_ONLY), |_| {}),
        ("other sizes", other(|e| e.blocks = Some((512, 1 << 20))), |_| {}),
        ("less than before", other(|e| e.flags &= !SEND_FUA), |_| {}),
        ("", export(), |disk| disk[9000] ^= 1),
    ];
    for (why, now, change) in cases {
        let acts = once(READ, 0, || Act::Close);
        let server = Scripted::start(SIZE, move |n| Some(if n == 0 { export() } else { now }), acts);
        let dev = server.client();
        dev.write_at(4096, &[5; 4096]).expect("write");
        dev.flush().expect("flush");
        server.change_disk(change);
        let result = read(&dev, 65536);
        if why.is_empty() {
            result.expect("other bytes than those it wrote are not the client's");
            continue;
        }
        let text = says(result);
        assert!(text.contains("not what it was") && text.contains(why), "{why}: {text}");
        assert_eq!(phase(&dev), Phase::Gone);
        says(dev.write_at(0, &[1]));
        assert_eq!(server.log(WRITE).len(), 1);
    }
}

/// Goal: what is written and followed by nothing is flushed all the same, and a failure of that is told.
#[test]
fn the_keeper_flushes() {
    let server = Scripted::start(SIZE, |_| Some(export()), once(FLUSH, 1, || Act::Fail(5)));
    let dev = server.try_client(true, &options().settle_after(Duration::from_millis(20))).expect("connect");
    dev.write_at(0, &[1; 512]).expect("write");
    let wait_for = |want: Phase| {
        let began = Instant::now();
        while phase(&dev) != want {
            assert!(began.elapsed() < Duration::from_secs(30), "never {want:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(Phase::Clean);
    assert_eq!(server.log(FLUSH).len(), 1);
    dev.write_at(0, &[1; 512]).expect("write");
    wait_for(Phase::Lost);
    assert!(says(dev.flush()).contains("error 5"), "though nobody waited for it");
}

/// Goal: a device that is dropped with something unflushed flushes it.
#[test]
fn the_end_flushes() {
    let server = Scripted::good(export());
    let dev = server.client();
    dev.write_at(0, &[1; 512]).expect("write");
    drop(dev);
    assert_eq!(server.log(FLUSH).len(), 1);
}

/// Goal: durable writes do not count as unflushed, with FUA or without.
#[test]
fn durable_writes() {
    for flags in [scripted::ALL, scripted::ALL & !SEND_FUA] {
        let server = Scripted::good(Export { flags, ..export() });
        let dev = server.client();
        dev.write_durable(&[WriteReq { offset: 0, parts: &[b"some", b"thing"] }]).expect("write");
        assert_eq!(phase(&dev), Phase::Clean);
        let fua = server.log(WRITE).iter().all(|req| req.flags == 1);
        assert_eq!((fua, server.log(FLUSH).len()), if flags == scripted::ALL { (true, 0) } else { (false, 1) });
    }
}

/// Goal: no space is told as that, and may be tried again; of joined reads only those fail that have to.
#[test]
fn errors_that_are_answered() {
    let bad = |req: &Req| match req.command {
        READ if (req.offset..req.offset + u64::from(req.len)).contains(&5000) => Act::Fail(5),
        WRITE if req.offset == 512 => Act::Fail(28),
        WRITE if req.offset == 1024 => Act::Fail(1),
        scripted::ZEROES if req.flags & 1 << 4 != 0 => Act::Fail(95),
        _ => Act::Answer,
    };
    let server = Scripted::start(SIZE, |_| Some(export()), bad);
    let dev = server.client();
    assert!(dev.write_at(512, &[1; 9]).expect_err("no space").is_full());
    assert!(!dev.write_at(1024, &[1; 9]).expect_err("not allowed").is_full());
    dev.write_at(0, &[1; 9]).expect("others");
    let fast = Zeroing { only_fast: true, ..Zeroing::default() };
    assert!(matches!(dev.write_zeroes(0, 512, fast), Err(DeviceError::Unsupported { .. })));
    let mut bufs = vec![vec![0; 2048]; 5];
    let mut reqs: Vec<_> = bufs.iter_mut().enumerate().map(|(i, b)| ReadReq::new(i as u64 * 2048, b)).collect();
    dev.read_batch(&mut reqs);
    assert_eq!(reqs.iter().map(|r| r.result.is_ok()).collect::<Vec<_>>(), [true, true, false, true, true]);
    assert_eq!(dev.stats().expect("stats").reconnects, 0);
    assert!(matches!(dev.read_at(SIZE as u64, &mut [0]), Err(DeviceError::OutOfRange { .. })));
}

/// Goal: what cannot be written safely is not opened for writing.
#[test]
fn refusals() {
    let open = |export: Export, write| Scripted::good(export).try_client(write, &options()).map(drop);
    let reader = Export { flags: 1 | scripted::READ_ONLY, ..export() };
    assert!(matches!(open(reader, true), Err(NbdError::Device(DeviceError::ReadOnly { .. }))));
    open(reader, false).expect("to read");
    let no_flush = Export { flags: 1, ..export() };
    assert!(open(no_flush, true).expect_err("no flush").to_string().contains("cannot flush"));
    let large = Export { blocks: Some((8192, 1 << 20)), ..export() };
    assert!(open(large, true).expect_err("large blocks").to_string().contains("8192"));
    open(large, false).expect("to read");
    let dev = Scripted::good(export()).try_client(false, &options()).expect("connect");
    assert!(matches!(dev.write_at(0, &[1]), Err(DeviceError::ReadOnly { .. })));
    dev.flush().expect("nothing to be flushed");
}
