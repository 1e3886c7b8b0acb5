//! Network block devices from outside: our server with the programs of others as clients, our client over the servers of
//! others, and the kernel and `btrfs check` on what came of it.
//!
//! - `served`: `oleo serve nbd` and nbdinfo, nbdcopy, nbdsh, qemu-img, fio; who is refused, how it ends.
//! - `named`: `nbd://…` in place of an image, over nbdkit and qemu-nbd.
//! - `mounted`: a mount over a network block device; servers and mounts that are killed.
//! - `tls`: the same encrypted.
//! - `guest`: the kernel's own client, in a virtual machine (`--ignored`).
//!
//! A tool that is missing fails the test: `scripts/test` installs all of them.

mod harness;

mod guest;
mod mounted;
mod named;
mod served;
mod tls;
