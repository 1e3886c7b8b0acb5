//! Balance, reclaim and shrinking on a mount, while it is in use.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oleo_sim::rng::Rng;

use crate::mounted::{Mount, fails, json, ok};

fn noise(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

fn state(dir: &Path) -> String {
    json(dir, &["balance", "status", "--json", "m"])["state"].as_str().unwrap().to_owned()
}

fn wait_for(dir: &Path, wanted: &str) {
    let begun = Instant::now();
    while state(dir) != wanted {
        assert!(begun.elapsed() < Duration::from_secs(120), "it stays {}", state(dir));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn fill(mount: &Mount) {
    for n in 0..30 {
        fs::write(mount.path(&format!("f{n}")), noise(n, 4 << 20)).unwrap();
    }
    fs::create_dir(mount.path("d")).unwrap();
    for n in 0..500 {
        fs::write(mount.path(&format!("d/{n}")), noise(n, 1000)).unwrap();
    }
}

fn must_be_filled(top: &Path) {
    for n in 0..30 {
        assert!(fs::read(top.join(format!("f{n}"))).unwrap() == noise(n, 4 << 20), "f{n}");
    }
    for n in 0..500 {
        assert!(fs::read(top.join(format!("d/{n}"))).unwrap() == noise(n, 1000), "d/{n}");
    }
}

/// Goal: on a mount a balance goes on in the background, beside writers, is seen, paused, resumed and cancelled by other commands, and
/// survives the end of the mount: the next one resumes it, unless told not to. Method: each of that, with
/// threads that write, overwrite and delete all along; the kernel verifies.
#[test]
fn beside_writers() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    fill(&mount);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for worker in 0..3u64 {
            let (mount, stop) = (&mount, &stop);
            threads.spawn(move || {
                let at = |n: u64| mount.path(&format!("w{worker}-{}", n % 5));
                for n in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let bytes = noise(n, 300_000);
                    fs::write(at(n), &bytes).unwrap();
                    assert!(fs::read(at(n)).unwrap() == bytes);
                    if n % 7 == 0 {
                        fs::remove_file(at(n)).unwrap();
                    }
                }
            });
        }
        // Whatever happens here, the writers end.
        let _stop = Stop(&stop);
        let reported = ok(&dir, &["balance", "start", "-d", "-m", "m"]);
        assert!(reported.contains("done"), "{reported}");
        ok(&dir, &["balance", "start", "--full-balance", "--background", "m"]);
        // The balance may have ended before the request to pause, or while it waited for a step to end.
        if succeeds(&dir, &["balance", "pause", "m/d"]) && state(&dir) == "paused" {
            assert!(fails(&dir, &["balance", "start", "-d", "m"]).contains("paused"));
            ok(&dir, &["balance", "resume", "m"]);
        }
        wait_for(&dir, "idle");
        ok(&dir, &["balance", "start", "-d", "-m", "--background", "m"]);
        succeeds(&dir, &["balance", "cancel", "m"]);
        wait_for(&dir, "idle");
    });
    must_be_filled(&mount.path(""));

    // Several times: it may end before the mount does.
    for time in 0.. {
        assert!(time < 10, "it always ends before the mount does");
        ok(&dir, &["balance", "start", "--full-balance", "--bg", "m"]);
        mount.unmount();
        let left = json(&dir, &["balance", "status", "--json", "i"]);
        mount.mount("skip_balance");
        if left["state"] == "paused" {
            break;
        }
    }
    assert_eq!(state(&dir), "paused", "it is not resumed where nobody wants it");
    mount.unmount();
    mount.mount("");
    wait_for(&dir, "idle");
    must_be_filled(&mount.path(""));
    mount.verify(must_be_filled);
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn succeeds(dir: &Path, args: &[&str]) -> bool {
    crate::common::run(dir, args).status.success()
}

/// Goal: balances that are to wait for others do, one after another, whoever comes first; each is done; one that is not told to wait is
/// refused, and one that is paused is nothing to wait for.
/// Method: a balance in the background, three commands that queue up behind it together, and the numbers that the mount has given out.
#[test]
fn one_after_another() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    fill(&mount);
    ok(&dir, &["filesystem", "sync", "m"]);
    let number = || json(&dir, &["balance", "status", "--json", "m"])["number"].as_u64().unwrap();
    // It may have ended by the time that another one is asked for.
    let met = (0..10).any(|_| {
        ok(&dir, &["balance", "start", "--full-balance", "--background", "m"]);
        let refused = crate::common::run(&dir, &["balance", "start", "-musage=0", "m"]);
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("under way")
    });
    assert!(met, "each had ended before another one was asked for");
    let before = number();
    std::thread::scope(|threads| {
        let waiting = ["-dlimit=2", "-m", "-dusage=90"].map(|filters| {
            let dir = &dir;
            threads.spawn(move || ok(dir, &["balance", "start", "--enqueue", filters, "m"]))
        });
        for reported in waiting.map(|thread| thread.join().unwrap()) {
            assert!(reported.contains("done"), "{reported}");
        }
    });
    assert_eq!((number(), state(&dir)), (before + 3, "idle".to_owned()));
    let paused = (0..10).any(|_| {
        ok(&dir, &["balance", "start", "--full-balance", "--enqueue", "--background", "m"]);
        succeeds(&dir, &["balance", "pause", "m"])
    });
    assert!(paused, "each had ended before it was paused");
    assert!(fails(&dir, &["balance", "start", "--enqueue", "-d", "m"]).contains("paused"));
    ok(&dir, &["balance", "cancel", "m"]);
    must_be_filled(&mount.path(""));
    mount.verify(must_be_filled);
}

/// Goal: a device of a mount shrinks though chunks lie behind its new end, and grows again; nearly empty groups are given back.
/// Method: a full volume whose first half is deleted.
#[test]
fn shrinking() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    for n in 100..140 {
        fs::write(mount.path(&format!("f{n}")), noise(n, 4 << 20)).unwrap();
    }
    ok(&dir, &["filesystem", "sync", "m"]);
    fill(&mount);
    (100..140).for_each(|n| fs::remove_file(mount.path(&format!("f{n}"))).unwrap());
    ok(&dir, &["filesystem", "sync", "m"]);
    assert!(fails(&dir, &["filesystem", "resize", "100M", "m"]).contains("no room"));
    must_be_filled(&mount.path(""));
    ok(&dir, &["filesystem", "resize", "350M", "m"]);
    assert_eq!(fs::metadata(dir.join("i")).unwrap().len(), 350 << 20);
    ok(&dir, &["filesystem", "reclaim", "m"]);
    ok(&dir, &["filesystem", "resize", "+100M", "m"]);
    must_be_filled(&mount.path(""));
    mount.verify(must_be_filled);
}
