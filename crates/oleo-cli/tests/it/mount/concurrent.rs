//! Random scripts of several processes in parallel, on Oleo's mount and on the kernel's; then both trees must be the same.
//!
//! Normal path: (1) [`run`] makes a file system of each kind and starts [`WORKERS`] processes on each: this test program
//! again, with [`worker`] as its only test; (2) each process runs a script in a directory of its own, and works in a
//! directory that all share, where only what commutes is done ([`shared`]); (3) it writes down how each step ended;
//! (4) the answers of the two kinds are compared step by step, then the trees; (5) the images are unmounted and verified.
//!
//! Invariants: a worker's script follows from its seed and says nothing of other workers' files, so that the outcome does
//! not depend on who was first. Times are blurred.
//! More and longer: `OLEO_MOUNT_SEEDS=first:count`, `OLEO_MOUNT_STEPS`.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use oleo_sim::manifest::{Detail, HostTree, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Mix, Op, Style, Target, blur_times, generate, may_be_written};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use crate::mount::place::{Kind, Mount, OLEO, no_umask};
use crate::mount::sys::Map;

mod shared;

const WORKERS: u64 = 4;
const SECTOR: u64 = 4096;

/// One step of a script.
#[derive(Clone, Debug)]
enum Step {
    Plain(Op),
    /// A write through a shared mapping.
    Map {
        path: String,
        at: u64,
        len: u64,
        seed: u64,
        style: Style,
    },
    /// A write with O_DIRECT: whole sectors.
    Direct {
        path: String,
        at: u64,
        len: u64,
        seed: u64,
        style: Style,
    },
    /// copy_file_range of any bytes.
    Copy {
        from: String,
        at: u64,
        len: u64,
        to: String,
        to_at: u64,
    },
    /// A file made with O_TMPFILE that gets a name when it is complete.
    Nameless {
        path: String,
        mode: u32,
        seed: u64,
    },
    /// An append through O_APPEND.
    Append {
        path: String,
        len: u64,
        seed: u64,
    },
    /// Something in the directory that all share.
    Shared(shared::Act),
}

/// What a worker does: a random script whose writes are partly made in other ways.
fn script(seed: u64, worker: u64, steps: usize) -> Vec<Step> {
    let mix = Mix { steps, compress: worker % 2 == 1, file_len_max: 512 << 10, names_max: 200, ..Mix::default() };
    let mut rng = Rng::new(seed ^ 0x5eed ^ (worker << 32));
    let mut out = Vec::with_capacity(steps);
    for op in generate(seed.wrapping_mul(1000) + worker, &mix) {
        out.push(match op {
            Op::Write { path, at, len, seed, style } => match rng.below(6) {
                0 | 1 => Step::Map { path, at, len, seed, style },
                2 => Step::Direct { path, at: at - at % SECTOR, len: len.next_multiple_of(SECTOR), seed, style },
                3 => Step::Append { path, len: len.min(20_000), seed },
                _ => Step::Plain(Op::Write { path, at, len, seed, style }),
            },
            Op::Create { path, mode } if rng.one_in(6) => Step::Nameless { path, mode, seed: rng.next_u64() },
            Op::Clone { from, at, len, to, to_at } if from != to && rng.one_in(3) => {
                Step::Copy { from, at: at + rng.below(5000), len, to, to_at: to_at + rng.below(5000) }
            }
            op => Step::Plain(op),
        });
        if rng.one_in(4) {
            out.push(Step::Shared(shared::Act::random(&mut rng)));
        }
    }
    out
}

/// Runs steps in one directory.
struct Worker {
    dir: PathBuf,
    host: Host,
    shared: shared::Shared,
}

impl Worker {
    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = self.dir.join(path);
        let stat = rustix::fs::lstat(&path)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let file = rustix::fs::open(path, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if flags.intersects(OFlags::RDWR | OFlags::WRONLY) {
            may_be_written(&file)?;
        }
        Ok(file)
    }

