//! All integration tests of `oleo` in one program: it is linked once, and the runner queues its tests with all others.

mod devices;
mod examples;
mod free_space;
mod mkfs;
mod raid_stripe;
mod reloc;
mod remap_tree;
mod rescue;
mod round_trip;
mod rows;
mod scale;
mod streams;
