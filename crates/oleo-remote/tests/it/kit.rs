//! What several tests of this crate need.

use std::sync::Mutex;
use std::time::Duration;

use oleo_remote::{Host, SystemHost};

/// Time that passes when it is told to, and sleeps that take none of anybody's.
#[derive(Default)]
pub struct Still(Mutex<Duration>);

impl Host for Still {
    fn now(&self) -> Duration {
        *self.0.lock().expect("lock")
    }
    fn sleep(&self, time: Duration) {
        *self.0.lock().expect("lock") += time;
    }
    fn random(&self) -> [u8; 16] {
        SystemHost::new().random()
    }
}
