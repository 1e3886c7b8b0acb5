//! All integration tests of `oleo-c` in one program: it is linked once, and the runner queues its tests with all others.

mod c;
mod header;
