//! Readers that follow: each time they ask they have everything that was promised by then, they never go back, and what they
//! have open stays as it was.

use std::sync::Arc;
use std::time::Duration;

use oleo_remote::{Follower, RemoteDevice, RemoteError};
use oleo_sim::rng::Rng;
use oleo_sim::store::volumes::Since;

use crate::sim::adapter::{Client, here};
use crate::sim::sessions::is_gone;
use crate::sim::{Run, marks, options, read_all};

/// Moments that are open together.
const OPEN_MAX: usize = 3;

/// A moment that is open, and what was found in it.
struct Moment {
    dev: RemoteDevice,
    found: Option<Vec<u64>>,
}

impl Moment {
    fn new(dev: RemoteDevice) -> Moment {
        Moment { dev, found: None }
    }

    /// What it shows is what it showed before, and everything that was promised until `since` if it is the newest.
    fn check(&mut self, run: &Run, client: &Client, since: Option<&Since>) {
        let dev = &self.dev;
        let all = match read_all(dev) {
            Ok(all) => all,
            Err(e) => {
                let replaced = run.volumes(client, |volumes| volumes.is_replaced(dev.uuid()));
                if let (Some(lease), true, false) = (dev.lease(), is_gone(&e), replaced) {
                    run.check(Err(format!("{e}, for a follower with a lease of {}", lease.sequence)));
                }
                return;
            }
        };
        let checked = marks(&all).and_then(|found| {
            if self.found.as_ref().is_some_and(|before| *before != found) {
                return Err(format!("an open moment at {} has changed", dev.position()));
            }
            self.found = Some(found.clone());
            let (uuid, epoch, position) = (dev.uuid(), dev.epoch(), dev.position());
            match since {
                Some(since) => run.volumes(client, |volumes| volumes.opened(since, uuid, epoch, position, &found)),
                None => Ok(()),
            }
        });
        run.check(checked);
    }
}

pub fn follow_session(run: &Run, client: &Client, rng: &mut Rng) {
    let since = run.volumes(client, |volumes| volumes.since());
    let opened = Follower::open(Arc::new(client.clone()), &options(client, rng));
    let (mut follower, first) = match opened {
        Ok(opened) => opened,
        Err(RemoteError::Corrupt(e)) => return run.check(Err(format!("damaged for a follower: {e}"))),
        Err(_) => return,
    };
    let mut open = vec![Moment::new(first)];
    open[0].check(run, client, Some(&since));
    run.count(|tally| tally.followed += 1);
    for _ in 0..2 + rng.below(5) {
        client.world.sleep(here(), Duration::from_secs(rng.below(20)));
        let since = run.volumes(client, |volumes| volumes.since());
        let asked = follower.newer();
        let Some(last) = open.last() else { return };
        let uuid = last.dev.uuid();
        let since = match asked {
            Ok(Some(dev)) => {
                let (was, is) = ((last.dev.epoch(), last.dev.position()), (dev.epoch(), dev.position()));
                if dev.uuid() != uuid || is.0 < was.0 || is.1 < was.1 {
                    run.check(Err(format!("a follower goes from {was:?} to {is:?}")));
                }
                run.count(|tally| tally.moments += 1);
                open.push(Moment::new(dev));
                Some(&since)
            }
            Ok(None) => Some(&since),
            Err(RemoteError::Corrupt(e)) => return run.check(Err(format!("damaged for a follower: {e}"))),
            Err(odd @ (RemoteError::Older { .. } | RemoteError::Replaced { .. })) => {
                if !run.volumes(client, |volumes| volumes.is_replaced(uuid)) {
                    run.check(Err(format!("a follower ends by mistake: {odd}")));
                }
                return;
            }
            Err(_) => None,
        };
        if open.len() > OPEN_MAX {
            open.remove(0);
        }
        let newest = open.len() - 1;
        for (n, moment) in open.iter_mut().enumerate() {
            if n == newest || rng.one_in(3) {
                moment.check(run, client, since.filter(|_| n == newest));
            }
        }
        if client.world.is_dead(here()) || run.is_wrong() {
            return;
        }
    }
}
