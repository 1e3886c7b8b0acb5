//! All integration tests of `oleo-sim` in one program: it is linked once, and the runner queues its tests with all others.

mod crash;
mod mutated;
mod ours;
mod proof;
