//! The explorer: a server for one reader's browser on the same machine, which only reads.
//!
//! Normal path: (1) [`Explorer::start`] binds a port of the loopback address and draws a token; (2) a thread with a runtime accepts connections (`server.rs`); (3) each request is
//! compared with what may be asked (`guard.rs`) before anything is opened; (4) what it asks for is read on a thread that may wait (`routes.rs`, [`answers`](crate::answers), and `oleo-browse` for all that needs files and trees only), and answered
//! whole or piece by piece (`body.rs`).
//!
//! Whoever has the token sees what the user who started the explorer can read. So the token is in the address and nowhere else, other hosts' names and other origins are refused, and
//! what a volume holds never runs: contents are sent as downloads, or as one of a few kinds of pictures, with a policy that forbids everything; names reach the page as JSON, and the page makes text of
//! them.
//!
//! Invariants: nothing is written; memory is bounded by the number of connections and the sizes of pages; lists come in pages or piece by piece.
//!
//! On a volume that is mounted, what is shown is the last commit; when there is a new one, the volume is opened anew (`volume.rs`).

mod body;
mod files;
mod guard;
mod reply;
mod routes;
mod server;
mod target;
mod volume;

use std::net::SocketAddr;
use std::sync::Arc;

pub use target::{Ask, Target};

/// A running explorer.
pub struct Explorer {
    address: SocketAddr,
    token: String,
    server: server::Running,
}

impl Explorer {
    /// Opens the volume, and begins to serve it on a port of the loopback address; 0: any that is free.
    ///
    /// # Errors
    /// The volume cannot be opened, or the port is in use.
    pub fn start(target: Target, port: u16) -> oleo::Result<Explorer> {
        let volume = Arc::new(volume::Current::open(target)?);
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| oleo::Error::Output(std::io::Error::other(error.to_string())))?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (address, server) = server::start(volume, token.clone(), port).map_err(oleo::Error::Output)?;
        Ok(Explorer { address, token, server })
    }

    /// Where a browser finds it. Whoever knows this can read the volume.
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.token)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it: connections are closed.
    pub fn stop(self) {
        self.server.stop();
    }
}
