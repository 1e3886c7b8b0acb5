//! The content of files: extents, holes, sizes, space behind the end; attributes.

use std::os::unix::fs::MetadataExt;

use oleo_format::{InodeFlags, TreeId};
use oleo_fs::data::{CloneRange, KeepSize};
use oleo_fs::{FsOptions, SetAttr, SnapshotOptions};

use crate::log_kernel::fixture::{Fixture, forms, on_all_forms};

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

/// Goal: what was appended and synced is there, and costs one log commit and nothing else.
#[test]
fn append() {
    on_all_forms(|fixture| {
        let file = fixture.file("log", &bytes(1, 10_000));
        fixture.sync();
        let before = fixture.stats();
        fixture.fs.write(&file, 10_000, &bytes(2, 5000)).unwrap();
        fixture.fs.fsync(&file).unwrap();
        let after = fixture.stats();
        assert_eq!((after.log_commits - before.log_commits, after.full_commits), (1, 0), "{after:?}");
        fixture.after_crash(|found| found.must_hold("log", &[bytes(1, 10_000), bytes(2, 5000)].concat()));
        // Again, in the same transaction.
        for n in 0..3 {
            fixture.fs.write(&file, 15_000 + n * 3000, &bytes(n as u8, 3000)).unwrap();
            fixture.fs.fsync(&file).unwrap();
        }
        fixture.fs.fsync(&file).unwrap();
        fixture.must_be_logged();
        assert_eq!(fixture.stats().log_commits, 4, "the last call found nothing to do");
        let tail: Vec<u8> = (0..3).flat_map(|n| bytes(n, 3000)).collect();
        let want = [bytes(1, 10_000), bytes(2, 5000), tail].concat();
        fixture.after_crash(|found| found.must_hold("log", &want));
        fixture.sync();
        fixture.after_crash(|found| found.must_hold("log", &want));
    });
}

/// Goal: a file that is new in the transaction is there under its name, with what was synced of it.
#[test]
fn new_file() {
    on_all_forms(|fixture| {
        fixture.mkdir("a");
        fixture.mkdir("a/b");
        let file = fixture.file("a/b/new", &bytes(3, 100_000));
        fixture.fs.fsync(&file).unwrap();
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            found.must_hold("a/b/new", &bytes(3, 100_000));
            assert_eq!(found.meta("a/b/new").nlink(), 1);
        });
    });
}

/// Runs steps on a file, syncing after each, and compares the content after each crash with what we read.
fn step_by_step(fixture: &Fixture, path: &str, steps: &[&dyn Fn()]) {
    for (n, step) in steps.iter().enumerate() {
        step();
        let file = fixture.at(path);
        fixture.fs.fsync(&file).unwrap();
        let mut want = vec![0; fixture.fs.attr(&file).size as usize];
        fixture.fs.read(&file, 0, &mut want).unwrap();
        fixture.after_crash(|found| {
            assert_eq!(found.meta(path).len(), want.len() as u64, "step {n}");
            found.must_hold(path, &want);
        });
    }
}

/// Goal: holes are holes, over what was there, also where the file was cut and made longer again.
#[test]
fn holes_and_sizes() {
    on_all_forms(|fixture| {
        let file = fixture.file("f", &bytes(1, 400_000));
        fixture.sync();
        step_by_step(
            fixture,
            "f",
            &[
                &|| fixture.fs.punch_hole(&file, 100_000, 100_000).unwrap(),
                &|| fixture.fs.write(&file, 150_000, &bytes(2, 5000)).unwrap(),
                &|| fixture.fs.punch_hole(&file, 140_000, 50_000).unwrap(),
                &|| fixture.fs.truncate(&file, 50_000).unwrap(),
                &|| fixture.fs.truncate(&file, 300_000).unwrap(),
                &|| fixture.fs.write(&file, 250_000, &bytes(3, 10)).unwrap(),
                &|| fixture.fs.truncate(&file, 0).unwrap(),
                &|| fixture.fs.truncate(&file, 90_000).unwrap(),
                &|| fixture.fs.write(&file, 400_000, &bytes(4, 90_000)).unwrap(),
            ],
        );
        fixture.must_be_logged();
        // Cut and made longer again before the first sync.
        fixture.sync();
        fixture.fs.truncate(&file, 10).unwrap();
        fixture.fs.truncate(&file, 490_000).unwrap();
        step_by_step(fixture, "f", &[&|| ()]);
    });
}

