//! Names: what a logged file or directory is called, and who else is concerned.

use std::os::unix::fs::MetadataExt;

use oleo_fs::{NewInode, NewKind, RenameMode, SetAttr};

use crate::log_kernel::fixture::{Fixture, on_all_forms};

/// A committed tree: a/one, a/two, b/three, c (empty).
fn start(fixture: &Fixture) {
    for dir in ["a", "b", "c"] {
        fixture.mkdir(dir);
    }
    for (path, content) in [("a/one", "1"), ("a/two", "22"), ("b/three", "333")] {
        fixture.file(path, content.as_bytes());
    }
    fixture.sync();
}

/// Each name once, under the path or paths that are wanted, whole and with as many links as names.
fn only_at(found: &crate::log_kernel::fixture::Found, paths: &[&str], content: &[u8]) {
    for path in paths {
        found.must_hold(path, content);
        assert_eq!(found.meta(path).nlink(), paths.len() as u64, "links of {path}");
        assert_eq!(found.meta(path).ino(), found.meta(paths[0]).ino(), "{path}");
    }
}

/// Goal: new directories on the way to a synced file come with it, however deep and however renamed.
#[test]
fn new_directories_on_the_path() {
    on_all_forms(|fixture| {
        start(fixture);
        for dir in ["a/x", "a/x/y", "a/x/y/z", "a/x/unsynced"] {
            fixture.mkdir(dir);
        }
        fixture.file("a/x/y/z/f", b"deep");
        fixture.file("a/x/y/other", b"not synced");
        fixture.rename("a/x/y", "b/why");
        fixture.fsync("b/why/z/f");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["b/why/z/f"], b"deep");
            found.must_list("a", &["one", "two"]);
            found.must_list("b/why", &["z"]);
        });
        fixture.fsync("a");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            found.must_list("a", &["one", "two", "x"]);
            found.must_list("a/x", &["unsynced"]);
            only_at(found, &["b/why/z/f"], b"deep");
        });
    });
}

/// Goal: a rename of a committed file shows one name, the old or the new, whatever of it is synced.
#[test]
fn rename_then_sync() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.rename("a/one", "b/uno");
        fixture.fsync("b/uno");
        fixture.after_crash(|found| {
            only_at(found, &["b/uno"], b"1");
            found.must_list("a", &["two"]);
        });
        fixture.sync();
        // Its old directory.
        fixture.rename("b/uno", "c/eins");
        fixture.fsync("b");
        fixture.after_crash(|found| {
            only_at(found, &["c/eins"], b"1");
            found.must_list("b", &["three"]);
        });
        fixture.sync();
        // Its new one.
        fixture.rename("c/eins", "a/ein");
        fixture.fsync("a");
        fixture.after_crash(|found| {
            only_at(found, &["a/ein"], b"1");
            found.must_list("c", &[]);
        });
        fixture.sync();
        // Within one directory.
        fixture.rename("a/ein", "a/un");
        fixture.fsync("a/un");
        fixture.after_crash(|found| found.must_list("a", &["two", "un"]));
        fixture.must_be_logged();
    });
}

/// Goal: rename and link after an fsync cost no commit, neither of the log nor whole, and the next fsync of anything has them.
#[test]
fn sync_then_rename_and_link() {
    on_all_forms(|fixture| {
        start(fixture);
        let file = fixture.file("a/new", b"new");
        fixture.fs.fsync(&file).unwrap();
        let before = fixture.stats();
        fixture.rename("a/new", "b/newer");
        fixture.link("b/newer", "c/link");
        fixture.rename("b/newer", "b/newest");
        let after = fixture.stats();
        assert_eq!((before.log_commits, before.full_commits), (after.log_commits, after.full_commits));
        assert_eq!(after.commits_by_link_rename, 0);
        fixture.after_crash(|found| only_at(found, &["a/new"], b"new"));
        fixture.file("c/third", b"3");
        fixture.fsync("c/third");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["b/newest", "c/link"], b"new");
            found.must_list("a", &["one", "two"]);
            found.must_hold("c/third", b"3");
        });
        fixture.unlink("c/link");
        fixture.fsync("c");
        fixture.after_crash(|found| {
            only_at(found, &["b/newest"], b"new");
            found.must_list("c", &["third"]);
        });
        fixture.must_be_logged();
    });
}

