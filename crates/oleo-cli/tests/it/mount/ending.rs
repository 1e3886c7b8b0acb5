//! The end of a mount where not everything can be written at first: the file system below the image is full.
//!
//! Only Oleo's mount: the kernel has no say in what `oleo unmount` promises, but it verifies the images that are left.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Oracle, Scratch, oracle, run};
use oleo_sim::rng::Rng;
use oleo_sim::served::{Limits, Served};
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;

use crate::mount::lifecycle::OpenToAll;
use crate::mount::place::{Kind, OLEO};

/// An image on a small file system of its own, mounted.
struct Narrow {
    oracle: Oracle,
    below: PathBuf,
    image: PathBuf,
    dir: PathBuf,
    // Goes last.
    scratch: Scratch,
}

impl Drop for Narrow {
    fn drop(&mut self) {
        if is_mounted(&self.dir) {
            let _ = run("umount", ["-l".as_ref(), self.dir.as_os_str()]);
        }
        let _ = Command::new(OLEO).args(["unmount", "--force"]).arg(&self.dir).output();
        let _ = run("umount", ["-l".as_ref(), self.below.as_os_str()]);
    }
}

fn is_mounted(dir: &Path) -> bool {
    let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
    list.lines().any(|l| l.split(' ').nth(4) == dir.to_str())
}

/// Bytes that do not shrink and do not repeat.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

impl Narrow {
    fn new(options: &str) -> Option<Narrow> {
        let oracle = oracle()?;
        let scratch = oracle.scratch().unwrap();
        let (below, dir) = (scratch.dir("below").unwrap(), scratch.dir("mnt").unwrap());
        run("mount", ["-t".as_ref(), "tmpfs".as_ref(), "-osize=64M".as_ref(), "none".as_ref(), below.as_os_str()])
            .unwrap();
        let image = below.join("image");
        run(OLEO, ["mkfs".as_ref(), "--quiet".as_ref(), "--size".as_ref(), "400M".as_ref(), image.as_os_str()])
            .unwrap();
        let fixture = Narrow { oracle, below, image, dir, scratch };
        fixture.mount(options);
        fs::write(fixture.at("before"), b"there before").unwrap();
        run(OLEO, ["filesystem".as_ref(), "sync".as_ref(), fixture.dir.as_os_str()]).unwrap();
        Some(fixture)
    }

    fn mount(&self, options: &str) {
        let options = if options.is_empty() { "commit=300".to_owned() } else { format!("commit=300,{options}") };
        run(OLEO, ["mount".as_ref(), "-o".as_ref(), options.as_ref(), self.image.as_os_str(), self.dir.as_os_str()])
            .unwrap();
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Takes all room below but for some bytes.
    fn fill(&self, but: usize) {
        let mut file = fs::File::create(self.below.join("filler")).unwrap();
        let page = vec![1; 4096];
        while file.write_all(&page).is_ok() {}
        let len = file.metadata().unwrap().len();
        file.set_len(len.saturating_sub(but as u64)).unwrap();
    }

    fn make_room(&self) {
        fs::remove_file(self.below.join("filler")).unwrap();
    }

    fn unmount(&self, more: &[&str]) -> Output {
        Command::new(OLEO).arg("unmount").args(more).arg(&self.dir).output().unwrap()
    }

    #[track_caller]
    fn must_unmount(&self, more: &[&str]) {
        let out = self.unmount(more);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(!is_mounted(&self.dir));
    }

    #[track_caller]
    fn must_not(&self, out: &Output) {
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(4), "{said}");
        assert!(
            said.contains("No space left")
                && said.contains("make space")
                && said.contains("--save-to")
                && said.contains("--force"),
            "{said}"
        );
    }

    /// The kernel finds the image sound, and these files in it.
    fn must_hold(&self, files: &[(&str, &[u8])]) {
        Kind::Oleo.must_check_clean(self.oracle, &self.image, "after unmounting");
        let mounted = self.oracle.mount(&[&self.image], "ro").unwrap();
        for (name, content) in files {
            assert!(fs::read(mounted.path().join(name)).unwrap() == *content, "{name}");
        }
        mounted.unmount().unwrap();
    }
}

