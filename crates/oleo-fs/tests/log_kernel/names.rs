//! Names: what a logged file or directory is called, and who else is concerned.

use std::os::unix::fs::MetadataExt;

use oleo_fs::{NewInode, NewKind, RenameMode, SetAttr};

use crate::bed::{Bed, on_all_forms};

/// A committed tree: a/one, a/two, b/three, c (empty).
fn start(bed: &Bed) {
    for dir in ["a", "b", "c"] {
        bed.mkdir(dir);
    }
    for (path, content) in [("a/one", "1"), ("a/two", "22"), ("b/three", "333")] {
        bed.file(path, content.as_bytes());
    }
    bed.sync();
}

/// Each name once, under the path or paths that are wanted, whole and with as many links as names.
fn only_at(found: &crate::bed::Found, paths: &[&str], content: &[u8]) {
    for path in paths {
        found.must_hold(path, content);
        assert_eq!(found.meta(path).nlink(), paths.len() as u64, "links of {path}");
        assert_eq!(found.meta(path).ino(), found.meta(paths[0]).ino(), "{path}");
    }
}

/// Goal: new directories on the way to a synced file come with it, however deep and however renamed.
#[test]
fn new_directories_on_the_path() {
    on_all_forms(|bed| {
        start(bed);
        for dir in ["a/x", "a/x/y", "a/x/y/z", "a/x/unsynced"] {
            bed.mkdir(dir);
        }
        bed.file("a/x/y/z/f", b"deep");
        bed.file("a/x/y/other", b"not synced");
        bed.rename("a/x/y", "b/why");
        bed.fsync("b/why/z/f");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["b/why/z/f"], b"deep");
            found.must_list("a", &["one", "two"]);
            found.must_list("b/why", &["z"]);
        });
        bed.fsync("a");
        bed.must_be_logged();
        bed.after_crash(|found| {
            found.must_list("a", &["one", "two", "x"]);
            found.must_list("a/x", &["unsynced"]);
            only_at(found, &["b/why/z/f"], b"deep");
        });
    });
}

/// Goal: a rename of a committed file shows one name, the old or the new, whatever of it is synced.
#[test]
fn rename_then_sync() {
    on_all_forms(|bed| {
        start(bed);
        bed.rename("a/one", "b/uno");
        bed.fsync("b/uno");
        bed.after_crash(|found| {
            only_at(found, &["b/uno"], b"1");
            found.must_list("a", &["two"]);
        });
        bed.sync();
        // Its old directory.
        bed.rename("b/uno", "c/eins");
        bed.fsync("b");
        bed.after_crash(|found| {
            only_at(found, &["c/eins"], b"1");
            found.must_list("b", &["three"]);
        });
        bed.sync();
        // Its new one.
        bed.rename("c/eins", "a/ein");
        bed.fsync("a");
        bed.after_crash(|found| {
            only_at(found, &["a/ein"], b"1");
            found.must_list("c", &[]);
        });
        bed.sync();
        // Within one directory.
        bed.rename("a/ein", "a/un");
        bed.fsync("a/un");
        bed.after_crash(|found| found.must_list("a", &["two", "un"]));
        bed.must_be_logged();
    });
}

/// Goal: rename and link after an fsync cost no commit, neither of the log nor whole, and the next fsync of anything has them.
#[test]
fn sync_then_rename_and_link() {
    on_all_forms(|bed| {
        start(bed);
        let file = bed.file("a/new", b"new");
        bed.fs.fsync(&file).unwrap();
        let before = bed.stats();
        bed.rename("a/new", "b/newer");
        bed.link("b/newer", "c/link");
        bed.rename("b/newer", "b/newest");
        let after = bed.stats();
        assert_eq!((before.log_commits, before.full_commits), (after.log_commits, after.full_commits));
        assert_eq!(after.commits_by_link_rename, 0);
        bed.after_crash(|found| only_at(found, &["a/new"], b"new"));
        bed.file("c/third", b"3");
        bed.fsync("c/third");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["b/newest", "c/link"], b"new");
            found.must_list("a", &["one", "two"]);
            found.must_hold("c/third", b"3");
        });
        bed.unlink("c/link");
        bed.fsync("c");
        bed.after_crash(|found| {
            only_at(found, &["b/newest"], b"new");
            found.must_list("c", &["third"]);
        });
        bed.must_be_logged();
    });
}

