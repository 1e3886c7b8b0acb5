//! Devices that are replaced: on images and mounts, from what is there, rotten or missing, cut short, and carried on by the kernel, and its
//! carried on by us.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oleo_sim::budget::budget;
use oleo_sim::oracle::{Loop, Scratch, oracle};
use oleo_sim::served::{Limits, Served};

use crate::common::{fails_with, json, ok, run};
use crate::members::changed::{LEN, fill, kernel_carries_on, load};
use crate::members::{PROGRAM, files, noise, volume};

const PROFILES: [(&str, &str, usize); 6] = [
    ("single", "dup", 1),
    ("raid1", "raid1", 2),
    ("raid0", "raid1", 3),
    ("raid10", "raid1", 4),
    ("raid5", "raid1", 3),
    ("raid6", "raid1c3", 4),
];

/// Goal: a device is replaced by another, whatever the profiles, from what is there and, where the profile can do without, when it is
/// missing; the kernel finds everything, without the old device.
#[test]
fn on_images() {
    let Some(oracle) = oracle() else { return };
    for (data, metadata, count) in budget().sample(PROFILES.to_vec(), 2) {
        for missing in [false, true] {
            if missing && matches!(data, "single" | "raid0") {
                continue;
            }
            let what = format!("{data} on {count}, missing: {missing}");
            let scratch = oracle.scratch().unwrap();
            let dir = scratch.path();
            let names = &["a", "b", "c", "d"][..count];
            ok(dir, &[&["mkfs", "--size", "600M", "-d", data, "-m", metadata][..], names].concat());
            fill(dir, names, &["one", "two"]);
            files(dir, &["new"], 700 << 20);
            let (gone, left) = names.split_last().unwrap();
            if missing {
                fs::rename(dir.join(gone), dir.join("away")).unwrap();
                ok(dir, &[&["replace", "start", "--degraded", "missing", "new"][..], &volume(left)].concat());
            } else {
                ok(dir, &[&["replace", "start", gone, "new"][..], &volume(names)].concat());
                fs::remove_file(dir.join(gone)).unwrap();
            }
            let now = [left, &["new"]].concat();
            let status = json(dir, &[&["replace", "status", "--json"][..], &volume(&now)].concat());
            assert_eq!((&status["state"], &status["unreadable"]), (&"finished".into(), &0.into()), "{what}");
            kernel_carries_on(oracle, dir, &now, &["one", "two"], &what);
            let mounted = oracle.mount(&now.iter().map(|name| dir.join(name)).collect::<Vec<_>>(), "").unwrap();
            let scrubbed = mounted.scrub().unwrap();
            assert!(scrubbed.is_clean(), "{what}: {scrubbed:?}");
            mounted.unmount().unwrap();
        }
    }
}

