//! Devices that are added and removed: on images, on mounts in use, cut short, and carried on by the kernel.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oleo_sim::oracle::{Oracle, oracle};
use oleo_sim::served::{Limits, Served};

use crate::common::{fails_with, json, ok, run};
use crate::members::{PROGRAM, files, noise, volume};

pub const LEN: usize = 20 << 20;

pub fn fill(dir: &Path, on: &[&str], names: &[&str]) {
    for name in names {
        fs::write(dir.join("src"), noise(name, LEN)).unwrap();
        ok(dir, &[&["put"][..], &volume(on), &["src", &format!("/{name}")]].concat());
    }
}

/// The kernel finds nothing wrong on these devices, reads what there is, and writes.
pub fn kernel_carries_on(oracle: Oracle, dir: &Path, on: &[&str], names: &[&str], what: &str) {
    let paths: Vec<_> = on.iter().map(|name| dir.join(name)).collect();
    oracle.must_be_sound(&paths, what).unwrap();
    let mounted = oracle.mount(&paths, "").unwrap_or_else(|e| panic!("{what}: {e:#}"));
    for name in names {
        assert!(fs::read(mounted.path().join(name)).unwrap() == noise(name, LEN), "{what}: {name}");
    }
    // What is written and removed before a commit never comes to a disk.
    let of_kernel = "of the kernel";
    fs::write(mounted.path().join(of_kernel), noise("k", LEN)).unwrap();
    mounted.unmount().unwrap();
    oracle.must_be_sound(&paths, what).unwrap();
    let mounted = oracle.mount(&paths, "").unwrap();
    assert!(fs::read(mounted.path().join(of_kernel)).unwrap() == noise("k", LEN), "{what}: {of_kernel}");
    fs::remove_file(mounted.path().join(of_kernel)).unwrap();
    mounted.unmount().unwrap();
    oracle.must_be_sound(&paths, what).unwrap();
}

fn devices(dir: &Path, on: &[&str]) -> Vec<u64> {
    let shown = json(dir, &[&["device", "usage", "--json"][..], &volume(on)].concat());
    shown.as_array().unwrap().iter().map(|device| device["devid"].as_u64().unwrap()).collect()
}

/// Goal: a device is added to an image and removed from it; what is there stays; the kernel carries on after each; a removed device is
/// blank enough to be added again without being asked.
#[test]
fn on_images() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "600M", "-d", "single", "-m", "dup", "a"]);
    fill(dir, &["a"], &["one", "two"]);
    files(dir, &["b", "c"], 700 << 20);
    ok(dir, &["device", "add", "b", "a"]);
    assert_eq!(devices(dir, &["a", "b"]), [1, 2]);
    kernel_carries_on(oracle, dir, &["a", "b"], &["one", "two"], "added");
    assert!(!run(dir, &["ls", "a"]).status.success(), "it needs both");

    ok(dir, &["device", "remove", "a", "a", "--device", "b"]);
    kernel_carries_on(oracle, dir, &["b"], &["one", "two"], "removed");
    fill(dir, &["b"], &["three"]);
    ok(dir, &["device", "add", "a", "c", "b"]);
    assert_eq!(devices(dir, &["a", "b", "c"]), [2, 3, 4]);
    ok(dir, &["balance", "start", "-dconvert=raid1", "-mconvert=raid1", "b", "--device", "a", "--device", "c"]);
    kernel_carries_on(oracle, dir, &["a", "b", "c"], &["one", "two", "three"], "converted");
    ok(dir, &["device", "delete", "4", "b", "--device", "a", "--device", "c"]);
    kernel_carries_on(oracle, dir, &["a", "b"], &["one", "two", "three"], "removed by number");
    // What is left of it is not taken for a device of the volume.
    ok(dir, &["ls", "a", "--device", "b"]);
}

/// Goal: a device that is missing is removed, and the volume whole without it.
#[test]
fn a_missing_one() {
    let Some(oracle) = oracle() else { return };
    for (profile, count) in [("raid1", 3), ("raid5", 4)] {
        let scratch = oracle.scratch().unwrap();
        let dir = scratch.path();
        let names = &["a", "b", "c", "d"][..count];
        ok(dir, &[&["mkfs", "--size", "800M", "-d", profile, "-m", "raid1"][..], names].concat());
        fill(dir, names, &["one", "two", "three"]);
        let left = &names[..count - 1];
        fs::rename(dir.join(names[count - 1]), dir.join("away")).unwrap();
        ok(dir, &[&["device", "remove", "--degraded", "missing"][..], &volume(left)].concat());
        kernel_carries_on(oracle, dir, left, &["one", "two", "three"], profile);
        // It is back, and nobody believes it.
        let output = run(dir, &[&["ls"][..], &volume(&[left, &["away"]].concat())].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("away is not used"), "{profile}: {said}");
    }
}

