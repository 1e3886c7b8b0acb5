//! Streams on a simulated store: senders that are cut, somebody who prunes and collects, and a receiver, all on one list.
//!
//! Every list that anybody reads has all that its streams are built on. A stream that was reported as stored has its bytes, and is
//! there for as long as the policy keeps it: it is gone only if two of later snapshots had begun. In the end nothing is stored that
//! the list does not name.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oleo_remote::streams::{ChainBytes, NewStream, Policy, StreamEntry, StreamList, Streams, Upload};
use oleo_remote::{KeySource, StoreOptions};
use oleo_sim::rng::Rng;
use oleo_sim::store::{Faults, World};
use uuid::Uuid;

use crate::sim::adapter::{Client, Wrong, be, here};

const SENDERS: usize = 2;
const PRUNER: usize = SENDERS;
const RECEIVER: usize = SENDERS + 1;
const LAST: usize = SENDERS + 2;
/// What is kept of each series, of which there is one.
const KEPT: usize = 2;
const FAULTS: Faults = Faults { any: 10, crash: 150, exact: &["streams"], stale_exact: 0 };

#[derive(Default, Debug)]
struct Tally {
    stored: AtomicU64,
    failed: AtomicU64,
    pruned: AtomicU64,
    given_up: AtomicU64,
    received: AtomicU64,
    incremental: AtomicU64,
}

impl Tally {
    fn all(&self) -> [&AtomicU64; 6] {
        let Tally { stored, failed, pruned, given_up, received, incremental } = self;
        [stored, failed, pruned, given_up, received, incremental]
    }
}

struct Run<'a> {
    /// Numbers of snapshots: their moments, too.
    taken: AtomicU64,
    /// What was reported as stored: the moment, by the id of the stream.
    promised: Mutex<BTreeMap<Uuid, u64>>,
    wrong: Mutex<Option<String>>,
    tally: &'a Tally,
}

impl Run<'_> {
    fn check(&self, result: Result<(), String>) {
        if let Err(what) = result {
            self.wrong.lock().expect("lock").get_or_insert(what);
        }
    }
}

fn client(world: &Arc<World>, number: usize, sealed: bool, wrong: Wrong) -> Client {
    let (prefix, clocks, before_others) = ("", Arc::default(), Arc::default());
    Client { sealed, world: world.clone(), number, prefix, wrong, clocks, before_others, seen: None }
}

fn options(client: &Client) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.host = Arc::new(client.clone());
    options.key = client.sealed.then(|| KeySource::file(&[1; 32]).expect("a key file"));
    options.bounds.segment_aim = 64 << 10;
    options
}

fn contents(taken: u64) -> Vec<u8> {
    let mut rng = Rng::new(taken);
    let len = 40_000 + rng.below(150_000) as usize;
    rng.bytes(len)
}

/// What must hold of every list.
fn whole(list: &StreamList) -> Result<(), String> {
    let uploads = list.uploads.iter().map(|upload| (&upload.name, &upload.needs));
    let all = list.streams.iter().map(|stream| (&stream.name, &stream.needs)).chain(uploads);
    for (name, needs) in all {
        if let Some(need) = needs.iter().find(|need| list.stream(**need).is_none()) {
            return Err(format!("{name} is built on {need}, which is gone"));
        }
    }
    Ok(())
}

fn read(streams: &Streams, stream: &StreamEntry) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chain = ChainBytes::open(streams, &[stream]).map_err(std::io::Error::other)?;
    chain.read_to_end(&mut bytes).map(|_| bytes)
}

fn as_sent(stream: &StreamEntry, bytes: &[u8]) -> Result<(), String> {
    match bytes == contents(stream.ctransid) {
        true => Ok(()),
        false => Err(format!("{} has other bytes", stream.name)),
    }
}

fn send(run: &Run<'_>, client: &Client, rng: &mut Rng) {
    let Ok(streams) = Streams::open_or_make_on(Arc::new(client.clone()), &options(client)) else { return };
    let Ok(list) = streams.list() else { return };
    run.check(whole(&list));
    let taken = run.taken.fetch_add(1, SeqCst);
    let parent = list.streams.last().filter(|_| !rng.one_in(4)).map(|stream| stream.id);
    let (name, uuid) = (format!("s{taken}"), Uuid::from_u128(taken.into()));
    let (series, clone_sources) = (Uuid::nil(), Vec::new());
    let new = NewStream { name, uuid, ctransid: taken, series, taken: taken as i64, parent, clone_sources };
    let Ok(mut upload) = Upload::begin(&streams, new) else {
        run.tally.failed.fetch_add(1, SeqCst);
        return;
    };
    for piece in contents(taken).chunks(30_000) {
        if upload.write_all(piece).is_err() {
            break;
        }
        if rng.one_in(4) {
            client.world.sleep(here(), Duration::from_secs(rng.below(20)));
        }
    }
    match upload.finish(&[], &[]) {
        Ok(entry) => {
            run.promised.lock().expect("lock").insert(entry.id, taken);
            run.tally.stored.fetch_add(1, SeqCst);
            run.tally.incremental.fetch_add(u64::from(entry.incremental), SeqCst);
        }
        Err(_) => _ = run.tally.failed.fetch_add(1, SeqCst),
    }
}

