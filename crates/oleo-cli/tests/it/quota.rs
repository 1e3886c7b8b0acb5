//! Quota by command, on images and mounts, verified by the kernel.

use std::path::Path;

use oleo_sim::oracle::{self, oracle};

use crate::common::{fails_with, json, ok};

fn fails(dir: &Path, args: &[&str]) -> String {
    fails_with(dir, 1, args)
}

/// Group, referenced and exclusive bytes, as a table tells.
fn rows(table: &str) -> Vec<(String, u64, u64)> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (id, rfer, excl) = (words.next()?, words.next()?, words.next()?);
        id.contains('/').then_some(())?;
        Some((id.to_owned(), rfer.parse().ok()?, excl.parse().ok()?))
    };
    table.lines().filter_map(row).collect()
}

/// Goal: the commands do what they say on an image: groups come, are joined, limited, and go; the tables of Oleo and of the kernel
/// are the same, before and after the kernel's own rescan. Method: a small tree, a snapshot into a group, both tables.
#[test]
fn groups() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = dir.join("i");
    std::fs::write(dir.join("f"), vec![7; 1 << 20]).unwrap();
    ok(dir, &["mkfs", "--size", "512M", "i"]);
    assert!(ok(dir, &["quota", "status", "i"]).contains("no"));
    assert!(fails(dir, &["qgroup", "show", "i"]).contains("quota is off"));
    assert!(fails(dir, &["qgroup", "create", "1/0", "i"]).contains("quota is off"));
    fails(dir, &["quota", "status", "--is-enabled", "i"]);
    ok(dir, &["subvolume", "create", "i", "a"]);
    ok(dir, &["put", "i", "f", "a/f"]);
    ok(dir, &["quota", "enable", "i"]);
    ok(dir, &["quota", "status", "--is-enabled", "i"]);
    let status = json(dir, &["quota", "status", "--json", "i"]);
    assert_eq!((&status["enabled"], &status["inconsistent"]), (&true.into(), &false.into()));

    ok(dir, &["qgroup", "create", "1/7", "i"]);
    ok(dir, &["qgroup", "create", "2/0", "i"]);
    assert!(fails(dir, &["qgroup", "create", "1/7", "i"]).contains("there already"));
    assert!(fails(dir, &["qgroup", "create", "0/999", "i"]).contains("subvolumes"));
    assert!(ok(dir, &["qgroup", "assign", "a", "1/7", "i"]).contains("0/256"), "a path names the subvolume's group");
    assert!(fails(dir, &["qgroup", "assign", "a/f", "1/7", "i"]).contains("a/f"));
    ok(dir, &["qgroup", "assign", "1/7", "2/0", "i"]);
    assert!(fails(dir, &["qgroup", "assign", "2/0", "1/7", "i"]).contains("higher level"));
    assert!(fails(dir, &["subvolume", "create", "-i", "1/8", "i", "b"]).contains("1/8"));
    ok(dir, &["subvolume", "snapshot", "-i", "1/7", "i", "a", "s"]);
    ok(dir, &["subvolume", "snapshot", "i", "a", "t"]);
    ok(dir, &["qgroup", "limit", "2M", "0/256", "i"]);
    ok(dir, &["qgroup", "limit", "-e", "1G", "1/7", "i"]);

    let table = ok(dir, &["qgroup", "show", "--raw", "-pcre", "i"]);
    let ours = rows(&table);
    let ids: Vec<&str> = ours.iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!(ids, ["0/5", "0/256", "0/257", "0/258", "1/7", "2/0"], "{table}");
    assert!(table.contains("2097152") && table.contains("1073741824") && table.contains("0/256,0/257"), "{table}");
    let by_size = json(dir, &["qgroup", "show", "--json", "--sort", "-rfer,qgroupid", "i"]);
    assert_eq!((&by_size[0]["qgroupid"], &by_size[0]["parents"][0]), (&"1/7".into(), &"2/0".into()));
    oracle.must_be_sound(&[&image], "with groups").unwrap();

    let mounted = oracle.mount(&[&image], "").unwrap();
    let at = mounted.path().display().to_string();
    let show = || rows(&oracle::run("btrfs", ["qgroup", "show", "--raw", &at]).unwrap());
    assert_eq!(show(), ours, "as the kernel reads them");
    oracle::run("btrfs", ["quota", "rescan", "-w", &at]).unwrap();
    assert_eq!(show(), ours, "as the kernel counts them");
    let over = std::fs::write(mounted.path().join("a/more"), vec![1; 2 << 20]);
    assert_eq!(over.unwrap_err().raw_os_error(), Some(122), "the kernel keeps the limit");
    std::fs::remove_file(mounted.path().join("a/more")).unwrap();
    mounted.unmount().unwrap();

    assert!(fails(dir, &["qgroup", "destroy", "1/7", "i"]).contains("in use"));
    ok(dir, &["subvolume", "delete", "i", "s"]);
    assert!(!ok(dir, &["qgroup", "show", "i"]).contains("0/257"), "its group went with it");
    assert!(ok(dir, &["qgroup", "remove", "a", "1/7", "i"]).contains("0/256"), "a path names the subvolume's group");
    assert!(fails(dir, &["qgroup", "remove", "a/f", "1/7", "i"]).contains("a/f"));
    ok(dir, &["qgroup", "destroy", "1/7", "i"]);
    ok(dir, &["qgroup", "clear-stale", "i"]);
    ok(dir, &["quota", "rescan", "-w", "i"]);
    oracle.must_be_sound(&[&image], "without the snapshot").unwrap();
    ok(dir, &["quota", "disable", "i"]);
    assert!(fails(dir, &["quota", "disable", "i"]).contains("off"));
    oracle.must_be_sound(&[&image], "quota off").unwrap();
}

