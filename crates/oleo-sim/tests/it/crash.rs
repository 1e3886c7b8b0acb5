//! States after a crash, whenever it happens: thousands of them, verified by a model.

mod exhaustive;
mod faults;
mod found;
mod kernel;
mod longer;
mod lost;
mod members;
mod mutants;
mod random;
mod receive;
mod run;
mod tally;
mod threads;
mod write_hole;
