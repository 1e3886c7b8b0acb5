//! Trees made by hand: sound ones are silent, and each kind of damage gives its finding and no other.

mod between;
mod damage;
mod kit;
mod sound;
