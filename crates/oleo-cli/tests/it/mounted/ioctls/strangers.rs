//! Callers who are root in name only, or who see the mount read-only; and names that somebody has planted.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

const EPERM: i32 = 1;
const EROFS: i32 = 30;

/// In a thread of root that lacks a capability.
fn without<R: Send>(capability: CapabilitySet, act: impl FnOnce() -> R + Send) -> R {
    let act = move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= capability;
        set_capabilities(None, sets).unwrap();
        act()
    };
    std::thread::scope(|threads| threads.spawn(act).join().unwrap())
}

/// What the kernel asks `CAP_SYS_ADMIN` for, each once: what it answered.
fn administer(top: &Path) -> Vec<i32> {
    let id = 256u64;
    let by_id = [&words(&[0, 0, 1 << 4, 0, 0, 0, 0, id])[..]].concat();
    let search = words(&[1, 0, u64::MAX, 0, u64::MAX, 0, u64::MAX, 0xff << 32, 10]);
    let resize = [&[0; 8], &b"max\0"[..]].concat();
    let calls: [(u32, &[u8]); 8] = [
        (SNAP_DESTROY_V2, &by_id),
        (TREE_SEARCH, &search),
        (INO_LOOKUP, &words(&[256, 257])),
        (RESIZE, &resize),
        (DEFAULT_SUBVOL, &words(&[256])),
        (DEV_INFO, &words(&[1])),
        (SET_FSLABEL, b"stolen\0"),
        (FITRIM, &words(&[0, u64::MAX, 0])),
    ];
    calls
        .iter()
        .map(|(number, data)| call(top, *number, data).map_or_else(|e| e.raw_os_error().unwrap(), |_| 0))
        .collect()
}

/// What the others run in another process: the administrator's calls, or the making of a subvolume, on a path; exit code 0 where
/// all are answered with the errno.
#[test]
#[ignore = "a part of the other tests here, which run it with OLEO_TEST_TOP and OLEO_TEST_ERRNO set"]
fn in_another_process() {
    let top = std::path::PathBuf::from(std::env::var_os("OLEO_TEST_TOP").expect("set by the other tests"));
    let want: i32 = std::env::var("OLEO_TEST_ERRNO").unwrap().parse().unwrap();
    let got = match want {
        EROFS => vec![call(&top, SUBVOL_CREATE, &named("new")).map_or_else(|e| e.raw_os_error().unwrap(), |_| 0)],
        _ => administer(&top),
    };
    assert!(got.iter().all(|errno| *errno == want), "{got:?}");
}

/// Runs it by a program that makes of a process another one.
fn by(program: &str, args: &[&str], top: &Path, want: i32) {
    let mut command = Command::new(program);
    command.args(args).arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "mounted::ioctls::strangers::in_another_process"]);
    command.env("OLEO_TEST_TOP", top).env("OLEO_TEST_ERRNO", want.to_string()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let reported = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && reported.contains("1 passed"), "{program}: {reported}");
}

/// Goal: user 0 without `CAP_SYS_ADMIN`, as in a container, or with it in a user namespace of its own only, gets nothing of what
/// the kernel asks that capability for: by ioctl and by the socket. What does not need it, it gets; and real root gets all.
/// Method: a thread without it, a program without it in its bounding set, and one in a new user namespace.
#[test]
fn root_in_name_only() {
    let Some(mut mount) = Mount::new("") else { return };
    let top = mount.path("");
    call(&top, SUBVOL_CREATE, &named("v")).unwrap();
    fs::create_dir(mount.path("d")).unwrap();
    assert_eq!(without(CapabilitySet::SYS_ADMIN, || administer(&top)), [EPERM; 8]);
    by("setpriv", &["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"], &top, EPERM);
    by("unshare", &["--user", "--map-root-user"], &top, EPERM);
    assert!(mount.path("v").is_dir());
    without(CapabilitySet::SYS_ADMIN, || call(&top, SUBVOL_CREATE, &named("w")).unwrap());

    for (program, args) in [("setpriv", &["--bounding-set=-sys_admin"][..]), ("unshare", &["-Ur"])] {
        let mut command = Command::new(program);
        command.args(args).arg(env!("CARGO_BIN_EXE_oleo")).args(["filesystem", "label", "m", "stolen"]);
        let output = command.current_dir(mount.dir()).output().unwrap();
        let reported = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && reported.contains("only root"), "{program}: {reported}");
    }
    assert_eq!(ok(mount.dir(), &["filesystem", "label", "m"]), "first\n");
    ok(mount.dir(), &["filesystem", "label", "m", "second"]);
    assert_eq!(administer(&top)[0], 0, "real root deletes by number");
    assert!(!mount.path("v").exists());
    mount.verify(|_| {});
}