/// Goal: simple quotas by command, on images, at their making, and on a mount of the kernel's. Method: numbers that are known.
#[test]
fn simple() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    let image = dir.join("i");
    std::fs::write(dir.join("f"), vec![7; 1 << 20]).unwrap();
    assert!(fails_with(dir, 2, &["mkfs", "--size", "512M", "-O", "quota,squota", "i"]).contains("exclude each other"));
    ok(dir, &["mkfs", "--size", "512M", "-O", "squota", "i"]);
    ok(dir, &["subvolume", "create", "i", "a"]);
    ok(dir, &["put", "i", "f", "a/f"]);
    ok(dir, &["subvolume", "snapshot", "i", "a", "s"]);
    let status = json(dir, &["quota", "status", "--json", "i"]);
    assert_eq!((&status["enabled"], &status["inconsistent"]), (&true.into(), &false.into()));
    assert!(status["mode"].as_str().unwrap().contains("squota"), "{status}");
    let table = ok(dir, &["qgroup", "show", "--raw", "i"]);
    let ours = rows(&table);
    let want = [("0/5", 16384), ("0/256", (1 << 20) + 16384), ("0/257", 16384)].map(|(id, n)| (id.to_owned(), n, n));
    assert_eq!(ours, want, "{table}");
    assert!(fails(dir, &["quota", "rescan", "i"]).contains("never counted anew"));
    assert!(fails(dir, &["quota", "enable", "i"]).contains("simple accounting"));
    ok(dir, &["quota", "enable", "--simple", "i"]);
    ok(dir, &["check", "i"]);

    let mounted = oracle.mount(&[&image], "").unwrap();
    let at = mounted.path().display().to_string();
    assert_eq!(
        rows(&oracle::run("btrfs", ["qgroup", "show", "--raw", &at]).unwrap()),
        ours,
        "as the kernel reads them"
    );
    mounted.unmount().unwrap();

    ok(dir, &["subvolume", "delete", "i", "a"]);
    let left = rows(&ok(dir, &["qgroup", "show", "--raw", "i"]));
    assert_eq!(left[1], ("0/256".to_owned(), 1 << 20, 1 << 20), "the snapshot has what `a` wrote, but for its root");
    assert!(fails(dir, &["qgroup", "destroy", "0/256", "i"]).contains("in use"));
    ok(dir, &["subvolume", "delete", "i", "s"]);
    ok(dir, &["qgroup", "clear-stale", "i"]);
    assert_eq!(rows(&ok(dir, &["qgroup", "show", "--raw", "i"])).len(), 1);
    ok(dir, &["quota", "disable", "i"]);
    ok(dir, &["quota", "enable", "i"]);
    ok(dir, &["check", "i"]);
}

/// Goal: what snapshots cost is told with quota off: deleting a set frees what was said. Method: two snapshots that share what the
/// subvolume no longer has; used bytes before and after.
#[test]
fn what_a_set_frees() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.path();
    std::fs::write(dir.join("f"), vec![7; 3 << 20]).unwrap();
    ok(dir, &["mkfs", "--size", "512M", "-m", "single", "i"]);
    ok(dir, &["subvolume", "create", "i", "a"]);
    ok(dir, &["put", "i", "f", "a/f"]);
    ok(dir, &["subvolume", "snapshot", "i", "a", "s"]);
    ok(dir, &["subvolume", "snapshot", "i", "a", "t"]);
    ok(dir, &["rm", "i", "a/f"]);
    let frees = |set: &str| json(dir, &["filesystem", "du", "--json", "--set", set, "i"])["frees"].as_u64().unwrap();
    let (one, both) = (frees("s"), frees("257,t"));
    assert!(one < 1 << 20, "{one}: what both have stays with the other");
    assert!((3 << 20..4 << 20).contains(&both), "{both}");
    let sizes = json(dir, &["subvolume", "list", "--sizes", "--json", "i"]);
    let of = |n: usize, what: &str| sizes[n][what].as_u64().unwrap();
    assert_eq!(of(1, "exclusive"), one);
    assert_eq!(of(1, "shared_with_next"), of(2, "shared_with_previous"));
    assert_eq!(of(1, "referenced"), one + of(1, "shared_with_next"));
    let used = || {
        json(dir, &["filesystem", "df", "--json", "i"])
            .as_array()
            .unwrap()
            .iter()
            .map(|g| g["used"].as_u64().unwrap())
            .sum::<u64>()
    };
    let before = used();
    ok(dir, &["subvolume", "delete", "i", "s", "t"]);
    let freed = before - used();
    // Bookkeeping trees shrink or grow by a few blocks.
    assert!(freed.abs_diff(both) <= 1 << 17, "{freed} freed, {both} were said");
}
