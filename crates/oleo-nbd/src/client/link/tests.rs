//! Both directions full, and who receives for whom.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::sockopt;

use super::*;
use crate::channel::Pace;
use crate::wire::{CommandFlags, Request};

const READ_LEN: u32 = 1 << 20;

struct Buffer(Vec<u8>);

impl Sink for Buffer {
    fn target(&mut self, _: u32, at: u32) -> &mut [u8] {
        &mut self.0[at as usize..]
    }
}

fn pair(buffer_len: usize) -> (Channel, Channel) {
    let (one, two) = Channel::pair().expect("sockets");
    for channel in [&one, &two] {
        sockopt::set_socket_send_buffer_size(channel.as_fd(), buffer_len).expect("buffer");
    }
    (one, two)
}

fn window() -> Window {
    let request_max = Duration::from_secs(20);
    Window { requests: 16, bytes: 8 << 20, request_max, structured: false, context: None }
}

/// Answers one request after the other, blocking, like the simplest of servers: reads with the low byte of the
/// offset's MiB, writes after it has all of them. Returns how many bytes were written.
fn serve(channel: &Channel) -> u64 {
    let mut written = 0;
    let pace = || Pace::new(Duration::from_secs(20), u64::from(READ_LEN));
    loop {
        let mut header = [0; Request::LEN];
        if channel.recv_all(&mut header, pace()).is_err() {
            return written;
        }
        let request = Request::decode(&header).expect("a request");
        let mut reply = SimpleReply { error: 0, cookie: request.cookie }.encode().to_vec();
        match Command::of(request.command).expect("a command") {
            Command::Write => {
                channel.recv_all(&mut vec![0; request.len as usize], pace()).expect("payload");
                written += u64::from(request.len);
            }
            Command::Read => reply.resize(reply.len() + request.len as usize, (request.offset >> 20) as u8),
            Command::Disconnect => return written,
            _ => {}
        }
        // The client may be gone at the end of a test.
        if channel.send_all(&mut [IoSlice::new(&reply)], pace()).is_err() {
            return written;
        }
    }
}

fn ask(command: Command, mib: u64, len: u32) -> Ask {
    Ask { command, flags: CommandFlags::empty(), offset: mib << 20, len }
}

/// Goal: two sides that both send do not wait for each other for ever. Method: a server that does one thing after the
/// other, socket buffers of 4 KiB; one thread sends four reads of 1 MiB and four writes of 1 MiB before it waits for
/// anything; then several threads do; within seconds, where a sender that does not receive would never end.
#[test]
fn window_both_ways() {
    let (ours, theirs) = pair(4096);
    let link = Link::new(ours, window());
    let written = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| written.store(serve(&theirs), Ordering::SeqCst));
        std::thread::scope(|callers| {
            for number in 0..4u64 {
                let link = &link;
                callers.spawn(move || mixed(link, number));
            }
        });
        link.close();
    });
    assert_eq!(written.load(Ordering::SeqCst), (4 * 4) << 20);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

fn mixed(link: &Link, number: u64) {
    let payload = vec![1; READ_LEN as usize];
    let mut tickets = Vec::new();
    let mut sink = Buffer(vec![0; READ_LEN as usize]);
    for n in 0..8u64 {
        let (ask, parts): (Ask, &[&[u8]]) = match n % 2 {
            0 => (ask(Command::Read, number * 10, READ_LEN), &[]),
            _ => (ask(Command::Write, n, READ_LEN), &[&payload]),
        };
        let mut caller = Caller { number, sink: &mut sink };
        let ticket = loop {
            match link.reserve(&ask, number, 0).expect("alive") {
                Some(ticket) => break ticket,
                None if tickets.is_empty() => break link.reserve_waiting(&ask, number, 0).expect("alive"),
                None => drop(link.wait(tickets.remove(0), &mut caller).expect("an answer")),
            }
        };
        link.send(&[(ticket, ask, parts)], &mut caller).expect("sent");
        tickets.push(ticket);
    }
    for ticket in tickets {
        let answer = link.wait(ticket, &mut Caller { number, sink: &mut sink }).expect("an answer");
        assert_eq!(answer, Answer::default());
    }
    assert!(sink.0.iter().all(|b| u64::from(*b) == number * 10), "thread {number}");
}

/// Goal: a connection that dies wakes everybody, whatever they wait for, with the first reason.
#[test]
fn everybody_learns_of_the_end() {
    let (ours, theirs) = pair(4096);
    let link = Link::new(ours, Window { requests: 2, ..window() });
    std::thread::scope(|scope| {
        for number in 0..5u64 {
            let link = &link;
            scope.spawn(move || {
                let payload = vec![1; READ_LEN as usize];
                let (ask, parts): (Ask, &[&[u8]]) = match number {
                    0 => (ask(Command::Write, 0, READ_LEN), &[&payload]),
                    _ => (ask(Command::Read, 0, READ_LEN), &[]),
                };
                let mut caller = Caller { number, sink: &mut NoSink };
                let why = link
                    .reserve_waiting(&ask, number, 0)
                    .and_then(|ticket| link.send(&[(ticket, ask, parts)], &mut caller).map(|()| ticket))
                    .and_then(|ticket| link.wait(ticket, &mut caller));
                assert!(why.expect_err("dead").to_string().contains("a test"));
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        link.kill(&NbdError::protocol("a test"));
        link.kill(&NbdError::protocol("another reason"));
    });
    drop(theirs);
    assert!(link.has_hung_up());
}
