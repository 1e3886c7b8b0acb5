//! The content of files: extents, holes, sizes, space behind the end; attributes.

use std::os::unix::fs::MetadataExt;

use oleo_format::InodeFlags;
use oleo_fs::data::{CloneRange, KeepSize};
use oleo_fs::{FsOptions, SetAttr};

use crate::bed::{Bed, FORMS, on_all_forms};

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

/// Goal: what was appended and synced is there, and costs one log commit and nothing else.
#[test]
fn append() {
    on_all_forms(|bed| {
        let file = bed.file("log", &bytes(1, 10_000));
        bed.sync();
        let before = bed.stats();
        bed.fs.write(&file, 10_000, &bytes(2, 5000)).unwrap();
        bed.fs.fsync(&file).unwrap();
        let after = bed.stats();
        assert_eq!((after.log_commits - before.log_commits, after.full_commits), (1, 0), "{after:?}");
        bed.after_crash(|found| found.must_hold("log", &[bytes(1, 10_000), bytes(2, 5000)].concat()));
        // Again, in the same transaction.
        for n in 0..3 {
            bed.fs.write(&file, 15_000 + n * 3000, &bytes(n as u8, 3000)).unwrap();
            bed.fs.fsync(&file).unwrap();
        }
        bed.fs.fsync(&file).unwrap();
        bed.must_be_logged();
        assert_eq!(bed.stats().log_commits, 4, "the last call found nothing to do");
        let tail: Vec<u8> = (0..3).flat_map(|n| bytes(n, 3000)).collect();
        let want = [bytes(1, 10_000), bytes(2, 5000), tail].concat();
        bed.after_crash(|found| found.must_hold("log", &want));
        bed.sync();
        bed.after_crash(|found| found.must_hold("log", &want));
    });
}

/// Goal: a file that is new in the transaction is there under its name, with what was synced of it.
#[test]
fn new_file() {
    on_all_forms(|bed| {
        bed.mkdir("a");
        bed.mkdir("a/b");
        let file = bed.file("a/b/new", &bytes(3, 100_000));
        bed.fs.fsync(&file).unwrap();
        bed.must_be_logged();
        bed.after_crash(|found| {
            found.must_hold("a/b/new", &bytes(3, 100_000));
            assert_eq!(found.meta("a/b/new").nlink(), 1);
        });
    });
}

/// Runs steps on a file, syncing after each, and compares the content after each crash with what we read.
fn step_by_step(bed: &Bed, path: &str, steps: &[&dyn Fn()]) {
    for (n, step) in steps.iter().enumerate() {
        step();
        let file = bed.at(path);
        bed.fs.fsync(&file).unwrap();
        let mut want = vec![0; bed.fs.attr(&file).size as usize];
        bed.fs.read(&file, 0, &mut want).unwrap();
        bed.after_crash(|found| {
            assert_eq!(found.meta(path).len(), want.len() as u64, "step {n}");
            found.must_hold(path, &want);
        });
    }
}

/// Goal: holes are holes, over what was there, also where the file was cut and made longer again.
#[test]
fn holes_and_sizes() {
    on_all_forms(|bed| {
        let file = bed.file("f", &bytes(1, 400_000));
        bed.sync();
        step_by_step(
            bed,
            "f",
            &[
                &|| bed.fs.punch_hole(&file, 100_000, 100_000).unwrap(),
                &|| bed.fs.write(&file, 150_000, &bytes(2, 5000)).unwrap(),
                &|| bed.fs.punch_hole(&file, 140_000, 50_000).unwrap(),
                &|| bed.fs.truncate(&file, 50_000).unwrap(),
                &|| bed.fs.truncate(&file, 300_000).unwrap(),
                &|| bed.fs.write(&file, 250_000, &bytes(3, 10)).unwrap(),
                &|| bed.fs.truncate(&file, 0).unwrap(),
                &|| bed.fs.truncate(&file, 90_000).unwrap(),
                &|| bed.fs.write(&file, 400_000, &bytes(4, 90_000)).unwrap(),
            ],
        );
        bed.must_be_logged();
        // Cut and made longer again before the first sync.
        bed.sync();
        bed.fs.truncate(&file, 10).unwrap();
        bed.fs.truncate(&file, 490_000).unwrap();
        step_by_step(bed, "f", &[&|| ()]);
    });
}

