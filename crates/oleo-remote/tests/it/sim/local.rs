//! Two machines with logs on their local disks (`durable=local`), which take the volume over from each other.
//!
//! What a machine's log has confirmed is there when that machine opens the volume again; unless the other one has begun to open
//! it meanwhile, and then the machine is told so and the log is kept. Whatever log is found, what is opened is a state of the
//! chain. Some runs put a log back to an older state, as one does with a virtual machine: then less may be there, never anything else.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oleo_device::Device;
use oleo_remote::format::head::Head;
use oleo_remote::{CacheOptions, Durable, KeySource, RemoteDevice, RemoteError, StoreOptions, create};
use oleo_sim::budget::budget;
use oleo_sim::rng::Rng;
use oleo_sim::store::chain::{Chain, Change};
use oleo_sim::store::{Faults, World};

use crate::sim::adapter::{Client, Wrong, be};
use crate::sim::{fill, marks};

const BLOCK: usize = 4096;
const BLOCKS: usize = 40;
const LEN: u64 = (BLOCKS * BLOCK) as u64;
const MACHINES: usize = 2;
const FAULTS: Faults = Faults { any: 12, crash: 200, exact: &["head", "pins"], stale_exact: 0 };

/// What is done to logs between two openings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tampering {
    Nothing,
    /// It is removed, which must be noticed.
    Removed,
    /// At times it is put back to an older state.
    PutBack,
}

/// What is known of a machine.
#[derive(Default)]
struct Machine {
    began: AtomicU64,
    ended: AtomicU64,
    /// What its log has confirmed last, and how many openings of the other had ended when this one's began.
    confirmed: Mutex<Option<(u64, u64)>>,
}

#[derive(Default, Debug)]
struct Tally {
    opened: AtomicU64,
    confirmed: AtomicU64,
    replayed: AtomicU64,
    kept: AtomicU64,
    put_back: AtomicU64,
}

struct Run<'a> {
    chain: Arc<Mutex<Chain>>,
    machines: [Machine; MACHINES],
    wrong: Mutex<Option<String>>,
    tampering: Tampering,
    tally: &'a Tally,
}

impl Run<'_> {
    fn check(&self, result: Result<(), String>) {
        if let Err(what) = result {
            self.wrong.lock().expect("lock").get_or_insert(what);
        }
    }
    fn is_wrong(&self) -> bool {
        self.wrong.lock().expect("lock").is_some()
    }
    fn chain<T>(&self, f: impl FnOnce(&mut Chain) -> T) -> T {
        f(&mut self.chain.lock().expect("lock"))
    }
    fn ended(&self, number: usize) -> u64 {
        self.machines[1 - number].ended.load(SeqCst)
    }
    /// Whether the other machine may have written since its openings were so many.
    fn other_may_have(&self, number: usize, since: u64) -> bool {
        self.machines[1 - number].began.load(SeqCst) > since
    }
}

fn client(world: &Arc<World>, number: usize, sealed: bool) -> Client {
    let (prefix, clocks, before_others) = ("", Arc::default(), Arc::default());
    Client { sealed, world: world.clone(), number, prefix, wrong: Wrong::Nothing, clocks, before_others, seen: None }
}

fn options(client: &Client, dir: Option<&Path>) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.host = Arc::new(client.clone());
    options.keeper = false;
    options.key = client.sealed.then(|| KeySource::file(&[1; 32]).expect("a key file"));
    options.take_over = true;
    options.cache = dir.map(|dir| CacheOptions { dir: dir.to_owned(), bytes_max: 0 });
    options.log_bytes_max = 1 << 20;
    options.bounds.segment_aim = 40_000;
    options.bounds.inline_max = 14_000;
    options.bounds.dirty_bytes_max = 100_000;
    options.bounds.replay_count_max = 3;
    options
}

/// The log of a machine.
fn log_in(dir: &Path) -> Option<std::path::PathBuf> {
    let volumes = std::fs::read_dir(dir).ok()?.flatten();
    volumes.map(|volume| volume.path().join("log")).find(|log| log.exists())
}

