//! All integration tests of `oleo-remote` in one program: it is linked once, and the runner queues its tests with all others.

mod device;
mod follow;
mod keep;
mod kit;
mod local;
mod mutated;
mod sealed;
mod sim;
mod streams;
mod tools;
mod unclear;
mod volume;
