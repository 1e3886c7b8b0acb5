//! All integration tests of `oleo-stream` in one program: it is linked once, and the runner queues its tests with all others.

mod receive;
mod send;