/// Goal: small files are in their item, and outgrow it.
#[test]
fn inline_and_back() {
    on_all_forms(|bed| {
        let file = bed.file("f", b"small");
        bed.sync();
        step_by_step(
            bed,
            "f",
            &[
                &|| bed.fs.write(&file, 5, b" and more").unwrap(),
                &|| bed.fs.write(&file, 14, &bytes(1, 20_000)).unwrap(),
                &|| bed.fs.truncate(&file, 3).unwrap(),
                &|| bed.fs.truncate(&file, 0).unwrap(),
                &|| bed.fs.write(&file, 0, b"small again").unwrap(),
            ],
        );
        bed.must_be_logged();
    });
}

/// Goal: space behind the end of a file is kept, and written to, and its content is right.
#[test]
fn preallocated() {
    on_all_forms(|bed| {
        let file = bed.file("f", &bytes(1, 5000));
        bed.sync();
        step_by_step(
            bed,
            "f",
            &[
                &|| bed.fs.preallocate(&file, 0, 200_000, KeepSize::Yes).unwrap(),
                &|| bed.fs.write(&file, 5000, &bytes(2, 20_000)).unwrap(),
                &|| bed.fs.write(&file, 100_000, &bytes(3, 2000)).unwrap(),
                &|| bed.fs.truncate(&file, 30_000).unwrap(),
                &|| bed.fs.preallocate(&file, 0, 100_000, KeepSize::No).unwrap(),
            ],
        );
        bed.fs.preallocate(&file, 0, 400_000, KeepSize::Yes).unwrap();
        bed.fs.fsync(&file).unwrap();
        bed.after_crash(|found| assert_eq!(found.meta("f").blocks() * 512, 401_408));
        // Of a file that is only named in the log, too.
        bed.sync();
        bed.link("f", "g");
        bed.fs.fsync(&bed.top()).unwrap();
        bed.must_be_logged();
        bed.after_crash(|found| assert_eq!(found.meta("g").blocks() * 512, 401_408));
    });
}

/// Goal: cloned extents, of committed and of new files.
#[test]
fn clones() {
    on_all_forms(|bed| {
        let source = bed.file("source", &bytes(1, 300_000));
        bed.sync();
        let all = CloneRange { from: 0, len: 300_000, to: 0 };
        let copy = bed.file("copy", b"");
        bed.fs.clone_range(&source, &copy, &all).unwrap();
        bed.fs.fsync(&copy).unwrap();
        bed.after_crash(|found| found.must_hold("copy", &bytes(1, 300_000)));
        // The source goes; the clone of a clone stays.
        let again = bed.file("again", b"");
        bed.fs.clone_range(&copy, &again, &CloneRange { from: 4096, len: 81_920, to: 8192 }).unwrap();
        drop(source);
        bed.unlink("source");
        bed.fs.fsync(&again).unwrap();
        bed.fs.fsync(&bed.top()).unwrap();
        bed.after_crash(|found| {
            let want = [vec![0; 8192], bytes(1, 300_000)[4096..4096 + 81_920].to_vec()].concat();
            found.must_hold("again", &want);
            found.must_hold("copy", &bytes(1, 300_000));
            assert!(!found.has("source"));
        });
        // Of a file that is new and not synced.
        let new = bed.file("new", &bytes(5, 50_000));
        let of_new = bed.file("of_new", b"");
        bed.fs.clone_range(&new, &of_new, &CloneRange { from: 0, len: 50_000, to: 0 }).unwrap();
        bed.fs.fsync(&of_new).unwrap();
        bed.after_crash(|found| found.must_hold("of_new", &bytes(5, 50_000)));
        bed.fs.fsync(&new).unwrap();
        bed.after_crash(|found| {
            found.must_hold("of_new", &bytes(5, 50_000));
            found.must_hold("new", &bytes(5, 50_000));
        });
        bed.must_be_logged();
    });
}

/// Goal: a clone of preallocated space that was written in place is durable before the file that wrote it. The replay leaves
/// one file that calls the extent preallocated and one that has data there, with checksums: `btrfs check` takes that.
#[test]
fn clone_of_what_was_written_in_place() {
    on_all_forms(|bed| {
        let file = bed.file("f", b"");
        bed.fs.preallocate(&file, 0, 65_536, KeepSize::No).unwrap();
        let copy = bed.file("copy", b"");
        bed.sync();
        bed.fs.write(&file, 4096, &bytes(7, 8192)).unwrap();
        bed.fs.clone_range(&file, &copy, &CloneRange { from: 0, len: 65_536, to: 0 }).unwrap();
        bed.fs.fsync(&copy).unwrap();
        bed.must_be_logged();
        let want = [vec![0; 4096], bytes(7, 8192), vec![0; 65_536 - 12_288]].concat();
        bed.after_crash(|found| found.must_hold("copy", &want));
        bed.fs.fsync(&file).unwrap();
        bed.after_crash(|found| {
            found.must_hold("copy", &want);
            found.must_hold("f", &want);
        });
    });
}

