//! All integration tests of `oleo-check` in one program: it is linked once, and the runner queues its tests with all others.

mod against_btrfs;
mod check;
mod corpus;