/// Goal: a directory that was not logged, and whose child was renamed, is logged when it is synced.
#[test]
fn ancestor_is_not_taken_for_logged() {
    on_all_forms(|bed| {
        start(bed);
        bed.fs.set_attr(&bed.at("a/one"), &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        bed.fsync("a/one");
        bed.rename("a/one", "a/uno");
        bed.file("a/other", b"other");
        let before = bed.stats().log_commits;
        bed.fsync("a");
        assert_eq!(bed.stats().log_commits, before + 1);
        bed.must_be_logged();
        bed.after_crash(|found| {
            found.must_list("a", &["other", "two", "uno"]);
            assert_eq!(found.meta("a/uno").mode() & 0o777, 0o600);
        });
    });
}

/// Goal: whoever loses a name to a synced file, and lives, keeps one.
#[test]
fn replaced_and_moved_away() {
    on_all_forms(|bed| {
        start(bed);
        // two takes one's name; one lives on elsewhere.
        bed.rename("a/one", "c/saved");
        bed.rename("a/two", "a/one");
        bed.fsync("a/one");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["a/one"], b"22");
            only_at(found, &["c/saved"], b"1");
            found.must_list("a", &["one"]);
        });
        // A new file takes a name.
        bed.sync();
        bed.rename("b/three", "b/kept");
        bed.file("b/three", b"new three");
        bed.fsync("b/three");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["b/three"], b"new three");
            only_at(found, &["b/kept"], b"333");
        });
        // And a replacing rename, where what was there goes.
        bed.sync();
        bed.file("b/tmp", b"replacement");
        bed.fsync("b/tmp");
        bed.rename("b/tmp", "b/three");
        bed.fsync("b/three");
        bed.after_crash(|found| {
            only_at(found, &["b/three"], b"replacement");
            found.must_list("b", &["kept", "three"]);
        });
    });
}

/// Goal: exchanged names are exchanged, files and directories.
#[test]
fn exchange() {
    on_all_forms(|bed| {
        start(bed);
        bed.rename_as("a/one", "b/three", RenameMode::Exchange);
        bed.fsync("b/three");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["b/three"], b"1");
            only_at(found, &["a/one"], b"333");
        });
        bed.sync();
        bed.mkdir("c/sub");
        bed.file("c/sub/f", b"f");
        bed.sync();
        bed.rename_as("c/sub", "a/two", RenameMode::Exchange);
        bed.fsync("a/two");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["a/two/f"], b"f");
            only_at(found, &["c/sub"], b"22");
        });
    });
}

/// Goal: a directory that moves below its own former child does not make a circle in the replay.
#[test]
fn directories_turned_inside_out() {
    on_all_forms(|bed| {
        bed.mkdir("p");
        bed.mkdir("p/q");
        bed.file("p/q/f", b"f");
        bed.file("p/g", b"g");
        bed.sync();
        bed.rename("p/q", "q");
        bed.rename("p", "q/p");
        bed.fsync("q/p");
        bed.must_be_logged();
        bed.after_crash(|found| {
            found.must_list("", &["q"]);
            found.must_list("q", &["f", "p"]);
            found.must_list("q/p", &["g"]);
        });
    });
}

/// Goal: of several names, those that are gone are gone and those that are left are left.
#[test]
fn hard_links() {
    on_all_forms(|bed| {
        start(bed);
        bed.link("a/one", "b/uno");
        bed.link("a/one", "c/eins");
        bed.link("a/one", "a/un");
        bed.fsync("a/one");
        bed.after_crash(|found| only_at(found, &["a/one", "a/un", "b/uno", "c/eins"], b"1"));
        bed.sync();
        bed.unlink("b/uno");
        bed.unlink("a/one");
        bed.fsync("a/un");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["a/un", "c/eins"], b"1");
            found.must_list("b", &["three"]);
        });
        // The directory of a name that went, the others elsewhere.
        bed.sync();
        bed.unlink("a/un");
        bed.fsync("a");
        bed.after_crash(|found| only_at(found, &["c/eins"], b"1"));
        // The same name again, for the same file.
        bed.sync();
        bed.unlink("c/eins");
        bed.file("c/eins", b"another");
        bed.fsync("c/eins");
        bed.after_crash(|found| only_at(found, &["c/eins"], b"another"));
        bed.must_be_logged();
    });
}

