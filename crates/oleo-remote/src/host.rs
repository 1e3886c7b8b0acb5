//! What the process gives: time and randomness. Tests hand in their own, so that a run is a function of its seed, and stores
//! that no name leads to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::seal::{NONCE_LEN, Nonce};
use crate::store::Store;
use crate::url::Url;

/// Mistakes that a simulated host can ask for, so that its runs are seen to find each. No real one does.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Objects are deleted before a head with their graves is published.
    DeletesUnpublished,
    /// A row of the segment table is free although a page of a region names it.
    FreesNamedRows,
    /// Objects of the writer's own epoch that it does not know yet are orphans.
    OwnOrphans,
    /// A volume that is made where another was begins with the first epoch.
    RestartsEpochs,
    /// A reader that follows keeps frames of tails, which are at places of its own, beside those that are stored.
    SharesTails,
}

/// Time and randomness.
pub trait Host: Send + Sync {
    /// Time that has passed since some moment; it never goes back.
    fn now(&self) -> Duration;
    /// Waits.
    fn sleep(&self, time: Duration);
    /// Bytes that nobody else has or can guess, for ids, nonces and keys.
    fn random(&self) -> [u8; 16];
    /// The store of a name, if it is not to be looked for where the name says.
    #[doc(hidden)]
    fn store(&self, _url: &Url) -> Option<Arc<dyn Store>> {
        None
    }
    /// Whether a mistake is to be made.
    #[doc(hidden)]
    fn makes(&self, _mistake: Mistake) -> bool {
        false
    }
}

/// A nonce.
pub(crate) fn nonce(host: &dyn Host) -> Nonce {
    let mut out = [0; NONCE_LEN];
    fill(host, &mut out);
    out
}

/// Fills memory with bytes that nobody can guess.
pub(crate) fn fill(host: &dyn Host, out: &mut [u8]) {
    out.chunks_mut(16).for_each(|part| part.copy_from_slice(&host.random()[..part.len()]));
}

/// The real ones.
#[derive(Debug)]
pub struct SystemHost(Instant);

impl SystemHost {
    /// Time begins.
    pub fn new() -> SystemHost {
        SystemHost(Instant::now())
    }
}

impl Default for SystemHost {
    fn default() -> Self {
        SystemHost::new()
    }
}

impl Host for SystemHost {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
    fn random(&self) -> [u8; 16] {
        // Without randomness nothing can be promised, not even that names are used once.
        let mut out = [0; 16];
        getrandom::fill(&mut out).expect("the system's randomness");
        out
    }
}
