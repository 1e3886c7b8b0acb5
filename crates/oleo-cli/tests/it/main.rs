//! All integration tests of `oleo-cli` in one program: it is linked once, and the runner queues its tests with all others.

mod balance;
mod commands;
mod common;
mod devices;
mod exit;
mod hostile;
mod install;
mod jobs;
mod large_views;
mod members;
mod mount;
mod mounted;
mod nbd;
mod pictures;
mod quota;
mod readme;
mod receive;
mod remote;
mod scrub;
mod strangers;
