//! What clients do: write, read, and make pins.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oleo_device::Device;
use oleo_remote::{RemoteDevice, RemoteError, pin, unpin};
use oleo_sim::rng::Rng;
use oleo_sim::store::chain::Change;

use crate::sim::adapter::{BRANCH, Client, Wrong, here};
use crate::sim::beside::Beside;
use crate::sim::{BLOCK, BLOCKS, DIRTY_MAX, FIRST, REQUESTS_MAX, Run, fill, marks, options, read_all};

/// A writer: its way to the store, and its keeper, if it has one.
pub struct Writer<'a> {
    pub run: &'a Arc<Run>,
    pub client: Client,
    pub beside: &'a Beside,
    pub keeper: Option<usize>,
}

impl Writer<'_> {
    /// A turn with the volume, from opening it to leaving it in some way.
    pub fn session(&self, rng: &mut Rng, mark: &mut u64) {
        let (run, client) = (self.run, &self.client);
        let since = run.volumes(client, |volumes| volumes.since());
        let dev = match RemoteDevice::open_writable(Arc::new(client.clone()), &options(client, rng)) {
            Ok(dev) => Arc::new(dev),
            Err(RemoteError::Held { .. }) => return client.world.sleep(here(), Duration::from_secs(5)),
            Err(RemoteError::Corrupt(e)) => return run.check(Err(format!("damaged: {e}"))),
            Err(_) => return,
        };
        let Ok(all) = read_all(&dev) else { return };
        let (uuid, epoch, position) = (dev.uuid(), dev.epoch(), dev.position());
        let found = marks(&all).and_then(|found| {
            run.learn(client, &dev, &found)?;
            run.volumes(client, |volumes| volumes.attached(&since, uuid, epoch, position, &found))
        });
        let failed = found.is_err();
        run.check(found);
        if failed {
            return;
        }
        run.count(|tally| tally.attached += 1);
        let (of, by, weak) = (run.clone(), client.clone(), Arc::downgrade(&dev));
        // What is moved is in the log, too: whoever opens the volume next finds it so.
        *client.before_others.lock().expect("lock") = Some(Box::new(move || {
            if let Some(dev) = weak.upgrade() {
                of.volumes(&by, |volumes| volumes.chain(uuid).came_to(epoch, dev.position()));
            }
        }));
        self.beside.give(client, &dev, self.keeper);
        let leaves = self.acts(&dev, rng, mark);
        let dev = self.beside.take_back(client, dev);
        if leaves && rng.one_in(3) {
            let position = dev.position();
            if dev.close().is_ok() {
                run.promise(client, uuid, epoch, position);
            }
        } else {
            // Nothing more is sent.
            client.world.kill(here());
            drop(dev);
        }
        *client.before_others.lock().expect("lock") = None;
    }

    /// Changes and questions; false: it has crashed, or something is wrong.
    fn acts(&self, dev: &RemoteDevice, rng: &mut Rng, mark: &mut u64) -> bool {
        let (run, client) = (self.run, &self.client);
        for _ in 0..2 + rng.below(20) {
            let before = client.world.requests(here());
            self.act(dev, rng, mark);
            let requests = client.world.requests(here()) - before;
            if requests > REQUESTS_MAX {
                run.check(Err(format!("{requests} requests of one call")));
            }
            // Nobody else has this writer's epoch, and only who is asked to makes the volume anew.
            let replaced = run.volumes(client, |volumes| volumes.is_replaced(dev.uuid()));
            match dev.failure().as_deref() {
                Some(RemoteError::Replaced { .. }) if replaced => {}
                Some(odd @ (RemoteError::Split { .. } | RemoteError::Replaced { .. })) => {
                    run.check(Err(format!("a writer ends by mistake: {odd}")));
                }
                _ => {}
            }
            if dev.failure().is_none() && dev.dirty_bytes() > DIRTY_MAX + 300_000 {
                run.check(Err(format!("{} bytes are not published", dev.dirty_bytes())));
            }
            if client.world.is_dead(here()) || run.is_wrong() {
                return false;
            }
        }
        run.count(|tally| {
            tally.overtaken += u64::from(matches!(dev.failure().as_deref(), Some(RemoteError::Overtaken { .. })));
            let extra = dev.stats().expect("counts").extra;
            let count = |name| extra.iter().find(|(of, _)| *of == name).map_or(0, |c| c.1);
            tally.checkpoints += count("checkpoints");
            tally.deleted += count("objects deleted");
            tally.moved += count("bytes moved");
        });
        true
    }

    /// One change or question.
    fn act(&self, dev: &RemoteDevice, rng: &mut Rng, mark: &mut u64) {
        let (run, client, beside) = (self.run, &self.client, self.beside);
        // One frame: within a border.
        let first = rng.below(BLOCKS as u64 - 1) as usize;
        let count = (1 + rng.below(6) as usize).min(64 - (FIRST + first) % 64).min(BLOCKS - 1 - first);
        match rng.below(if client.prefix == BRANCH { 14 } else { 13 }) {
            0..5 => {
                let zeros = rng.one_in(5);
                let change = Change { first, count, mark: if zeros { 0 } else { *mark } };
                let bytes = if zeros { Vec::new() } else { fill(*mark..*mark + count as u64) };
                *mark += count as u64;
                let _crashed = beside.append(client, dev, || change_once(run, client, dev, change, &bytes));
            }
            5 | 6 => {
                if rng.one_in(2) {
                    let _order = dev.barrier();
                }
                let _crashed = beside.alone(client, || promising(run, client, dev, |dev| dev.flush().is_ok()));
            }
            7 => client.world.sleep(here(), Duration::from_secs(rng.below(40))),
            8 => keep(run, client, beside, dev, rng),
            9 => collect(run, dev, rng),
            10 => repack(run, client, dev),
            13 => {
                let done = beside.alone(client, || dev.detach());
                if matches!(done, Some(Ok(()))) {
                    run.count(|tally| tally.detached += 1);
                }
            }
            _ => {
                let mut bytes = vec![1; count * BLOCK];
                if dev.read_at(((FIRST + first) * BLOCK) as u64, &mut bytes).is_ok() {
                    run.count(|tally| tally.read += 1);
                    let now = run.volumes(client, |volumes| volumes.chain(dev.uuid()).now(dev.epoch()));
                    let want = now[first..first + count].to_vec();
                    run.check(marks(&bytes).and_then(|have| match have == want {
                        true => Ok(()),
                        false => Err(format!("epoch {} reads {have:?} at {first}, and wrote {want:?}", dev.epoch())),
                    }));
                }
            }
        }
    }
}