/// Goal: a directory that was not logged, and whose child was renamed, is logged when it is synced.
#[test]
fn ancestor_is_not_taken_for_logged() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.fs.set_attr(&fixture.at("a/one"), &SetAttr::default().mode(Some(0o600))).unwrap();
        fixture.fsync("a/one");
        fixture.rename("a/one", "a/uno");
        fixture.file("a/other", b"other");
        let before = fixture.stats().log_commits;
        fixture.fsync("a");
        assert_eq!(fixture.stats().log_commits, before + 1);
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            found.must_list("a", &["other", "two", "uno"]);
            assert_eq!(found.meta("a/uno").mode() & 0o777, 0o600);
        });
    });
}

/// Goal: whoever loses a name to a synced file, and lives, keeps one.
#[test]
fn replaced_and_moved_away() {
    on_all_forms(|fixture| {
        start(fixture);
        // two takes one's name; one lives on elsewhere.
        fixture.rename("a/one", "c/saved");
        fixture.rename("a/two", "a/one");
        fixture.fsync("a/one");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["a/one"], b"22");
            only_at(found, &["c/saved"], b"1");
            found.must_list("a", &["one"]);
        });
        // A new file takes a name.
        fixture.sync();
        fixture.rename("b/three", "b/kept");
        fixture.file("b/three", b"new three");
        fixture.fsync("b/three");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["b/three"], b"new three");
            only_at(found, &["b/kept"], b"333");
        });
        // And a replacing rename, where what was there goes.
        fixture.sync();
        fixture.file("b/tmp", b"replacement");
        fixture.fsync("b/tmp");
        fixture.rename("b/tmp", "b/three");
        fixture.fsync("b/three");
        fixture.after_crash(|found| {
            only_at(found, &["b/three"], b"replacement");
            found.must_list("b", &["kept", "three"]);
        });
    });
}

/// Goal: exchanged names are exchanged, files and directories.
#[test]
fn exchange() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.rename_as("a/one", "b/three", RenameMode::Exchange);
        fixture.fsync("b/three");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["b/three"], b"1");
            only_at(found, &["a/one"], b"333");
        });
        fixture.sync();
        fixture.mkdir("c/sub");
        fixture.file("c/sub/f", b"f");
        fixture.sync();
        fixture.rename_as("c/sub", "a/two", RenameMode::Exchange);
        fixture.fsync("a/two");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["a/two/f"], b"f");
            only_at(found, &["c/sub"], b"22");
        });
    });
}

/// Goal: a directory that moves below its own former child does not make a circle in the replay.
#[test]
fn directories_turned_inside_out() {
    on_all_forms(|fixture| {
        fixture.mkdir("p");
        fixture.mkdir("p/q");
        fixture.file("p/q/f", b"f");
        fixture.file("p/g", b"g");
        fixture.sync();
        fixture.rename("p/q", "q");
        fixture.rename("p", "q/p");
        fixture.fsync("q/p");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            found.must_list("", &["q"]);
            found.must_list("q", &["f", "p"]);
            found.must_list("q/p", &["g"]);
        });
    });
}

/// Goal: of several names, those that are gone are gone and those that are left are left.
#[test]
fn hard_links() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.link("a/one", "b/uno");
        fixture.link("a/one", "c/eins");
        fixture.link("a/one", "a/un");
        fixture.fsync("a/one");
        fixture.after_crash(|found| only_at(found, &["a/one", "a/un", "b/uno", "c/eins"], b"1"));
        fixture.sync();
        fixture.unlink("b/uno");
        fixture.unlink("a/one");
        fixture.fsync("a/un");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["a/un", "c/eins"], b"1");
            found.must_list("b", &["three"]);
        });
        // The directory of a name that went, the others elsewhere.
        fixture.sync();
        fixture.unlink("a/un");
        fixture.fsync("a");
        fixture.after_crash(|found| only_at(found, &["c/eins"], b"1"));
        // The same name again, for the same file.
        fixture.sync();
        fixture.unlink("c/eins");
        fixture.file("c/eins", b"another");
        fixture.fsync("c/eins");
        fixture.after_crash(|found| only_at(found, &["c/eins"], b"another"));
        fixture.must_be_logged();
    });
}

/// Goal: many names in one directory, more than one item of references holds.
#[test]
fn many_links() {
    on_all_forms(|fixture| {
        start(fixture);
        let name = |n: usize| format!("c/{n:0>100}");
        (0..200).for_each(|n| fixture.link("a/one", &name(n)));
        fixture.fsync("a/one");
        fixture.must_be_logged();
        fixture.after_crash(|found| assert_eq!((found.meta("a/one").nlink(), found.names("c").len()), (201, 200)));
        fixture.sync();
        (0..200).step_by(3).for_each(|n| fixture.unlink(&name(n)));
        fixture.fsync("a/one");
        fixture.must_be_logged();
        fixture.after_crash(|found| assert_eq!((found.meta("a/one").nlink(), found.names("c").len()), (134, 133)));
    });
}