    /// Whether a step is about an empty directory where a snapshot left out a subvolume. The kernel's is made up in
    /// memory and takes some changes, which are lost; nobody should rely on that.
    fn meets_an_empty_subvol_dir(&self, step: &Step) -> bool {
        let Step::Plain(op) = step else { return false };
        let is_empty_subvol_dir =
            |path: &Path| rustix::fs::lstat(path).is_ok_and(|s| HostTree::is_empty_subvol_dir_number(s.st_ino));
        op.paths()
            .iter()
            .map(|p| self.dir.join(p))
            .any(|p| is_empty_subvol_dir(&p) || p.parent().is_some_and(is_empty_subvol_dir))
    }

    fn run(&mut self, step: &Step) -> Result<(), Errno> {
        match step {
            Step::Plain(op) => self.host.apply(op),
            Step::Map { path, at, len, seed, style } => {
                let file = self.open(path, OFlags::RDWR)?;
                let end = at + len;
                if rustix::fs::fstat(&file)?.st_size.cast_unsigned() < end {
                    rustix::fs::ftruncate(&file, end)?;
                }
                let start = at - at % SECTOR;
                let map = Map::new(&file, start, usize_of(end - start), MapFlags::SHARED)?;
                map.write(usize_of(at - start), &style.data(*seed, *len));
                if seed % 2 == 0 { map.sync() } else { Ok(()) }
            }
            Step::Direct { path, at, len, seed, style } => {
                let file = self.open(path, OFlags::WRONLY | OFlags::DIRECT)?;
                let mut data = vec![0; usize_of(len + SECTOR)];
                let skip = data.as_ptr().align_offset(usize_of(SECTOR));
                let data = &mut data[skip..skip + usize_of(*len)];
                data.copy_from_slice(&style.data(*seed, *len));
                let mut done = 0;
                while done < data.len() {
                    done += rustix::io::pwrite(&file, &data[done..], at + done as u64)?;
                }
                Ok(())
            }
            Step::Copy { from, at, len, to, to_at } => {
                let (from, to) = (self.open(from, OFlags::RDONLY)?, self.open(to, OFlags::WRONLY)?);
                let (mut at, mut to_at, mut left) = (*at, *to_at, usize_of(*len));
                while left > 0 {
                    match rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left)? {
                        0 => break,
                        done => left -= done,
                    }
                }
                Ok(())
            }
            Step::Nameless { path, mode, seed } => {
                let path = self.dir.join(path);
                let dir = path.parent().ok_or(Errno::INVAL)?;
                let file = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(*mode))?;
                write_all(&file, &Style::Text.data(*seed, seed % 30_000), 0)?;
                rustix::fs::linkat(&file, "", CWD, &path, AtFlags::EMPTY_PATH)
            }
            Step::Append { path, len, seed } => {
                let file = self.open(path, OFlags::WRONLY | OFlags::APPEND)?;
                let data = Style::Random.data(*seed, *len);
                let done = rustix::io::write(&file, &data)?;
                if done == data.len() { Ok(()) } else { Err(Errno::IO) }
            }
            Step::Shared(act) => self.shared.run(act),
        }
    }
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("a length in memory")
}

fn write_all(file: &OwnedFd, data: &[u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        done += rustix::io::pwrite(file, &data[done..], at + done as u64)?;
    }
    Ok(())
}

/// What a worker process is told in its environment: kind, top, seed, number, steps, where its answers go.
const TOLD: &str = "OLEO_MOUNT_WORKER";

/// An answer that equals every other.
const ANYTHING: &str = "anything";

/// The body of a worker process, which `start` starts with its environment.
#[test]
#[ignore = "no test: the body of a process that other tests start"]
fn worker() {
    let reported = std::env::var(TOLD).expect(TOLD);
    let reported: Vec<&str> = reported.split('|').collect();
    let [kind, top, seed, number, steps, out] = reported[..] else { panic!("{TOLD}: {reported:?}") };
    let (seed, number, steps) = (seed.parse().unwrap(), number.parse().unwrap(), steps.parse().unwrap());
    no_umask();
    let top = Path::new(top);
    let dir = top.join(format!("w{number}"));
    fs::create_dir(&dir).unwrap();
    let mut host = Host::new(&dir, SECTOR);
    if kind != "Kernel" {
        host = host.with_tool(Path::new(OLEO));
    }
    let mut worker = Worker { dir, host, shared: shared::Shared::new(&top.join("shared"), number) };
    let mut answers = String::new();
    for step in script(seed, number, steps) {
        let anything = worker.meets_an_empty_subvol_dir(&step);
        let answer = worker.run(&step).map_or_else(|e| format!("{}", std::io::Error::from(e)), |()| "done".into());
        let answer = if anything && kind != "Kernel" { ANYTHING.to_owned() } else { answer };
        answers += &format!("{answer}\t{step:?}\n");
    }
    worker.shared.finish().unwrap();
    fs::write(out, answers).unwrap();
}