/// Goal: many names in one directory, more than one item of references holds.
#[test]
fn many_links() {
    on_all_forms(|bed| {
        start(bed);
        let name = |n: usize| format!("c/{n:0>100}");
        (0..200).for_each(|n| bed.link("a/one", &name(n)));
        bed.fsync("a/one");
        bed.must_be_logged();
        bed.after_crash(|found| assert_eq!((found.meta("a/one").nlink(), found.names("c").len()), (201, 200)));
        bed.sync();
        (0..200).step_by(3).for_each(|n| bed.unlink(&name(n)));
        bed.fsync("a/one");
        bed.must_be_logged();
        bed.after_crash(|found| assert_eq!((found.meta("a/one").nlink(), found.names("c").len()), (134, 133)));
    });
}

/// Goal: an unlinked name is gone after its directory was synced, logged or not before.
#[test]
fn unlink() {
    on_all_forms(|bed| {
        start(bed);
        bed.unlink("a/one");
        bed.fsync("a");
        bed.after_crash(|found| found.must_list("a", &["two"]));
        bed.file("a/x", b"x");
        bed.fsync("a/x");
        bed.after_crash(|found| found.must_list("a", &["two", "x"]));
        bed.unlink("a/x");
        bed.fsync("a");
        bed.after_crash(|found| found.must_list("a", &["two"]));
        bed.file("a/x", b"second");
        bed.fsync("a");
        bed.fsync("a/x");
        bed.after_crash(|found| only_at(found, &["a/x"], b"second"));
        bed.must_be_logged();
    });
}

/// Goal: an unlinked file that is still open can be synced; it does not come back by that under a name taken since.
#[test]
fn unlinked_but_open() {
    on_all_forms(|bed| {
        start(bed);
        let open = bed.at("a/one");
        bed.unlink("a/one");
        bed.fs.write(&open, 0, b"written without a name").unwrap();
        bed.fs.fsync(&open).unwrap();
        bed.after_crash(|found| {
            assert!(found.names("a").contains(&"two".to_owned()));
        });
        bed.file("a/one", b"the next");
        bed.fsync("a/one");
        bed.after_crash(|found| only_at(found, &["a/one"], b"the next"));
        // One that the log has already.
        let logged = bed.file("b/l", b"l");
        bed.fs.fsync(&logged).unwrap();
        bed.unlink("b/l");
        bed.fs.write(&logged, 0, b"more").unwrap();
        bed.fs.fsync(&logged).unwrap();
        bed.after_crash(|found| found.must_list("b", &["three"]));
        bed.must_be_logged();
    });
}

/// Goal: a deleted directory is gone, and what was moved out of it lives.
#[test]
fn deleted_ancestors() {
    on_all_forms(|bed| {
        start(bed);
        for dir in ["a/d", "a/d/e"] {
            bed.mkdir(dir);
        }
        bed.file("a/d/e/f", b"f");
        bed.file("a/d/e/g", b"g");
        bed.file("a/d/h", b"h");
        bed.sync();
        bed.rename("a/d/e/f", "c/f");
        bed.unlink("a/d/e/g");
        bed.rename("a/d/h", "b/h");
        bed.rmdir("a/d/e");
        bed.rmdir("a/d");
        bed.fsync("c/f");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["c/f"], b"f");
            only_at(found, &["b/h"], b"h");
            found.must_list("a", &["one", "two"]);
        });
        bed.mkdir("a/d");
        bed.fsync("a/d");
        bed.fsync("a");
        bed.must_be_logged();
        bed.after_crash(|found| {
            found.must_list("a/d", &[]);
            only_at(found, &["b/h"], b"h");
        });
        bed.sync();
        // One that the log has, and that goes.
        bed.file("a/d/x", b"x");
        bed.fsync("a/d");
        bed.unlink("a/d/x");
        bed.rmdir("a/d");
        bed.fsync("a");
        bed.must_be_logged();
        bed.after_crash(|found| found.must_list("a", &["one", "two"]));
    });
}

/// Goal: a synced directory has its new entries, those of new directories in it, and not what was removed or moved away.
#[test]
fn directory() {
    on_all_forms(|bed| {
        start(bed);
        bed.mkdir("a/new");
        bed.mkdir("a/new/newer");
        bed.file("a/new/newer/f", b"f");
        bed.make("a/new/link", NewKind::Symlink(b"somewhere"));
        bed.make("a/pipe", NewKind::Fifo);
        bed.unlink("a/one");
        bed.rename("a/two", "c/two");
        bed.rename("b/three", "a/three");
        bed.fsync("a");
        bed.must_be_logged();
        bed.after_crash(|found| {
            found.must_list("a", &["new", "pipe", "three"]);
            found.must_list("a/new", &["link", "newer"]);
            found.must_list("a/new/newer", &["f"]);
            only_at(found, &["c/two"], b"22");
            only_at(found, &["a/three"], b"333");
            assert_eq!(std::fs::read_link(found.path("a/new/link")).unwrap().to_str(), Some("somewhere"));
        });
        for n in 0..300 {
            bed.file(&format!("b/{n}"), b"");
        }
        bed.fsync("b");
        for n in (0..300).filter(|n| n % 7 != 0) {
            bed.unlink(&format!("b/{n}"));
        }
        bed.fsync("b");
        bed.must_be_logged();
        bed.after_crash(|found| assert_eq!(found.names("b").len(), 43));
        bed.sync();
        for n in (0..300).step_by(7) {
            bed.unlink(&format!("b/{n}"));
        }
        bed.fsync("b");
        bed.must_be_logged();
        bed.after_crash(|found| found.must_list("b", &[]));
    });
}

