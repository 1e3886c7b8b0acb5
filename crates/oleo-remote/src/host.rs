//! What the process gives: time and randomness. Tests hand in their own, so that a run is a function of its seed.

use std::time::{Duration, Instant};

/// Time and randomness.
pub trait Host: Send + Sync {
    /// Time that has passed since some moment; it never goes back.
    fn now(&self) -> Duration;
    /// Waits.
    fn sleep(&self, time: Duration);
    /// Bytes that nobody else has, for ids.
    fn random(&self) -> [u8; 16];
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
        uuid::Uuid::new_v4().into_bytes()
    }
}
