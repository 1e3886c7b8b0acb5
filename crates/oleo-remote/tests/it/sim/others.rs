//! What an administrator does: a volume in the place of another while the writer of that sleeps, and a branch whose parent goes
//! on, is collected, and loses its pins.

use std::sync::Arc;
use std::time::Duration;

use oleo_remote::{Parent, RemoteDevice, RemoteError, StoreOptions, branch, create};
use oleo_sim::rng::Rng;
use oleo_sim::store::volumes::Since;

use crate::sim::adapter::{BRANCH, Client, PARENT_URL, here};
use crate::sim::sessions::pin_session;
use crate::sim::{LEN, Run, marks, options, read_all};

/// What is known of a branch that was reported as made.
#[derive(Clone)]
pub struct Branch {
    /// What was promised of its parent before.
    pub since: Since,
    /// The epoch of its parent's head.
    pub epoch: u32,
}

/// Makes the volume anew, now and then.
pub fn anew_session(run: &Run, client: &Client, rng: &mut Rng) {
    client.world.sleep(here(), Duration::from_secs(rng.below(60)));
    if rng.one_in(3) {
        return pin_session(run, client, rng);
    }
    if create(Arc::new(client.clone()), LEN, true, &options(client, rng)).is_ok() {
        run.count(|tally| tally.anew += 1);
    }
}

/// Makes a branch, of the newest state or of a pin.
pub fn branch_session(run: &Run, client: &Client, rng: &mut Rng) {
    client.world.sleep(here(), Duration::from_secs(rng.below(30)));
    let pins = run.pins.lock().expect("lock").clone();
    let pin = pins.iter().nth(rng.below(3) as usize);
    let since = pin.map_or_else(|| run.volumes(client, |volumes| volumes.since()), |(_, since)| since.clone());
    let store = Arc::new(client.clone());
    let parent = Parent { store, url: PARENT_URL, pin: pin.map(|(name, _)| name.as_str()) };
    let made = branch(&parent, Arc::new(client.at(BRANCH)), "a test", &options(client, rng));
    match made {
        Ok(entry) => {
            run.count(|tally| tally.branched += 1);
            *run.branch.lock().expect("lock") = Some(Branch { since, epoch: entry.epoch });
        }
        Err(RemoteError::Corrupt(e)) => run.check(Err(format!("damaged for a branch: {e}"))),
        Err(_) => {}
    }
}

/// The branch, if one was made, is there, with everything that was promised of it.
pub fn check_branch(run: &Run, last: &Client, options: &StoreOptions) -> Result<(), String> {
    if run.branch.lock().expect("lock").is_none() {
        return Ok(());
    }
    let client = last.at(BRANCH);
    let said = |e: &dyn std::fmt::Display| format!("the branch: {e}");
    let since = run.volumes(&client, |volumes| volumes.since());
    let dev = RemoteDevice::open(Arc::new(client.clone()), None, options).map_err(|e| said(&e))?;
    let found = read_all(&dev).map_err(|e| said(&e)).and_then(|all| marks(&all))?;
    run.learn(&client, &dev, &found)?;
    run.volumes(&client, |volumes| volumes.opened(&since, dev.uuid(), dev.epoch(), dev.position(), &found))
        .map_err(|e| said(&e))
}

/// Detaches the branch, if one was made and still has a parent.
pub fn detach_branch(run: &Run, last: &Client, options: &StoreOptions) -> Result<(), String> {
    if run.branch.lock().expect("lock").is_none() {
        return Ok(());
    }
    let client = last.at(BRANCH);
    let said = |e: RemoteError| format!("the branch, detached: {e}");
    let since = run.volumes(&client, |volumes| volumes.since());
    let dev = RemoteDevice::open_writable(Arc::new(client.clone()), options).map_err(said)?;
    let found = read_all(&dev).map_err(|e| e.to_string()).and_then(|all| marks(&all))?;
    let (uuid, epoch, position) = (dev.uuid(), dev.epoch(), dev.position());
    run.volumes(&client, |volumes| volumes.attached(&since, uuid, epoch, position, &found))?;
    dev.detach().map_err(said)?;
    let position = dev.position();
    run.volumes(&client, |volumes| volumes.chain(uuid).came_to(epoch, position));
    match dev.census().iter().find(|(id, _)| id.origin > 0) {
        Some((id, _)) => Err(format!("the branch was detached and names {id}")),
        None => dev.close().map_err(said),
    }
}
