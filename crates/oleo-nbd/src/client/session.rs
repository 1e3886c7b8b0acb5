//! A session: the connections to one server that are used together, and that break together.
//!
//! One that breaks takes the others with it: what was answered on it may be lost with the server's process, and only a
//! flush on the whole session says that it was not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::handshake::{Agreed, shake_hands};
use super::link::Link;
use super::options::ClientOptions;
use super::slots::Window;
use super::state::Connection;
use crate::channel::Channel;
use crate::error::NbdError;
use crate::uri::Uri;
use crate::wire::TransmissionFlags;

/// Most connections of a session.
const CONNECTIONS_MAX: usize = 64;
/// Further connections together may take so many times what the first took, and at least this.
const FURTHER_SLOWER: u32 = 16;
const FURTHER_MIN: Duration = Duration::from_secs(1);
/// Requests are dealt to connections by stripes of so many bytes (a power of two, as its logarithm), so that neighbours
/// are joined.
const STRIPE_BITS: u32 = 20;

/// See the module's text.
pub(super) struct Session {
    links: Vec<Link>,
    agreed: Agreed,
    calls: AtomicU64,
}

impl Session {
    /// Connects. Only the first connection must be had; servers may have few.
    pub(super) fn open(uri: &Uri, options: &ClientOptions, deadline: Instant) -> Result<Session, NbdError> {
        let began = Instant::now();
        let open = |deadline| shake_hands(Channel::connect(&uri.at, deadline)?, uri, options, deadline);
        let (channel, agreed) = open(deadline)?;
        let window = |agreed: &Agreed| Window {
            requests: options.window_requests,
            bytes: options.window_bytes,
            request_max: options.request_max,
            structured: agreed.structured,
            context: agreed.context,
        };
        let mut links = vec![Link::new(channel, window(&agreed))];
        let several = agreed.can(TransmissionFlags::CAN_MULTI_CONN);
        let count = if several { options.connections.clamp(1, CONNECTIONS_MAX) } else { 1 };
        // A server that serves one client at a time may promise more and let the second wait.
        let deadline = deadline.min(Instant::now() + (began.elapsed() * FURTHER_SLOWER).max(FURTHER_MIN));
        while links.len() < count {
            match open(deadline) {
                Ok((channel, other)) if other.is_like(&agreed) => {
                    links.push(Link::new(channel, window(&other)));
                }
                Ok(_) => return Err(NbdError::Changed { what: "its connections differ".into() }),
                Err(_) => break,
            }
        }
        Ok(Session { links, agreed, calls: AtomicU64::new(0) })
    }

    /// What was agreed.
    pub(super) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Its connections; at least one.
    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }

    /// Which of them is for an offset.
    pub(super) fn link_for(&self, offset: u64) -> usize {
        ((offset >> STRIPE_BITS) % self.links.len() as u64) as usize
    }

    /// A number for a call.
    pub(super) fn call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Says goodbye and ends it.
    pub(super) fn say_goodbye(&self) {
        self.links.iter().for_each(Link::close);
    }
}

impl Connection for Session {
    fn close(&self, why: &NbdError) {
        for link in &self.links {
            link.kill(why);
        }
    }

    fn has_hung_up(&self) -> bool {
        self.links.iter().any(Link::has_hung_up)
    }
}
