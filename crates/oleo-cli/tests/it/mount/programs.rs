//! Programs that people use, on a mount.

use std::fs;
use std::path::Path;
use std::process::Command;

use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::Scratch;
use oleo_sim::specimen;

use crate::mount::place::{Place, family};

family!("noatime"; git after git_after, cargo, sqlite after sqlite_after, rsync, tar, cp_and_diff, find_and_rm);

/// Runs a program in a directory; it must succeed. Its standard output.
#[track_caller]
fn run(dir: &Path, program: &str, args: &[&str]) -> String {
    run_with(dir, program, args, &[])
}

#[track_caller]
fn run_with(dir: &Path, program: &str, args: &[&str], env: &[(&str, &str)]) -> String {
    let out = Command::new(program).args(args).current_dir(dir).envs(env.iter().copied()).env("LC_ALL", "C").output();
    let out = out.unwrap_or_else(|e| panic!("{program}: {e} (scripts/test installs what is needed)"));
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{program} {args:?}: {}\n{text}\n{errors}", out.status);
    text.into_owned()
}

#[track_caller]
fn git_in(dir: &Path, args: &[&str]) -> String {
    let who = [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "A"),
        ("GIT_AUTHOR_EMAIL", "a@example.org"),
        ("GIT_COMMITTER_NAME", "A"),
        ("GIT_COMMITTER_EMAIL", "a@example.org"),
    ];
    run_with(dir, "git", args, &who)
}

/// A repository with a history, made elsewhere.
fn repository() -> Scratch {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.dir("origin").unwrap();
    git_in(&dir, &["init", "--quiet", "--initial-branch=main"]);
    let mut rng = oleo_sim::rng::Rng::new(1);
    for commit in 0..15 {
        for n in 0..40 {
            let sub = dir.join(format!("d{}", n % 7));
            fs::create_dir_all(&sub).unwrap();
            let len = usize::try_from(rng.length(30_000)).unwrap();
            fs::write(sub.join(format!("f{}", (n * 7 + commit) % 120)), rng.text(len)).unwrap();
        }
        git_in(&dir, &["add", "-A"]);
        git_in(&dir, &["commit", "--quiet", "-m", "more"]);
    }
    scratch
}

fn git(at: &Place) {
    let origin = repository();
    let from = origin.path().join("origin");
    git_in(&at.dir, &["clone", "--quiet", "--no-hardlinks", from.to_str().unwrap(), "clone"]);
    let clone = at.at("clone");
    assert_eq!(git_in(&clone, &["status", "--porcelain"]), "");
    git_in(&clone, &["fsck", "--strict", "--full"]);
    fs::write(clone.join("d0/new"), "changed here").unwrap();
    fs::remove_dir_all(clone.join("d1")).unwrap();
    git_in(&clone, &["add", "-A"]);
    git_in(&clone, &["commit", "--quiet", "-m", "here"]);
    git_in(&clone, &["checkout", "--quiet", "HEAD~5"]);
    git_in(&clone, &["checkout", "--quiet", "main"]);
    git_in(&clone, &["gc", "--quiet", "--prune=now"]);
    git_after(&at.dir);
}

fn git_after(dir: &Path) {
    let clone = dir.join("clone");
    git_in(&clone, &["fsck", "--strict", "--full"]);
    assert_eq!(git_in(&clone, &["status", "--porcelain"]), "");
    assert_eq!(git_in(&clone, &["rev-list", "--count", "HEAD"]).trim(), "16");
}

fn cargo(at: &Place) {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let dir = at.subdir("package");
    fs::create_dir(dir.join("src")).unwrap();
    fs::write(dir.join("Cargo.toml"), "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n")
        .unwrap();
    fs::write(dir.join("src/lib.rs"), "pub mod part;\npub fn sum() -> u64 { part::numbers().sum() }\n").unwrap();
    fs::write(dir.join("src/part.rs"), "pub fn numbers() -> impl Iterator<Item = u64> { 1..=10 }\n").unwrap();
    fs::write(dir.join("src/main.rs"), "fn main() { println!(\"{}\", small::sum()); }\n").unwrap();
    let env = [("CARGO_TARGET_DIR", "target"), ("RUSTFLAGS", ""), ("CARGO_TERM_COLOR", "never")];
    let build = || run_with(&dir, &cargo, &["build", "--offline"], &env);
    build();
    assert_eq!(run(&dir, "target/debug/small", &[]), "55\n");
    // What has not changed is not built again: times are believed. What has changed is.
    let state = || fs::metadata(dir.join("target/debug/small")).unwrap().modified().unwrap();
    let before = state();
    build();
    assert_eq!(state(), before);
    fs::write(dir.join("src/part.rs"), "pub fn numbers() -> impl Iterator<Item = u64> { 1..=100 }\n").unwrap();
    build();
    assert_eq!(run(&dir, "target/debug/small", &[]), "5050\n");
}

/// Several processes write and read one database in WAL mode, whose index is a shared mapping.
const SQLITE: &str = r#"
import os, sqlite3, sys, time
path, seconds = sys.argv[1], float(sys.argv[2])
db = sqlite3.connect(path)
assert db.execute("pragma journal_mode=wal").fetchone()[0] == "wal"
db.execute("create table t (who integer, n integer, data blob)")
db.execute("create index i on t (who, n)")
db.commit()
db.close()
def write(who):
    db = sqlite3.connect(path, timeout=60)
    db.execute("pragma synchronous=full" if who else "pragma synchronous=normal")
    n, end = 0, time.time() + seconds
    while time.time() < end:
        with db:
            for _ in range(20):
                db.execute("insert into t values (?, ?, ?)", (who, n, os.urandom(n * 37 % 5000)))
                n += 1
        with db:
            db.execute("delete from t where who = ? and n % 7 = 3 and n < ?", (who, n - 100))
        if n % 200 == 0:
            assert db.execute("select count(*) from t where who = ? and n % 7 = 0", (who,)).fetchone()[0] == (n + 6) // 7
    print(n)
    db.close()
