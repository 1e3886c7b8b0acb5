//! The window, and what is believed of replies; more of the latter in the tests of the client.

use oleo_sim::rng::Rng;

use super::*;
use crate::wire::ChunkFlags;

fn window() -> Window {
    let request_max = Duration::from_secs(30);
    Window { requests: 4, bytes: 10_000, request_max, structured: true, context: Some(1) }
}

fn read(len: u32) -> Ask {
    Ask { command: Command::Read, flags: CommandFlags::empty(), offset: 1000, len }
}

fn cookie(ticket: Ticket) -> u64 {
    Request::decode(&ticket.header(&read(1))).expect("a request").cookie
}

/// Goal: runs of data are a set of bytes, of which none comes twice. Method: random runs, mirrored in flags.
#[test]
fn runs_are_as_flags() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut runs, mut flags) = (Runs::default(), [false; 60]);
        for _ in 0..200 {
            let start = rng.below(60) as usize;
            let end = (start + 1 + rng.below(6) as usize).min(60);
            let twice = flags[start..end].contains(&true);
            assert_eq!(runs.add(start as u32, end as u32).is_err(), twice, "seed {seed}: {start}..{end} of {runs:?}");
            if !twice {
                flags[start..end].fill(true);
            }
            assert_eq!(runs.are_all(60), !flags.contains(&false));
        }
    }
}

/// Goal: the window bounds requests and bytes, a request that is larger than it goes alone, and who waits is served
/// in turn.
#[test]
fn the_window() {
    let mut slots = Slots::new(window());
    let one = slots.reserve(&read(6000), 1, 0, None).expect("a place");
    assert_eq!(slots.reserve(&read(6000), 1, 1, None), None, "too many bytes");
    let first = slots.queue();
    let second = slots.queue();
    assert_eq!(slots.reserve(&read(1), 1, 1, None), None, "others wait");
    assert_eq!(slots.reserve(&read(1), 1, 1, Some(second)), None, "the first comes first");
    assert_eq!(slots.reserve(&read(6000), 1, 1, Some(first)), None);
    slots.leave(first);
    let three: Vec<_> = [Some(second), None, None].map(|n| slots.reserve(&read(1), 1, 1, n).expect("a place")).into();
    assert_eq!(slots.reserve(&read(1), 1, 1, None), None, "too many requests");
    assert!(slots.collect(one).is_none(), "not answered");
    for ticket in three.into_iter().chain([one]) {
        let len = if ticket == one { 6000 } else { 1 };
        slots.chunk(&chunk(cookie(ticket), OFFSET_DATA, len + 8), Some(1000), 1).expect("data");
        slots.done(cookie(ticket)).expect("done");
        assert_eq!(slots.collect(ticket).expect("answered").answer, Answer::default());
        assert!(slots.collect(ticket).is_none() && slots.owner(cookie(ticket)).is_err());
    }
    assert!(slots.is_idle());
    slots.reserve(&read(1 << 20), 1, 0, None).expect("alone");
    assert_eq!(slots.reserve(&read(1), 1, 0, None), None);
}

fn chunk(cookie: u64, kind: u16, len: u32) -> Chunk {
    Chunk { flags: ChunkFlags::empty(), kind, cookie, len }
}

/// Goal: data that comes while the owner receives goes to the owner, other data is kept, and only that is in what the
/// owner gets at the end.
#[test]
fn data_for_others_is_kept() {
    let mut slots = Slots::new(window());
    let ticket = slots.reserve(&read(100), 7, 3, None).expect("a place");
    let cookie = cookie(ticket);
    let mine = slots.chunk(&chunk(cookie, OFFSET_DATA, 48), Some(1000), 7).expect("data");
    assert!(matches!(mine, Payload::Data { place: Place::Caller(3), at: 0, len: 40 }));
    for at in [40, 80] {
        match slots.chunk(&chunk(cookie, OFFSET_DATA, 28), Some(1000 + at), 8).expect("data") {
            Payload::Data { place: Place::Slot(mut stash), len: 20, .. } => {
                stash.data[at as usize..at as usize + 20].fill(at as u8);
                slots.stashed(cookie, stash).expect("its place is there");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(slots.done(cookie).is_err(), "20 bytes are missing");
    slots.chunk(&chunk(cookie, OFFSET_DATA, 28), Some(1060), 7).expect("data");
    slots.done(cookie).expect("done");
    let done = slots.collect(ticket).expect("answered");
    let runs: Vec<_> = done.stash.runs().collect();
    assert_eq!((done.piece, runs), (3, vec![(40, &[40u8; 20][..]), (80, &[80; 20][..])]));
}

/// Goal: a request is late when it is old, or nothing moves; nobody is late who has nothing to do.
#[test]
fn late() {
    let mut slots = Slots::new(window());
    let (began, second) = (Instant::now(), Duration::from_secs(1));
    assert!(slots.late(began + second * 1000, began).is_none());
    slots.reserve(&read(100), 1, 0, None).expect("a place");
    assert!(slots.late(began + second * 29, began).is_none());
    assert!(slots.late(began + second * 31, began).is_some(), "nothing moves");
    assert!(slots.late(began + second * 29, began + second * 28).is_none());
    assert!(slots.late(began + second * 40, began + second * 39).is_some(), "it moves, and this one is left out");
}