/// Goal: small files are in their item, and outgrow it.
#[test]
fn inline_and_back() {
    on_all_forms(|fixture| {
        let file = fixture.file("f", b"small");
        fixture.sync();
        step_by_step(
            fixture,
            "f",
            &[
                &|| fixture.fs.write(&file, 5, b" and more").unwrap(),
                &|| fixture.fs.write(&file, 14, &bytes(1, 20_000)).unwrap(),
                &|| fixture.fs.truncate(&file, 3).unwrap(),
                &|| fixture.fs.truncate(&file, 0).unwrap(),
                &|| fixture.fs.write(&file, 0, b"small again").unwrap(),
            ],
        );
        fixture.must_be_logged();
    });
}

/// Goal: space behind the end of a file is kept, and written to, and its content is right.
#[test]
fn preallocated() {
    on_all_forms(|fixture| {
        let file = fixture.file("f", &bytes(1, 5000));
        fixture.sync();
        step_by_step(
            fixture,
            "f",
            &[
                &|| fixture.fs.preallocate(&file, 0, 200_000, KeepSize::Yes).unwrap(),
                &|| fixture.fs.write(&file, 5000, &bytes(2, 20_000)).unwrap(),
                &|| fixture.fs.write(&file, 100_000, &bytes(3, 2000)).unwrap(),
                &|| fixture.fs.truncate(&file, 30_000).unwrap(),
                &|| fixture.fs.preallocate(&file, 0, 100_000, KeepSize::No).unwrap(),
            ],
        );
        fixture.fs.preallocate(&file, 0, 400_000, KeepSize::Yes).unwrap();
        fixture.fs.fsync(&file).unwrap();
        fixture.after_crash(|found| assert_eq!(found.meta("f").blocks() * 512, 401_408));
        // Of a file that is only named in the log, too.
        fixture.sync();
        fixture.link("f", "g");
        fixture.fs.fsync(&fixture.top()).unwrap();
        fixture.must_be_logged();
        fixture.after_crash(|found| assert_eq!(found.meta("g").blocks() * 512, 401_408));
    });
}

/// Goal: cloned extents, of committed and of new files.
#[test]
fn clones() {
    on_all_forms(|fixture| {
        let source = fixture.file("source", &bytes(1, 300_000));
        fixture.sync();
        let all = CloneRange { from: 0, len: 300_000, to: 0 };
        let copy = fixture.file("copy", b"");
        fixture.fs.clone_range(&source, &copy, &all).unwrap();
        fixture.fs.fsync(&copy).unwrap();
        fixture.after_crash(|found| found.must_hold("copy", &bytes(1, 300_000)));
        // The source goes; the clone of a clone stays.
        let again = fixture.file("again", b"");
        fixture.fs.clone_range(&copy, &again, &CloneRange { from: 4096, len: 81_920, to: 8192 }).unwrap();
        drop(source);
        fixture.unlink("source");
        fixture.fs.fsync(&again).unwrap();
        fixture.fs.fsync(&fixture.top()).unwrap();
        fixture.after_crash(|found| {
            let want = [vec![0; 8192], bytes(1, 300_000)[4096..4096 + 81_920].to_vec()].concat();
            found.must_hold("again", &want);
            found.must_hold("copy", &bytes(1, 300_000));
            assert!(!found.has("source"));
        });
        // Of a file that is new and not synced.
        let new = fixture.file("new", &bytes(5, 50_000));
        let of_new = fixture.file("of_new", b"");
        fixture.fs.clone_range(&new, &of_new, &CloneRange { from: 0, len: 50_000, to: 0 }).unwrap();
        fixture.fs.fsync(&of_new).unwrap();
        fixture.after_crash(|found| found.must_hold("of_new", &bytes(5, 50_000)));
        fixture.fs.fsync(&new).unwrap();
        fixture.after_crash(|found| {
            found.must_hold("of_new", &bytes(5, 50_000));
            found.must_hold("new", &bytes(5, 50_000));
        });
        fixture.must_be_logged();
    });
}

/// Goal: a clone of preallocated space that was written in place is durable before the file that wrote it. The replay leaves
/// one file that calls the extent preallocated and one that has data there, with checksums: `btrfs check` takes that.
#[test]
fn clone_of_what_was_written_in_place() {
    on_all_forms(|fixture| {
        let file = fixture.file("f", b"");
        fixture.fs.preallocate(&file, 0, 65_536, KeepSize::No).unwrap();
        let copy = fixture.file("copy", b"");
        fixture.sync();
        fixture.fs.write(&file, 4096, &bytes(7, 8192)).unwrap();
        fixture.fs.clone_range(&file, &copy, &CloneRange { from: 0, len: 65_536, to: 0 }).unwrap();
        fixture.fs.fsync(&copy).unwrap();
        fixture.must_be_logged();
        let want = [vec![0; 4096], bytes(7, 8192), vec![0; 65_536 - 12_288]].concat();
        fixture.after_crash(|found| found.must_hold("copy", &want));
        fixture.fs.fsync(&file).unwrap();
        fixture.after_crash(|found| {
            found.must_hold("copy", &want);
            found.must_hold("f", &want);
        });
    });
}

