//! The speeds that Oleo wants to have, in one table: `oleo-bench aims [--runs 5] [--old DIR] [--only PART…]`.
//!
//! Each [`Group`] is one benchmark with its arguments, run as a process of its own: this program again with `--json`. With
//! `--old DIR`, where an older `oleo` and `oleo-bench` lie, mounts of both are measured in turns by the same process,
//! and library calls by both programs in turns. A row's figures are medians; its ratio says how many times better ours
//! is than the peer's, and is beside what was wanted. Nothing else may run on the machine; the whole table takes most of an
//! hour.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::Args;
use crate::measure::median_of;

/// The name on the command line.
pub const NAME: &str = "aims";
/// For `list`.
pub const WHAT: &str = "the table of what is aimed for: the benchmarks below that have an aim, one after the other, each beside its \
                        peers and (--old DIR) beside an older build; --only picks benchmarks or transports, as in 'fsync'";

/// What a ratio has to be.
#[derive(Clone, Copy)]
enum Want {
    /// Ours at least so many times as good as the peer's.
    AtLeast(f64),
    /// A cost that grows by no more than this factor.
    AtMost(f64),
}

struct Aim {
    figure: &'static str,
    /// Its name in the report; empty for a figure without one.
    peer: &'static str,
    want: Want,
}

const fn at_least(figure: &'static str, peer: &'static str, ratio: f64) -> Aim {
    Aim { figure, peer, want: Want::AtLeast(ratio) }
}

const fn at_most(figure: &'static str, ratio: f64) -> Aim {
    Aim { figure, peer: "", want: Want::AtMost(ratio) }
}

/// Where the older build comes in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Old {
    /// The benchmark mounts: it is given the older `oleo`.
    Mounted,
    /// The benchmark has the library inside: the older `oleo-bench` runs in turns with this one.
    Program,
}

struct Group {
    bench: &'static str,
    args: &'static [&'static str],
    old: Old,
    /// More turns than this take too long, or the benchmark takes medians by itself.
    turns_max: usize,
    aims: &'static [Aim],
}

