//! Oleo: btrfs without the kernel. The public library.
