//! A device that fails under a server while the kernel holds what was written: who is told.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oleo::Device;
use oleo::mkfs::MkfsOptions;
use oleo_fuse::Uring;
use oleo_sim::gate::Gate;
use oleo_sim::oracle::oracle;

use crate::OLEO;
use crate::load::Serving;

const DISK_LEN: u64 = 512 << 20;
const WRITTEN: usize = 1 << 20;
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Goal: when a device fails, and the volume turns read-only, while pages are dirty in the kernel, whoever syncs or closes hears of it: fsync(2) of
/// each handle, and again, syncfs(2) or the fsync that follows it, close(2), `oleo filesystem sync`; and nothing can be opened for
/// writing any more. What was synced before can be read.
/// Method: a server in this process over a device that fails all writes from a moment on, on both transports; files that were written and not
/// synced, one of them by dd, which looks at what close(2) returns.
#[test]
fn who_is_told_when_a_device_fails() {
    let Some(oracle) = oracle() else { return };
    for uring in [Uring::Auto, Uring::Off] {
        let scratch = oracle.scratch().unwrap();
        let top = scratch.dir("mnt").unwrap();
        let device = Arc::new(Gate::new(DISK_LEN));
        oleo::mkfs::make(&[device.clone() as Arc<dyn Device>], &MkfsOptions::default()).unwrap();
        let serving = Serving::start(vec![device.clone() as Arc<dyn Device>], &top, uring, true).unwrap();
        let sync = || Command::new(OLEO).args(["filesystem", "sync"]).arg(&top).output().unwrap();
        fs::write(top.join("kept"), b"synced before").unwrap();
        assert!(sync().status.success());

        let written = |name: &str| -> File {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(top.join(name)).unwrap();
            file.write_all_at(&vec![7; WRITTEN], 0).unwrap();
            file
        };
        let to = top.join("closed");
        let mut dd = Command::new("dd")
            .arg(format!("of={}", to.display()))
            .args(["bs=64k", "iflag=fullblock"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        dd.stdin.as_mut().unwrap().write_all(&vec![8; WRITTEN]).unwrap();
        let begin = Instant::now();
        while fs::metadata(&to).map_or(0, |found| found.len()) < WRITTEN as u64 {
            assert!(begin.elapsed() < WAIT_MAX, "dd has written nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (synced, other, all) = (written("synced"), written("other"), written("all"));
        device.fail(true);

        synced.sync_all().expect_err("fsync");
        other.sync_data().expect_err("fdatasync");
        let syncfs = rustix::fs::syncfs(&all);
        let later = all.sync_all();
        assert!(syncfs.is_err() || later.is_err(), "neither syncfs nor fsync said anything");
        drop(dd.stdin.take());
        let closed = dd.wait_with_output().unwrap();
        assert!(!closed.status.success(), "close: {}", String::from_utf8_lossy(&closed.stderr));
        assert!(!sync().status.success(), "filesystem sync");
        for file in [&synced, &other, &all] {
            let again = file.write_all_at(b"again", 0).and_then(|()| file.sync_all());
            again.expect_err("a later fsync");
        }
        let opened = OpenOptions::new().write(true).open(top.join("kept"));
        assert!(opened.is_err(), "it can be opened for writing still");
        assert_eq!(fs::read(top.join("kept")).unwrap(), b"synced before");
        drop((synced, other, all));
        serving.stop().expect_err("the end of a mount that could not write everything");
    }
}