/// Goal: who sees the volume read-only changes nothing by ioctl: after a remount, and in a mount namespace that has only a bind
/// mount which is read-only. Method: both, and the writable mount again.
#[test]
fn read_only_views() {
    let Some(mut mount) = Mount::new("") else { return };
    let top = mount.path("");
    let bound = mount.dir().join("b");
    fs::create_dir(&bound).unwrap();
    let script = "mount --bind m b && mount -o remount,ro,bind b && umount m && exec \"$@\"";
    let script = format!("cd {} && {script}", mount.dir().display());
    by("unshare", &["--mount", "--propagation", "private", "sh", "-c", &script, "sh"], &bound, EROFS);
    call(&top, SUBVOL_CREATE, &named("v")).unwrap();
    let remount =
        |how: &str| assert!(Command::new("mount").args(["-i", "-o", how]).arg(&top).status().unwrap().success());
    remount("remount,ro");
    assert_eq!(errno(&top, SUBVOL_CREATE, &named("w")), EROFS);
    assert_eq!(errno(&top, SNAP_DESTROY, &named("v")), EROFS);
    call(&top, FS_INFO, &[]).unwrap();
    remount("remount,rw");
    call(&top, SNAP_DESTROY, &named("v")).unwrap();
    mount.verify(|seen| assert!(!seen.join("new").exists() && !seen.join("w").exists()));
}

/// Goal: deleting by name deletes what has the name, not what a link of that name leads to, whoever asks. Method: a link in a
/// directory that anybody may write to, deleted by root by ioctl and by command.
#[test]
fn planted_links() {
    let Some(mut mount) = Mount::new("") else { return };
    call(&mount.path(""), SUBVOL_CREATE, &named("important")).unwrap();
    fs::write(mount.path("important/file"), "x").unwrap();
    fs::create_dir(mount.path("trap")).unwrap();
    symlink("../important", mount.path("trap/snap")).unwrap();
    let trap = mount.path("trap");
    assert_eq!(errno(&trap, SNAP_DESTROY, &named("snap")), 22);
    assert_eq!(errno(&trap, SNAP_DESTROY_V2, &named_v2(0, 0, "snap")), 22);
    assert!(mount.path("important/file").exists());
    mount.verify(|seen| assert!(seen.join("important/file").exists()));
}

/// Goal: a mount that names a control socket of another user than its owner is not talked to. Method: a socket of user 1000,
/// and a file on a mount of root's.
#[test]
fn foreign_sockets() {
    let Some(mut mount) = Mount::new("") else { return };
    let file = File::open(mount.path("")).unwrap();
    let real = oleo::control::control_socket(&file).unwrap().unwrap();
    oleo::control::Client::connect_of(&file, &real).unwrap();
    let path = mount.dir().join("fake");
    let listener = std::thread::scope(|threads| {
        let listen = || {
            let alice = rustix::fs::Uid::from_raw(1000);
            std::os::unix::fs::chown(mount.dir(), Some(1000), None).unwrap();
            rustix::thread::set_thread_res_uid(alice, alice, alice).unwrap();
            UnixListener::bind(&path).unwrap()
        };
        threads.spawn(listen).join().unwrap()
    });
    let error = oleo::control::Client::connect_of(&file, &path).unwrap_err().to_string();
    assert!(error.contains("the mount is of user 0, but its control socket of user 1000"), "{error}");
    drop((file, listener));
    mount.verify(|_| {});
}