/// Goal: compressed extents come with the checksums of all of them, whatever part of them is left.
#[test]
fn compressed() {
    for form in forms() {
        for algorithm in ["zstd", "zlib", "lzo"] {
            let Some(fixture) = Fixture::new(form, FsOptions::default()) else { return };
            let text = |seed: u8| bytes(seed, 64).repeat(6000);
            let file = fixture.file("f", b"");
            fixture.xattr("f", "btrfs.compression", algorithm.as_bytes());
            fixture.fs.write(&file, 0, &text(1)).unwrap();
            step_by_step(
                &fixture,
                "f",
                &[
                    &|| (),
                    &|| fixture.fs.write(&file, 10_000, &text(2)[..3000]).unwrap(),
                    &|| fixture.fs.punch_hole(&file, 200_000, 50_000).unwrap(),
                    &|| fixture.fs.truncate(&file, 230_001).unwrap(),
                ],
            );
            fixture.sync();
            step_by_step(&fixture, "f", &[&|| fixture.fs.write(&file, 100_000, &text(3)[..30_000]).unwrap()]);
            fixture.must_be_logged();
        }
    }
}

/// Goal: files that are not copied on write: what was overwritten in place is there.
#[test]
fn no_cow() {
    on_all_forms(|fixture| {
        let file = fixture.file("f", b"");
        let flags = Some(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
        fixture.fs.set_attr(&file, &SetAttr::default().flags(flags)).unwrap();
        fixture.fs.write(&file, 0, &bytes(1, 100_000)).unwrap();
        step_by_step(
            fixture,
            "f",
            &[&|| (), &|| fixture.fs.write(&file, 5000, &bytes(2, 50_000)).unwrap(), &|| {
                fixture.fs.write(&file, 90_000, &bytes(3, 50_000)).unwrap()
            }],
        );
        fixture.sync();
        step_by_step(fixture, "f", &[&|| fixture.fs.write(&file, 1, &bytes(4, 9000)).unwrap()]);
        fixture.fs.write(&file, 1, &bytes(5, 9000)).unwrap();
        fixture.fs.fdatasync(&file).unwrap();
        fixture.must_be_logged();
    });
}

/// Goal: attributes that were removed are gone, those that were set are there, also after a second sync.
#[test]
fn attributes() {
    on_all_forms(|fixture| {
        let file = fixture.file("f", b"x");
        for n in 0..5 {
            fixture.xattr("f", &format!("user.{n}"), &bytes(n, 20));
        }
        fixture.sync();
        let remove = |n: u32| fixture.fs.xattr_remove(&file, format!("user.{n}").as_bytes()).unwrap();
        let must_have = |want: &[&str]| {
            fixture.fs.fsync(&file).unwrap();
            let have = fixture.after_crash(|found| found.xattrs("f"));
            let have: Vec<String> = have.keys().map(|k| String::from_utf8_lossy(k).into_owned()).collect();
            assert_eq!(have, want);
        };
        remove(1);
        must_have(&["user.0", "user.2", "user.3", "user.4"]);
        fixture.xattr("f", "user.1", b"back");
        remove(0);
        remove(4);
        must_have(&["user.1", "user.2", "user.3"]);
        fixture.fs.set_attr(&file, &SetAttr::default().mode(Some(0o4711)).uid(Some(7))).unwrap();
        must_have(&["user.1", "user.2", "user.3"]);
        fixture.after_crash(|found| assert_eq!((found.meta("f").mode() & 0o7777, found.meta("f").uid()), (0o4711, 7)));
        fixture.must_be_logged();
    });
}

/// Goal: fdatasync writes the data and leaves times alone; with nothing but times changed it does nothing.
#[test]
fn data_only() {
    on_all_forms(|fixture| {
        let file = fixture.file("f", &bytes(1, 9000));
        fixture.sync();
        fixture.fs.set_attr(&file, &SetAttr::default().mode(Some(0o600))).unwrap();
        fixture.fs.fdatasync(&file).unwrap();
        assert_eq!(fixture.stats().log_commits, 0);
        fixture.fs.write(&file, 9000, &bytes(2, 10)).unwrap();
        fixture.fs.fdatasync(&file).unwrap();
        assert_eq!(fixture.stats().log_commits, 1);
        fixture.after_crash(|found| found.must_hold("f", &[bytes(1, 9000), bytes(2, 10)].concat()));
        fixture.sync();
        fixture.fs.truncate(&file, 5).unwrap();
        fixture.fs.fdatasync(&file).unwrap();
        fixture.after_crash(|found| found.must_hold("f", &bytes(1, 5)));
    });
}

/// Goal: a snapshot does not turn an fsync of a file that the log has into a commit, whatever was changed before and after it; and one
/// of another file commits once. Method: a file of the last commit and a new one, logged; then an extent that only the last commit has is
/// cut by a change that the snapshot brings into the trees, and changed again.
#[test]
fn beside_snapshots() {
    on_all_forms(|fixture| {
        let (old, other) = (fixture.file("old", &bytes(1, 204_800)), fixture.file("other", b"1"));
        fixture.sync();
        // An extent of its own, which the log does not have.
        fixture.fs.write(&old, 204_800, &bytes(6, 204_800)).unwrap();
        fixture.sync();
        let new = fixture.file("new", &bytes(2, 9000));
        fixture.fs.write(&old, 5000, &bytes(3, 100)).unwrap();
        fixture.fs.fsync(&old).unwrap();
        fixture.fs.fsync(&new).unwrap();
        fixture.fs.punch_hole(&old, 307_200, 80_000).unwrap();
        fixture.fs.write(&new, 9000, &bytes(4, 9000)).unwrap();
        fixture.fs.write(&other, 0, b"2").unwrap();
        let snapshot =
            |name: &[u8]| fixture.fs.snapshot(TreeId::FS, &fixture.top(), name, SnapshotOptions::default()).unwrap();
        snapshot(b"snapshot");
        step_by_step(
            fixture,
            "old",
            &[
                &|| fixture.fs.punch_hole(&old, 256_000, 51_200).unwrap(),
                &|| fixture.fs.truncate(&old, 100_000).unwrap(),
                &|| fixture.fs.truncate(&old, 300_000).unwrap(),
            ],
        );
        step_by_step(fixture, "new", &[&|| fixture.fs.write(&new, 17_000, &bytes(5, 3000)).unwrap()]);
        snapshot(b"another");
        fixture.fs.punch_hole(&new, 4096, 8192).unwrap();
        step_by_step(fixture, "new", &[&|| ()]);
        fixture.must_be_logged();
        fixture.fs.fsync(&other).unwrap();
        assert_eq!(fixture.stats().full_commits, 1, "it has changes that the log does not have");
        fixture.after_crash(|found| {
            found.must_hold("other", b"2");
            found.must_hold("snapshot/other", b"2");
        });
    });
}

/// Goal: sums of extents that are gone leave the log with them, and those that others need stay. Method: a file that grows by a few bytes
/// with each fsync, whose log stays two blocks long; then extents with clones and parts are replaced, and what is left is read after crashes.
#[test]
fn sums_leave_with_their_extents() {
    on_all_forms(|fixture| {
        let grows = fixture.file("grows", b"");
        fixture.sync();
        let mut want = Vec::new();
        for n in 0..400u64 {
            let part = bytes(n as u8, 40);
            fixture.fs.write(&grows, n * 40, &part).unwrap();
            fixture.fs.fsync(&grows).unwrap();
            want.extend(part);
        }
        fixture.must_be_logged();
        let before = fixture.stats().log_bytes;
        fixture.fs.write(&grows, 400 * 40, b"end").unwrap();
        fixture.fs.fsync(&grows).unwrap();
        want.extend(b"end");
        let nodesize = u64::from(fixture.fs.engine().nodesize());
        assert_eq!(fixture.stats().log_bytes - before, 2 * nodesize, "a leaf of the log, and the leaf of its root");
        fixture.after_crash(|found| found.must_hold("grows", &want));
        let (whole, clone) = (fixture.file("whole", &bytes(6, 100_000)), fixture.file("clone", b""));
        fixture.fs.fsync(&whole).unwrap();
        fixture.fs.clone_range(&whole, &clone, &CloneRange { from: 8192, len: 8192, to: 0 }).unwrap();
        fixture.fs.fsync(&clone).unwrap();
        step_by_step(
            fixture,
            "whole",
            &[
                &|| fixture.fs.write(&whole, 4096, &bytes(7, 20_000)).unwrap(),
                &|| fixture.fs.truncate(&whole, 50_000).unwrap(),
                &|| fixture.fs.write(&whole, 0, &bytes(8, 100_000)).unwrap(),
            ],
        );
        fixture.after_crash(|found| found.must_hold("clone", &bytes(6, 100_000)[8192..16384]));
        fixture.must_be_logged();
    });
}