const fn mounted(bench: &'static str, args: &'static [&'static str], aims: &'static [Aim]) -> Group {
    Group { bench, args, old: Old::Mounted, turns_max: usize::MAX, aims }
}

const fn program(bench: &'static str, args: &'static [&'static str], turns_max: usize, aims: &'static [Aim]) -> Group {
    Group { bench, args, old: Old::Program, turns_max, aims }
}

const KERNEL: &str = "kernel";
const NULL: &str = "answers only";

const GROUPS: &[Group] = &[
    mounted(
        "mount-metadata",
        &["--transport", "rings", "--peer", "kernel", "--peer", "null", "--only", "create"],
        &[at_least("create", KERNEL, 1.0), at_least("create", NULL, 0.8)],
    ),
    mounted(
        "mount-metadata",
        &["--transport", "device", "--peer", "kernel", "--peer", "null", "--only", "create"],
        &[at_least("create", NULL, 1.0)],
    ),
    mounted(
        "mount-metadata",
        &["--transport", "rings", "--peer", "kernel", "--only", "untar", "--only", "rm -r of 200000"],
        &[
            at_least("untar", KERNEL, 0.8),
            at_least("rm -r of 200000", KERNEL, 1.0),
            at_least("find cold", KERNEL, 1.0),
            at_least("find warm", KERNEL, 1.0),
        ],
    ),
    mounted(
        "mount-metadata",
        &["--transport", "device", "--peer", "kernel", "--only", "untar", "--only", "rm -r of 200000"],
        &[
            at_least("untar", KERNEL, 0.25),
            at_least("rm -r of 200000", KERNEL, 0.5),
            at_least("find cold", KERNEL, 0.5),
            at_least("find warm", KERNEL, 0.5),
        ],
    ),
    mounted(
        "dbench",
        &["--transport", "rings", "--only", "4 clients"],
        &[
            at_least("throughput, 4 clients", KERNEL, 1.0),
            at_least("Rename average, 4 clients", KERNEL, 1.0),
            at_least("Flush average, 4 clients", KERNEL, 1.0),
            at_least("Unlink average, 4 clients", KERNEL, 1.0),
        ],
    ),
    mounted(
        "mount-io",
        &["--transport", "rings", "--peer", "kernel", "--only", "random"],
        &[
            at_least("seq write 1 MiB", KERNEL, 0.9),
            at_least("seq rewrite 1 MiB", KERNEL, 0.9),
            at_least("seq read 1 MiB cold", KERNEL, 0.9),
            at_least("seq read 1 MiB warm", KERNEL, 0.9),
            at_least("random read 4 KiB cold", KERNEL, 0.9),
            at_least("random write 4 KiB", KERNEL, 0.9),
        ],
    ),
    program(
        "fsync",
        &["--only", "memory"],
        usize::MAX,
        &[
            at_least("append+fsync, p50, memory", KERNEL, 1.0),
            at_least("append+fsync, p99, memory", KERNEL, 1.0),
            at_least("fsyncs of 8 threads, memory", KERNEL, 1.0),
        ],
    ),
    program("create", &[], usize::MAX, &[at_least("create, committed", KERNEL, 8.0)]),
    program(
        "commit",
        &["--only", "chmod, at random"],
        1,
        &[
            at_least("chmod, at random 100: written", KERNEL, 1.43),
            at_least("chmod, at random 1000: written", KERNEL, 1.43),
            at_least("chmod, at random 10000: written", KERNEL, 1.43),
            at_least("chmod, at random 100: commit", KERNEL, 1.0),
            at_least("chmod, at random 1000: commit", KERNEL, 1.0),
            at_least("chmod, at random 10000: commit", KERNEL, 1.0),
        ],
    ),
    program(
        "balance",
        &["--only", "64 snapshots"],
        1,
        &[
            at_least("64 snapshots, quota off", KERNEL, 5.0),
            at_least("64 snapshots, quota on", KERNEL, 5.0),
            at_most("64 snapshots, quota off and on", 1.05),
        ],
    ),
    program(
        "snapshot-drop",
        &[],
        1,
        &[at_most("16 snapshots, quota off and on", 1.1), at_most("64 snapshots, quota off and on", 1.1)],
    ),
    program("send-incremental", &[], 1, &[at_least("1 % changed, incremental", KERNEL, 5.0)]),
    program(
        "send-shared",
        &["--only", "each 1100 times"],
        1,
        &[
            at_least("20 files of 128 KiB, each 1100 times more, full", KERNEL, 100.0),
            at_least("20 files of 128 KiB, each 1100 times more, incremental", KERNEL, 100.0),
        ],
    ),
    program("receive", &["--only", "nothing else"], 1, &[at_least("receive, 60000 files, 850 MiB", KERNEL, 5.0)]),
    program("fallocate", &[], 1, &[at_least("placed and freed, 2 in parallel", KERNEL, 4.0)]),
];

/// What lines of a report say of a figure: ours, and the peers' by name. A cost at two sizes has the larger in place of ours and
/// the smaller in place of a nameless peer's.
#[derive(Default)]
struct Seen {
    ours: BTreeMap<String, Vec<f64>>,
    theirs: BTreeMap<(String, String), Vec<f64>>,
    /// Figures that are better the higher they are.
    rates: BTreeSet<String>,
}

impl Seen {
    fn read(&mut self, lines: &str) -> Result<()> {
        for line in lines.lines() {
            let line: serde_json::Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
            let Some(figure) = line["figure"].as_str() else { continue };
            let (ours, peer, theirs) = match line["large"].as_f64() {
                Some(large) => (Some(large), "", line["small"].as_f64()),
                None => (line["ours"].as_f64(), line["peer"].as_str().unwrap_or_default(), line["theirs"].as_f64()),
            };
            if line["better"] == "more" {
                self.rates.insert(figure.to_owned());
            }
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                self.ours.entry(figure.to_owned()).or_default().push(ours);
                self.theirs.entry((figure.to_owned(), peer.to_owned())).or_default().push(theirs);
            }
        }
        Ok(())
    }

    fn ours(&self, figure: &str) -> Option<f64> {
        median_of(self.ours.get(figure)?)
    }

    fn theirs(&self, figure: &str, peer: &str) -> Option<f64> {
        median_of(self.theirs.get(&(figure.to_owned(), peer.to_owned()))?)
    }
}

/// Runs a benchmark as a process; what it prints.
fn child(bench: &Path, group: &Group, runs: usize, built: bool, old: Option<&Path>) -> Result<String> {
    let mut command = Command::new(bench);
    command.arg(group.bench).args(group.args).args(["--json", "--runs", &runs.to_string()]);
    if let Some(old) = old {
        command.arg("--old").arg(old);
    }
    if built {
        // An older program would have cargo build this tree: its own commands lie beside it.
        command.env("CARGO", "true");
    }
    let out = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run {}", bench.display()))?;
    ensure!(out.status.success(), "{} {} failed", bench.display(), group.bench);
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// What the new and the old program say of a group.
fn measured(args: &Args, group: &Group) -> Result<(Seen, Seen)> {
    let me = std::env::current_exe()?;
    let (mut new, mut before) = (Seen::default(), Seen::default());
    if group.old == Old::Mounted {
        let old = args.old.as_ref().map(|dir| dir.join("oleo"));
        new.read(&child(&me, group, args.runs, false, old.as_deref())?)?;
        return Ok((new, before));
    }
    // A benchmark that takes medians by itself takes them of all runs.
    let turns = args.runs.min(group.turns_max);
    for _ in 0..turns {
        new.read(&child(&me, group, args.runs / turns, false, None)?)?;
        if let Some(dir) = &args.old {
            before.read(&child(&dir.join("oleo-bench"), group, args.runs / turns, true, None)?)?;
        }
    }
    Ok((new, before))
}

fn print(group: &Group, aim: &Aim, new: &Seen, before: &Seen) -> Result<bool> {
    let what = group.args.iter().skip_while(|a| **a != "--transport").nth(1).unwrap_or(&"");
    let (ours, theirs) = new
        .ours(aim.figure)
        .zip(new.theirs(aim.figure, aim.peer))
        .with_context(|| format!("{} says nothing of {}", group.bench, aim.figure))?;
    let before = match group.old {
        Old::Mounted => new.theirs(aim.figure, "oleo before"),
        Old::Program => before.ours(aim.figure),
    };
    let ratio = match aim.want {
        Want::AtLeast(_) if !new.rates.contains(aim.figure) => theirs / ours,
        Want::AtLeast(_) | Want::AtMost(_) => ours / theirs,
    };
    let (met, wanted) = match aim.want {
        Want::AtLeast(least) => (ratio >= least, format!("at least {least}")),
        Want::AtMost(most) => (ratio <= most, format!("at most {most}")),
    };
    let before = before.map_or_else(|| "-".to_owned(), |b| format!("{b:.2}"));
    println!(
        "| {} {what} | {} | {ours:.2} | {before} | {} {theirs:.2} | {ratio:.2} | {wanted} | {} |",
        group.bench,
        aim.figure,
        aim.peer,
        if met { "met" } else { "missed" }
    );
    Ok(met)
}

/// Runs the benchmarks and prints the table.
pub fn run(args: &Args) -> Result<()> {
    println!("| benchmark | figure | ours | before | peer | ratio | wanted | |\n|---|---|---|---|---|---|---|---|");
    let (mut all, mut met) = (0, 0);
    for group in GROUPS.iter().filter(|g| args.wants(&format!("{} {}", g.bench, g.args.join(" ")))) {
        let (new, before) = measured(args, group)?;
        for aim in group.aims {
            all += 1;
            met += usize::from(print(group, aim, &new, &before)?);
        }
    }
    println!("\n{met} of {all} met");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lines of all kinds of reports are understood. Method: one of each, as `--json` prints them.
    #[test]
    fn reports_are_read() {
        let mut seen = Seen::default();
        seen.read(
            "{\"bench\":\"x\",\"note\":\"n\"}\n\
             {\"figure\":\"f\",\"unit\":\"1/s\",\"better\":\"more\",\"ours\":2.0,\"peer\":\"kernel\",\"theirs\":3.0,\"ratio\":1.5}\n\
             {\"figure\":\"f\",\"unit\":\"s\",\"ours\":4.0,\"peer\":\"kernel\",\"theirs\":5.0,\"ratio\":1.25}\n\
             {\"figure\":\"f\",\"unit\":\"s\",\"ours\":6.0,\"peer\":\"kernel\",\"theirs\":4.0,\"ratio\":0.7}\n\
             {\"figure\":\"g\",\"unit\":\"s\",\"small\":1.0,\"large\":1.2,\"ratio\":1.2,\"aim\":1.1}\n",
        )
        .unwrap();
        assert_eq!((seen.ours("f"), seen.theirs("f", "kernel")), (Some(4.0), Some(4.0)));
        assert_eq!((seen.ours("g"), seen.theirs("g", "")), (Some(1.2), Some(1.0)));
        assert_eq!(seen.ours("h"), None);
        assert!(seen.rates.contains("f") && !seen.rates.contains("g"));
    }
}
