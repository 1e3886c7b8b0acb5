//! Writing without a device, by us and by the kernel in turns; and what becomes of the device when it is back.

use std::fs;
use std::path::PathBuf;

use oleo_sim::budget::budget;
use oleo_sim::oracle::oracle;

use crate::common::{fails_with, json, ok, run};
use crate::members::{files, noise, volume};

const LEN: usize = 3 << 20;

/// Goal: what is written without a device can be read, by the kernel, too, which finds nothing wrong and writes as well; when the device is
/// back, nothing old is read from it, it gets no superblock, and the volume goes on being written. Method: each profile without each
/// of its devices, in turns with the kernel.
#[test]
fn in_turns_without_a_device() {
    let Some(oracle) = oracle() else { return };
    let shapes = vec![
        ("raid1", "raid1", 2),
        ("raid1c3", "raid1c3", 3),
        ("raid10", "raid1", 4),
        ("raid5", "raid1", 3),
        ("raid6", "raid1c3", 4),
    ];
    for (data, metadata, count) in budget().sample(shapes, 3) {
        for gone in [0, count - 1] {
            let what = format!("{data} on {count} without {gone}");
            let scratch = oracle.scratch().unwrap();
            let dir = scratch.path();
            let names = &["a", "b", "c", "d"][..count];
            ok(dir, &[&["mkfs", "--size", "600M", "-d", data, "-m", metadata][..], names].concat());
            let on = |verb: &[&str], names: &[&str], rest: &[&str]| {
                let mut args: Vec<String> = verb.iter().map(|arg| (*arg).to_owned()).collect();
                args.extend(volume(names).iter().map(|arg| (*arg).to_owned()));
                args.extend(rest.iter().map(|arg| (*arg).to_owned()));
                args
            };
            let call = |args: &[String]| ok(dir, &args.iter().map(String::as_str).collect::<Vec<_>>());
            let put = |degraded: bool, names: &[&str], name: &str| {
                fs::write(dir.join("src"), noise(name, LEN)).unwrap();
                let verb: &[&str] = if degraded { &["put", "--degraded"] } else { &["put"] };
                call(&on(verb, names, &["src", &format!("/{name}")]));
            };
            let holds = |names: &[&str], degraded: bool, expected: &[&str]| {
                for name in expected {
                    let verb: &[&str] = if degraded { &["cat", "--degraded"] } else { &["cat"] };
                    let args = on(verb, names, &[name]);
                    let output = run(dir, &args.iter().map(String::as_str).collect::<Vec<_>>());
                    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
                    assert!(output.stdout == noise(name, LEN), "{what}: {name} of {names:?}");
                }
            };
            put(false, names, "whole");
            let left: Vec<&str> =
                names.iter().enumerate().filter(|(nth, _)| *nth != gone).map(|(_, name)| *name).collect();
            let paths: Vec<PathBuf> = left.iter().map(|name| dir.join(name)).collect();
            let refused = on(&["mkdir"], &left, &["d"]);
            fails_with(dir, 1, &refused.iter().map(String::as_str).collect::<Vec<_>>());
            put(true, &left, "ours");
            holds(&left, true, &["whole", "ours"]);

            let mounted = oracle.mount(&paths, "degraded").unwrap_or_else(|e| panic!("{what}: {e:#}"));
            for name in ["whole", "ours"] {
                assert!(fs::read(mounted.path().join(name)).unwrap() == noise(name, LEN), "{what}: {name}, the kernel");
            }
            fs::write(mounted.path().join("theirs"), noise("theirs", LEN)).unwrap();
            mounted.sync().unwrap();
            let scrubbed = mounted.scrub().unwrap();
            // It does not go on where a device is missing; what it met by then it says.
            assert!(!format!("{scrubbed:?}").to_lowercase().contains("error"), "{what}: {scrubbed:?}");
            mounted.unmount().unwrap();
            holds(&left, true, &["whole", "ours", "theirs"]);
            put(true, &left, "ours again");

            // It is back.
            let all = ["whole", "ours", "theirs", "ours again"];
            holds(names, false, &all);
            let before = fs::read(dir.join(names[gone])).unwrap()[65536..65536 + 4096].to_vec();
            put(false, names, "beside");
            holds(names, false, &["beside"]);
            let after = fs::read(dir.join(names[gone])).unwrap()[65536..65536 + 4096].to_vec();
            assert!(before == after, "{what}: what missed writes got a superblock");
            let mounted = oracle.mount(&paths, "degraded").unwrap_or_else(|e| panic!("{what}: {e:#}"));
            for name in all.iter().chain(&["beside"]) {
                assert!(fs::read(mounted.path().join(name)).unwrap() == noise(name, LEN), "{what}: {name} at last");
            }
            let scrubbed = mounted.scrub().unwrap();
            // It does not go on where a device is missing; what it met by then it says.
            assert!(!format!("{scrubbed:?}").to_lowercase().contains("error"), "{what}: {scrubbed:?}");
            mounted.unmount().unwrap();
        }
    }
}

