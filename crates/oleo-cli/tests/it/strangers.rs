//! What comes from a stranger gives nobody anything: images and streams that hold set-ID programs, and directories in which
//! somebody else changes names while root works in them.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use oleo::Uuid;
use oleo::receive::{Command as Sent, header};
use oleo_sim::oracle::{Scratch, copy_program};

use crate::common::ok;

const ALICE: u32 = 1000;

/// A directory that everybody may enter, with the program in it.
fn place() -> (Scratch, PathBuf) {
    let scratch = Scratch::new().unwrap();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let program = scratch.path().join("oleo");
    copy_program(Path::new(env!("CARGO_BIN_EXE_oleo")), &program).unwrap();
    let own = scratch.dir("own").unwrap();
    chown(&own, Some(ALICE), Some(ALICE)).unwrap();
    (scratch, program)
}

/// The command as an ordinary user, with a umask.
fn as_alice(program: &Path, dir: &Path, umask: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(program).args(args);
    command.current_dir(dir).uid(ALICE).gid(ALICE);
    command
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// An image of programs that run as somebody, files of others and everybody's, and a device.
fn image(dir: &Path) {
    let source = dir.join("src");
    fs::create_dir_all(source.join("open")).unwrap();
    for (name, bits, uid) in [("roots", 0o4755, 0), ("groups", 0o2755, 5), ("alices", 0o6755, ALICE), ("all", 0o666, 0)]
    {
        fs::write(source.join("open").join(name), "x").unwrap();
        chown(source.join("open").join(name), Some(uid), Some(uid)).unwrap();
        fs::set_permissions(source.join("open").join(name), Permissions::from_mode(bits)).unwrap();
    }
    symlink("nowhere", source.join("open/link")).unwrap();
    fs::hard_link(source.join("open/link"), source.join("link-again")).unwrap();
    fs::hard_link(source.join("open/all"), source.join("all-again")).unwrap();
    fs::set_permissions(source.join("open"), Permissions::from_mode(0o3777)).unwrap();
    fs::set_permissions(&source, Permissions::from_mode(0o777)).unwrap();
    assert!(Command::new("mknod").arg(source.join("dev")).args(["c", "1", "3"]).status().unwrap().success());
    ok(dir, &["mkfs", "--rootdir", "src", "--size", "200M", "i"]);
    fs::set_permissions(dir.join("i"), Permissions::from_mode(0o644)).unwrap();
}

/// Goal: who restores a stranger's image gets no programs that run as him, and nothing that others may write unless he asks for
/// modes as they are; root gets what the image has, unless he asks for nothing special.
/// Method: as another user with a umask, with and without `-p`, in a user namespace where he is root, and as root.
#[test]
fn restored_programs() {
    let (scratch, program) = place();
    let dir = scratch.path();
    image(dir);
    let alice = |umask, args: &[&str]| {
        let output = as_alice(&program, dir, umask, args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    let modes = |out: &str| {
        let at = |name: &str| mode(&dir.join(out).join(name));
        ["", "open", "open/roots", "open/groups", "open/alices", "open/all"].map(at)
    };
    let reported = alice("027", &["restore", "i", "own/plain"]);
    assert!(reported.contains("belong to you now"), "{reported}");
    assert_eq!(modes("own/plain"), [0o750, 0o1750, 0o750, 0o750, 0o750, 0o640]);
    assert_eq!(fs::read_link(dir.join("own/plain/link-again")).unwrap(), Path::new("nowhere"));
    let inode = |name: &str| fs::symlink_metadata(dir.join("own/plain").join(name)).unwrap().ino();
    assert_eq!((inode("all-again"), inode("link-again")), (inode("open/all"), inode("open/link")));

    alice("027", &["restore", "-p", "i", "own/exact"]);
    assert_eq!(modes("own/exact"), [0o777, 0o1777, 0o755, 0o755, 0o6755, 0o666], "what was given keeps no set-ID bit");

    // Of a user namespace's root, who can give files to nobody else.
    let args = ["-Ur", "--", program.to_str().unwrap(), "restore", "i", "own/ns"];
    let made = Command::new("unshare").args(args).current_dir(dir).uid(ALICE).gid(ALICE).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!((mode(&dir.join("own/ns/open/groups")), mode(&dir.join("own/ns/open/alices"))), (0o755, 0o755));

    ok(dir, &["restore", "i", "whole"]);
    assert_eq!(modes("whole"), [0o777, 0o3777, 0o4755, 0o2755, 0o6755, 0o666]);
    assert!(fs::symlink_metadata(dir.join("whole/dev")).is_ok());
    ok(dir, &["restore", "--no-special", "i", "tame"]);
    assert_eq!(modes("tame"), [0o777, 0o1777, 0o755, 0o755, 0o755, 0o666]);
    assert!(fs::symlink_metadata(dir.join("tame/dev")).is_err());
    assert_eq!(fs::metadata(dir.join("tame/open/groups")).unwrap().uid(), 5);
}

/// Goal: a terminal gets nothing to obey from names in an image: not in warnings, not in errors, not in lists. Method: names with an
/// escape sequence, of a device that an ordinary user cannot make and of a file that cannot be found.
#[test]
fn names_for_a_terminal() {
    let (scratch, program) = place();
    let dir = scratch.path();
    let evil = "a\u{1b}]0;title\u{7}\u{9b}31m";
    fs::create_dir(dir.join("src")).unwrap();
    let made = Command::new("mknod").arg(dir.join("src").join(evil)).args(["c", "1", "3"]).status().unwrap();
    assert!(made.success());
    ok(dir, &["mkfs", "--rootdir", "src", "--size", "200M", "i"]);
    fs::set_permissions(dir.join("i"), Permissions::from_mode(0o644)).unwrap();
    let missing = format!("{evil}/{evil}");
    let tries: [&[&str]; 4] = [
        &["restore", "i", "own/out"],
        &["restore", "--path", &missing, "i", "own/none"],
        &["restore", &missing, "own/none"],
        &["ls", "-lR", "i"],
    ];
    for args in tries {
        let output = as_alice(&program, dir, "022", args).output().unwrap();
        let reported = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            !reported.is_empty() && !reported.contains(|c: char| c.is_control() && c != '\n'),
            "{args:?}: {reported:?}"
        );
    }
}

/// A stream of these commands.
fn stream(commands: &[Sent<'_>]) -> Vec<u8> {
    let mut bytes = header(1).to_vec();
    commands.iter().for_each(|command| command.encode(1, &mut bytes));
    bytes
}

/// A subvolume with a file `mark`, and so many commands that it is applied before more comes.
fn begun(path: &str, uuid: u128) -> Vec<u8> {
    let mut commands = vec![subvol(path, uuid), Sent::MkFile { path: b"mark", ino: 0 }];
    commands.resize(10_000, Sent::Chmod { path: b"mark", mode: 0o600 });
    stream(&commands)
}

fn subvol(path: &str, uuid: u128) -> Sent<'_> {
    Sent::Subvol { path: path.as_bytes(), uuid: Uuid::from_u128(uuid), ctransid: 1 }
}

/// Goal: the same of a stream: set-ID bits only with the owner that they are for, in a snapshot's copy too, and the umask.
/// Method: a program of root's and one of the user's own, then a snapshot in which only modes change.
#[test]
fn received_programs() {
    let (scratch, program) = place();
    let dir = scratch.path();
    let snapshot = Sent::Snapshot {
        path: b"t",
        uuid: Uuid::from_u128(2),
        ctransid: 2,
        clone_uuid: Uuid::from_u128(1),
        clone_ctransid: 1,
    };
    let mut bytes = stream(&[
        subvol("s", 1),
        Sent::MkFile { path: b"roots", ino: 0 },
        Sent::Chown { path: b"roots", uid: 0, gid: 0 },
        Sent::Chmod { path: b"roots", mode: 0o4777 },
        Sent::MkFile { path: b"alices", ino: 0 },
        Sent::Chown { path: b"alices", uid: ALICE.into(), gid: ALICE.into() },
        Sent::Chmod { path: b"alices", mode: 0o6777 },
        Sent::Chown { path: b"", uid: 0, gid: 0 },
        Sent::Chmod { path: b"", mode: 0o2777 },
        Sent::End,
    ]);
    bytes.extend(stream(&[snapshot, Sent::Chmod { path: b"roots", mode: 0o6755 }, Sent::End]));
    fs::write(dir.join("stream"), bytes).unwrap();
    let receive = |into: &str, more: &[&str]| {
        fs::create_dir(dir.join(into)).unwrap();
        chown(dir.join(into), Some(ALICE), Some(ALICE)).unwrap();
        let args = [&["receive", "--to-dir", "-f", "stream"], more, &[into]].concat();
        let output = as_alice(&program, dir, "022", &args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        ["s", "s/roots", "s/alices", "t", "t/roots"].map(|name| mode(&dir.join(into).join(name)))
    };
    assert_eq!(receive("own/a", &[]), [0o755, 0o755, 0o755, 0o755, 0o755]);
    assert_eq!(receive("own/b", &["-p"]), [0o777, 0o777, 0o6777, 0o777, 0o755]);
    fs::create_dir(dir.join("whole")).unwrap();
    ok(dir, &["receive", "--to-dir", "-f", "stream", "whole"]);
    assert_eq!(["s", "s/roots", "t/roots"].map(|name| mode(&dir.join("whole").join(name))), [0o2777, 0o4777, 0o6755]);
}

/// Waits until something is there.
fn wait_for(path: &Path) {
    let began = Instant::now();
    while fs::symlink_metadata(path).is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "{} never came", path.display());
        sleep(Duration::from_millis(5));
    }
}

fn root_receives(dir: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oleo"));
    command.current_dir(dir).args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Goal: root who receives below a directory of somebody else's removes, copies and opens nothing but what he made, and what he
/// makes is his alone until it is complete. Method: the stream stops half-way; what was made is moved away and a link, or
/// another directory, put in its place; then the stream ends with an error, clones from there, or goes on.
#[test]
fn names_that_change() {
    let (scratch, _) = place();
    let dir = scratch.path();
    let (own, victim) = (dir.join("own"), dir.join("victim"));
    fs::create_dir_all(victim.join("s/keep")).unwrap();
    fs::write(victim.join("s/secret"), "secret contents").unwrap();

    // Given up: what is removed is what was made, not what a link leads to.
    fs::create_dir(own.join("a")).unwrap();
    let mut child = root_receives(dir, &["receive", "--to-dir", "--atomic", "own"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(&begun("a/s", 1)).unwrap();
    wait_for(&own.join("a/s/mark"));
    assert_eq!(mode(&own.join("a/s")), 0o700, "nobody else may enter yet");
    fs::rename(own.join("a"), own.join("b")).unwrap();
    symlink(&victim, own.join("a")).unwrap();
    drop(input);
    assert!(!child.wait_with_output().unwrap().status.success());
    assert!(victim.join("s/keep").is_dir(), "another directory of the name");

    // A real directory in its place.
    fs::remove_file(own.join("a")).unwrap();
    fs::create_dir(own.join("a")).unwrap();
    let mut child = root_receives(dir, &["receive", "--to-dir", "--atomic", "own"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(&begun("a/s", 1)).unwrap();
    wait_for(&own.join("a/s/mark"));
    fs::rename(own.join("a/s"), own.join("away")).unwrap();
    fs::rename(victim.join("s"), own.join("a/s")).unwrap();
    drop(input);
    assert!(!child.wait_with_output().unwrap().status.success());
    assert!(own.join("a/s/keep").is_dir(), "it is not the one that was made");
    fs::rename(own.join("a/s"), victim.join("s")).unwrap();

    // A source of clones.
    let clone = |path| Sent::Clone {
        path,
        offset: 0,
        len: 6,
        clone_uuid: Uuid::from_u128(1),
        clone_ctransid: 1,
        clone_path: b"secret",
        clone_offset: 0,
    };
    let mut child = root_receives(dir, &["receive", "--to-dir", "own"]);
    let mut input = child.stdin.take().unwrap();
    let first = [subvol("a/first", 1), Sent::MkFile { path: b"secret", ino: 0 }, Sent::End];
    input.write_all(&stream(&first)).unwrap();
    input.write_all(&begun("a/next", 2)).unwrap();
    wait_for(&own.join("a/next/mark"));
    fs::rename(own.join("a/first"), own.join("moved")).unwrap();
    symlink(victim.join("s"), own.join("a/first")).unwrap();
    let mut rest = Vec::new();
    [clone(b"mark"), Sent::Chmod { path: b"", mode: 0o755 }, Sent::End].iter().for_each(|c| c.encode(1, &mut rest));
    let _closed = input.write_all(&rest);
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut text = String::new();
    File::open(own.join("a/next/mark")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
}
