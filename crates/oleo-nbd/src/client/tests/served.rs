//! The client with this crate's own server.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use oleo_device::{Device, MemDevice, WriteReq};
use oleo_sim::crash::pages::Contents;
use oleo_sim::crash::record::{Event, Fault, Journal};
use oleo_sim::crash::states::{Kinds, Maker, cuts, progress};
use oleo_sim::rng::Rng;

use super::scripted::options;
use crate::{At, ClientOptions, Export, Listener, NbdDevice, ServeOptions, Served, Server, Stopper, Uri};

/// A server; dropping it ends it.
struct Running {
    stopper: Stopper,
    thread: Option<JoinHandle<Result<Served, crate::NbdError>>>,
    dir: tempfile::TempDir,
}

impl Running {
    fn of(device: Arc<dyn Device>) -> Running {
        let dir = tempfile::tempdir().expect("directory");
        let listener = Listener::bind(&At::Unix(dir.path().join("s"))).expect("listen");
        let export = Export { name: "disk".into(), description: String::new(), device, read_only: false };
        let server =
            Server::start(vec![export], vec![listener], ServeOptions::default(), Box::new(|line| eprintln!("{line}")));
        let server = server.expect("server");
        let stopper = server.stopper();
        Running { stopper, thread: Some(std::thread::spawn(move || server.serve())), dir }
    }

    fn client(&self, options: &ClientOptions) -> NbdDevice {
        NbdDevice::connect(&Uri::new(At::Unix(self.dir.path().join("s")), "disk"), true, options).expect("connect")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let served = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            served.expect("a thread").expect("no panic").expect("no failure");
        }
    }
}

/// Goal: client and server together are a vector of bytes, over one connection and several.
#[test]
fn is_as_a_vector() {
    for (seed, connections) in [1, 4].into_iter().enumerate() {
        let server = Running::of(Arc::new(MemDevice::new(300_032)));
        let dev = server.client(&options().connections(connections));
        super::vector::model(&dev, 100 + seed as u64);
        assert_eq!(dev.stats().expect("stats").reconnects, 0);
    }
}

/// Goal: large reads and writes of many threads in parallel, all windows full both ways, end in time.
#[test]
fn much_both_ways() {
    const LEN: usize = 2 << 20;
    let server = Running::of(Arc::new(MemDevice::new(64 << 20)));
    for connections in [1, 4] {
        let dev = server.client(&options().connections(connections).request_max(Duration::from_secs(20)));
        std::thread::scope(|scope| {
            for n in 0..8u64 {
                let dev = &dev;
                scope.spawn(move || {
                    let (data, mut buf) = (vec![n as u8 + 1; LEN], vec![0; LEN]);
                    for round in 0..4 {
                        let at = (n * 4 + round) * LEN as u64 % (62 << 20);
                        match n % 2 {
                            0 => dev.write_at(at, &data).expect("write"),
                            _ => dev.read_at(at, &mut buf).expect("read"),
                        }
                    }
                });
            }
        });
    }
}

const SLOT: usize = 512;
const SLOTS: usize = 200;

/// What a run wrote: by slot, the steps that did, rising; and the steps after which everything before was durable.
#[derive(Default)]
struct Run {
    writes: Vec<Vec<usize>>,
    /// Steps that wrote durably, by slot.
    durable: Vec<Vec<usize>>,
    flushes: Vec<usize>,
}

/// Writes slots, whose bytes say which step wrote them, and flushes now and then.
fn run(dev: &NbdDevice, journal: &Journal, rng: &mut Rng) -> Run {
    let mut run = Run { writes: vec![Vec::new(); SLOTS], durable: vec![Vec::new(); SLOTS], flushes: Vec::new() };
    for step in 0..150 {
        journal.begin(step);
        let mut slots: Vec<usize> = (0..1 + rng.below(12)).map(|_| rng.below(SLOTS as u64) as usize).collect();
        slots.sort_unstable();
        slots.dedup();
        let bytes = (step as u32 + 1).to_be_bytes().repeat(SLOT / 4);
        let parts: [&[u8]; 1] = [&bytes];
        let reqs: Vec<_> = slots.iter().map(|slot| WriteReq { offset: (slot * SLOT) as u64, parts: &parts }).collect();
        match rng.below(4) {
            0 => {
                dev.flush().expect("flush");
                run.flushes.push(step);
            }
            1 => {
                dev.write_durable(&reqs).expect("durable write");
                slots.iter().for_each(|slot| {
                    run.writes[*slot].push(step);
                    run.durable[*slot].push(step);
                });
            }
            _ => {
                dev.write_batch(&reqs).expect("write");
                slots.iter().for_each(|slot| run.writes[*slot].push(step));
            }
        }
        journal.end(step);
    }
    run
}

/// How many slots, over all crashes, hold something older than what was promised, or what nobody wrote.
fn lost(run: &Run, events: &[Event], rng: &mut Rng) -> (usize, usize) {
    let base = [Contents::zeros((SLOT * SLOTS) as u64)];
    let kinds = Kinds { flushes: true, writes: true, steps: true, some: 3, torn: 3 };
    let (mut maker, mut bad, mut held) = (Maker::new(&base, events), 0, 0);
    for cut in cuts(events, &kinds, rng) {
        let found = maker.make(&cut).swap_remove(0);
        let done = progress(events, cut.at).done;
        let flushed = run.flushes.iter().rev().find(|step| **step < done).copied().unwrap_or(0);
        for slot in 0..SLOTS {
            let mut bytes = [0; SLOT];
            found.read((slot * SLOT) as u64, &mut bytes);
            let last = |steps: &[usize], before: usize| steps.iter().rev().find(|step| **step < before).copied();
            let promised = last(&run.writes[slot], flushed).max(last(&run.durable[slot], done));
            let value = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
            let whole = bytes.chunks(4).all(|word| word == &bytes[..4]);
            let known = value == 0 || run.writes[slot].contains(&(value - 1));
            bad += usize::from(!whole || !known || promised.is_some_and(|step| value < step + 1));
            held += usize::from(promised.is_some());
        }
    }
    (bad, held)
}

/// Goal: what a flush or a durable write has confirmed through client and server survives any crash of the device
/// behind them; and a device that lies about flushes is found out by this very test. Method: a recording device behind
/// the server, random writes over one connection and four, all crash states of the recording.
#[test]
fn what_was_confirmed_survives() {
    for (seed, connections, fault) in [(1, 1, None), (2, 4, None), (3, 4, Some(Fault::DropFlushes))] {
        let mut rng = Rng::new(seed);
        let journal = Journal::new();
        let disk = Arc::new(journal.disk(0, Contents::zeros((SLOT * SLOTS) as u64)));
        journal.inject(fault);
        let server = Running::of(disk);
        let dev = server.client(&options().connections(connections));
        let run = run(&dev, &journal, &mut rng);
        drop(dev);
        let (bad, held) = lost(&run, &journal.take(), &mut rng);
        assert!(held > 10_000, "{held} promises looked at");
        assert_eq!(bad > 0, fault.is_some(), "seed {seed}: {bad} of {held}");
    }
}