/// Goal: two sides of a mirror that were each written without the other are not used together, to read or to write, and nothing is changed by trying; each
/// alone has all of its own, and the other's device becomes a new one. Method: written by us and by the kernel, as often, so that both have the same transactions and
/// addresses, and one of them more often; on both sides new block groups were needed first, without which nothing may be left that shows it.
#[test]
fn two_sides_written_apart() {
    let Some(oracle) = oracle() else { return };
    let cases = vec![(1, [false, false]), (1, [true, true]), (1, [false, true]), (4, [false, true])];
    for (second, kernel) in budget().sample(cases, 1) {
        let what = format!("one and {second} writes, {kernel:?} by the kernel");
        let scratch = oracle.scratch().unwrap();
        let dir = scratch.path();
        ok(dir, &["mkfs", "--size", "600M", "-d", "raid1", "-m", "raid1", "a", "b"]);
        fs::write(dir.join("src"), noise("whole", LEN)).unwrap();
        ok(dir, &["put", "a", "--device", "b", "src", "/whole"]);
        let bytes_of = |side: &str, nth: usize| noise(side, if nth == 0 { 150 << 20 } else { 5000 });
        for (side, times, by_kernel) in [("a", 1, kernel[0]), ("b", second, kernel[1])] {
            for nth in 0..times {
                let name = format!("{side}{nth}");
                if by_kernel {
                    let mounted = oracle.mount(&[dir.join(side)], "degraded").unwrap();
                    fs::write(mounted.path().join(name), bytes_of(side, nth)).unwrap();
                    mounted.unmount().unwrap();
                } else {
                    fs::write(dir.join("src"), bytes_of(side, nth)).unwrap();
                    ok(dir, &["put", "--degraded", side, "src", &format!("/{name}")]);
                }
            }
        }
        let supers = || ["a", "b"].map(|side| fs::read(dir.join(side)).unwrap()[65536..65536 + 4096].to_vec());
        let before = supers();
        for args in [["ls", "a", "--device", "b"], ["ls", "b", "--device", "a"], ["check", "a", "--device", "b"]] {
            let text = fails_with(dir, 1, &args);
            assert!(text.contains("were each written without the other"), "{what}: {text}");
        }
        let text = fails_with(dir, 1, &["mkdir", "a", "--device", "b", "d"]);
        assert!(text.contains("leave the other out"), "{what}: {text}");
        fails_with(dir, 1, &["scrub", "start", "--degraded", "a", "--device", "b"]);
        assert!(before == supers(), "{what}: something was changed");
        for side in ["a", "b"] {
            let output = run(dir, &["cat", "--degraded", side, &format!("{side}0")]);
            assert!(output.stdout == bytes_of(side, 0), "{what}: {side} alone");
        }
        // The other is given up, and its device becomes a new one.
        ok(dir, &["replace", "start", "-f", "--degraded", "missing", "b", "a"]);
        let output = run(dir, &["cat", "a", "--device", "b", "a0"]);
        assert!(output.stdout == bytes_of("a", 0), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Goal: new block groups of a volume that lacks devices have a profile that can be had, and later ones, when the device is back and up to date, the old again. Method: raid1
/// without one device, then with it; bytes of groups by profile; the kernel reads what was written in both states.
#[test]
fn profiles_fall_back() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "1G", "-d", "raid1", "-m", "raid1", "a", "b"]);
    let put = |name: &str, on: &[&str]| {
        fs::write(dir.join("src"), noise(name, 300 << 20)).unwrap();
        ok(dir, &[&["put"][..], on, &["src", &format!("/{name}")]].concat());
    };
    // Bytes of data groups with a profile.
    let total = |profile: &str, on: &[&str]| -> u64 {
        let shown = json(dir, &[&["filesystem", "df", "--json"], on].concat());
        let is_it = |group: &&serde_json::Value| {
            let is = |key: &str, word: &str| group[key].as_str().is_some_and(|text| text.eq_ignore_ascii_case(word));
            is("type", "data") && is("profile", profile)
        };
        shown.as_array().unwrap().iter().filter(is_it).map(|group| group["total"].as_u64().unwrap()).sum()
    };
    let (one, both) = (&["a", "--degraded"][..], &["a", "--device", "b"][..]);
    let raid1 = total("raid1", both);
    assert!(raid1 > 0 && total("single", both) == 0);
    put("without", one);
    let single = total("single", one);
    assert!(single > 0 && total("raid1", one) == raid1, "{single}");
    ok(dir, &[&["scrub", "start"][..], both].concat());
    put("with", both);
    assert!(total("raid1", both) > raid1, "the old profile again");
    assert_eq!(total("single", both), single, "and no other");
    let mounted = oracle.mount(&[dir.join("a"), dir.join("b")], "").unwrap();
    for name in ["without", "with"] {
        assert!(fs::read(mounted.path().join(name)).unwrap() == noise(name, 300 << 20), "{name}");
    }
    mounted.unmount().unwrap();
}