/// Goal: a file made without a name is there once it is linked and synced.
#[test]
fn tmpfile() {
    on_all_forms(|bed| {
        start(bed);
        for synced_before in [false, true] {
            let file = bed.fs.tmpfile(&bed.at("c"), &NewInode::new(NewKind::File, 0o644)).unwrap();
            bed.fs.write(&file, 0, b"no name yet").unwrap();
            if synced_before {
                bed.fs.fsync(&file).unwrap();
                bed.after_crash(|found| assert!(!found.has("c/true")));
            }
            let name = format!("c/{synced_before}");
            bed.fs.link(&file, &bed.at("c"), &name.as_bytes()[2..]).unwrap();
            bed.fs.fsync(&file).unwrap();
            bed.after_crash(|found| only_at(found, &[&name], b"no name yet"));
        }
        // One that a commit has as an orphan.
        let file = bed.fs.tmpfile(&bed.at("c"), &NewInode::new(NewKind::File, 0o644)).unwrap();
        bed.fs.write(&file, 0, b"orphan").unwrap();
        bed.sync();
        bed.fs.link(&file, &bed.at("c"), b"named").unwrap();
        bed.fs.fsync(&file).unwrap();
        bed.after_crash(|found| only_at(found, &["c/named"], b"orphan"));
        bed.must_be_logged();
    });
}

/// Goal: the mark that a rename leaves is there with the rename.
#[test]
fn whiteout() {
    on_all_forms(|bed| {
        start(bed);
        bed.rename_as("a/one", "b/one", RenameMode::Whiteout { uid: 0, gid: 0, no_replace: false });
        bed.fsync("a");
        bed.must_be_logged();
        bed.after_crash(|found| {
            use std::os::unix::fs::FileTypeExt;
            assert!(found.meta("a/one").file_type().is_char_device());
            only_at(found, &["b/one"], b"1");
        });
    });
}

/// Goal: a symbolic link that is synced leads where it should.
#[test]
fn symlink() {
    on_all_forms(|bed| {
        start(bed);
        bed.make("a/link", NewKind::Symlink(b"../b/three"));
        bed.fsync("a/link");
        bed.must_be_logged();
        bed.after_crash(|found| found.must_hold("a/link", b"333"));
    });
}

/// Goal: a name that always led somewhere leads somewhere.
#[test]
fn successors() {
    on_all_forms(|bed| {
        start(bed);
        bed.file("b/one", b"");
        bed.rename_as("a/one", "b/one", RenameMode::Exchange);
        bed.fsync("b");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["b/one"], b"1");
            found.must_list("a", &["one", "two"]);
        });
        bed.sync();
        bed.link("a/two", "c/two");
        bed.rename("a/one", "a/two");
        bed.fsync("c");
        bed.after_crash(|found| {
            found.must_list("a", &["two"]);
            only_at(found, &["c/two"], b"22");
        });
        bed.sync();
        // A name that only the log has.
        bed.file("c/new", b"new");
        bed.fsync("c/new");
        bed.rename("b/three", "c/new");
        bed.file("a/x", b"x");
        bed.fsync("a/x");
        bed.after_crash(|found| only_at(found, &["c/new"], b"333"));
        // Two in one directory: indices next to each other.
        bed.sync();
        bed.file("a/y", b"y");
        bed.sync();
        bed.rename_as("a/x", "a/y", RenameMode::Exchange);
        bed.fsync("a");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["a/x"], b"y");
            only_at(found, &["a/y"], b"x");
        });
    });
}

