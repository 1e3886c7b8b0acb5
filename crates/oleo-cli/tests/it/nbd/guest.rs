//! The kernel's own client verifies: Linux 6.1 in a virtual machine mounts what we serve, reads, writes, scrubs, is killed, and is
//! carried on. `cargo xtask guest` makes the machine and runs these.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Scratch, oracle};
use rustix::process::{Pid, Signal};

use crate::common::ok;
use crate::nbd::harness::{OLEO, sparse};

/// From the start to the end of a job, which takes ten seconds.
const JOB_MAX: Duration = Duration::from_secs(120);

/// Our server on a port, and its process.
struct Tcp {
    child: Child,
    port: u16,
}

impl Tcp {
    fn start(image: &Path, port: u16) -> Tcp {
        let mut child = Command::new(OLEO)
            .args(["serve", "nbd", "--listen", &format!("tcp:127.0.0.1:{port}")])
            .arg(image)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().trim_end_matches('/').rsplit(':').next().unwrap();
        Tcp { port: port.parse().unwrap_or_else(|e| panic!("{line}: {e}")), child }
    }

    fn end(mut self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A machine that does a job.
struct Guest {
    child: Child,
    lines: Receiver<String>,
    begun: Instant,
    said: Vec<String>,
}

impl Guest {
    fn boot(job: &str, port: u16) -> Guest {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest");
        assert!(dir.join("initrd").exists(), "cargo xtask guest makes the machine first");
        let append = format!("console=ttyS0 quiet loglevel=3 panic=-1 oleo.job={job} oleo.port={port}");
        let mut child = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg,thread=multi", "-smp", "2", "-m", "512", "-display", "none"])
            .args(["-serial", "stdio", "-monitor", "none", "-no-reboot", "-append", &append, "-kernel"])
            .arg(dir.join("vmlinuz"))
            .arg("-initrd")
            .arg(dir.join("initrd"))
            .args(["-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("qemu-system-x86_64: {e} (package qemu-system-x86)"));
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Guest { child, lines, begun: Instant::now(), said: Vec::new() }
    }

    /// The next line for us, without its first word.
    fn next(&mut self) -> String {
        loop {
            let left = JOB_MAX.saturating_sub(self.begun.elapsed());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("the guest says no more after {:?}: {:#?}", self.begun.elapsed(), self.said)
            };
            self.said.push(line.clone());
            if let Some(at) = line.find("OLEO ") {
                let line = line[at + 5..].to_owned();
                assert!(
                    !line.starts_with("failed"),
                    "{line}: {:#?} {:#?}",
                    self.said,
                    self.lines.iter().take(20).collect::<Vec<_>>()
                );
                return line;
            }
        }
    }

    /// Waits for the end; the sums of files that it told of.
    fn end(mut self) -> BTreeMap<String, String> {
        let mut sums = BTreeMap::new();
        loop {
            let line = self.next();
            if line == "end 0" {
                let _ = self.child.wait();
                return sums;
            }
            if let Some((sum, name)) = line.strip_prefix("sum ").and_then(|rest| rest.split_once("  ./")) {
                sums.insert(name.to_owned(), sum.to_owned());
            }
        }
    }

    /// Waits until so many files were confirmed, and gives their names.
    fn confirmed(&mut self, count: usize) -> Vec<String> {
        let mut names = Vec::new();
        while names.len() < count {
            if let Some(name) = self.next().strip_prefix("confirmed ") {
                names.push(name.to_owned());
            }
        }
        names
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sums of all files below a directory, as the guest tells them.
fn sums(dir: &Path) -> BTreeMap<String, String> {
    let script = "find . -type f -print0 | sort -z | xargs -0 sha256sum";
    let out = Command::new("sh").args(["-c", script]).current_dir(dir).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let pair = |line: &str| line.split_once("  ./").map(|(sum, name)| (name.to_owned(), sum.to_owned()));
    text.lines().filter_map(pair).collect()
}

fn made(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (src, image) = (scratch.path().join("src"), scratch.path().join("i"));
    std::fs::create_dir_all(src.join("d")).unwrap();
    sparse(&src.join("large"), 20 << 20, &[(0, 5 << 20, 1), (12 << 20, 3_000_001, 2)]);
    for i in 0..100 {
        std::fs::write(src.join(format!("d/f{i}")), vec![i as u8; 100 * i]).unwrap();
    }
    let (from, to) = (src.to_str().unwrap(), image.to_str().unwrap());
    ok(scratch.path(), &["mkfs", "--rootdir", from, "--compress", "zstd", "--size", "600M", to]);
    (src, image)
}

/// What we read out of the image, as sums.
fn ours(scratch: &Scratch, image: &str) -> BTreeMap<String, String> {
    let out = scratch.path().join("out");
    let _ = std::fs::remove_dir_all(&out);
    ok(scratch.path(), &["restore", image, out.to_str().unwrap()]);
    sums(&out)
}

/// Goal: the kernel reads over the network what we have made, writes to it, trims and scrubs it; we read what it wrote, and write; it
/// reads that. Method: three boots on one image, files compared by sums; `btrfs check` in the end.
#[test]
#[ignore = "boots a virtual machine: cargo xtask guest"]
fn read_and_written() {
    let scratch = Scratch::new().unwrap();
    let (src, image) = made(&scratch);
    let server = Tcp::start(&image, 0);
    assert_eq!(Guest::boot("read", server.port).end(), sums(&src));
    let theirs = Guest::boot("write", server.port).end();
    let uri = format!("nbd://127.0.0.1:{}/", server.port);
    assert!(ok(scratch.path(), &["check", "--data", &uri]).contains("clean"));
    let mut have = ours(&scratch, &uri);
    // What it told of was all there was, but for what was deleted or is the same in the snapshot.
    assert!(theirs.len() > 200);
    assert_eq!(have, theirs);
    ok(scratch.path(), &["put", &uri, src.to_str().unwrap(), "ours"]);
    ok(scratch.path(), &["rm", "-r", &uri, "v/d1"]);
    have = ours(&scratch, &uri);
    assert_eq!(Guest::boot("read", server.port).end(), have);
    server.end();
    oracle().unwrap().must_be_sound(&[image], "after the guest").unwrap();
}

/// Goal: a kernel that is killed loses nothing that it has confirmed: we replay its log, over the network, and go on; the kernel finds
/// our work sound. Method: kill -9 of the machine in the middle of fsyncs, at three moments.
#[test]
#[ignore = "boots a virtual machine: cargo xtask guest"]
fn the_machine_is_killed() {
    let scratch = Scratch::new().unwrap();
    let (_, image) = made(&scratch);
    let server = Tcp::start(&image, 0);
    let uri = format!("nbd://127.0.0.1:{}/", server.port);
    for count in [3, 40, 150] {
        let mut guest = Guest::boot("killed", server.port);
        let names = guest.confirmed(count);
        guest.kill();
        carried_on(&scratch, &uri, &names);
        assert_eq!(Guest::boot("read", server.port).end(), ours(&scratch, &uri));
        ok(scratch.path(), &["rm", "-r", &uri, "k0", "ours"]);
    }
    server.end();
    oracle().unwrap().must_be_sound(&[image], "after killed guests").unwrap();
}

/// Goal: a server that is killed under the kernel's fsyncs loses nothing that the kernel has confirmed. Method: kill -9 of the server,
/// another one on the image, we carry on, the kernel reads.
#[test]
#[ignore = "boots a virtual machine: cargo xtask guest"]
fn the_server_is_killed() {
    let scratch = Scratch::new().unwrap();
    let (_, image) = made(&scratch);
    for count in [5, 60] {
        let server = Tcp::start(&image, 0);
        let mut guest = Guest::boot("killed", server.port);
        let names = guest.confirmed(count);
        server.kill();
        guest.kill();
        let server = Tcp::start(&image, 0);
        let uri = format!("nbd://127.0.0.1:{}/", server.port);
        carried_on(&scratch, &uri, &names);
        assert_eq!(Guest::boot("read", server.port).end(), ours(&scratch, &uri));
        ok(scratch.path(), &["rm", "-r", &uri, "k0", "ours"]);
        server.end();
    }
    oracle().unwrap().must_be_sound(&[image], "after killed servers").unwrap();
}

/// All confirmed files hold what they should, and we add something.
fn carried_on(scratch: &Scratch, uri: &str, names: &[String]) {
    for name in names {
        let number = name.trim_start_matches('k');
        let want = format!("confirmed {number}\n").repeat(300);
        assert!(ok(scratch.path(), &["cat", uri, name]) == want, "{name} was confirmed");
    }
    ok(scratch.path(), &["mkdir", uri, "ours"]);
    ok(scratch.path(), &["put", uri, "src/large", "ours/large"]);
    assert!(ok(scratch.path(), &["check", "--data", uri]).contains("clean"));
}