/// Goal: a volume that cannot do without a device is not written without it; one of another volume, and one that is named twice, are named.
#[test]
fn what_cannot_be() {
    let scratch = oleo_sim::oracle::Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "512M", "-d", "single", "-m", "raid1", "a", "b"]);
    fs::write(dir.join("src"), noise("f", 50 << 20)).unwrap();
    ok(dir, &["put", "a", "--device", "b", "src", "/f"]);
    let texts = [
        fails_with(dir, 1, &["mkdir", "--degraded", "a", "d"]),
        fails_with(dir, 1, &["mkdir", "--degraded", "b", "d"]),
    ];
    assert!(texts.iter().any(|text| text.contains("cannot do without device")), "{texts:?}");
    ok(dir, &["mkfs", "--size", "512M", "other"]);
    assert!(
        fails_with(dir, 1, &["mkdir", "a", "--device", "b", "--device", "other", "d"]).contains("other belongs to")
    );
    fs::copy(dir.join("b"), dir.join("copy")).unwrap();
    assert!(fails_with(dir, 1, &["mkdir", "a", "--device", "b", "--device", "copy", "d"]).contains("both say"));
    // A copy that is older is not used.
    ok(dir, &["mkdir", "a", "--device", "b", "d"]);
    let output = run(dir, &["mkdir", "a", "--device", "b", "--device", "copy", "e"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("copy is not used"), "{told}");
    // Cut short.
    files(dir, &["short"], 200 << 20);
    let bytes = fs::read(dir.join("b")).unwrap();
    fs::write(dir.join("short"), &bytes[..200 << 20]).unwrap();
    fails_with(dir, 3, &["mkdir", "a", "--device", "short", "f"]);
}
