use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::*;

const MIB: u64 = 1 << 20;

/// The number of loop devices over files of a directory that stay. A detached one lives on while any program has it
/// open, which may be scanning all block devices just then.
fn loops_over(dir: &Path) -> usize {
    const WAIT_MAX: Duration = Duration::from_secs(60);
    let dir = dir.to_string_lossy().into_owned();
    let begin = Instant::now();
    loop {
        let all = run("losetup", ["--list", "--noheadings", "--output", "BACK-FILE"]).unwrap();
        let count = all.lines().filter(|l| l.contains(&dir)).count();
        if count == 0 || begin.elapsed() > WAIT_MAX {
            return count;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Goal: a sound image of one and of three devices is found sound, and nothing stays attached or mounted.
/// Method: mkfs, write, scrub, check; look at losetup afterwards.
#[test]
fn sound_images_are_clean() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    for devices in [1, 3] {
        let images = scratch.images(&format!("n{devices}"), devices, 256 * MIB).unwrap();
        oracle.mkfs(&["-L", "oracle"], &images).unwrap();
        let mounted = oracle.mount(&images, "").unwrap();
        fs::write(mounted.path().join("file"), vec![7; 300_000]).unwrap();
        mounted.sync().unwrap();
        assert_eq!(mounted.device_errors().unwrap(), 0);
        mounted.unmount().unwrap();
        oracle.must_be_sound(&images, "fresh").unwrap();
    }
    assert_eq!(loops_over(scratch.path()), 0);
}

/// Goal: a rotten image is found rotten, by both oracles: data that does not match its checksum.
/// Method: find the file's bytes in the image and flip one.
#[test]
fn rot_is_found() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("rot", 256 * MIB).unwrap();
    oracle.mkfs(&["-d", "single"], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    let marker = [0xa7; 4096];
    fs::write(mounted.path().join("file"), marker.repeat(10)).unwrap();
    mounted.unmount().unwrap();

    let bytes = fs::read(&image).unwrap();
    let at = bytes.chunks(4096).position(|c| c == marker).unwrap() * 4096;
    File::options().write(true).open(&image).unwrap().write_all_at(b"x", at as u64).unwrap();

    let found = oracle.check(&[&image]).unwrap();
    assert!(!found.is_clean(), "check saw nothing");
    let mounted = oracle.mount(&[&image], "").unwrap();
    let found = mounted.scrub().unwrap();
    assert!(found.findings.iter().any(|l| l.starts_with("csum_errors")), "{found}");
}

/// Goal: a panic leaves neither mount nor loop device.
#[test]
fn a_panic_cleans_up() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("panic", 128 * MIB).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let result = std::panic::catch_unwind(|| {
        let _mounted = oracle.mount(&[&image], "").unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(result.is_err());
    assert_eq!(loops_over(scratch.path()), 0);
}

/// Goal: what mkfs.btrfs 6.2 leaves is tolerated only if requested, and nothing else is. Method: the messages of `btrfs
/// check` 6.19 and of older ones, with other findings beside them, in other places and too often.
#[test]
fn known_leftovers_of_mkfs() {
    const SUM: &str = "found 1 bytes used, error(s) found";
    let said = |lines: &[&str]| Verdict::from_check(false, &format!("{SUM}\n"), &lines.join("\n"));
    let orphan = |at: u64, len: u64| format!("Space key logical {at} length {len} has no corresponding block group");
    let (first, second, third) = (orphan(1 << 20, 4 << 20), orphan(5 << 20, 8 << 20), orphan(13 << 20, 8 << 20));
    let known = [&first[..], &second, &third];

    assert_eq!(said(&known).findings.len(), 4, "nothing is forgiven unasked");
    assert!(said(&known).but_for_mkfs_6_2().is_clean());
    assert!(said(&known[..2]).but_for_mkfs_6_2().is_clean());
    // Another place or length, or one of them twice, is a finding.
    for odd in [&orphan(21 << 20, 8 << 20), &orphan(1 << 20, 8 << 20), &orphan(5 << 20, 4 << 20), &first] {
        let found = said(&[&first, odd, &second]).but_for_mkfs_6_2();
        assert_eq!(found.findings, [&odd[..], SUM]);
    }
    // Errors in the total that were not listed are not tolerated.
    assert_eq!(said(&[]).but_for_mkfs_6_2().findings, [SUM]);

    let old = "We have a space info key for a block group that doesn't exist";
    assert_eq!(said(&[old, "something else"]).but_for_mkfs_6_2().findings, ["something else", SUM]);
    assert!(said(&[old, old, old]).but_for_mkfs_6_2().is_clean());
    assert_eq!(said(&[old, old, old, old]).but_for_mkfs_6_2().findings, [old, SUM]);
}

/// Goal: progress lines are not findings; other lines that begin like them are.
#[test]
fn progress_is_no_finding() {
    let text = "[1/7] checking root items\n[8/8] checking quota groups skipped (not enabled on this FS)\n\
        [2/7] extent item is odd\n[2] checking\n[x/7] checking extents\n";
    let found = Verdict::from_check(true, text, "").findings;
    assert_eq!(found, ["[2/7] extent item is odd", "[2] checking", "[x/7] checking extents"]);
}

/// Goal: a volume whose writer was killed between two superblocks is sound once it has committed; it is not before. Method: the copy of
/// the superblock of an earlier commit.
#[test]
fn a_kill_between_superblocks_is_no_damage() {
    const COPY: u64 = 64 * MIB;
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("killed", 256 * MIB).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let mut earlier = vec![0; 4096];
    file.read_exact_at(&mut earlier, COPY).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    fs::write(mounted.path().join("file"), "later").unwrap();
    mounted.unmount().unwrap();
    file.write_all_at(&earlier, COPY).unwrap();

    let mounted = oracle.mount(&[&image], "").unwrap();
    let found = mounted.scrub().unwrap();
    assert!(found.findings.iter().any(|l| l.starts_with("super_errors")), "{found}");
    mounted.unmount().unwrap();
    oracle.must_be_sound_after_a_kill(&[&image], "killed").unwrap();
}