fn prune(run: &Run<'_>, client: &Client, rng: &mut Rng) {
    client.world.sleep(here(), Duration::from_secs(rng.below(30)));
    let Ok(streams) = Streams::open_on(Arc::new(client.clone()), &options(client)) else { return };
    if rng.one_in(2) {
        let pruned = streams.prune(&Policy { last: KEPT, ..Policy::default() });
        run.tally.pruned.fetch_add(pruned.map_or(0, |pruned| pruned.removed.len() as u64), SeqCst);
    } else {
        // At times while they are under way.
        let age = [Duration::ZERO, Duration::from_secs(60), Duration::MAX][rng.below(3) as usize];
        let found = streams.collect(age, false);
        run.tally.given_up.fetch_add(found.map_or(0, |found| found.given_up), SeqCst);
    }
}

fn receive(run: &Run<'_>, client: &Client, rng: &mut Rng) {
    client.world.sleep(here(), Duration::from_secs(rng.below(30)));
    let Ok(streams) = Streams::open_on(Arc::new(client.clone()), &options(client)) else { return };
    let Ok(list) = streams.list() else { return };
    run.check(whole(&list));
    let Some(stream) = rng.pick(&list.streams) else { return };
    // It may be removed meanwhile, and answers may be wrong more often than is asked.
    if let Ok(bytes) = read(&streams, stream) {
        run.check(as_sent(stream, &bytes));
        run.tally.received.fetch_add(1, SeqCst);
    }
}

fn at_the_end(run: &Run<'_>, last: &Client) -> Result<(), String> {
    // What is under way arrives.
    for _ in 0..300 {
        last.world.sleep(LAST, Duration::from_secs(600));
    }
    let said = |e| format!("at the end: {e}");
    let streams = Streams::open_or_make_on(Arc::new(last.clone()), &options(last)).map_err(said)?;
    for _ in 0..2 {
        streams.collect(Duration::ZERO, false).map_err(said)?;
    }
    let list = streams.list().map_err(said)?;
    whole(&list)?;
    let begun = run.taken.load(SeqCst);
    for (id, taken) in &*run.promised.lock().expect("lock") {
        let later = begun - taken - 1;
        if list.stream(*id).is_none() && later < KEPT as u64 {
            return Err(format!("s{taken} was stored, and is gone though the policy keeps it"));
        }
    }
    for stream in &list.streams {
        let bytes = read(&streams, stream).map_err(|e| format!("at the end {} cannot be read: {e}", stream.name))?;
        as_sent(stream, &bytes)?;
    }
    let named = |key: &str| {
        let id = key.strip_prefix("stream/").and_then(|rest| Uuid::try_parse(rest.split('/').next()?).ok());
        key == "streams" || key.starts_with("key/") || id.is_some_and(|id| list.stream(id).is_some())
    };
    match last.world.stored().keys().find(|key| !named(key)) {
        Some(key) => Err(format!("{key} is left, which nothing names")),
        None => Ok(()),
    }
}

fn play(seed: u64, faults: Faults, wrong: Wrong, tally: &Tally) -> Option<String> {
    let mut rng = Rng::new(seed);
    let world = Arc::new(World::new(rng.next_u64(), LAST + 1, faults));
    let run = Run { taken: 0.into(), promised: Mutex::default(), wrong: Mutex::default(), tally };
    let sealed = seed % 4 == 1;
    std::thread::scope(|scope| {
        for number in 0..LAST {
            let (run, client, mut rng) = (&run, client(&world, number, sealed, wrong), rng.fork());
            scope.spawn(move || {
                be(number);
                client.world.clone().run(number, || {
                    for _ in 0..4 {
                        match number {
                            PRUNER => prune(run, &client, &mut rng),
                            RECEIVER => receive(run, &client, &mut rng),
                            _ => send(run, &client, &mut rng),
                        }
                        client.world.restart(number);
                    }
                });
            });
        }
        world.start_and_wait(0..LAST, faults);
    });
    if run.wrong.lock().expect("lock").is_none() {
        be(LAST);
        let last = client(&world, LAST, sealed, Wrong::Nothing);
        run.check(world.run_alone(LAST, Faults::NONE, || at_the_end(&run, &last)));
    }
    let wrong = run.wrong.lock().expect("lock").take();
    wrong.map(|what| format!("seed {seed}: {what}"))
}

fn play_all(mut seeds: std::ops::Range<u64>, faults: Faults, wrong: Wrong) -> (Option<String>, Tally) {
    let tally = Tally::default();
    let wrong = seeds.find_map(|seed| play(seed, faults, wrong, &tally));
    (wrong, tally)
}

/// Goal: nothing that was stored is lost or changed, no chain loses a link, and nothing is left over, whatever the network does. Method: see
/// the module's text; some runs without faults.
#[test]
fn streams() {
    let seeds = crate::sim::seeds_of(200, 1500);
    let (wrong, tally) =
        play_all(seeds.start..seeds.start + (seeds.end - seeds.start) / 8, Faults::NONE, Wrong::Nothing);
    assert_eq!(wrong, None);
    println!("without faults: {tally:?}");
    let count = seeds.end - seeds.start;
    let (wrong, tally) = play_all(seeds, FAULTS, Wrong::Nothing);
    assert_eq!(wrong, None);
    println!("with faults: {tally:?}");
    assert!(count < 1500 || tally.all().iter().all(|n| n.load(SeqCst) > 50), "{tally:?}");
}

/// Goal: the runs can find what they look for. Method: a store that ignores conditions, and a list that is older than it was.
#[test]
fn streams_that_are_lost_are_found() {
    let stale = Faults { stale_exact: 10, ..FAULTS };
    for (wrong, faults) in [(Wrong::NoConditions, FAULTS), (Wrong::Nothing, stale)] {
        let found = play_all(0..1500, faults, wrong).0;
        println!("{wrong:?}: {found:?}");
        assert!(found.is_some(), "{wrong:?} is not found");
    }
}
