//! All integration tests of `oleo-web` in one program: it is linked once, and the runner queues its tests with all others.

mod node;