/// Goal: what cannot be is refused, with the reason, and nothing has changed.
#[test]
fn refusals() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "600M", "-d", "raid1", "-m", "raid1", "a", "b"]);
    fill(dir, &["a", "b"], &["one"]);
    ok(dir, &["mkfs", "--size", "600M", "other"]);
    files(dir, &["small"], 4 << 20);
    files(dir, &["fits-little"], 64 << 20);
    let refused = |args: &[&str]| fails_with(dir, 1, &[args, &["a", "--device", "b"]].concat());
    assert!(refused(&["device", "add", "other"]).contains("holds"));
    assert!(refused(&["device", "add", "small"]).contains("are needed"));
    assert!(refused(&["device", "add", "b"]).contains("already"));
    assert!(refused(&["device", "remove", "b"]).contains("raid1 needs 2 devices"));
    assert!(refused(&["device", "remove", "7"]).contains("no device 7"));
    assert!(refused(&["device", "remove", "missing"]).contains("no device is missing"));
    assert!(refused(&["device", "remove", "other"]).contains("no device of the volume"));
    assert!(refused(&["device", "remove", "cancel"]).contains("no device is being removed"));
    fails_with(dir, 2, &["device", "remove", "cancel", "1", "a", "--device", "b"]);
    // No room for what is on it.
    ok(dir, &["device", "add", "fits-little", "a", "--device", "b"]);
    fs::write(dir.join("src"), noise("large", 200 << 20)).unwrap();
    ok(dir, &[&["put"][..], &volume(&["a", "b", "fits-little"]), &["src", "/large"]].concat());
    let text = fails_with(dir, 1, &[&["device", "remove", "1"][..], &volume(&["a", "b", "fits-little"])].concat());
    assert!(text.contains("no room"), "{text}");
    kernel_carries_on(oracle, dir, &["a", "b", "fits-little"], &["one"], "refused");
}

/// Writes and reads until it is told to stop; what is there at the end.
pub fn load(top: &Path, worker: u64, stop: &AtomicBool) -> Vec<(String, usize)> {
    let mut there = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("w{worker}-{n}");
        let len = 10_000 + n * 7919 % 400_000;
        let bytes = noise(&name, len);
        fs::write(top.join(&name), &bytes).unwrap();
        assert!(fs::read(top.join(&name)).unwrap() == bytes, "{name}");
        if n % 3 == 0 {
            fs::File::open(top.join(&name)).unwrap().sync_all().unwrap();
        }
        if n % 2 == 0 {
            fs::remove_file(top.join(&name)).unwrap();
        } else {
            there.push((name, len));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    there
}

/// Goal: on a mount devices come and go beside writers. Method: three threads that write, sync, read and delete; meanwhile one device is
/// added, the other removed, and back. The kernel verifies.
#[test]
fn beside_writers() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "1G", "-d", "single", "-m", "dup", "a"]);
    fill(dir, &["a"], &["one", "two", "three"]);
    files(dir, &["b", "c"], 1 << 30);
    let served = Served::mount(Path::new(PROGRAM), &[dir.join("a")], "", Limits::default()).unwrap();
    let top = served.path().to_owned();
    let mount = top.display().to_string();
    let stop = AtomicBool::new(false);
    let there: Vec<(String, usize)> = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..3)
            .map(|n| {
                threads.spawn({
                    let (top, stop) = (&top, &stop);
                    move || load(top, n, stop)
                })
            })
            .collect();
        for (add, remove) in [("b", "1"), ("c", "2")] {
            std::thread::sleep(Duration::from_millis(300));
            let done = [run(dir, &["device", "add", add, &mount]), run(dir, &["device", "remove", remove, &mount])];
            for output in done {
                stop.fetch_or(!output.status.success(), Ordering::Relaxed);
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    served.unmount().unwrap();
    assert_eq!(devices(dir, &["c"]), [3]);
    kernel_carries_on(oracle, dir, &["c"], &["one", "two", "three"], "beside writers");
    let mounted = oracle.mount(&[dir.join("c")], "").unwrap();
    assert!(there.len() > 10, "they had time");
    for (name, len) in &there {
        assert!(fs::read(mounted.path().join(name)).unwrap() == noise(name, *len), "{name}");
    }
    mounted.unmount().unwrap();
}

/// Goal: a removal that is killed, at any time, is begun again, and nothing is lost. Method: on mounts whose server is killed after
/// ever longer; then once more to the end, on the image.
#[test]
fn killed() {
    let Some(oracle) = oracle() else { return };
    let mut cut_short = 0;
    for wait in [20, 60, 150, 400] {
        let scratch = oracle.scratch().unwrap();
        let dir = scratch.path();
        ok(dir, &["mkfs", "--size", "600M", "-d", "single", "-m", "dup", "a"]);
        fill(dir, &["a"], &["one", "two", "three", "four"]);
        files(dir, &["b"], 600 << 20);
        ok(dir, &["device", "add", "b", "a"]);
        let images = [dir.join("a"), dir.join("b")];
        let mut served = Served::mount(Path::new(PROGRAM), &images, "", Limits::default()).unwrap();
        let mount = served.path().display().to_string();
        let mut removal = Command::new(PROGRAM)
            .args(["device", "remove", "1", &mount])
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        served.kill().unwrap();
        removal.wait().unwrap();
        drop(served);
        let what = format!("killed after {wait} ms");
        let whole = run(dir, &["ls", "b"]).status.success();
        if whole {
            oracle.must_be_sound_after_a_kill(&images[1..], &what).unwrap();
        } else {
            cut_short += 1;
            oracle.must_be_sound_after_a_kill(&images, &what).unwrap();
            ok(dir, &["device", "remove", "1", "a", "--device", "b"]);
        }
        kernel_carries_on(oracle, dir, &["b"], &["one", "two", "three", "four"], &what);
    }
    assert!(cut_short > 0, "none was cut short: this shows nothing");
}

/// Makes a seed with files `one` and `two`; its bytes.
fn make_seed(dir: &Path) -> Vec<u8> {
    ok(dir, &["mkfs", "--size", "600M", "-d", "single", "-m", "dup", "seed"]);
    fill(dir, &["seed"], &["one", "two"]);
    oleo_sim::oracle::run("btrfstune", ["-S", "1", &dir.join("seed").display().to_string()]).unwrap();
    fs::read(dir.join("seed")).unwrap()
}

/// Goal: a volume is made of a seed, which stays as it is; both are read together, by the kernel, too; without the seed, when it is removed.
/// Another volume of the same seed is mounted meanwhile.
#[test]
fn of_a_seed() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let before = make_seed(dir);
    files(dir, &["new", "second"], 700 << 20);
    ok(dir, &["device", "add", "new", "seed"]);
    assert!(fs::read(dir.join("seed")).unwrap() == before, "the seed stays as it is");
    ok(dir, &["device", "add", "second", "seed"]);
    scratch.dir("m").unwrap();
    ok(dir, &["mount", "second", "seed", "m"]);
    let unmount = Unmount(dir);
    // btrfs check 6.2 takes places on a seed for ones beyond the device.
    let mounted = oracle.mount(&[dir.join("new"), dir.join("seed")], "").unwrap();
    for name in ["one", "two"] {
        assert!(fs::read(mounted.path().join(name)).unwrap() == noise(name, LEN), "{name}");
    }
    fs::write(mounted.path().join("k"), noise("k", LEN)).unwrap();
    mounted.unmount().unwrap();
    fill(dir, &["new", "seed"], &["three"]);
    fs::write(dir.join("m/beside"), "written while the other volume reads the seed, too").unwrap();
    drop(unmount);
    ok(dir, &["device", "remove", "1", "new", "--device", "seed"]);
    assert!(fs::read(dir.join("seed")).unwrap() == before, "the seed stays as it is");
    kernel_carries_on(oracle, dir, &["new"], &["one", "two", "three"], "without the seed");
    fails_with(dir, 1, &["mkdir", "seed", "d"]);
}

