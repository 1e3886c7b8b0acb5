//! Writes to cache lines that several threads share, counted exactly, per operation: what stops operations from scaling, seen on any
//! machine.
//!
//! Two cores do not show what sixty-four make of a line that all of them write. So nothing is timed here: a child process, which
//! valgrind's *lackey* runs instruction by instruction, lets two threads do the same operations in different directories, one thread
//! after the other, and stores to lines of its own ([`MARKS`]) between the phases. The parent reads all addresses of the trace. A line is
//! *shared* if one of the threads writes to it and the other reads or writes it in the same phase; every store to such a line counts. (That the
//! threads take turns changes nothing: what is counted is which lines they use, not who was first.)
//!
//! Both threads do each operation before it is counted, so what a thread keeps for itself is there.
//! Stacks are the threads' own and do not appear, nor do stores inside of libraries that are loaded, which are the allocator's and
//! copies of bytes: two pieces of memory on one line can belong to different threads, and that is the allocator's affair.
//! Flushing finds nothing to do (all was flushed to warm up) and is counted as such.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result, bail, ensure};
use hashbrown::HashMap;
use oleo::device::MemDevice;
use oleo::fs::{Fs, InodeRef, NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo::{Device, Image, OpenOptions};

use crate::Args;
use crate::measure::Report;

/// The name under which the child is started.
pub const CHILD: &str = "shared-lines-child";
/// Operations of each thread that are counted, of each kind.
const OPS: u64 = 128;
/// Operations of each thread before that.
const WARM: u64 = 128;
/// Bytes of a cache line.
const LINE: u64 = 64;
/// Files of each thread's directory that look-ups work on.
const FILES: u64 = 64;
/// Places in the code that are named for each kind, the most frequent ones.
const SITES: usize = 14;

/// Runs at most: in some, two threads meet by chance, and one kind has many more stores. Each kind has its lowest count.
const RUNS: usize = 3;

/// The kinds of operation, with how many stores to shared lines one may make: what was counted, with a little more, for those that have been
/// worked on (decision 0023). A flush of nothing has no limit: nobody does it often.
const KINDS: &[(&str, f64)] = &[
    ("name looked up, attributes read", 0.1),
    ("item read from its tree", 0.1),
    ("8 KiB read from the device", 5.0),
    ("file created", 5.2),
    ("8 KiB written into memory", 1.7),
    ("file without changes flushed", f64::INFINITY),
    ("file unlinked", 1.4),
];

/// One line for each boundary between phases.
#[repr(align(4096))]
struct Marks([Mark; 4]);
#[repr(align(64))]
struct Mark(AtomicU64);

static MARKS: Marks = Marks([const { Mark(AtomicU64::new(0)) }; 4]);

fn mark(n: usize) {
    MARKS.0[n].0.store(1, Ordering::SeqCst);
}

/// The first thread begins, the second begins, a thread has done its part.
const FIRST: usize = 0;
const SECOND: usize = 1;
const OVER: usize = 2;

/// What each of the two threads works on.
struct Place {
    fs: Fs,
    dir: InodeRef,
    files: Vec<InodeRef>,
    /// Their names, and those of files to be made: making names is not what is counted.
    names: Vec<String>,
    new_names: Vec<String>,
}

fn work(place: &Place, kind: usize, from: u64) -> Result<()> {
    let Place { fs, dir, files, names, new_names } = place;
    let file = |n: u64| &files[(n % FILES) as usize];
    let mut bytes = [0; 8192];
    for n in from..from + OPS {
        match kind {
            0 => {
                let found = fs.lookup(dir, names[(n % FILES) as usize].as_bytes())?.context("it is there")?;
                std::hint::black_box(fs.attr(&found));
            }
            1 => drop(std::hint::black_box(fs.xattr_get(file(n), b"user.some")?)),
            2 => drop(std::hint::black_box(fs.read(file(n), 0, &mut bytes)?)),
            3 => drop(fs.create(dir, new_names[n as usize].as_bytes(), &NewInode::new(NewKind::File, 0o600))?),
            4 => fs.write(file(n), (n / FILES + 1) * 8192, &[n as u8; 8192])?,
            5 => fs.flush(file(n))?,
            _ => fs.unlink(dir, new_names[n as usize].as_bytes())?,
        }
    }
    Ok(())
}

fn serve(place: &Place, orders: &Receiver<(usize, u64, usize)>, done: &Sender<Result<()>>) {
    for (kind, from, begin) in orders {
        mark(begin);
        let result = work(place, kind, from);
        mark(OVER);
        if done.send(result).is_err() {
            return;
        }
    }
}

/// The process that is traced.
pub fn child() -> Result<()> {
    println!("marks {:x}", &raw const MARKS as usize);
    println!("code {:x}", child as *const () as usize);
    let program = std::env::current_exe()?.display().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut parts = maps.lines().filter(|line| line.ends_with(&program)).filter_map(|line| line.split(' ').next());
    let first = parts.next().context("where the program begins")?;
    let last = parts.next_back().unwrap_or(first);
    println!("begins {}", first.split('-').next().unwrap_or_default());
    println!("ends {}", last.split('-').next_back().unwrap_or_default());
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemDevice::new(1 << 30))];
    oleo::mkfs::make(&devices, &MkfsOptions::default())?;
    let image = Image::from_devices(devices, &OpenOptions::writing())?;
    let (fs, top) = (image.fs(), image.top()?);
    let mut dirs = Vec::new();
    for t in 0..2 {
        let dir = fs.create(&top, format!("t{t}").as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?;
        for n in 0..FILES {
            let file = fs.create(&dir, format!("f{n}").as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
            fs.write(&file, 0, &[n as u8; 8192])?;
            fs.xattr_set(&file, b"user.some", b"value", oleo::fs::XattrMode::Any)?;
        }
        dirs.push(dir);
    }
    image.sync()?;
    let result = std::thread::scope(|s| -> Result<()> {
        let mut hands = Vec::new();
        for dir in &dirs {
            let files = (0..FILES).map(|n| fs.lookup(dir, format!("f{n}").as_bytes())?.context("a file"));
            let place = Place {
                fs: fs.clone(),
                dir: dir.clone(),
                files: files.collect::<Result<_>>()?,
                names: (0..FILES).map(|n| format!("f{n}")).collect(),
                new_names: (0..WARM + OPS).map(|n| format!("new{n}")).collect(),
            };
            let (order, orders) = channel();
            let (done, results) = channel();
            s.spawn(move || serve(&place, &orders, &done));
            hands.push((order, results));
        }
        for kind in 0..KINDS.len() {
            for from in [0, WARM] {
                for (t, (order, result)) in hands.iter().enumerate() {
                    order.send((kind, from, if from == 0 { OVER } else { t }))?;
                    result.recv()??;
                }
            }
        }
        Ok(())
    });
    result?;
    std::process::exit(0);
}

/// How one thread used a line.
#[derive(Clone, Copy, Default)]
struct Use {
    reads: u64,
    writes: u64,
}

/// What was found of one kind of operation.
struct Counted {
    /// Stores to shared lines for each operation.
    writes: f64,
    /// Different shared lines that were stored to.
    lines: usize,
    /// Stores by where in the program they are.
    sites: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct Phase {
    lines: HashMap<u64, [Use; 2]>,
    /// Stores by line and place.
    stores: HashMap<(u64, u64), u64>,
}

impl Phase {
    fn count(self) -> Counted {
        let shared: HashMap<u64, ()> = self
            .lines
            .into_iter()
            .filter(|(_, [a, b])| (a.writes > 0 && b.reads + b.writes > 0) || (b.writes > 0 && a.reads + a.writes > 0))
            .map(|(line, _)| (line, ()))
            .collect();
        let (mut sites, mut all, mut written) = (BTreeMap::new(), 0, HashMap::new());
        for ((line, place), stores) in self.stores {
            if shared.contains_key(&line) {
                *sites.entry(place).or_default() += stores;
                all += stores;
                written.insert(line, ());
            }
        }
        Counted { writes: all as f64 / (2 * OPS) as f64, lines: written.len(), sites }
    }
}

/// Addresses that the child has said.
struct Known {
    marks: u64,
    /// Where the program itself is, without libraries.
    program: Range<u64>,
}

/// The trace of the child, one phase for each kind.
fn read_trace(trace: impl BufRead, known: &Known) -> Result<Vec<Counted>> {
    let marks = known.marks;
    let (mut found, mut phase, mut who, mut place) = (Vec::new(), Phase::default(), None, 0);
    let mut trace = trace;
    let mut text = Vec::new();
    loop {
        text.clear();
        if trace.read_until(b'\n', &mut text)? == 0 {
            break;
        }
        // "I  04001234,3", " L 1ffe,8", " S …", " M …"
        let (Some(kind), Some(rest)) = (text.get(..2), text.get(3..)) else { continue };
        if who.is_none() && kind != b" S" && kind != b" M" {
            continue;
        }
        if !matches!(kind, b"I " | b" L" | b" S" | b" M") {
            continue;
        }
        let Some(address) = hex(rest) else { continue };
        if kind == b"I " {
            place = address;
            continue;
        }
        if (marks..marks + 4 * LINE).contains(&address) {
            who = match ((address - marks) / LINE) as usize {
                FIRST => Some(0),
                SECOND => Some(1),
                _ => {
                    if who == Some(1) {
                        found.push(std::mem::take(&mut phase).count());
                    }
                    None
                }
            };
            continue;
        }
        let Some(who) = who.filter(|_| known.program.contains(&place)) else { continue };
        let used = &mut phase.lines.entry(address / LINE).or_default()[who];
        if kind == b" L" {
            used.reads += 1;
        } else {
            used.writes += 1;
            *phase.stores.entry((address / LINE, place)).or_default() += 1;
        }
    }
    Ok(found)
}

fn hex(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|c| c.is_ascii_hexdigit()).count();
    u64::from_str_radix(std::str::from_utf8(&text[..digits]).ok()?, 16).ok()
}

/// The names of functions at addresses of this program, as it is loaded below valgrind.
fn names(code: u64, sites: &[u64]) -> Result<Vec<String>> {
    let program = std::env::current_exe()?;
    // Where a known function is in the file says where the program was loaded.
    let symbols = Command::new("nm").arg("-C").arg(&program).output().context("nm")?;
    let symbols = String::from_utf8_lossy(&symbols.stdout);
    let known = symbols.lines().find(|l| l.ends_with("shared_lines::child")).and_then(|l| hex(l.as_bytes()));
    let load = code - known.context("its own symbol")?;
    let mut tool = Command::new("addr2line");
    tool.args(["-f", "-C", "-s", "-i", "-p", "-e"]).arg(&program);
    tool.args(sites.iter().map(|site| format!("{:x}", site.wrapping_sub(load))));
    let out = String::from_utf8(tool.output().context("addr2line")?.stdout)?;
    let mut all: Vec<String> = Vec::new();
    for line in out.lines() {
        match (line.trim_start().strip_prefix("(inlined by) "), all.last_mut()) {
            (Some(outer), Some(last)) => {
                last.push_str(" < ");
                last.push_str(outer);
            }
            _ => all.push(line.to_owned()),
        }
    }
    Ok(all)
}

/// Runs the operations once, traced. Returns the counts of each kind, and where the program's code was.
fn trace() -> Result<Vec<(Counted, u64)>> {
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no", "--log-fd=2", "--fair-sched=yes"])
        .arg(std::env::current_exe()?)
        .arg(CHILD)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("valgrind")?;
    let mut said = BufReader::new(child.stdout.take().context("its output")?).lines();
    let mut address = |what: &str| -> Result<u64> {
        let line = said.next().context("the child said nothing")??;
        let text = line.strip_prefix(what).with_context(|| format!("{what} in {line:?}"))?;
        hex(text.trim().as_bytes()).context("an address")
    };
    let trace = BufReader::with_capacity(1 << 20, child.stderr.take().context("its trace")?);
    // The trace begins long before the addresses are said: it is read meanwhile.
    let (send, receive) = channel::<Known>();
    let reader = std::thread::spawn(move || -> Result<Vec<Counted>> {
        let mut trace = trace;
        let mut skipped = Vec::new();
        let known = loop {
            if let Ok(known) = receive.try_recv() {
                break known;
            }
            skipped.clear();
            if trace.read_until(b'\n', &mut skipped)? == 0 {
                bail!("the trace ended: {}", String::from_utf8_lossy(&skipped));
            }
        };
        read_trace(trace, &known)
    });
    let (marks, code) = (address("marks ")?, address("code ")?);
    let program = address("begins ")?..address("ends ")?;
    // A reader that ended says why.
    let _ = send.send(Known { marks, program });
    let counted = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    ensure!(child.wait()?.success(), "the traced process failed");
    ensure!(counted.len() == KINDS.len(), "{} phases of {}", counted.len(), KINDS.len());
    Ok(counted.into_iter().map(|counted| (counted, code)).collect())
}

/// Runs the benchmark. Fails if an operation stores to shared lines more often than it may.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let mut counted = trace()?;
    for _ in 1..RUNS {
        let fits = |((kind, most), (counted, _)): (&(&str, f64), &(Counted, u64))| {
            !args.wants(kind) || counted.writes <= *most
        };
        if KINDS.iter().zip(&counted).all(fits) {
            break;
        }
        for (least, again) in counted.iter_mut().zip(trace()?) {
            if again.0.writes < least.0.writes {
                *least = again;
            }
        }
    }
    let mut over = Vec::new();
    for ((kind, most), (counted, code)) in KINDS.iter().zip(&counted) {
        if !args.wants(kind) {
            continue;
        }
        report.value(kind, "stores to shared lines", counted.writes);
        report.note(&format!("{kind}: {:.2} stores to shared lines, of {} lines", counted.writes, counted.lines));
        let mut sites: Vec<(u64, u64)> = counted.sites.iter().map(|(place, stores)| (*stores, *place)).collect();
        sites.sort_unstable_by(|a, b| b.cmp(a));
        sites.truncate(SITES);
        let places: Vec<u64> = sites.iter().map(|s| s.1).collect();
        for ((stores, _), name) in sites.iter().zip(names(*code, &places)?) {
            report.note(&format!("  {:5.2} {name}", *stores as f64 / (2 * OPS) as f64));
        }
        if counted.writes > *most {
            over.push(format!("{kind}: {:.2}, {most} allowed", counted.writes));
        }
    }
    ensure!(over.is_empty(), "too many stores to shared lines: {}", over.join("; "));
    Ok(())
}
