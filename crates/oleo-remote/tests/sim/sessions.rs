//! What clients do: write, read, and make pins.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oleo_device::Device;
use oleo_remote::{RemoteDevice, RemoteError, pin, unpin};
use oleo_sim::rng::Rng;
use oleo_sim::store::chain::Change;

use crate::adapter::{Client, Wrong};
use crate::{BLOCK, BLOCKS, DIRTY_MAX, REQUESTS_MAX, Run, fill, marks, options, read_all};

/// One client's turn with the volume, from opening it to leaving it in some way.
pub fn write_session(run: &Run, client: &Client, rng: &mut Rng, mark: &mut u64) {
    let dev = match RemoteDevice::open_writable(Arc::new(client.clone()), &options(client, rng)) {
        Ok(dev) => dev,
        Err(RemoteError::Held { .. }) => return client.world.sleep(client.number, Duration::from_secs(5)),
        Err(RemoteError::Corrupt(e)) => return run.check(Err(format!("damaged: {e}"))),
        Err(_) => return,
    };
    let epoch = dev.epoch();
    let Some(all) = read_all(&dev) else { return };
    let found = marks(&all).and_then(|found| run.chain(|chain| chain.attached(epoch, dev.position(), &found)));
    let failed = found.is_err();
    run.check(found);
    if failed {
        return;
    }
    run.count(|tally| tally.attached += 1);
    for _ in 0..2 + rng.below(20) {
        let before = client.world.requests(client.number);
        act(run, client, &dev, rng, mark);
        let requests = client.world.requests(client.number) - before;
        if requests > REQUESTS_MAX {
            run.check(Err(format!("{requests} requests of one call")));
        }
        // Nobody else has this writer's epoch, and nobody makes the volume anew.
        if let Some(odd @ (RemoteError::Split { .. } | RemoteError::Replaced { .. })) = dev.failure().as_deref() {
            run.check(Err(format!("a writer ends by mistake: {odd}")));
        }
        if dev.failure().is_none() && dev.dirty_bytes() > DIRTY_MAX + 300_000 {
            run.check(Err(format!("{} bytes are not published", dev.dirty_bytes())));
        }
        if client.world.is_dead(client.number) || run.is_wrong() {
            return;
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
    if rng.one_in(3) {
        let position = dev.position();
        if dev.close().is_ok() {
            run.check(run.chain(|chain| chain.promise(epoch, position)));
        }
    } else {
        // Nothing more is sent.
        client.world.kill(client.number);
        drop(dev);
    }
}

/// One change or question.
fn act(run: &Run, client: &Client, dev: &RemoteDevice, rng: &mut Rng, mark: &mut u64) {
    let epoch = dev.epoch();
    // One frame: within a border.
    let first = rng.below(BLOCKS as u64 - 1) as usize;
    let count = (1 + rng.below(6) as usize).min(64 - first % 64).min(BLOCKS - 1 - first);
    match rng.below(13) {
        0..5 => {
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
        5 | 6 => {
            let position = dev.position();
            if rng.one_in(2) {
                let _order = dev.barrier();
            }
            let done = dev.flush();
            run.count(|tally| if done.is_ok() { tally.flushed += 1 } else { tally.failed += 1 });
            if done.is_ok() {
                run.check(run.chain(|chain| chain.promise(epoch, position)));
            }
        }
        7 => client.world.sleep(client.number, Duration::from_secs(rng.below(40))),
        8 => keep(run, dev, rng),
        9 => collect(run, dev, rng),
        10 => repack(run, dev),
        _ => {
            let mut bytes = vec![1; count * BLOCK];
            if dev.read_at((first * BLOCK) as u64, &mut bytes).is_ok() {
                run.count(|tally| tally.read += 1);
                let want = run.chain(|chain| chain.now(epoch))[first..first + count].to_vec();
                run.check(marks(&bytes).and_then(|have| match have == want {
                    true => Ok(()),
                    false => Err(format!("epoch {epoch} reads {have:?} at {first}, and wrote {want:?}")),
                }));
            }
        }
    }
}

/// What a keeper does for the claim, and a checkpoint.
fn keep(run: &Run, dev: &RemoteDevice, rng: &mut Rng) {
    if rng.one_in(2) {
        return dev.renew();
    }
    let (epoch, position) = (dev.epoch(), dev.position());
    if dev.checkpoint().is_ok() {
        run.check(run.chain(|chain| chain.promise(epoch, position)));
    }
}

/// What it does for the space.
fn collect(run: &Run, dev: &RemoteDevice, rng: &mut Rng) {
    if rng.one_in(4) {
        let found = dev.remove_orphans(Duration::ZERO);
        return run.count(|tally| tally.orphans += found.map_or(0, |found| found.deleted as u64));
    }
    let found = dev.delete_dead(Duration::from_secs(rng.below(2) * 10));
    run.count(|tally| tally.kept += found.map_or(0, |found| found.kept as u64));
}

/// What is moved changes no block.
fn repack(run: &Run, dev: &RemoteDevice) {
    let (epoch, before) = (dev.epoch(), dev.position());
    let _done = dev.repack(1 << 20);
    for _ in before..dev.position() {
        run.chain(|chain| chain.will_change(epoch, Change { first: 0, count: 0, mark: 0 }));
    }
}

pub fn read_session(run: &Run, client: &Client, rng: &mut Rng) {
    let since = run.chain(|chain| chain.promised());
    let dev = match RemoteDevice::open(Arc::new(client.clone()), None, &options(client, rng)) {
        Ok(dev) => dev,
        Err(RemoteError::Corrupt(e)) => return run.check(Err(format!("damaged for a reader: {e}"))),
        Err(_) => return,
    };
    // Twice, with others writing in between: the moment stays.
    for _ in 0..2 {
        let mut all = vec![1; dev.len() as usize];
        if let Err(e) = dev.read_at(0, &mut all) {
            if let (Some(lease), true) = (dev.lease(), is_gone(&e)) {
                run.check(Err(format!("{e}, in spite of a lease of {}", lease.sequence)));
            }
            return;
        }
        run.count(|tally| tally.leases += u64::from(dev.lease().is_some()));
        let found = marks(&all);
        run.check(found.and_then(|found| run.chain(|chain| chain.opened(&since, dev.epoch(), dev.position(), &found))));
        run.count(|tally| tally.read += 1);
        client.world.sleep(client.number, Duration::from_secs(rng.below(20)));
    }
}

/// Whether an object is missing.
fn is_gone(e: &dyn std::fmt::Display) -> bool {
    e.to_string().contains("is gone")
}

/// One turn of somebody who makes pins, ends them and reads them.
pub fn pin_session(run: &Run, client: &Client, rng: &mut Rng) {
    let name = format!("p{}-{}", client.number, rng.below(3));
    let options = options(client, rng);
    let store = || Arc::new(client.clone());
    match rng.below(4) {
        0 | 1 => {
            let since = run.chain(|chain| chain.promised());
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
    client.world.sleep(client.number, Duration::from_secs(rng.below(30)));
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
    let mut all = vec![1; dev.len() as usize];
    match dev.read_at(0, &mut all) {
        Ok(()) => {
            run.count(|tally| tally.pins_read += 1);
            let found = marks(&all);
            let as_it_was =
                |found: Vec<u64>| run.chain(|chain| chain.opened(&since, dev.epoch(), dev.position(), &found));
            run.check(found.and_then(as_it_was).map_err(|e| format!("pin {name}: {e}")));
        }
        Err(e) if always || is_gone(&e) => run.check(Err(format!("pin {name} cannot be read: {e}"))),
        Err(_) => {}
    }
}