/// Goal: an unlinked name is gone after its directory was synced, logged or not before.
#[test]
fn unlink() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.unlink("a/one");
        fixture.fsync("a");
        fixture.after_crash(|found| found.must_list("a", &["two"]));
        fixture.file("a/x", b"x");
        fixture.fsync("a/x");
        fixture.after_crash(|found| found.must_list("a", &["two", "x"]));
        fixture.unlink("a/x");
        fixture.fsync("a");
        fixture.after_crash(|found| found.must_list("a", &["two"]));
        fixture.file("a/x", b"second");
        fixture.fsync("a");
        fixture.fsync("a/x");
        fixture.after_crash(|found| only_at(found, &["a/x"], b"second"));
        fixture.must_be_logged();
    });
}

/// Goal: an unlinked file that is still open can be synced; it does not come back by that under a name taken since.
#[test]
fn unlinked_but_open() {
    on_all_forms(|fixture| {
        start(fixture);
        let open = fixture.at("a/one");
        fixture.unlink("a/one");
        fixture.fs.write(&open, 0, b"written without a name").unwrap();
        fixture.fs.fsync(&open).unwrap();
        fixture.after_crash(|found| {
            assert!(found.names("a").contains(&"two".to_owned()));
        });
        fixture.file("a/one", b"the next");
        fixture.fsync("a/one");
        fixture.after_crash(|found| only_at(found, &["a/one"], b"the next"));
        // One that the log has already.
        let logged = fixture.file("b/l", b"l");
        fixture.fs.fsync(&logged).unwrap();
        fixture.unlink("b/l");
        fixture.fs.write(&logged, 0, b"more").unwrap();
        fixture.fs.fsync(&logged).unwrap();
        fixture.after_crash(|found| found.must_list("b", &["three"]));
        fixture.must_be_logged();
    });
}

/// Goal: a deleted directory is gone, and what was moved out of it lives.
#[test]
fn deleted_ancestors() {
    on_all_forms(|fixture| {
        start(fixture);
        for dir in ["a/d", "a/d/e"] {
            fixture.mkdir(dir);
        }
        fixture.file("a/d/e/f", b"f");
        fixture.file("a/d/e/g", b"g");
        fixture.file("a/d/h", b"h");
        fixture.sync();
        fixture.rename("a/d/e/f", "c/f");
        fixture.unlink("a/d/e/g");
        fixture.rename("a/d/h", "b/h");
        fixture.rmdir("a/d/e");
        fixture.rmdir("a/d");
        fixture.fsync("c/f");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["c/f"], b"f");
            only_at(found, &["b/h"], b"h");
            found.must_list("a", &["one", "two"]);
        });
        fixture.mkdir("a/d");
        fixture.fsync("a/d");
        fixture.fsync("a");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            found.must_list("a/d", &[]);
            only_at(found, &["b/h"], b"h");
        });
        fixture.sync();
        // One that the log has, and that goes.
        fixture.file("a/d/x", b"x");
        fixture.fsync("a/d");
        fixture.unlink("a/d/x");
        fixture.rmdir("a/d");
        fixture.fsync("a");
        fixture.must_be_logged();
        fixture.after_crash(|found| found.must_list("a", &["one", "two"]));
    });
}

/// Goal: a synced directory has its new entries, those of new directories in it, and not what was removed or moved away.
#[test]
fn directory() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.mkdir("a/new");
        fixture.mkdir("a/new/newer");
        fixture.file("a/new/newer/f", b"f");
        fixture.make("a/new/link", NewKind::Symlink(b"somewhere"));
        fixture.make("a/pipe", NewKind::Fifo);
        fixture.unlink("a/one");
        fixture.rename("a/two", "c/two");
        fixture.rename("b/three", "a/three");
        fixture.fsync("a");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            found.must_list("a", &["new", "pipe", "three"]);
            found.must_list("a/new", &["link", "newer"]);
            found.must_list("a/new/newer", &["f"]);
            only_at(found, &["c/two"], b"22");
            only_at(found, &["a/three"], b"333");
            assert_eq!(std::fs::read_link(found.path("a/new/link")).unwrap().to_str(), Some("somewhere"));
        });
        for n in 0..300 {
            fixture.file(&format!("b/{n}"), b"");
        }
        fixture.fsync("b");
        for n in (0..300).filter(|n| n % 7 != 0) {
            fixture.unlink(&format!("b/{n}"));
        }
        fixture.fsync("b");
        fixture.must_be_logged();
        fixture.after_crash(|found| assert_eq!(found.names("b").len(), 43));
        fixture.sync();
        for n in (0..300).step_by(7) {
            fixture.unlink(&format!("b/{n}"));
        }
        fixture.fsync("b");
        fixture.must_be_logged();
        fixture.after_crash(|found| found.must_list("b", &[]));
    });
}