children = []
for who in range(3):
    pid = os.fork()
    if pid == 0:
        write(who)
        sys.stdout.flush()
        os._exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
db = sqlite3.connect(path)
assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
print("rows", db.execute("select count(*) from t").fetchone()[0])
"#;

fn sqlite(at: &Place) {
    let out = run(&at.dir, "python3", &["-c", SQLITE, "data.db", "1.5"]);
    let rows: u64 = out.lines().find_map(|l| l.strip_prefix("rows ")).expect("a number of rows").parse().unwrap();
    assert!(rows > 60, "{out}");
    fs::write(at.at("rows"), rows.to_string()).unwrap();
}

fn sqlite_after(dir: &Path) {
    let check = "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1])\nassert db.execute('pragma integrity_check').fetchall() == [('ok',)]\nprint(db.execute('select count(*) from t').fetchone()[0])";
    let rows = run(dir, "python3", &["-c", check, "data.db"]);
    assert_eq!(rows.trim(), fs::read_to_string(dir.join("rows")).unwrap());
}

fn some_tree() -> Scratch {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.dir("tree").unwrap();
    let options = specimen::Options { large_len: 2 << 20, wide: 500, ..Default::default() };
    specimen::make(&dir, &options).unwrap();
    scratch
}

fn same_tree(want: &Path, have: &Path, ignore: Ignore) {
    let of = |dir: &Path| Manifest::of_dir(dir, Detail::default()).unwrap();
    of(want).must_equal(&of(have), &ignore, "source | copy");
}

fn rsync(at: &Place) {
    let tree = some_tree();
    let from = format!("{}/", tree.path().join("tree").display());
    at.subdir("copy");
    run(&at.dir, "rsync", &["-aHAX", "--numeric-ids", &from, "copy/"]);
    let again = run(&at.dir, "rsync", &["-aHAX", "--numeric-ids", "--itemize-changes", "--checksum", &from, "copy/"]);
    assert_eq!(again, "", "the second run finds no difference");
    same_tree(&tree.path().join("tree"), &at.at("copy"), Ignore { holes: true, ..Ignore::from_elsewhere() });
    // On from there, within the mount.
    at.subdir("second");
    run(&at.dir, "rsync", &["-aHAX", "--numeric-ids", "--sparse", "copy/", "second/"]);
    let again =
        run(&at.dir, "rsync", &["-aHAXn", "--numeric-ids", "--itemize-changes", "--delete", "copy/", "second/"]);
    assert_eq!(again, "");
}

fn tar(at: &Place) {
    let tree = some_tree();
    let top = tree.path().join("tree");
    let archive = tree.path().join("a.tar");
    let archive = archive.to_str().unwrap();
    let keep = ["--acls", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--sparse", "--format=posix"];
    run(&top, "tar", &[&keep[..], &["--create", "--file", archive, "."]].concat());
    let copy = at.subdir("copy");
    run(&copy, "tar", &[&keep[..], &["--extract", "--preserve-permissions", "--file", archive]].concat());
    let ignore = Ignore { holes: true, ..Ignore::from_elsewhere() };
    // Sockets do not travel in archives.
    for dir in [&top, &copy] {
        run(dir, "find", &[".", "-type", "s", "-delete"]);
    }
    same_tree(&top, &copy, Ignore { dir_times: true, ..ignore.clone() });
    // And back.
    let second = format!("{archive}.2");
    run(&copy, "tar", &[&keep[..], &["--create", "--file", &second, "."]].concat());
    run(&copy, "tar", &[&keep[..], &["--compare", "--file", &second]].concat());
}

fn cp_and_diff(at: &Place) {
    let tree = some_tree();
    let from = tree.path().join("tree");
    run(&at.dir, "cp", &["-a", from.to_str().unwrap(), "one"]);
    run(&at.dir, "cp", &["-a", "--reflink=auto", "one", "two"]);
    same_tree(&at.at("one"), &at.at("two"), Ignore { sharing: true, holes: true, ..Ignore::default() });
    run(&at.dir, "diff", &["-r", "--no-dereference", "one/sizes", "two/sizes"]);
    run(&at.dir, "mv", &["two", "three"]);
    run(&at.dir, "rm", &["-r", "one"]);
    assert!(!at.at("one").exists());
}

fn find_and_rm(at: &Place) {
    for d in 0..20 {
        let dir = at.subdir(&format!("d{d}"));
        for f in 0..200 {
            fs::write(dir.join(format!("f{f}")), format!("{f}")).unwrap();
        }
    }
    let count = |args: &[&str]| run(&at.dir, "find", args).lines().count();
    assert_eq!(count(&[".", "-type", "f"]), 4000);
    assert_eq!(count(&[".", "-name", "f7", "-size", "1c"]), 20);
    assert_eq!(run(&at.dir, "grep", &["-rlx", "199", "."]).lines().count(), 20);
    run(&at.dir, "rm", &["-r", "d0", "d1", "d2"]);
    assert_eq!(count(&[".", "-type", "f"]), 3400);
}