/// Goal: fdatasync makes a changed name durable; a file that was synced without a name has its bytes under its first.
#[test]
fn names_by_fdatasync() {
    on_all_forms(|bed| {
        start(bed);
        bed.rename("a/one", "b/one");
        bed.fs.fdatasync(&bed.at("b/one")).unwrap();
        bed.after_crash(|found| only_at(found, &["b/one"], b"1"));
        bed.link("a/two", "b/two");
        bed.fs.fdatasync(&bed.at("b/two")).unwrap();
        bed.after_crash(|found| only_at(found, &["a/two", "b/two"], b"22"));
        for committed in [false, true] {
            let file = bed.fs.tmpfile(&bed.at("c"), &NewInode::new(NewKind::File, 0o644)).unwrap();
            if committed {
                bed.sync();
            }
            bed.fs.write(&file, 0, b"synced without a name").unwrap();
            bed.fs.fsync(&file).unwrap();
            let name = format!("named {committed}");
            bed.fs.link(&file, &bed.at("c"), name.as_bytes()).unwrap();
            bed.after_crash(|found| assert!(!found.has(&format!("c/{name}"))));
            bed.fsync("c");
            bed.after_crash(|found| only_at(found, &[&format!("c/{name}")], b"synced without a name"));
        }
        bed.must_be_logged();
    });
}

/// Goal: whoever syncs a file that was linked, renamed or unlinked finds what happened to other names in its directories before,
/// as with the kernel.
/// Method: the sequences of xfstests' generic/104, 336 and 343: links of two files, a name that goes beside one that moves away, and
/// a directory and a file that move in.
#[test]
fn other_names_come_along() {
    on_all_forms(|bed| {
        start(bed);
        // 104
        bed.link("a/one", "a/one-too");
        bed.link("a/two", "a/two-too");
        bed.fsync("a/two");
        bed.must_be_logged();
        bed.after_crash(|found| {
            only_at(found, &["a/one", "a/one-too"], b"1");
            only_at(found, &["a/two", "a/two-too"], b"22");
        });
        bed.sync();
        // 336
        bed.link("a/one", "b/foo");
        bed.file("b/bar", b"bar");
        bed.sync();
        bed.unlink("b/foo");
        bed.rename("b/bar", "c/bar");
        bed.fsync("a/one");
        bed.must_be_logged();
        bed.after_crash(|found| {
            found.must_list("b", &["three"]);
            only_at(found, &["c/bar"], b"bar");
        });
        bed.sync();
        // 343
        bed.mkdir("b/z");
        bed.file("b/z/in", b"in");
        bed.sync();
        bed.link("a/one", "a/uno");
        bed.rename("b/z", "a/z");
        bed.rename("b/three", "a/three");
        bed.fsync("a/uno");
        bed.must_be_logged();
        let check = |found: &crate::bed::Found| {
            only_at(found, &["a/one", "a/one-too", "a/uno"], b"1");
            only_at(found, &["a/z/in"], b"in");
            only_at(found, &["a/three"], b"333");
            found.must_list("b", &[]);
        };
        bed.after_crash(check);
        bed.after_our_replay(check);
        // Once: what moves later is not its affair.
        bed.fs.write(&bed.at("a/uno"), 0, b"1").unwrap();
        bed.file("a/later", b"");
        bed.fsync("a/uno");
        bed.after_crash(|found| assert!(!found.has("a/later")));
    });
}

/// Goal: new names of a file are in the log as long as it has no more than some hundred; else a commit brings them.
/// Method: links with long names, fewer and more than that.
#[test]
fn very_many_new_names() {
    let name = |n: usize| format!("a/{n:04}{}", "x".repeat(56));
    let Some(bed) = Bed::new(&[], oleo_fs::FsOptions::default()) else { return };
    start(&bed);
    for n in 0..100 {
        bed.link("a/one", &name(n));
    }
    bed.fsync("a/one");
    bed.must_be_logged();
    bed.after_crash(|found| {
        assert_eq!(found.meta("a/one").nlink(), 101);
        assert_eq!(found.names("a").len(), 102);
    });
    for n in 100..600 {
        bed.link("a/one", &name(n));
    }
    bed.fsync("a/one");
    assert_eq!(bed.stats().full_commits, 1);
    bed.after_crash(|found| assert_eq!(found.meta("a/one").nlink(), 601));
    // Its content is logged as ever, names and all.
    bed.fs.write(&bed.at("a/one"), 0, b"uno").unwrap();
    bed.fsync("a/one");
    assert_eq!(bed.stats().full_commits, 1);
    let check = |found: &crate::bed::Found| {
        found.must_hold("a/one", b"uno");
        assert_eq!(found.meta("a/one").nlink(), 601);
        assert_eq!(found.names("a").len(), 602);
    };
    bed.after_our_replay(check);
}