/// Goal: a replacement, and a removal, do not pass over block groups that a degraded volume got and that have one copy: a warning names
/// them and the command that converts them, and with `--require-redundancy` the exit code is 1. After the conversion each device alone
/// has everything, and nothing is reported. Method: raid1 of two without one of them; a new device replaces it, or is added before the
/// missing one is removed.
#[test]
fn reduced_redundancy_is_reported() {
    let scratch = Scratch::new().unwrap();
    let top = scratch.path();
    for (how, required) in [("replace", false), ("replace", true), ("remove", false), ("remove", true)] {
        let dir = top.join(format!("{how}-{required}"));
        fs::create_dir(&dir).unwrap();
        ok(&dir, &["mkfs", "--size", "600M", "-d", "raid1", "-m", "raid1", "a", "b"]);
        fs::write(dir.join("src"), noise("with", 5 << 20)).unwrap();
        ok(&dir, &["put", "a", "--device", "b", "src", "/with"]);
        fs::remove_file(dir.join("b")).unwrap();
        fs::write(dir.join("src"), noise("without", 200 << 20)).unwrap();
        ok(&dir, &["put", "--degraded", "a", "src", "/without"]);
        files(&dir, &["new"], 700 << 20);
        let mut args = match how {
            "replace" => vec!["replace", "start", "--degraded", "missing", "new", "a"],
            _ => {
                ok(&dir, &["device", "add", "--degraded", "new", "a"]);
                vec!["device", "remove", "--degraded", "missing", "a", "--device", "new"]
            }
        };
        args.extend(required.then_some("--require-redundancy"));
        let output = run(&dir, &args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(i32::from(required)), "{how}: {text}");
        let said = ["of data is single and not raid1", "`oleo balance start -dconvert=raid1,soft"];
        let about: Vec<&str> =
            text.lines().filter(|line| line.contains("not all block groups are redundant")).collect();
        assert!(matches!(about[..], [one] if said.iter().all(|part| one.contains(part))), "{how}: {text}");
        let both = ["a", "--device", "new"];
        if how == "replace" {
            let output = run(&dir, &[&["replace", "status"][..], &both].concat());
            assert!(String::from_utf8(output.stderr).unwrap().contains(said[1]), "the status says so, too");
        }
        let command = text.split('`').nth(1).unwrap().split(' ').skip(1).collect::<Vec<_>>();
        ok(&dir, &[&command[..], &both].concat());
        if how == "replace" {
            assert!(run(&dir, &[&["replace", "status"][..], &both].concat()).stderr.is_empty());
        }
        for alone in ["a", "new"] {
            let output = run(&dir, &["cat", "--degraded", alone, "without"]);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.stdout == noise("without", 200 << 20), "{how}: {alone}: {text}");
        }
    }
}