fn start(kind: Kind, top: &Path, seed: u64, number: u64, steps: usize, out: &Path) -> Result<Child> {
    let reported = format!("{kind:?}|{}|{seed}|{number}|{steps}|{}", top.display(), out.display());
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--exact", "--test-threads=1", "--nocapture", "--ignored", "mount::concurrent::worker"])
        .env(TOLD, reported);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?)
}

/// All workers on one mount; what each of them was answered.
fn work(kind: Kind, top: &Path, seed: u64, steps: usize, logs: &Path) -> Result<Vec<String>> {
    shared::prepare(&top.join("shared"))?;
    let out = |n: u64| logs.join(format!("{kind:?}-{n}"));
    let children: Vec<Child> =
        (0..WORKERS).map(|n| start(kind, top, seed, n, steps, &out(n))).collect::<Result<_>>()?;
    let mut ended = Vec::new();
    for child in children {
        ended.push(child.wait_with_output()?);
    }
    for (n, end) in ended.iter().enumerate() {
        ensure!(end.status.success(), "worker {n}: {}", String::from_utf8_lossy(&end.stderr));
    }
    shared::settle(&top.join("shared"), WORKERS)?;
    (0..WORKERS).map(|n| fs::read_to_string(out(n)).context("answers")).collect()
}

fn manifest(dir: &Path) -> Result<Manifest> {
    let mut manifest = Manifest::of_dir(dir, Detail::default())?;
    blur_times(&mut manifest);
    Ok(manifest)
}

/// The steps before one that were about a file of the same name, to find out what it is.
fn before(answers: &str, step: usize) -> String {
    const SHOWN_MAX: usize = 15;
    let Some(line) = answers.lines().nth(step) else { return String::new() };
    let path = line.split('"').nth(1).unwrap_or(line);
    let name = path.rsplit('/').next().unwrap_or(path);
    let about: Vec<&str> = answers.lines().take(step).filter(|l| l.contains(name)).collect();
    about[about.len().saturating_sub(SHOWN_MAX)..].join("\n")
}

/// Whether two answers are as good as the same. Where the kernel's btrfs sees first of all that a subvolume is read-only,
/// a FUSE mount may see another reason to refuse before the server is asked.
fn agree(kernel: &str, oleo: &str) -> bool {
    let read_only = std::io::Error::from(Errno::ROFS).to_string();
    kernel == oleo || oleo.starts_with(ANYTHING) || (kernel.starts_with(&read_only) && !oleo.starts_with("done"))
}

