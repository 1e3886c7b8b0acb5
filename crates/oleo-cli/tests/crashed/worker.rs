//! Processes that work on a mount, one step at a time, as they are told.
//!
//! A worker is this test program again, with [`body`] as its only test. It reads a line for each step and answers with a line: so
//! that who records the devices knows when each step began and when it had returned.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Keep, Mix, Op, Target, from_text, generate, to_text};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Where a worker process is told to work.
const TOLD: &str = "OLEO_CRASHED_WORKER";
/// Answers begin with this: the test runner talks, too.
const ANSWER: &str = "@ ";
/// A sector, and what clones are multiples of.
const SECTOR: u64 = 4096;

/// How a write is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// As it is.
    Plain,
    /// Through a descriptor with O_SYNC.
    Sync,
    /// With O_DSYNC.
    DataSync,
    /// With O_DIRECT.
    Direct,
    /// With O_DIRECT and O_SYNC.
    DirectSync,
    /// With O_DIRECT and O_DSYNC.
    DirectDataSync,
}

impl How {
    const ALL: [How; 6] = [How::Plain, How::Sync, How::DataSync, How::Direct, How::DirectSync, How::DirectDataSync];

    /// What the descriptor is opened with; `None` where that is nothing of note.
    fn flags(self) -> Option<OFlags> {
        match self {
            How::Plain => None,
            How::Sync => Some(OFlags::SYNC),
            How::DataSync => Some(OFlags::DSYNC),
            How::Direct => Some(OFlags::DIRECT),
            How::DirectSync => Some(OFlags::DIRECT | OFlags::SYNC),
            How::DirectDataSync => Some(OFlags::DIRECT | OFlags::DSYNC),
        }
    }

    /// The same write without its promise.
    pub fn deaf(self) -> How {
        match self {
            How::Plain | How::Sync | How::DataSync => How::Plain,
            How::Direct | How::DirectSync | How::DirectDataSync => How::Direct,
        }
    }
}

/// What of a mount does nothing: a test must notice each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deaf {
    /// The flag of open(2) that a write is done with.
    To(How),
    /// The inode flag `S` or `D`.
    ToFlag(Keep),
}

impl Deaf {
    pub const ALL: [Deaf; 6] = [
        Deaf::To(How::Sync),
        Deaf::To(How::DataSync),
        Deaf::To(How::DirectSync),
        Deaf::To(How::DirectDataSync),
        Deaf::ToFlag(Keep::All),
        Deaf::ToFlag(Keep::Names),
    ];

    /// What a mount does that is deaf so, where it is told this; `None`: nothing.
    pub fn done(self, step: &Step) -> Option<Step> {
        match (self, &step.op) {
            (Deaf::To(how), _) if how == step.how => Some(Step { how: how.deaf(), op: step.op.clone() }),
            (Deaf::ToFlag(deaf), Op::Keep { keep, .. }) if deaf == *keep => None,
            _ => Some(step.clone()),
        }
    }

    /// Whether a step promises what such a mount would keep all the same, or nothing.
    fn is_beside(self, step: &Step) -> bool {
        match (self, &step.op) {
            (_, Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Tmpfile { sync: true, .. }) => true,
            (Deaf::To(_), Op::Keep { .. }) => true,
            (Deaf::ToFlag(deaf), Op::Keep { keep, .. }) => deaf != *keep,
            _ => false,
        }
    }
}

/// What a worker does.
#[derive(Clone, Debug)]
pub struct Step {
    pub how: How,
    pub op: Op,
}

/// What worker `number` does: small files, many promises; some writes promise by themselves.
pub fn script(seed: u64, number: u64, steps: usize) -> Vec<Step> {
    let mix = Mix {
        steps,
        subvolumes: false,
        promises: [15, 30, 45][number as usize % 3],
        keeps: 3,
        compress: number % 2 == 1,
        file_len_max: 60_000,
        names_max: 12,
        xattr_len_max: 500,
        ..Mix::default()
    };
    let mut rng = Rng::new(seed ^ (number << 40));
    let how = |op: &Op, rng: &mut Rng| match op {
        Op::Write { .. } if rng.one_in(2) => rng.pick(&How::ALL).copied().unwrap_or(How::Plain),
        _ => How::Plain,
    };
    let ops = generate(seed.wrapping_mul(100) + number, &mix);
    ops.into_iter().map(|op| Step { how: how(&op, &mut rng), op }).collect()
}

