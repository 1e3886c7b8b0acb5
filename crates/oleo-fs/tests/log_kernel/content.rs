//! The content of files: extents, holes, sizes, space behind the end.

use std::os::unix::fs::MetadataExt;

use crate::bed::{Bed, on_all_forms};

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

#[allow(dead_code)]
fn unused(_: &Bed) {}
