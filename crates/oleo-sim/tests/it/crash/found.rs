//! Failures that were found by chance, shortened and named for what they showed.

use oleo_sim::crash::states::Kinds;
use oleo_sim::script::{Op, RenameHow, Style};

use crate::crash::run::{Base, Shape};
use crate::crash::tally::{Tally, verify_script};

const ALL: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 4, torn: 4 };

/// Goal: a file that a rename replaced stays gone when the replacement is renamed again. Method: both renames after a
/// commit, an fsync after each.
#[test]
fn a_replaced_file_stays_gone() {
    let own = |path: &str| path.to_owned();
    let create = |path: &str| Op::Create { path: own(path), mode: 0o644 };
    let rename = |from: &str, to: &str| Op::Rename { from: own(from), to: own(to), how: RenameHow::Plain };
    let fsync = |path: &str| Op::Fsync { path: own(path) };
    let script = [
        Op::Mkdir { path: own("d"), mode: 0o755 },
        create("new"),
        create("d/old"),
        create("other"),
        Op::Sync,
        rename("new", "d/old"),
        fsync("d/old"),
        rename("d/old", "moved"),
        Op::Chmod { path: own("other"), mode: 0o600 },
        fsync("other"),
    ];
    let base = Base::new(Shape::BARE, &[]);
    verify_script(&base, &script, &ALL, 1, None).must_be_clean("a replaced file", |_| Tally::default());
}

/// Goal: a clone of preallocated space that was written in place is durable before its source, and our check takes it as sound.
/// Method: the source committed, the clone alone synced.
#[test]
fn a_clone_of_preallocated_space() {
    let own = |path: &str| path.to_owned();
    let script = [
        Op::Create { path: own("source"), mode: 0o644 },
        Op::Prealloc { path: own("source"), at: 0, len: 65_536, keep_size: false },
        Op::Create { path: own("clone"), mode: 0o644 },
        Op::Sync,
        Op::Write { path: own("source"), at: 4096, len: 8192, seed: 1, style: Style::Random },
        Op::Clone { from: own("source"), at: 0, len: 65_536, to: own("clone"), to_at: 0 },
        Op::Fsync { path: own("clone") },
    ];
    let base = Base::new(Shape::BARE, &[]);
    verify_script(&base, &script, &ALL, 1, None).must_be_clean("a clone of preallocated space", |_| Tally::default());
}
