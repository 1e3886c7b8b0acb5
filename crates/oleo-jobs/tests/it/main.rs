//! All integration tests of `oleo-jobs` in one program: it is linked once, and the runner queues its tests with all others.

mod balance;
mod common;
mod extents_end;
mod full_forms;
mod full_shared;
mod quota;
mod quota_pairs;
mod relocate;
mod scrub;
mod seed;
mod simple_quota;