/// Goal: compressed extents come with the checksums of all of them, whatever part of them is left.
#[test]
fn compressed() {
    for form in FORMS {
        for algorithm in ["zstd", "zlib", "lzo"] {
            let Some(bed) = Bed::new(form, FsOptions::default()) else { return };
            let text = |seed: u8| bytes(seed, 64).repeat(6000);
            let file = bed.file("f", b"");
            bed.xattr("f", "btrfs.compression", algorithm.as_bytes());
            bed.fs.write(&file, 0, &text(1)).unwrap();
            step_by_step(
                &bed,
                "f",
                &[
                    &|| (),
                    &|| bed.fs.write(&file, 10_000, &text(2)[..3000]).unwrap(),
                    &|| bed.fs.punch_hole(&file, 200_000, 50_000).unwrap(),
                    &|| bed.fs.truncate(&file, 230_001).unwrap(),
                ],
            );
            bed.sync();
            step_by_step(&bed, "f", &[&|| bed.fs.write(&file, 100_000, &text(3)[..30_000]).unwrap()]);
            bed.must_be_logged();
        }
    }
}

/// Goal: files that are not copied on write: what was overwritten in place is there.
#[test]
fn no_cow() {
    on_all_forms(|bed| {
        let file = bed.file("f", b"");
        let flags = Some(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
        bed.fs.set_attr(&file, &SetAttr { flags, ..SetAttr::default() }).unwrap();
        bed.fs.write(&file, 0, &bytes(1, 100_000)).unwrap();
        step_by_step(
            bed,
            "f",
            &[&|| (), &|| bed.fs.write(&file, 5000, &bytes(2, 50_000)).unwrap(), &|| {
                bed.fs.write(&file, 90_000, &bytes(3, 50_000)).unwrap()
            }],
        );
        bed.sync();
        step_by_step(bed, "f", &[&|| bed.fs.write(&file, 1, &bytes(4, 9000)).unwrap()]);
        bed.fs.write(&file, 1, &bytes(5, 9000)).unwrap();
        bed.fs.fdatasync(&file).unwrap();
        bed.must_be_logged();
    });
}

/// Goal: attributes that were removed are gone, those that were set are there, also after a second sync.
#[test]
fn attributes() {
    on_all_forms(|bed| {
        let file = bed.file("f", b"x");
        for n in 0..5 {
            bed.xattr("f", &format!("user.{n}"), &bytes(n, 20));
        }
        bed.sync();
        let remove = |n: u32| bed.fs.xattr_remove(&file, format!("user.{n}").as_bytes()).unwrap();
        let must_have = |want: &[&str]| {
            bed.fs.fsync(&file).unwrap();
            let have = bed.after_crash(|found| found.xattrs("f"));
            let have: Vec<String> = have.keys().map(|k| String::from_utf8_lossy(k).into_owned()).collect();
            assert_eq!(have, want);
        };
        remove(1);
        must_have(&["user.0", "user.2", "user.3", "user.4"]);
        bed.xattr("f", "user.1", b"back");
        remove(0);
        remove(4);
        must_have(&["user.1", "user.2", "user.3"]);
        bed.fs.set_attr(&file, &SetAttr { mode: Some(0o4711), uid: Some(7), ..SetAttr::default() }).unwrap();
        must_have(&["user.1", "user.2", "user.3"]);
        bed.after_crash(|found| assert_eq!((found.meta("f").mode() & 0o7777, found.meta("f").uid()), (0o4711, 7)));
        bed.must_be_logged();
    });
}

/// Goal: fdatasync writes the data and leaves times alone; with nothing but times changed it does nothing.
#[test]
fn data_only() {
    on_all_forms(|bed| {
        let file = bed.file("f", &bytes(1, 9000));
        bed.sync();
        bed.fs.set_attr(&file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        bed.fs.fdatasync(&file).unwrap();
        assert_eq!(bed.stats().log_commits, 0);
        bed.fs.write(&file, 9000, &bytes(2, 10)).unwrap();
        bed.fs.fdatasync(&file).unwrap();
        assert_eq!(bed.stats().log_commits, 1);
        bed.after_crash(|found| found.must_hold("f", &[bytes(1, 9000), bytes(2, 10)].concat()));
        bed.sync();
        bed.fs.truncate(&file, 5).unwrap();
        bed.fs.fdatasync(&file).unwrap();
        bed.after_crash(|found| found.must_hold("f", &bytes(1, 5)));
    });
}
