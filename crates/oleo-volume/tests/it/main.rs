//! All integration tests of `oleo-volume` in one program: it is linked once, and the runner queues its tests with all others.

mod kernel;
