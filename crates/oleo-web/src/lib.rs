//! The explorer of `oleo explore` without a server: reading code in WebAssembly, in a page that needs nothing else.
//!
//! Normal path: (1) `cargo xtask web` makes one HTML file of this, compiled, and the page of `oleo-browse`; (2) somebody drops images or devices' copies on it; (3) the page starts a worker, which may
//! read files without waiting (`assets/worker.js`); (4) [`Session::open`] opens the volume that these files are the devices of, which reads little; (5) [`Session::answer`] answers what the page would
//! otherwise ask a server.
//!
//! Invariants: nothing leaves the machine: the page's policy forbids all connections. Files are read in slices ([`Slices`]), of which a bounded part is kept; nothing is written anywhere.
//!
//! What the worker offers and what it calls are a handful of functions (`doors.rs`), only there in WebAssembly.
//!
//! Not here: what is answered, which is what a server answers (`oleo-browse`, `answers` in `oleo-view`).

#[cfg(target_family = "wasm")]
mod doors;
mod session;
mod slices;

pub use session::{Head, Session};
pub use slices::{ReadSlice, Slices};