/// The same where nothing promises but what `deaf` does not hear of.
pub fn script_for(deaf: Deaf, seed: u64, number: u64, steps: usize) -> Vec<Step> {
    let keeps = if matches!(deaf, Deaf::ToFlag(_)) { 15 } else { 0 };
    let mix = Mix { steps, subvolumes: false, keeps, file_len_max: 60_000, names_max: 12, ..Mix::default() };
    let how = |op: &Op| match (deaf, op) {
        (Deaf::To(how), Op::Write { .. }) => how,
        _ => How::Plain,
    };
    let all = generate(seed.wrapping_mul(100) + number, &mix).into_iter().map(|op| Step { how: how(&op), op });
    all.filter(|step| !deaf.is_beside(step)).collect()
}

/// A worker process.
pub struct Worker {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one that works in `dir`.
    pub fn start(dir: &Path) -> Result<Worker> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", "--test-threads=1", "--nocapture", "--ignored", "worker::body"]).env(TOLD, dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("no answers")?);
        Ok(Worker { child, to, from })
    }

    /// Has a step done; how it ended.
    pub fn run(&mut self, step: &Step) -> Result<Result<(), Errno>> {
        let to = self.to.as_mut().context("told to end")?;
        write!(to, "{:?} {}", step.how, to_text(std::slice::from_ref(&step.op)))?;
        to.flush()?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.from.read_line(&mut line)? == 0 {
                bail!("the worker has ended");
            }
            let Some(answer) = line.strip_prefix(ANSWER) else { continue };
            return Ok(match answer.trim() {
                "0" => Ok(()),
                errno => Err(Errno::from_raw_os_error(errno.parse()?)),
            });
        }
    }

    /// Waits for its end.
    pub fn end(mut self) -> Result<()> {
        drop(self.to.take());
        std::io::copy(&mut self.from, &mut std::io::sink())?;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { bail!("a worker ended with {status}") }
    }
}

/// A process that nobody waited for has nothing to do any more.
impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A write through a descriptor with these flags.
fn write_with(path: PathBuf, flags: OFlags, at: u64, data: &[u8]) -> Result<(), Errno> {
    if !std::fs::symlink_metadata(&path).map_err(|_| Errno::NOENT)?.is_file() {
        return Err(Errno::INVAL);
    }
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::NOFOLLOW | flags, Mode::empty())?;
    let mut done = 0;
    while done < data.len() {
        done += rustix::io::pwrite(&file, &data[done..], at + done as u64)?;
    }
    Ok(())
}

/// The body of a worker process.
#[test]
#[ignore = "no test: the body of a process that other tests start"]
fn body() {
    let dir = PathBuf::from(std::env::var_os(TOLD).expect(TOLD));
    rustix::process::umask(Mode::empty());
    let mut host = Host::new(&dir, SECTOR).with_tool(Path::new(crate::OLEO));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (how, op) = line.split_once(' ').unwrap();
        let [op] = from_text(op).unwrap().try_into().unwrap();
        let how = How::ALL.into_iter().find(|h| format!("{h:?}") == how).unwrap();
        let done = match (&op, how.flags()) {
            (Op::Write { path, at, len, seed, style }, Some(flags)) => {
                write_with(dir.join(path), flags, *at, &style.data(*seed, *len))
            }
            _ => host.apply(&op),
        };
        let errno = done.err().map_or(0, Errno::raw_os_error);
        // Not println!: the test runner may swallow that.
        std::io::stdout().write_all(format!("\n{ANSWER}{errno}\n").as_bytes()).unwrap();
    }
}
