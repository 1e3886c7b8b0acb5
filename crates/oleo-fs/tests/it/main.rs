//! All integration tests of `oleo-fs` in one program: it is linked once, and the runner queues its tests with all others.

mod aged_names;
mod background;
mod closing;
mod data_hard;
mod data_model;
mod deletion;
mod discards;
mod erasing;
mod flushing;
mod full;
mod growing;
mod half_dropped;
mod halves;
mod in_steps;
mod log_kernel;
mod many_subvolumes;
mod names_model;
mod overflow;
mod placement;
mod posix;
mod promises;
mod unplaced;