/// One opening of the volume, to its end.
fn session(run: &Run<'_>, client: &Client, dir: &Path, rng: &mut Rng, mark: &mut u64) {
    let (number, mine) = (client.number, &run.machines[client.number]);
    let since = run.ended(number);
    let mut options = options(client, Some(dir));
    options.take_over = rng.one_in(2);
    options.durable = if rng.one_in(4) { Durable::Remote } else { Durable::Local };
    let local = options.durable == Durable::Local;
    mine.began.fetch_add(1, SeqCst);
    let opened = RemoteDevice::open_writable(Arc::new(client.clone()), &options);
    mine.ended.fetch_add(1, SeqCst);
    let before = *mine.confirmed.lock().expect("lock");
    let dev = match opened {
        Ok(dev) => dev,
        Err(RemoteError::LogKept { what, .. }) => {
            let is_right = before.is_none_or(|(_, since)| run.other_may_have(number, since));
            if !is_right && run.tampering != Tampering::PutBack {
                run.check(Err(format!("{before:?} is not taken, and nobody else has written: {what}")));
            }
            run.tally.kept.fetch_add(1, SeqCst);
            *mine.confirmed.lock().expect("lock") = None;
            return;
        }
        Err(RemoteError::Held { .. }) => return client.world.sleep(number, Duration::from_secs(40)),
        Err(RemoteError::Corrupt(e)) => return run.check(Err(format!("damaged: {e}"))),
        Err(_) => return,
    };
    let (epoch, position) = (dev.epoch(), dev.position());
    let mut all = vec![1; LEN as usize];
    if dev.read_at(0, &mut all).is_err() {
        // Nobody knows what it began with; but it has taken over, so what it had confirmed is published.
        return;
    }
    if let Some((want, _)) = before.filter(|(want, _)| *want > position) {
        return run.check(Err(format!("machine {number} finds {position} and is not told that {want} is lost")));
    }
    let found = marks(&all).and_then(|found| run.chain(|chain| chain.attached(epoch, position, &found)));
    let failed = found.is_err();
    run.check(found);
    if failed {
        return;
    }
    *mine.confirmed.lock().expect("lock") = None;
    run.tally.opened.fetch_add(1, SeqCst);
    for _ in 0..2 + rng.below(15) {
        act(run, client, &dev, (local, since), rng, mark);
        if client.world.is_dead(number) || run.is_wrong() {
            break;
        }
    }
    let extra = dev.stats().expect("counts").extra;
    let count = |name| extra.iter().find(|(of, _)| *of == name).map_or(0, |count| count.1);
    run.tally.confirmed.fetch_add(count("flushes confirmed by the local log"), SeqCst);
    run.tally.replayed.fetch_add(count("frames replayed from the local log"), SeqCst);
    if rng.one_in(3) && !client.world.is_dead(number) {
        let position = dev.position();
        if dev.close().is_ok() {
            run.check(run.chain(|chain| chain.promise(epoch, position)));
        }
    } else {
        client.world.kill(number);
        drop(dev);
    }
}

fn act(run: &Run<'_>, client: &Client, dev: &RemoteDevice, how: (bool, u64), rng: &mut Rng, mark: &mut u64) {
    let (local, since) = how;
    let epoch = dev.epoch();
    match rng.below(10) {
        0..5 => {
            let first = rng.below(BLOCKS as u64 - 1) as usize;
            let count = (1 + rng.below(4) as usize).min(BLOCKS - first);
            let zeros = rng.one_in(5);
            let change = Change { first, count, mark: if zeros { 0 } else { *mark } };
            let position = run.chain(|chain| chain.will_change(epoch, change));
            let (at, len) = ((first * BLOCK) as u64, (count * BLOCK) as u64);
            let _done = if zeros { dev.discard(at, len) } else { dev.write_at(at, &fill(*mark..*mark + count as u64)) };
            *mark += count as u64;
            if dev.position() < position {
                run.chain(|chain| chain.did_not(epoch));
            }
        }
        5..8 => {
            let position = dev.position();
            if dev.flush().is_ok() {
                match local {
                    true => *run.machines[client.number].confirmed.lock().expect("lock") = Some((position, since)),
                    false => run.check(run.chain(|chain| chain.promise(epoch, position))),
                }
            }
        }
        8 => dev.renew(),
        _ => client.world.sleep(client.number, Duration::from_secs(rng.below(40))),
    }
}

/// A directory in memory, if there are any: nothing here hangs on a disk.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

