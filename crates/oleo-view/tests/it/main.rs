//! All integration tests of `oleo-view` in one program: it is linked once, and the runner queues its tests with all others.

mod browser;
mod explore;
mod kernel;
mod map;
mod mutated;
mod served;
