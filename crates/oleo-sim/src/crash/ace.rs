//! Every short sequence of operations on a small tree, each followed by making one thing durable, as CrashMonkey's ACE
//! does.
//!
//! The tree ([`setup`]) has two directories `A` and `B`, in which four names are used (`foo` and `bar` in each), of
//! which `B`'s are free at first, and a subvolume `S`. [`operations`] lists what may be done to it, [`objects`] what
//! may be made durable; a sequence is a number of the former, with a promise after the last, and perhaps one in
//! between. Most faults of logs known from other file systems show with two operations and a promise after each.

use crate::rng::Rng;
use crate::script::{Op, RenameHow, Style};

fn own(path: &str) -> String {
    path.to_owned()
}

fn write(path: &str, at: u64, len: u64, seed: u64) -> Op {
    Op::Write { path: own(path), at, len, seed, style: Style::Random }
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename { from: own(from), to: own(to), how: RenameHow::Plain }
}

fn exchange(from: &str, to: &str) -> Op {
    Op::Rename { from: own(from), to: own(to), how: RenameHow::Exchange }
}

fn link(from: &str, to: &str) -> Op {
    Op::Link { from: own(from), to: own(to) }
}

fn mkdir(path: &str) -> Op {
    Op::Mkdir { path: own(path), mode: 0o755 }
}

fn xattr(path: &str, name: &str, len: u64, seed: u64) -> Op {
    Op::SetXattr { path: own(path), name: own(name), len, seed }
}

/// The durable tree before each sequence.
pub fn setup() -> Vec<Op> {
    vec![
        mkdir("A"),
        mkdir("B"),
        Op::Create { path: own("A/foo"), mode: 0o644 },
        write("A/foo", 0, 10_000, 1),
        xattr("A/foo", "user.old", 20, 1),
        Op::Create { path: own("A/bar"), mode: 0o600 },
        write("A/bar", 0, 100, 2),
        Op::Subvol { path: own("S") },
        Op::Create { path: own("S/foo"), mode: 0o644 },
        write("S/foo", 0, 5000, 3),
        Op::Sync,
    ]
}

/// What may be done.
pub fn operations() -> Vec<Op> {
    let file = |path: &str| Op::Create { path: own(path), mode: 0o644 };
    vec![
        file("B/foo"),
        mkdir("A/C"),
        mkdir("B/foo"),
        Op::Symlink { path: own("B/foo"), target: own("../A/foo") },
        Op::Mknod { path: own("B/bar"), mode: 0o644, major: 0, minor: 0 },
        write("A/foo", 10_000, 5000, 10),
        write("A/foo", 4096, 4096, 11),
        write("A/bar", 50, 9000, 12),
        write("B/foo", 0, 3000, 13),
        write("S/foo", 5000, 5000, 14),
        Op::Truncate { path: own("A/foo"), size: 3000 },
        Op::Truncate { path: own("A/foo"), size: 40_000 },
        Op::Truncate { path: own("A/bar"), size: 0 },
        Op::Punch { path: own("A/foo"), at: 4096, len: 4096 },
        Op::Punch { path: own("A/foo"), at: 1000, len: 5000 },
        Op::Zero { path: own("A/foo"), at: 0, len: 8192, keep_size: false },
        Op::Prealloc { path: own("A/foo"), at: 12_288, len: 16_384, keep_size: true },
        Op::Prealloc { path: own("A/bar"), at: 0, len: 16_384, keep_size: false },
        Op::Clone { from: own("A/foo"), at: 0, len: 8192, to: own("A/bar"), to_at: 4096 },
        Op::Clone { from: own("A/foo"), at: 0, len: 4096, to: own("A/foo"), to_at: 8192 },
        Op::Clone { from: own("A/foo"), at: 0, len: 4096, to: own("B/foo"), to_at: 0 },
        link("A/foo", "B/foo"),
        link("A/foo", "B/bar"),
        link("A/bar", "B/bar"),
        link("B/foo", "B/bar"),
        Op::Unlink { path: own("A/foo") },
        Op::Unlink { path: own("A/bar") },
        Op::Unlink { path: own("B/foo") },
        Op::Rmdir { path: own("B") },
        Op::Rmdir { path: own("A/C") },
        rename("A/foo", "B/foo"),
        rename("A/foo", "A/bar"),
        rename("A/bar", "B/bar"),
        rename("A/bar", "B/foo"),
        rename("B/foo", "A/foo"),
        rename("B/foo", "B/bar"),
        rename("B/bar", "A/bar"),
        rename("A", "B/C"),
        rename("B", "A/C"),
        rename("A/C", "B/C"),
        exchange("A/foo", "A/bar"),
        exchange("A/foo", "B/foo"),
        exchange("A", "B"),
        xattr("A/foo", "user.new", 30, 20),
        xattr("A/foo", "user.old", 200, 21),
        xattr("A", "user.new", 30, 22),
        Op::RemoveXattr { path: own("A/foo"), name: own("user.old") },
        Op::Chmod { path: own("A/foo"), mode: 0o400 },
        Op::Tmpfile { path: own("B/foo"), len: 6000, seed: 30, sync: false },
        Op::Tmpfile { path: own("B/foo"), len: 6000, seed: 31, sync: true },
        Op::Subvol { path: own("B/foo") },
        Op::Snapshot { from: own("S"), to: own("B/bar"), read_only: false },
        Op::DeleteSubvol { path: own("S") },
    ]
}

/// What may be made durable, if it exists.
pub fn objects() -> Vec<Op> {
    let places = ["A", "B", "A/foo", "A/bar", "B/foo", "B/bar", "A/C", "B/C", "", "S/foo"];
    let mut out: Vec<Op> = places.iter().map(|path| Op::Fsync { path: own(path) }).collect();
    out.extend(["A/foo", "B/foo"].iter().map(|path| Op::Fdatasync { path: own(path) }));
    out.push(Op::Sync);
    out
}

/// A sequence drawn at random: `len` operations, half of them followed by a promise, and one at the end.
pub fn sample(len: usize, rng: &mut Rng) -> Vec<Op> {
    let (operations, objects) = (operations(), objects());
    let mut out = Vec::new();
    for i in 0..len {
        out.extend(rng.pick(&operations).cloned());
        if i + 1 == len || rng.one_in(2) {
            out.extend(rng.pick(&objects).cloned());
        }
    }
    out
}
