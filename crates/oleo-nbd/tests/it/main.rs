//! All integration tests of `oleo-nbd` in one program: it is linked once, and the runner queues its tests with all others.

mod mutated;
mod server;