/// Goal: `oleo unmount` says that not everything could be written and unmounts nothing; the mount goes on, and when there is room
/// the same command completes the image. Method: fill what is below, write more than it holds, make room.
#[test]
fn no_room_below() {
    let Some(fixture) = Narrow::new("") else { return };
    let content = noise(1, 30 << 20);
    fixture.fill(100_000);
    fs::write(fixture.at("new"), &content).unwrap();
    fixture.must_not(&fixture.unmount(&[]));
    assert!(is_mounted(&fixture.dir));
    // Each time anew.
    fixture.must_not(&fixture.unmount(&[]));
    assert!(fs::read(fixture.at("new")).unwrap() == content);
    let synced = fs::File::open(fixture.at("new")).unwrap().sync_all();
    assert_eq!(synced.unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    fs::write(fixture.at("more"), b"goes on").unwrap();
    fixture.make_room();
    fs::File::open(fixture.at("more")).unwrap().sync_all().unwrap();
    fixture.must_unmount(&[]);
    fixture.must_hold(&[("new", &content), ("more", b"goes on"), ("before", b"there before")]);
}

/// Goal: after a plain umount the server keeps what it could not write, says so to `oleo unmount`, and completes the image when
/// there is room.
#[test]
fn no_room_after_umount() {
    let Some(fixture) = Narrow::new("") else { return };
    let content = noise(2, 30 << 20);
    fixture.fill(100_000);
    fs::write(fixture.at("new"), &content).unwrap();
    run("umount", [&fixture.dir]).unwrap();
    fixture.must_not(&fixture.unmount(&[]));
    fixture.make_room();
    fixture.must_unmount(&[]);
    fixture.must_hold(&[("new", &content), ("before", b"there before")]);
}

/// Goal: a server that has been unmounted and gets SIGTERM does not unmount a newer mount, which may have the number of its
/// device. Method: a server that keeps what it cannot write, another mount, SIGTERM to the first.
#[test]
fn terminated_after_umount() {
    let Some(fixture) = Narrow::new("") else { return };
    let content = noise(6, 3 << 20);
    let pid = server_of(&fixture.image);
    fixture.fill(100_000);
    fs::write(fixture.at("new"), &content).unwrap();
    run("umount", [&fixture.dir]).unwrap();
    let other = fixture.scratch.path().join("other");
    run(OLEO, ["mkfs".as_ref(), "--quiet".as_ref(), "--size".as_ref(), "256M".as_ref(), other.as_os_str()]).unwrap();
    let newer = Served::mount(Path::new(OLEO), &[&other], "", Limits::default()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    for _ in 0..50 {
        assert!(is_mounted(newer.path()), "the server has unmounted what is not its own");
        std::thread::sleep(Duration::from_millis(10));
    }
    fixture.make_room();
    fixture.must_unmount(&[]);
    newer.unmount().unwrap();
    fixture.must_hold(&[("new", &content)]);
}

/// The process that serves an image in the background.
fn server_of(image: &Path) -> rustix::process::Pid {
    let serves = |pid: &str| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split(|b| *b == 0).any(|word| word == image.as_os_str().as_encoded_bytes())
    };
    let mut processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let number = processes.find_map(|name| name.to_str().filter(|pid| serves(pid))?.parse().ok());
    rustix::process::Pid::from_raw(number.expect("a server")).unwrap()
}

/// Goal: the same without anybody asking: the server tries again by itself and ends.
#[test]
fn room_comes_back() {
    let Some(fixture) = Narrow::new("") else { return };
    let content = noise(3, 3 << 20);
    fixture.fill(100_000);
    fs::write(fixture.at("new"), &content).unwrap();
    run("umount", [&fixture.dir]).unwrap();
    fixture.make_room();
    let start = Instant::now();
    // While it is served it cannot be opened.
    while !Command::new(OLEO).arg("check").arg(&fixture.image).output().unwrap().status.success() {
        assert!(start.elapsed() < Duration::from_secs(30), "the server does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    fixture.must_hold(&[("new", &content)]);
}

/// Goal: with `--save-to` what cannot be written to the image is written elsewhere, as it is now; the image is as of its last
/// commit. Both before and after the mount was taken away.
#[test]
fn saved_elsewhere() {
    for plain in [false, true] {
        let Some(fixture) = Narrow::new("") else { return };
        let content = noise(4, 30 << 20);
        fixture.fill(100_000);
        fs::create_dir(fixture.at("d")).unwrap();
        fs::write(fixture.at("d/new"), &content).unwrap();
        fs::rename(fixture.at("before"), fixture.at("d/before")).unwrap();
        if plain {
            run("umount", [&fixture.dir]).unwrap();
        }
        let to = fixture.scratch.path().join("saved");
        fixture.must_unmount(&["--save-to", to.to_str().unwrap()]);
        assert!(fs::read(to.join("d/new")).unwrap() == content);
        assert_eq!(fs::read(to.join("d/before")).unwrap(), b"there before");
        fixture.make_room();
        fixture.must_hold(&[("before", b"there before")]);
    }
}

/// Goal: `--force` gives up what cannot be written: the image is as of its last commit.
#[test]
fn given_up() {
    let Some(fixture) = Narrow::new("") else { return };
    fixture.fill(100_000);
    fs::write(fixture.at("new"), noise(5, 3 << 20)).unwrap();
    fixture.must_unmount(&["--force"]);
    fixture.make_room();
    fixture.must_hold(&[("before", b"there before")]);
}

/// Goal: wherever the room ends (data, blocks of trees, the log, superblocks), what was refused is written when there is room, and
/// what fsync has promised is there. Method: rounds that leave more and more room, each with files, renames, deletions, fsyncs and
/// syncs, some of which fail; a model of what the files hold; room at the end of every third round.
#[test]
fn room_ends_anywhere() {
    let Some(fixture) = Narrow::new("") else { return };
    let mut model: std::collections::BTreeMap<String, Vec<u8>> = std::collections::BTreeMap::new();
    let mut refused = 0;
    for round in 0..24usize {
        fixture.fill(round * 24 * 1024);
        for n in 0..6usize {
            let name = format!("f{}", (round * 7 + n * 3) % 20);
            let content = noise((round * 100 + n) as u64, 1 + (n * n * 20_011 + round * 977) % 300_000);
            fs::write(fixture.at(&name), &content).unwrap();
            if n % 2 == 0 {
                refused += usize::from(fs::File::open(fixture.at(&name)).unwrap().sync_all().is_err());
            }
            model.insert(name, content);
        }
        if let Some((name, content)) = model.pop_first() {
            fs::rename(fixture.at(&name), fixture.at(&format!("r{round}"))).unwrap();
            model.insert(format!("r{round}"), content);
        }
        if let Some((name, _)) = model.pop_last() {
            fs::remove_file(fixture.at(&name)).unwrap();
        }
        let sync = Command::new(OLEO).args(["filesystem", "sync"]).arg(&fixture.dir).output().unwrap();
        refused += usize::from(!sync.status.success());
        if round % 3 == 2 {
            fixture.make_room();
            run(OLEO, ["filesystem".as_ref(), "sync".as_ref(), fixture.dir.as_os_str()]).unwrap();
            for (name, content) in &model {
                assert!(fs::read(fixture.at(name)).unwrap() == *content, "{name} in round {round}");
            }
        }
    }
    assert!(refused > 10, "{refused}");
    fixture.must_unmount(&[]);
    let files: Vec<(&str, &[u8])> = model.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
    fixture.must_hold(&files);
}

/// Goal: a bind mount is unmounted without waiting for a server that goes on; so is the mount itself while the bind mount is
/// left, with a word about it; the last one completes the image.
#[test]
fn bind_mounts() {
    let Some(fixture) = Narrow::new("") else { return };
    fs::create_dir(fixture.at("d")).unwrap();
    let bound = fixture.scratch.dir("bound").unwrap();
    let bind = || run("mount", ["--bind".as_ref(), fixture.at("d").as_os_str(), bound.as_os_str()]).unwrap();
    bind();
    let out = Command::new("timeout").args(["20", OLEO, "unmount"]).arg(&bound).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert!(is_mounted(&fixture.dir) && !is_mounted(&bound));
    bind();
    fs::write(fixture.at("d/new"), b"new").unwrap();
    let out = Command::new("timeout").args(["20", OLEO, "unmount"]).arg(&fixture.dir).output().unwrap();
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("still mounted on"), "{out:?}");
    assert_eq!(fs::read(bound.join("new")).unwrap(), b"new");
    fs::write(bound.join("newer"), b"newer").unwrap();
    let out = Command::new("timeout").args(["20", OLEO, "unmount"]).arg(&bound).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    fixture.must_hold(&[("d/new", b"new"), ("d/newer", b"newer")]);
}

/// Goal: in a namespace of users of one's own `oleo unmount` waits for the server's end. Method: as nobody, who is root in there,
/// mount, write, unmount and immediately list the image, several times.
#[test]
fn in_a_namespace() {
    let Some(fixture) = Narrow::new("") else { return };
    fixture.must_unmount(&[]);
    let _device = OpenToAll::new();
    let top = fixture.scratch.path();
    let program = top.join("oleo");
    oleo_sim::oracle::copy_program(Path::new(OLEO), &program).unwrap();
    let own = top.join("own");
    fs::create_dir(&own).unwrap();
    fs::copy(&fixture.image, own.join("image")).unwrap();
    fs::create_dir(own.join("mnt")).unwrap();
    for path in [top, &program] {
        rustix::fs::chmod(path, Mode::from_raw_mode(0o755)).unwrap();
    }
    for path in [own.clone(), own.join("image"), own.join("mnt")] {
        rustix::fs::chown(&path, Some(Uid::from_raw(65_534)), Some(Gid::from_raw(65_534))).unwrap();
    }
    let script = r#"for i in 1 2 3; do "$0" mount "$1/image" "$1/mnt" && dd if=/dev/zero of="$1/mnt/n$i" bs=1M count=20 status=none &&
        "$0" unmount "$1/mnt" && "$0" ls "$1/image" | grep -q n$i || exit 1; done"#;
    let out = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "env", "-u", "XDG_RUNTIME_DIR"])
        .args(["unshare", "-Urm", "sh", "-c", script])
        .args([&program, &own])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
}