/// Goal: a balance that converts nothing takes no copies away while a device is missing or missed writes. Method: raid1 of two; one is
/// written without the other, or loses it; the balance is refused until a scrub has brought the other up to date.
#[test]
fn a_balance_keeps_the_copies() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "600M", "-d", "raid1", "-m", "raid1", "a", "b"]);
    fs::write(dir.join("src"), noise("with", 5 << 20)).unwrap();
    ok(dir, &["put", "a", "--device", "b", "src", "/with"]);
    fs::rename(dir.join("b"), dir.join("away")).unwrap();
    ok(dir, &["put", "--degraded", "a", "src", "/without"]);
    let refused = |args: &[&str]| {
        let output = run(dir, args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("raid1 would become") && text.contains("--force"), "{text}");
    };
    refused(&["balance", "start", "-d", "--degraded", "a"]);
    fs::rename(dir.join("away"), dir.join("b")).unwrap();
    let profiles = || {
        let text = ok(dir, &["filesystem", "df", "a", "--device", "b"]);
        assert!(text.contains("Data, RAID1") && text.contains("Metadata, RAID1"), "{text}");
        assert!(!text.contains("single") && !text.contains("DUP"), "{text}");
    };
    for kind in ["-d", "-m", "--full-balance"] {
        refused(&["balance", "start", kind, "a", "--device", "b"]);
    }
    profiles();
    ok(dir, &["scrub", "start", "a", "--device", "b"]);
    ok(dir, &["balance", "start", "--full-balance", "a", "--device", "b"]);
    profiles();
    for alone in ["a", "b"] {
        let output = run(dir, &["cat", "--degraded", alone, "without"]);
        assert!(output.stdout == noise("with", 5 << 20), "{alone}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Goal: what rotted on the old device comes from the others; what nobody has is said, and the exit code says so.
#[test]
fn from_what_is_rotten() {
    let Some(oracle) = oracle() else { return };
    for (profile, others_have_it) in [("raid1", true), ("single", false)] {
        let scratch = oracle.scratch().unwrap();
        let dir = scratch.path();
        ok(dir, &["mkfs", "--size", "600M", "-d", profile, "-m", "raid1", "a", "b"]);
        fill(dir, &["a", "b"], &["one"]);
        files(dir, &["new"], 600 << 20);
        let (bytes, start) = (noise("one", LEN), 8 << 20);
        let found = ["a", "b"].into_iter().find_map(|name| {
            let image = fs::read(dir.join(name)).unwrap();
            let at = (1 << 20..image.len())
                .step_by(4096)
                .find(|at| image[*at..].starts_with(&bytes[start..start + 4096]))?;
            Some((name, at))
        });
        let (name, at) = found.unwrap();
        OpenOptions::new().write(true).open(dir.join(name)).unwrap().write_all_at(b"rotten", at as u64).unwrap();
        let other = if name == "a" { "b" } else { "a" };
        let start = ["replace", "start", name, "new", other, "--device", name];
        if others_have_it {
            ok(dir, &start);
            kernel_carries_on(oracle, dir, &[other, "new"], &["one"], profile);
        } else {
            assert!(fails_with(dir, 3, &start).contains("no good copy"), "{profile}");
        }
    }
}

/// Goal: on a mount a device is replaced beside writers; what they wrote is there, and the other device is not needed.
#[test]
fn beside_writers() {
    let Some(oracle) = oracle() else { return };
    for (data, metadata) in [("single", "dup"), ("raid5", "raid1")] {
        let scratch = oracle.scratch().unwrap();
        let dir = scratch.path();
        let names = if data == "single" { &["a"][..] } else { &["a", "b", "c"][..] };
        ok(dir, &[&["mkfs", "--size", "1G", "-d", data, "-m", metadata][..], names].concat());
        fill(dir, names, &["one", "two", "three"]);
        files(dir, &["new"], 1 << 30);
        let images: Vec<_> = names.iter().map(|name| dir.join(name)).collect();
        let served = Served::mount(Path::new(PROGRAM), &images, "", Limits::default()).unwrap();
        let top = served.path().to_owned();
        let mount = top.display().to_string();
        let stop = AtomicBool::new(false);
        let there: Vec<(String, usize)> = std::thread::scope(|threads| {
            let workers: Vec<_> = (0..3)
                .map(|n| {
                    let (top, stop) = (&top, &stop);
                    threads.spawn(move || load(top, n, stop))
                })
                .collect();
            std::thread::sleep(Duration::from_millis(200));
            let done = run(dir, &["replace", "start", "-B", "a", "new", &mount]);
            std::thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Relaxed);
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        served.unmount().unwrap();
        fs::remove_file(dir.join("a")).unwrap();
        let now: Vec<&str> = names.iter().map(|name| if *name == "a" { "new" } else { name }).collect();
        kernel_carries_on(oracle, dir, &now, &["one", "two", "three"], data);
        let mounted = oracle.mount(&now.iter().map(|name| dir.join(name)).collect::<Vec<_>>(), "").unwrap();
        for (name, len) in &there {
            assert!(fs::read(mounted.path().join(name)).unwrap() == noise(name, *len), "{data}: {name}");
        }
        let scrubbed = mounted.scrub().unwrap();
        assert!(scrubbed.is_clean(), "{data}: {scrubbed:?}");
        mounted.unmount().unwrap();
    }
}

/// Goal: a replacement that is killed goes on, by us on the image and by the kernel; cancelled, the old device stays. Method: on a mount
/// whose server is killed in the middle.
#[test]
fn killed() {
    let Some(oracle) = oracle() else { return };
    // One that is over before the server is killed shows nothing, and is begun anew.
    let mut left = vec!["without", "cancel", "kernel", "resume"];
    for _ in 0..40 {
        let Some(&how) = left.last() else { break };
        let scratch = oracle.scratch().unwrap();
        let dir = scratch.path();
        // The kernel does not register a second device for a volume whose superblock says one.
        let (on, data, metadata) = match how {
            "kernel" => (&["a", "b"][..], "raid1", "raid1"),
            _ => (&["a"][..], "single", "dup"),
        };
        ok(dir, &[&["mkfs", "--size", "1G", "-d", data, "-m", metadata][..], on].concat());
        let names = ["one", "two", "three", "four", "five", "six"];
        fill(dir, on, &names);
        files(dir, &["new"], 1 << 30);
        let images: Vec<_> = on.iter().map(|name| dir.join(name)).collect();
        let mut served = Served::mount(Path::new(PROGRAM), &images, "", Limits::default()).unwrap();
        let mount = served.path().display().to_string();
        ok(dir, &["replace", "start", "a", "new", &mount]);
        served.kill().unwrap();
        drop(served);
        if run(dir, &[&["ls"][..], &volume(&[&["new"], &on[1..]].concat())].concat()).status.success() {
            continue;
        }
        left.pop();
        match how {
            "resume" => {
                ok(dir, &["replace", "resume", "a", "--device", "new"]);
                kernel_carries_on(oracle, dir, &["new"], &names, how);
            }
            "kernel" => {
                let paths = [dir.join("a"), dir.join("b"), dir.join("new")];
                let mounted = oracle.mount(&paths, "").unwrap();
                let begun = Instant::now();
                let status = || {
                    oleo_sim::oracle::run("btrfs", ["replace", "status", "-1", &mounted.path().display().to_string()])
                        .unwrap()
                };
                while !status().contains("finished") {
                    assert!(begun.elapsed() < Duration::from_secs(60), "{}", status());
                    std::thread::sleep(Duration::from_millis(100));
                }
                mounted.unmount().unwrap();
                kernel_carries_on(oracle, dir, &["new", "b"], &names, how);
            }
            "cancel" => {
                ok(dir, &["replace", "cancel", "a", "--device", "new"]);
                kernel_carries_on(oracle, dir, &["a"], &names, how);
            }
            _ => {
                assert!(fails_with(dir, 1, &["mkdir", "a", "d"]).contains("is being replaced"));
                ok(dir, &["replace", "cancel", "a", "--device", "new"]);
                ok(dir, &["mkdir", "a", "d"]);
            }
        }
    }
    assert!(left.is_empty(), "never killed in the middle: {left:?}");
}

/// Goal: a replacement that the kernel was interrupted in goes on. Method: the kernel's is slowed down, so that it is under way when a commit says how far
/// it is; what is on both devices then is copied, as after a crash, and goes on here.
#[test]
fn of_the_kernel() {
    const UUID: &str = "4f7c8a52-0f2f-4c1c-9d58-3f6f1a0f4a11";
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "2G", "-d", "single", "-m", "dup", "--uuid", UUID, "a"]);
    let names: Vec<String> = (0..8).map(|n| format!("f{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fill(dir, &["a"], &names);
    files(dir, &["new"], 2 << 30);
    let mounted = oracle.mount(&[dir.join("a")], "").unwrap();
    let target = Loop::attach(&dir.join("new"), oleo_sim::oracle::ReadOnly::No).unwrap();
    let top = mounted.path().display().to_string();
    fs::write(format!("/sys/fs/btrfs/{UUID}/devinfo/1/scrub_speed_max"), "10m").unwrap();
    let mut started = Command::new("btrfs")
        .args(["replace", "start", "-B", "-f", "1", &target.path().display().to_string(), &top])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = || oleo_sim::oracle::run("btrfs", ["replace", "status", "-1", &top]).unwrap();
    while !status().contains("% done") {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", status());
        std::thread::sleep(Duration::from_millis(50));
    }
    // The kernel notes in a commit how far it is.
    std::thread::sleep(Duration::from_millis(500));
    mounted.sync().unwrap();
    for name in ["a", "new"] {
        fs::copy(dir.join(name), dir.join(format!("{name}.then"))).unwrap();
    }
    oleo_sim::oracle::run("btrfs", ["replace", "cancel", &top]).unwrap();
    started.wait().unwrap();
    mounted.unmount().unwrap();
    drop(target);
    let status = json(dir, &["replace", "status", "--json", "a.then", "--device", "new.then"]);
    assert_eq!(status["state"], "suspended", "{status}");
    ok(dir, &["replace", "resume", "a.then", "--device", "new.then"]);
    kernel_carries_on(oracle, dir, &["new.then"], &names, "of the kernel");
}