/// Goal: a file made without a name is there once it is linked and synced.
#[test]
fn tmpfile() {
    on_all_forms(|fixture| {
        start(fixture);
        for synced_before in [false, true] {
            let file = fixture.fs.tmpfile(&fixture.at("c"), &NewInode::new(NewKind::File, 0o644)).unwrap();
            fixture.fs.write(&file, 0, b"no name yet").unwrap();
            if synced_before {
                fixture.fs.fsync(&file).unwrap();
                fixture.after_crash(|found| assert!(!found.has("c/true")));
            }
            let name = format!("c/{synced_before}");
            fixture.fs.link(&file, &fixture.at("c"), &name.as_bytes()[2..]).unwrap();
            fixture.fs.fsync(&file).unwrap();
            fixture.after_crash(|found| only_at(found, &[&name], b"no name yet"));
        }
        // One that a commit has as an orphan.
        let file = fixture.fs.tmpfile(&fixture.at("c"), &NewInode::new(NewKind::File, 0o644)).unwrap();
        fixture.fs.write(&file, 0, b"orphan").unwrap();
        fixture.sync();
        fixture.fs.link(&file, &fixture.at("c"), b"named").unwrap();
        fixture.fs.fsync(&file).unwrap();
        fixture.after_crash(|found| only_at(found, &["c/named"], b"orphan"));
        fixture.must_be_logged();
    });
}

/// Goal: the mark that a rename leaves is there with the rename.
#[test]
fn whiteout() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.rename_as("a/one", "b/one", RenameMode::Whiteout { uid: 0, gid: 0, no_replace: false });
        fixture.fsync("a");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            use std::os::unix::fs::FileTypeExt;
            assert!(found.meta("a/one").file_type().is_char_device());
            only_at(found, &["b/one"], b"1");
        });
    });
}

/// Goal: a symbolic link that is synced leads where it should.
#[test]
fn symlink() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.make("a/link", NewKind::Symlink(b"../b/three"));
        fixture.fsync("a/link");
        fixture.must_be_logged();
        fixture.after_crash(|found| found.must_hold("a/link", b"333"));
    });
}

/// Goal: a name that always led somewhere leads somewhere.
#[test]
fn successors() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.file("b/one", b"");
        fixture.rename_as("a/one", "b/one", RenameMode::Exchange);
        fixture.fsync("b");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["b/one"], b"1");
            found.must_list("a", &["one", "two"]);
        });
        fixture.sync();
        fixture.link("a/two", "c/two");
        fixture.rename("a/one", "a/two");
        fixture.fsync("c");
        fixture.after_crash(|found| {
            found.must_list("a", &["two"]);
            only_at(found, &["c/two"], b"22");
        });
        fixture.sync();
        // A name that only the log has.
        fixture.file("c/new", b"new");
        fixture.fsync("c/new");
        fixture.rename("b/three", "c/new");
        fixture.file("a/x", b"x");
        fixture.fsync("a/x");
        fixture.after_crash(|found| only_at(found, &["c/new"], b"333"));
        // Two in one directory: indices next to each other.
        fixture.sync();
        fixture.file("a/y", b"y");
        fixture.sync();
        fixture.rename_as("a/x", "a/y", RenameMode::Exchange);
        fixture.fsync("a");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["a/x"], b"y");
            only_at(found, &["a/y"], b"x");
        });
    });
}

