//! All integration tests of `oleo-mkfs` in one program: it is linked once, and the runner queues its tests with all others.

mod first_kernel;
