//! All integration tests of `oleo-format` in one program: it is linked once, and the runner queues its tests with all others.

mod common;
mod document;
mod features;
mod kernel_images;
mod round_trip;
