//! Control of a mounted volume: the commands through the control socket, and the ioctls of btrfs, judged by the kernel once
//! the image is unmounted.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use oleo_sim::oracle::{Oracle, Scratch, oracle};

mod commands;
mod ioctls;

/// Runs the command in a directory.
fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_oleo")).current_dir(dir).args(args).output().unwrap()
}

/// The same where it must succeed; its standard output.
fn ok(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The same where it must fail; its complaint.
fn fails(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

fn json(dir: &Path, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(dir, args)).unwrap()
}

/// An image `i`, mounted on `m`, in a directory of its own.
struct Mount {
    oracle: Oracle,
    scratch: Scratch,
    mounted: bool,
}

impl Mount {
    /// `None` where there is no kernel to judge.
    fn new(options: &str) -> Option<Mount> {
        let oracle = oracle()?;
        assert!(Path::new("/dev/fuse").exists(), "the kernel's btrfs is there, but no FUSE: nothing would be proved");
        let scratch = oracle.scratch().unwrap();
        ok(scratch.path(), &["mkfs", "--size", "512M", "--label", "first", "i"]);
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
    fn judge(&mut self, look: impl FnOnce(&Path)) {
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