/// One frame of the log.
fn change_once(run: &Run, client: &Client, dev: &RemoteDevice, change: Change, bytes: &[u8]) {
    let (uuid, epoch, before) = (dev.uuid(), dev.epoch(), dev.position());
    let position = run.volumes(client, |volumes| {
        volumes.chain(uuid).came_to(epoch, before);
        volumes.chain(uuid).will_change(epoch, change)
    });
    let (at, len) = (((FIRST + change.first) * BLOCK) as u64, (change.count * BLOCK) as u64);
    let _done = if change.mark == 0 { dev.discard(at, len) } else { dev.write_at(at, bytes) };
    if dev.position() < position {
        run.volumes(client, |volumes| volumes.chain(uuid).did_not(epoch));
    }
}

/// Something that promises, if it succeeds, all that was written before.
fn promising(run: &Run, client: &Client, dev: &RemoteDevice, f: impl FnOnce(&RemoteDevice) -> bool) {
    let position = dev.position();
    let starved = run.has_lost(dev.uuid(), dev.epoch(), client.world.store_now());
    let done = f(dev);
    run.count(|tally| if done { tally.flushed += 1 } else { tally.failed += 1 });
    if starved {
        run.count(|tally| tally.starved += 1);
        if done {
            run.check(Err(format!("epoch {} is promised {position} after its claim ended", dev.epoch())));
        }
    }
    if done {
        run.promise(client, dev.uuid(), dev.epoch(), position);
    }
}

/// What a keeper does for the claim, and a checkpoint.
pub fn keep(run: &Run, client: &Client, beside: &Beside, dev: &RemoteDevice, rng: &mut Rng) {
    let renews = rng.one_in(2);
    let _crashed = beside.alone(client, || match renews {
        true => dev.renew(),
        false => promising(run, client, dev, |dev| dev.checkpoint().is_ok()),
    });
}

/// What it does for the space.
pub fn collect(run: &Run, dev: &RemoteDevice, rng: &mut Rng) {
    if rng.one_in(4) {
        let found = dev.remove_orphans(Duration::ZERO);
        return run.count(|tally| tally.orphans += found.map_or(0, |found| found.deleted as u64));
    }
    let found = dev.delete_dead(Duration::from_secs(rng.below(2) * 10));
    run.count(|tally| tally.kept += found.map_or(0, |found| found.kept as u64));
}