/// Goal: fdatasync makes a changed name durable; a file that was synced without a name has its bytes under its first.
#[test]
fn names_by_fdatasync() {
    on_all_forms(|fixture| {
        start(fixture);
        fixture.rename("a/one", "b/one");
        fixture.fs.fdatasync(&fixture.at("b/one")).unwrap();
        fixture.after_crash(|found| only_at(found, &["b/one"], b"1"));
        fixture.link("a/two", "b/two");
        fixture.fs.fdatasync(&fixture.at("b/two")).unwrap();
        fixture.after_crash(|found| only_at(found, &["a/two", "b/two"], b"22"));
        for committed in [false, true] {
            let file = fixture.fs.tmpfile(&fixture.at("c"), &NewInode::new(NewKind::File, 0o644)).unwrap();
            if committed {
                fixture.sync();
            }
            fixture.fs.write(&file, 0, b"synced without a name").unwrap();
            fixture.fs.fsync(&file).unwrap();
            let name = format!("named {committed}");
            fixture.fs.link(&file, &fixture.at("c"), name.as_bytes()).unwrap();
            fixture.after_crash(|found| assert!(!found.has(&format!("c/{name}"))));
            fixture.fsync("c");
            fixture.after_crash(|found| only_at(found, &[&format!("c/{name}")], b"synced without a name"));
        }
        fixture.must_be_logged();
    });
}

/// Goal: whoever syncs a file that was linked, renamed or unlinked finds what happened to other names in its directories before,
/// as with the kernel.
/// Method: the sequences of xfstests' generic/104, 336 and 343: links of two files, a name that goes beside one that moves away, and
/// a directory and a file that move in.
#[test]
fn other_names_come_along() {
    on_all_forms(|fixture| {
        start(fixture);
        // 104
        fixture.link("a/one", "a/one-too");
        fixture.link("a/two", "a/two-too");
        fixture.fsync("a/two");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            only_at(found, &["a/one", "a/one-too"], b"1");
            only_at(found, &["a/two", "a/two-too"], b"22");
        });
        fixture.sync();
        // 336
        fixture.link("a/one", "b/foo");
        fixture.file("b/bar", b"bar");
        fixture.sync();
        fixture.unlink("b/foo");
        fixture.rename("b/bar", "c/bar");
        fixture.fsync("a/one");
        fixture.must_be_logged();
        fixture.after_crash(|found| {
            found.must_list("b", &["three"]);
            only_at(found, &["c/bar"], b"bar");
        });
        fixture.sync();
        // 343
        fixture.mkdir("b/z");
        fixture.file("b/z/in", b"in");
        fixture.sync();
        fixture.link("a/one", "a/uno");
        fixture.rename("b/z", "a/z");
        fixture.rename("b/three", "a/three");
        fixture.fsync("a/uno");
        fixture.must_be_logged();
        let check = |found: &crate::log_kernel::fixture::Found| {
            only_at(found, &["a/one", "a/one-too", "a/uno"], b"1");
            only_at(found, &["a/z/in"], b"in");
            only_at(found, &["a/three"], b"333");
            found.must_list("b", &[]);
        };
        fixture.after_crash(check);
        fixture.after_our_replay(check);
        // Once: what moves later is not its affair.
        fixture.fs.write(&fixture.at("a/uno"), 0, b"1").unwrap();
        fixture.file("a/later", b"");
        fixture.fsync("a/uno");
        fixture.after_crash(|found| assert!(!found.has("a/later")));
    });
}

/// Goal: new names of a file are in the log as long as it has no more than some hundred; else a commit brings them.
/// Method: links with long names, fewer and more than that.
#[test]
fn very_many_new_names() {
    let name = |n: usize| format!("a/{n:04}{}", "x".repeat(56));
    let Some(fixture) = Fixture::new(&[], oleo_fs::FsOptions::default()) else { return };
    start(&fixture);
    for n in 0..100 {
        fixture.link("a/one", &name(n));
    }
    fixture.fsync("a/one");
    fixture.must_be_logged();
    fixture.after_crash(|found| {
        assert_eq!(found.meta("a/one").nlink(), 101);
        assert_eq!(found.names("a").len(), 102);
    });
    for n in 100..600 {
        fixture.link("a/one", &name(n));
    }
    fixture.fsync("a/one");
    assert_eq!(fixture.stats().full_commits, 1);
    fixture.after_crash(|found| assert_eq!(found.meta("a/one").nlink(), 601));
    // Its content is logged as ever, names and all.
    fixture.fs.write(&fixture.at("a/one"), 0, b"uno").unwrap();
    fixture.fsync("a/one");
    assert_eq!(fixture.stats().full_commits, 1);
    let check = |found: &crate::log_kernel::fixture::Found| {
        found.must_hold("a/one", b"uno");
        assert_eq!(found.meta("a/one").nlink(), 601);
        assert_eq!(found.names("a").len(), 602);
    };
    fixture.after_our_replay(check);
}
