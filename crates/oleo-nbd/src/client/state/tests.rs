//! The table, and who waits for whom, without a socket.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

const PHASES: [Phase; 6] = [Clean, Dirty, Away, Lost, LostAway, Gone];
const EVENTS: [Event; 6] = [Write, Flushed, FlushFailed, Broke, Returned, GaveUp];

/// A session that remembers that it was closed.
#[derive(Default, Debug)]
struct Fake {
    closed: AtomicBool,
    hung_up: bool,
}

impl Connection for Fake {
    fn close(&self, _: &NbdError) {
        self.closed.store(true, Ordering::SeqCst);
    }
    fn has_hung_up(&self) -> bool {
        self.hung_up
    }
}

/// Makes sessions, the first `fails` times none.
#[derive(Default)]
struct Maker {
    made: AtomicUsize,
    fails: bool,
    hung_up: bool,
}

impl Reconnect<Fake> for Maker {
    fn reconnect(&self, _: Instant, _: &[Witness]) -> Result<Fake, NbdError> {
        std::thread::sleep(Duration::from_millis(20));
        self.made.fetch_add(1, Ordering::SeqCst);
        match self.fails {
            true => Err(why()),
            false => Ok(Fake { hung_up: self.hung_up, ..Fake::default() }),
        }
    }
}

fn why() -> NbdError {
    NbdError::protocol("a test")
}

fn state() -> State<Fake> {
    State::new(Fake::default(), Duration::from_secs(5))
}

fn ranges(start: u64, end: u64) -> Ranges {
    Ranges::from_iter([(start, end)])
}

/// Goal: the table keeps its promises. Method: all paths of all events: from a phase in which something may be lost no
/// path leads to one that lets writes through; what breaks is not connected; nothing leads out of `Gone`.
#[test]
fn no_way_back_from_lost() {
    for phase in PHASES {
        for event in EVENTS {
            let next = phase.after(event);
            let lost = matches!(phase, Lost | LostAway | Gone);
            assert!(!lost || next.leave(Use::Change) == Refused, "{phase:?} {event:?} {next:?}");
            assert!(phase != Gone || next == Gone);
            assert!(event != Broke || next.leave(Use::Read) != Pass, "{phase:?}");
            assert!(phase != Dirty || !matches!(event, Broke | FlushFailed) || next.leave(Use::Change) == Refused);
            assert!(event != FlushFailed || next.leave(Use::Change) == Refused, "{phase:?}");
            assert!(event != Write || next.leave(Use::Change) != Pass || next == Dirty, "{phase:?}");
        }
    }
    for (from, event, to) in TABLE {
        assert_ne!(from, to, "{event:?}");
    }
}

/// Goal: of many who need a session one makes it, and all get it. Method: eight threads.
#[test]
fn one_reconnects_for_all() {
    let (state, maker) = (state(), Maker::default());
    let first = state.enter(&maker).expect("session");
    state.broke(first.epoch, &why());
    assert!(first.session.closed.load(Ordering::SeqCst));
    state.broke(first.epoch, &why());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(state.enter(&maker).expect("session").epoch, 1));
        }
    });
    assert_eq!((maker.made.load(Ordering::SeqCst), state.reconnects(), state.phase()), (1, 1, Clean));
    state.broke(0, &why());
    assert_eq!(state.phase(), Clean, "that is long known");
}

/// Goal: what is under way or confirmed when the session breaks is lost, what was flushed is not.
#[test]
fn what_is_lost() {
    let (state, maker) = (state(), Maker::default());
    let (_, flushed) = state.begin(&maker, ranges(0, 10), &[]).expect("write");
    state.end(flushed, Ended::Written);
    let (_, flush) = state.begin_flush(&maker).expect("flush");
    state.end_flush(flush, None).expect("flushed");
    assert_eq!(state.phase(), Clean);
    let (_, landed) = state.begin(&maker, ranges(10, 20), &[]).expect("write");
    state.end(landed, Ended::Written);
    let (entered, under_way) = state.begin(&maker, ranges(30, 40), &[]).expect("write");
    let (_, flush) = state.begin_flush(&maker).expect("flush");
    state.broke(entered.epoch, &why());
    state.end(under_way, Ended::Failed);
    assert!(matches!(state.end_flush(flush, None), Err(NbdError::Lost { bytes: 20, .. })), "too late to believe it");
    let lost = state.enter(&maker).expect("to read").lost.expect("something is lost").0;
    assert!(!lost.overlaps(0, 10) && lost.overlaps(10, 11) && lost.overlaps(39, 40) && !lost.overlaps(20, 30));
    assert_eq!(state.phase(), Lost);
    assert!(matches!(state.begin(&maker, ranges(0, 1), &[]), Err(NbdError::Lost { bytes: 20, .. })));
    state.broke(1, &why());
    let lost = state.enter(&maker).expect("to read").lost.expect("still").0;
    assert_eq!((lost.bytes(), state.phase()), (20, Lost));
}

/// Goal: a write that waits for a session is sent when there is one, and counts from then on.
#[test]
fn writes_wait_for_a_session() {
    let (state, maker) = (state(), Maker::default());
    state.broke(0, &why());
    let (entered, call) = state.begin(&maker, ranges(0, 10), &[]).expect("write");
    assert_eq!((entered.epoch, state.phase()), (1, Dirty));
    state.end(call, Ended::Durable);
    assert_eq!(state.phase(), Clean);
}

/// Goal: no session, no way back; nobody waits for the second time. A server that hangs up again and again is given up.
#[test]
fn given_up() {
    let (state, maker) = (state(), Maker { fails: true, ..Maker::default() });
    state.broke(0, &why());
    assert!(state.enter(&maker).is_err());
    assert!(state.begin(&maker, ranges(0, 1), &[]).is_err() && state.begin_flush(&maker).is_err());
    assert_eq!((maker.made.load(Ordering::SeqCst), state.phase()), (1, Gone));
    let never = State::new(Fake::default(), Duration::ZERO);
    never.broke(0, &why());
    assert_eq!(never.phase(), Gone);
    let short = State::new(Fake { hung_up: true, ..Fake::default() }, Duration::from_millis(200));
    let maker = Maker { hung_up: true, ..Maker::default() };
    let began = Instant::now();
    assert!(short.begin(&maker, ranges(0, 1), &[]).is_err());
    assert!(began.elapsed() < Duration::from_secs(30));
}

/// Goal: the keeper has something to do when something is unflushed and quiet, and ends when it is told to.
#[test]
fn tasks_of_the_keeper() {
    let (state, maker) = (state(), Maker::default());
    let after = Duration::from_millis(30);
    std::thread::scope(|scope| {
        let keeper = scope.spawn(|| (state.task(after), Instant::now()));
        std::thread::sleep(Duration::from_millis(10));
        let (_, call) = state.begin(&maker, ranges(0, 1), &[]).expect("write");
        std::thread::sleep(after * 2);
        let ended = Instant::now();
        state.end(call, Ended::Written);
        let (task, at) = keeper.join().expect("keeper");
        assert_eq!(task, Task::Flush);
        assert!(at >= ended + after, "not while something is under way, nor soon after");
        let keeper = scope.spawn(|| {
            loop {
                if state.task(Duration::from_secs(60)) == Task::Stop {
                    break;
                }
            }
        });
        state.stop();
        keeper.join().expect("keeper");
    });
}