/// What happens to the log of a machine that is off.
fn tamper(run: &Run<'_>, number: usize, dir: &Path, older: &mut Option<Vec<u8>>, rng: &mut Rng) {
    let Some(log) = log_in(dir) else { return };
    match run.tampering {
        Tampering::Nothing => {}
        Tampering::Removed => std::fs::remove_file(&log).expect("removed"),
        Tampering::PutBack => match older.take() {
            Some(bytes) if rng.one_in(2) => {
                std::fs::write(&log, bytes).expect("written");
                *run.machines[number].confirmed.lock().expect("lock") = None;
                run.tally.put_back.fetch_add(1, SeqCst);
            }
            _ => *older = Some(std::fs::read(&log).expect("read")),
        },
    }
}

/// Plays one seed; returns what was wrong.
fn play(seed: u64, faults: Faults, tampering: Tampering, tally: &Tally) -> Option<String> {
    let mut rng = Rng::new(seed);
    let world = Arc::new(World::new(rng.next_u64(), MACHINES + 1, faults));
    let sealed = seed % 4 == 1;
    let last = client(&world, MACHINES, sealed);
    let chain = Arc::new(Mutex::new(Chain::new(BLOCKS, 1, 0)));
    let watching = chain.clone();
    world.watch(move |_, key, bytes| {
        if let ("head", Ok(head)) = (key, Head::outline(bytes)) {
            let position = Head::parse(bytes).ok().map(|head| head.position);
            watching.lock().expect("lock").stored(head.epoch, position);
        }
    });
    be(MACHINES);
    world.run_alone(MACHINES, Faults::NONE, || {
        create(Arc::new(last.clone()), LEN, false, &options(&last, None)).expect("create");
    });
    let run = Run { chain, machines: Default::default(), wrong: Mutex::default(), tampering, tally };
    let dirs = [(); MACHINES].map(|()| directory());
    std::thread::scope(|scope| {
        for (number, dir) in dirs.iter().enumerate() {
            let (run, client, mut rng) = (&run, client(&world, number, sealed), rng.fork());
            scope.spawn(move || {
                be(number);
                let (mut mark, mut older) = (1 + number as u64 * 1_000_000, None);
                client.world.run(number, || {
                    for _ in 0..5 {
                        session(run, &client, &dir.path().join("cache"), &mut rng, &mut mark);
                        tamper(run, number, &dir.path().join("cache"), &mut older, &mut rng);
                        client.world.restart(number);
                        if run.is_wrong() {
                            break;
                        }
                    }
                });
            });
        }
        world.start_and_wait(0..MACHINES, faults);
    });
    if !run.is_wrong() {
        let end = world.run_alone(MACHINES, Faults::NONE, || {
            last.world.sleep(MACHINES, Duration::from_secs(100_000));
            let dev = RemoteDevice::open_writable(Arc::new(last.clone()), &options(&last, None))
                .map_err(|e| format!("at the end: {e}"))?;
            let mut all = vec![1; LEN as usize];
            dev.read_at(0, &mut all).map_err(|e| format!("at the end: {e}"))?;
            let found = marks(&all)?;
            run.chain(|chain| chain.attached(dev.epoch(), dev.position(), &found))
        });
        run.check(end);
    }
    run.wrong.into_inner().expect("lock").map(|what| format!("seed {seed}: {what}"))
}

fn play_all(seeds: std::ops::Range<u64>, faults: Faults, tampering: Tampering, tally: &Tally) -> Option<String> {
    seeds.into_iter().find_map(|seed| play(seed, faults, tampering, tally))
}

/// Goal: what the module's text says. Method: a quarter of the seeds without faults of the store, and then all with; some with
/// logs that were put back.
#[test]
fn logs() {
    let tally = Tally::default();
    let seeds = |ci, full| budget().seeds(0, ci, full);
    assert_eq!(play_all(seeds(60, 300), Faults::NONE, Tampering::Nothing, &tally), None);
    assert_eq!(play_all(seeds(240, 1200), FAULTS, Tampering::Nothing, &tally), None);
    assert_eq!(play_all(seeds(120, 600), FAULTS, Tampering::PutBack, &tally), None);
    println!("{tally:?}");
    let Tally { opened, confirmed, replayed, kept, put_back } = &tally;
    assert!(
        [opened, confirmed, replayed, kept, put_back].iter().all(|count| count.load(SeqCst) > budget().count(20, 100)),
        "{tally:?}"
    );
}

/// Goal: these runs can find a log that is not replayed. Method: it is removed.
#[test]
fn a_log_that_is_lost_is_found() {
    let found = play_all(0..200, FAULTS, Tampering::Removed, &Tally::default());
    println!("{}", found.expect("it is noticed"));
}
