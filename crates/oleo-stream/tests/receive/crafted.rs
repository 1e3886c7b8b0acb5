//! Streams made by hand.
