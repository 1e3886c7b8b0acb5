//! What a writer and the keeper of its volume share. Both use one device, each by its own thread, and both crash together.
//!
//! Who publishes has a lock of the volume while it waits for the store. A client that waited for that lock would not let others
//! go on, so whatever may publish is done by [`Beside::alone`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oleo_device::Device;
use oleo_remote::RemoteDevice;
use oleo_sim::rng::Rng;

use crate::sim::adapter::{Client, here};
use crate::sim::sessions::{collect, keep, repack};
use crate::sim::{DIRTY_MAX, Run};

/// Bytes of a frame at most.
const FRAME_MAX: u64 = 30_000;

#[derive(Default)]
pub struct Beside {
    dev: Mutex<Option<(Client, Arc<RemoteDevice>)>>,
    /// Somebody does what may publish.
    publishes: AtomicBool,
    ended: AtomicBool,
}

impl Beside {
    /// The keeper, if there is one, may use the device.
    pub fn give(&self, client: &Client, dev: &Arc<RemoteDevice>, keeper: Option<usize>) {
        if let Some(keeper) = keeper {
            *self.dev.lock().expect("lock") = Some((client.clone(), dev.clone()));
            client.world.wake(keeper);
        }
    }

    /// Waits until it uses it no more.
    pub fn take_back(&self, client: &Client, mut dev: Arc<RemoteDevice>) -> RemoteDevice {
        *self.dev.lock().expect("lock") = None;
        loop {
            dev = match Arc::try_unwrap(dev) {
                Ok(dev) => return dev,
                Err(dev) if client.world.is_dead(here()) => {
                    client.world.pass(here());
                    dev
                }
                Err(dev) => {
                    client.world.sleep(here(), Duration::from_millis(100));
                    dev
                }
            };
        }
    }

    /// The keeper has nothing to do any more.
    pub fn end(&self, client: &Client, keeper: Option<usize>) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(keeper) = keeper {
            client.world.wake(keeper);
        }
    }

    /// Does what may publish, when nobody else does; none: it has crashed.
    pub fn alone<T>(&self, client: &Client, f: impl FnOnce() -> T) -> Option<T> {
        while self.publishes.swap(true, Ordering::SeqCst) {
            if client.world.is_dead(here()) {
                return None;
            }
            client.world.sleep(here(), Duration::from_millis(50));
        }
        let out = f();
        self.publishes.store(false, Ordering::SeqCst);
        Some(out)
    }

    /// Appends a frame, which publishes if there is too much that is not.
    pub fn append<T>(&self, client: &Client, dev: &RemoteDevice, f: impl FnOnce() -> T) -> Option<T> {
        match dev.dirty_bytes() + FRAME_MAX > DIRTY_MAX {
            true => self.alone(client, f),
            false => Some(f()),
        }
    }

    /// The life of a keeper, by its own thread.
    pub fn keep(&self, run: &Run, world: &oleo_sim::store::World, rng: &mut Rng) {
        loop {
            world.park(here());
            let given = self.dev.lock().expect("lock").clone();
            let Some((client, dev)) = given else {
                if self.ended.load(Ordering::SeqCst) {
                    return;
                }
                continue;
            };
            for _ in 0..2 + rng.below(8) {
                let is_over = || self.dev.lock().expect("lock").is_none() || dev.read_only();
                if world.is_dead(here()) || run.is_wrong() || is_over() {
                    break;
                }
                run.count(|tally| tally.beside += 1);
                match rng.below(4) {
                    0 => keep(run, &client, self, &dev, rng),
                    1 => repack(run, &client, &dev),
                    _ => collect(run, &dev, rng),
                }
                world.sleep(here(), Duration::from_millis(rng.below(300)));
            }
        }
    }
}
