//! Trees made by hand: sound ones give no findings, and each kind of damage gives its finding and no other.

mod between;
mod damage;
mod kit;
mod sound;