/// What is moved changes no block.
pub fn repack(run: &Run, client: &Client, dev: &RemoteDevice) {
    let _done = dev.repack(1 << 20);
    let position = dev.position();
    run.volumes(client, |volumes| volumes.chain(dev.uuid()).came_to(dev.epoch(), position));
}

pub fn read_session(run: &Run, client: &Client, rng: &mut Rng) {
    let since = run.volumes(client, |volumes| volumes.since());
    let dev = match RemoteDevice::open(Arc::new(client.clone()), None, &options(client, rng)) {
        Ok(dev) => dev,
        Err(RemoteError::Corrupt(e)) => return run.check(Err(format!("damaged for a reader: {e}"))),
        Err(_) => return,
    };
    let uuid = dev.uuid();
    // Twice, with others writing in between: the moment stays.
    for _ in 0..2 {
        let all = match read_all(&dev) {
            Ok(all) => all,
            Err(e) => {
                let replaced = run.volumes(client, |volumes| volumes.is_replaced(uuid));
                if let (Some(lease), true, false) = (dev.lease(), is_gone(&e), replaced) {
                    run.check(Err(format!("{e}, in spite of a lease of {}", lease.sequence)));
                }
                return;
            }
        };
        let found = marks(&all).and_then(|found| {
            run.learn(client, &dev, &found)?;
            run.volumes(client, |volumes| volumes.opened(&since, uuid, dev.epoch(), dev.position(), &found))
        });
        run.check(found);
        run.count(|tally| {
            tally.read += 1;
            tally.leases += u64::from(dev.lease().is_some());
            tally.branch_read += u64::from(client.prefix == BRANCH);
        });
        client.world.sleep(here(), Duration::from_secs(rng.below(20)));
    }
}

/// Whether an object is missing.
pub fn is_gone(e: &dyn std::fmt::Display) -> bool {
    e.to_string().contains("is gone")
}

/// One turn of somebody who makes pins, ends them and reads them.
pub fn pin_session(run: &Run, client: &Client, rng: &mut Rng) {
    let name = format!("p{}-{}", client.number, rng.below(3));
    let options = options(client, rng);
    let store = || Arc::new(client.clone());
    match rng.below(4) {
        0 | 1 => {
            let since = run.volumes(client, |volumes| volumes.since());
            let wrong = if client.wrong == Wrong::LooksOnce { Wrong::LooksOnce } else { Wrong::Nothing };
            let pinning = Client { seen: Some(Arc::new(Mutex::default())), wrong, ..client.clone() };
            if pin(Arc::new(pinning), &name, "a test", &options).is_ok() {
                run.count(|tally| tally.pinned += 1);
                run.pins.lock().expect("lock").insert(name, since);
            }
        }
        2 => {
            // Whatever comes of it, nobody is promised this one any more.
            run.pins.lock().expect("lock").remove(&name);
            let _done = unpin(store(), &name, false, &options);
        }
        _ => read_pin(run, client, &name, &options, false),
    }
    client.world.sleep(here(), Duration::from_secs(rng.below(30)));
}

/// Reads a pin that was reported as made, if it was: it must be there, and as it was then. `always`: nothing else goes wrong.
pub fn read_pin(run: &Run, client: &Client, name: &str, options: &oleo_remote::StoreOptions, always: bool) {
    let Some(since) = run.pins.lock().expect("lock").get(name).cloned() else { return };
    let dev = match RemoteDevice::open(Arc::new(client.clone()), Some(name), options) {
        Ok(dev) => dev,
        Err(e) => {
            let lost = matches!(e, RemoteError::NoPin { .. } | RemoteError::NoVolume { .. } | RemoteError::Corrupt(_));
            if always || lost || is_gone(&e) {
                run.check(Err(format!("pin {name} cannot be opened: {e}")));
            }
            return;
        }
    };
    match read_all(&dev) {
        Ok(all) => {
            run.count(|tally| tally.pins_read += 1);
            let found = marks(&all);
            let (uuid, epoch, position) = (dev.uuid(), dev.epoch(), dev.position());
            let as_it_was =
                |found: Vec<u64>| run.volumes(client, |volumes| volumes.kept(&since, uuid, epoch, position, &found));
            run.check(found.and_then(as_it_was).map_err(|e| format!("pin {name}: {e}")));
        }
        Err(e) if always || is_gone(&e) => run.check(Err(format!("pin {name} cannot be read: {e}"))),
        Err(_) => {}
    }
}
