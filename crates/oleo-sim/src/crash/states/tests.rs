use oleo_device::{Device, WriteReq};

use super::*;
use crate::crash::record::{Fault, Journal};

const LEN: u64 = 64 << 10;

fn byte(contents: &Contents, at: u64) -> u8 {
    let mut one = [0];
    contents.read(at, &mut one);
    one[0]
}

/// Two writes, a flush, a batch of two over the first, no flush.
fn run() -> (Vec<Contents>, Vec<Event>) {
    let base = vec![Contents::zeros(LEN)];
    let journal = Journal::new();
    let disk = journal.disk(0, base[0].clone());
    journal.begin(0);
    disk.write_at(0, &[1; 4096]).unwrap();
    disk.write_at(8192, &[2; 1024]).unwrap();
    disk.flush().unwrap();
    journal.end(0);
    journal.begin(1);
    let parts: [&[u8]; 2] = [&[3; 2048], &[4; 4096]];
    disk.write_batch(&[WriteReq { offset: 0, parts: &parts }, WriteReq { offset: 16384, parts: &[&[5; 512]] }])
        .unwrap();
    let mut buf = [0; 2];
    disk.read_at(2047, &mut buf).unwrap();
    assert_eq!(buf, [3, 4], "reads see what was written");
    (base, journal.take())
}

/// Goal: what was flushed is in every state after it, what was not in none before it; the base stays as it was.
/// Method: every kind of cut of the run above; each byte is one that was written there, or a zero.
#[test]
fn states_hold_what_was_flushed() {
    let (base, events) = run();
    let kinds = Kinds { flushes: true, writes: true, steps: true, some: 40, torn: 40 };
    let all = cuts(&events, &kinds, &mut Rng::new(1));
    let flush_at = events.iter().position(|e| matches!(e, Event::Flush { .. })).unwrap();
    let mut maker = Maker::new(&base, &events);
    let (mut torn, mut lost, mut kept) = (false, false, false);
    for cut in &all {
        let state = &maker.make(cut)[0];
        let again = &Maker::new(&base, &events).make(cut)[0];
        let (mut a, mut b) = (vec![0; LEN as usize], vec![0; LEN as usize]);
        state.read(0, &mut a);
        again.read(0, &mut b);
        assert!(a == b, "{cut:?} gives different bytes each time");
        assert!([0, 1, 3].contains(&a[0]) && [0, 1, 4].contains(&a[2048]) && [0, 2].contains(&a[8192]));
        if cut.at > flush_at {
            assert!(a[0] != 0 && a[8192] == 2, "{cut:?} lost what was flushed");
            torn |= (a[0] == 3) != (a[512] == 3);
            lost |= a[0] == 1 && a[16384] == 5;
            kept |= a[0] == 3 && a[16384] == 5;
        } else {
            assert!(a[0] != 3, "{cut:?} is before its time");
        }
        let here = progress(&events, cut.at);
        assert_eq!(here.done, usize::from(cut.at > flush_at + 1), "{cut:?}");
    }
    assert!(torn && lost && kept, "torn {torn}, out of order {lost}, all {kept}");
    assert_eq!(byte(&base[0], 0), 0);
}

/// Goal: discarded bytes stay, or are zeros or rubbish, and a cut-off part is lost or not until it is flushed; a write
/// after either counts. Method: a run of each; states at every place; what is behind a flush is the same in all of
/// them.
#[test]
fn discards_and_lengths_are_part_of_the_states() {
    let journal = Journal::new();
    let mut base = Contents::zeros(LEN);
    base.write(0, &[7; LEN as usize]);
    base.settle();
    let disk = journal.disk(0, base.clone());
    disk.discard(512, 20_000).unwrap();
    disk.write_at(8192, &[1; 512]).unwrap();
    disk.set_len(LEN / 2).unwrap();
    assert!(disk.write_at(LEN / 2, &[1]).is_err());
    disk.flush().unwrap();
    disk.set_len(LEN).unwrap();
    disk.discard(LEN / 2, 4096).unwrap();
    let mut now = [0; 2];
    disk.read_at(4096, &mut now).unwrap();
    assert_ne!(now, [7, 7], "a discard is seen immediately");
    let events = journal.take();
    assert_eq!(events.len(), 6);
    let kinds = Kinds { flushes: true, writes: true, steps: true, some: 40, torn: 40 };
    let mut met = std::collections::BTreeSet::new();
    for shift in 0..20 {
        // The number of an event decides the result of its discard.
        let mut events = vec![Event::Begin(0); shift].into_iter().chain(events.clone()).collect::<Vec<_>>();
        events.push(Event::End(0));
        let mut maker = Maker::new(std::slice::from_ref(&base), &events);
        for cut in cuts(&events, &kinds, &mut Rng::new(1)) {
            let state = &maker.make(&cut)[0];
            let (done, old) = (cut.at > shift + 3, byte(state, 5000));
            assert_eq!(
                (byte(state, 0), byte(state, 511), byte(state, 30_000)),
                (7, 7, 7),
                "{cut:?}: beside the discard"
            );
            met.insert(("discarded", done, if [0, 7].contains(&old) { old } else { 1 }));
            met.insert(("length", done, (state.len() / (LEN / 2)) as u8));
            if done {
                assert_eq!(byte(state, 8192), 1, "{cut:?}: a write behind a discard");
                assert!(byte(state, LEN - 1) == 0, "{cut:?}: what was cut off is back");
            }
        }
    }
    let all = [false, true].map(|done| [("discarded", done, 0), ("discarded", done, 1), ("discarded", done, 7)]);
    assert!(all.iter().flatten().all(|sort| met.contains(sort)), "{met:?}");
    let all = [false, true].map(|done| [("length", done, 1), ("length", done, 2)]);
    assert!(all.iter().flatten().all(|sort| met.contains(sort)), "{met:?}");
}

/// Goal: devices drop requests and fail as requested, once, and report that they did.
#[test]
fn faults_happen() {
    let disk = |fault| {
        let journal = Journal::new();
        journal.inject(Some(fault));
        (journal.disk(0, Contents::zeros(LEN)), journal)
    };
    let (d, j) = disk(Fault::FailWrite(1));
    assert!(d.write_at(0, &[1]).is_ok() && !j.struck() && d.write_at(1, &[1]).is_err() && d.write_at(2, &[1]).is_ok());
    let (d, j) = disk(Fault::FailFlush(0));
    assert!(d.flush().is_err() && d.flush().is_ok() && j.struck());
    let (d, j) = disk(Fault::RotRead(0));
    let mut buf = [0; 3];
    d.read_at(0, &mut buf).unwrap();
    assert!(buf == [0, 16, 0] && j.struck());
    let (d, j) = disk(Fault::FailRead(0));
    assert!(d.read_at(0, &mut buf).is_err() && d.read_at(0, &mut buf).is_ok() && j.struck());
    let (d, j) = disk(Fault::SwallowWrite(0));
    d.write_at(0, &[1]).unwrap();
    d.read_at(0, &mut buf).unwrap();
    assert!(buf[0] == 1 && j.take().is_empty());
    let (d, j) = disk(Fault::DropFlush(0));
    assert!(d.flush().is_ok() && j.take().is_empty() && d.flush().is_ok() && j.take().len() == 1);
}