/// Goal: a device that is added to a mount of a seed becomes a new volume; the mount goes on showing the seed, which stays as it is, and the command says what to do
/// next, which works: the new volume is mounted, written, and loses the seed.
#[test]
fn of_a_mounted_seed() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let before = make_seed(dir);
    files(dir, &["new", "more"], 700 << 20);
    let at = scratch.dir("m").unwrap();
    ok(dir, &["mount", "-o", "ro", "seed", "m"]);
    let unmount = Unmount(dir);
    assert!(fails_with(dir, 2, &["device", "add", "new", "more", "m"]).contains("add one device"));
    assert!(fails_with(dir, 1, &["device", "add", "seed", "m"]).contains("device of the volume already"));
    let said = ok(dir, &["device", "add", "new", "m"]);
    let seed = dir.join("seed").display().to_string();
    let next = format!("oleo unmount m && oleo mount new {seed} m");
    assert!(said.contains(&next), "{said}");
    assert!(fs::read(at.join("one")).unwrap() == noise("one", LEN), "the mount shows the seed");
    assert!(fs::create_dir(at.join("d")).is_err());
    assert!(fails_with(dir, 1, &["device", "add", "new", "m"]).contains("overwrite"), "it holds the new volume");
    ok(dir, &["unmount", "m"]);
    ok(dir, &["mount", "new", &seed, "m"]);
    fs::write(at.join("three"), noise("three", LEN)).unwrap();
    ok(dir, &["device", "add", "more", "m"]);
    ok(dir, &["device", "remove", "1", "m"]);
    fs::write(at.join("four"), noise("four", LEN)).unwrap();
    drop(unmount);
    assert!(fs::read(dir.join("seed")).unwrap() == before, "the seed stays as it is");
    kernel_carries_on(oracle, dir, &["new", "more"], &["one", "two", "three", "four"], "without the seed");
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        if !run(self.0, &["unmount", "m"]).status.success() {
            let _gone = std::process::Command::new("umount").arg("-l").arg(self.0.join("m")).status();
        }
    }
}