/// One seed on both kinds.
fn run(oracle: Oracle, ours: Kind, seed: u64, steps: usize, options: &str) {
    let scratch = oracle.scratch().unwrap();
    let logs = scratch.dir("logs").unwrap();
    let mut ends = Vec::new();
    for kind in [Kind::Kernel, ours] {
        let image = scratch.path().join(format!("{kind:?}"));
        kind.mkfs(oracle, &image).unwrap();
        let mount: Mount = kind.mount(oracle, &image, options).unwrap();
        let answers = work(kind, mount.path(), seed, steps, &logs)
            .unwrap_or_else(|e| panic!("seed {seed}, {kind:?}: {e:#}\n{}", mount.log()));
        let tree = manifest(mount.path()).unwrap_or_else(|e| panic!("seed {seed}, {kind:?}: {e:#}\n{}", mount.log()));
        mount.unmount().unwrap();
        ends.push((kind, image, answers, tree));
    }
    let [(.., answers_want, want), (kind, image, answers, have)] = &ends[..] else { panic!("two kinds") };
    for (worker, (a, b)) in answers_want.iter().zip(answers).enumerate() {
        for (step, (x, y)) in a.lines().zip(b.lines()).enumerate() {
            assert!(
                agree(x, y),
                "seed {seed}, worker {worker}, step {step}:\nkernel {x}\nOleo   {y}\nbefore:\n{}",
                before(b, step)
            );
        }
    }
    // What was done under the names that differ, to find out what it is.
    for different in want.differences(have, &Ignore::default()).iter().take(3) {
        let path = different.split(": ").next().unwrap_or(different);
        let name = path.rsplit('/').next().unwrap_or(path);
        let about = answers.iter().flat_map(|a| a.lines()).filter(|line| line.contains(name));
        about.for_each(|line| eprintln!("{name}: {line}"));
    }
    // Inode numbers are no part of it; sharing and holes follow rules of their own in each.
    want.must_equal(have, &Ignore::default(), &format!("seed {seed}: kernel | Oleo's mount"));
    kind.must_check_clean(oracle, image, &format!("seed {seed}"));
    let mounted = oracle.mount(&[image], "").unwrap();
    let now = manifest(mounted.path()).unwrap();
    have.must_equal(&now, &Ignore::default(), &format!("seed {seed}: Oleo's mount | the kernel on its image"));
    let found = mounted.scrub().unwrap();
    assert!(found.is_clean(), "seed {seed}: scrub: {found}");
    mounted.unmount().unwrap();
}

/// Goal: several processes in parallel leave what they leave on the kernel's btrfs, and are told the same.
#[test]
fn several_processes() {
    let Some(oracle) = oracle() else { return };
    for (seed, options) in [(1, ""), (2, "compress=zstd"), (3, "commit=1")] {
        run(oracle, Kind::Oleo, seed, 500, options);
    }
}

/// Goal: the same where the kernel caches what was written.
#[test]
fn several_processes_write_back() {
    let Some(oracle) = oracle() else { return };
    for (seed, options) in [(4, ""), (5, "commit=1")] {
        run(oracle, Kind::WriteBack, seed, 500, options);
    }
}

/// Goal: the same for longer, with other seeds: `OLEO_MOUNT_SEEDS=first:count`, `OLEO_MOUNT_STEPS`.
#[test]
#[ignore = "takes minutes: `cargo xtask nightly`, or OLEO_MOUNT_SEEDS=1000:50 and --ignored"]
fn longer() {
    let seeds = std::env::var("OLEO_MOUNT_SEEDS").unwrap_or_else(|_| "1000:3".into());
    let Some(oracle) = oracle() else { return };
    let (first, count) = seeds.split_once(':').expect("OLEO_MOUNT_SEEDS is first:count");
    let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
    let steps = std::env::var("OLEO_MOUNT_STEPS").map_or(2000, |s| s.parse().unwrap());
    for seed in first..first + count {
        run(
            oracle,
            if seed.is_multiple_of(2) { Kind::Oleo } else { Kind::WriteBack },
            seed,
            steps,
            ["", "compress=zstd", "commit=1"][usize_of(seed % 3)],
        );
        println!("seed {seed} agrees");
    }
}

/// Goal: the runner itself is deterministic: two runs on the kernel end alike.
#[test]
fn runs_repeat() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let logs = scratch.dir("logs").unwrap();
    let ends: Vec<_> = (0..2)
        .map(|n| {
            let image = scratch.path().join(format!("{n}"));
            Kind::Kernel.mkfs(oracle, &image).unwrap();
            let mount = Kind::Kernel.mount(oracle, &image, "").unwrap();
            let answers = work(Kind::Kernel, mount.path(), 7, 400, &logs).unwrap();
            (answers, manifest(mount.path()).unwrap())
        })
        .collect();
    for (a, b) in ends[0].0.iter().zip(&ends[1].0) {
        for (a, b) in a.lines().zip(b.lines()) {
            assert_eq!(a, b);
        }
    }
    ends[0].1.must_equal(&ends[1].1, &Ignore::default(), "first run | second run");
}
