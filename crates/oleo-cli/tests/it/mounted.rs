//! Control of a mounted volume: the commands through the control socket, and the ioctls of btrfs, verified by the kernel once
//! the image is unmounted.

use std::path::{Path, PathBuf};
use std::process::Command;

use oleo_sim::oracle::{Oracle, Scratch, oracle};

mod balance;
mod commands;
mod ioctls;
mod receive;
mod send;
mod view;

use crate::common::{json, ok};

/// The command where it must fail; its complaint.
fn fails(dir: &Path, args: &[&str]) -> String {
    crate::common::fails_with(dir, 1, args)
}

/// An image `i`, mounted on `m`, in a directory of its own.
struct Mount {
    oracle: Oracle,
    scratch: Scratch,
    mounted: bool,
}

impl Mount {
    /// `None` where there is no kernel to verify.
    fn new(options: &str) -> Option<Mount> {
        Mount::made(&["--size", "512M", "--label", "first", "i"], options)
    }

    /// The same of an image `i` that is made in another way.
    fn made(how: &[&str], options: &str) -> Option<Mount> {
        let oracle = oracle()?;
        assert!(Path::new("/dev/fuse").exists(), "the kernel's btrfs is there, but no FUSE: nothing would be proved");
        let scratch = oracle.scratch().unwrap();
        ok(scratch.path(), &[&["mkfs"], how].concat());
        scratch.dir("m").unwrap();
        let mut mount = Mount { oracle, scratch, mounted: false };
        mount.mount(options);
        Some(mount)
    }

    fn mount(&mut self, options: &str) {
        let options = if options.is_empty() { "rw" } else { options };
        ok(self.dir(), &["mount", "-o", options, "i", "m"]);
        self.mounted = true;
    }

    fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// A path on the mount.
    fn path(&self, path: &str) -> PathBuf {
        self.dir().join("m").join(path)
    }

    fn unmount(&mut self) {
        ok(self.dir(), &["unmount", "m"]);
        self.mounted = false;
    }

    /// Unmounts; the image must be sound, and is shown to the kernel.
    fn verify(&mut self, look: impl FnOnce(&Path)) {
        self.unmount();
        let image = self.dir().join("i");
        self.oracle.must_be_sound(&[&image], "after control of a mount").unwrap();
        let seen = self.oracle.mount(&[&image], "ro,subvolid=5").unwrap();
        look(seen.path());
        seen.unmount().unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            let _gone = Command::new("umount").arg("-l").arg(self.path("")).status();
        }
    }
}
