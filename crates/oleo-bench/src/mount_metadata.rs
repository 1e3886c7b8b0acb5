//! Names and attributes on a mount: creating, untarring, finding, removing, and dbench.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::Args;
use crate::measure::{Figure, Report};
use crate::mounted::{Bed, Mount, Peer, tool};

const CREATE_THREADS: u64 = 2;
const CREATE_FILES: u64 = 100_000;
const FIND_DIRS: u64 = 200;
const FIND_FILES: u64 = 200_000;
const DBENCH_CLIENTS: &str = "4";
const DBENCH_SECONDS: &str = "10";

/// What is measured: name, unit, whether less is better, and the aims beside the kernel and the pass-through.
const FIGURES: &[Figure] = &[
    ("create", "files/s", false, ["-", "1x"]),
    ("untar", "s", true, ["-", "-"]),
    ("find cold", "s", true, ["-", "1.5x"]),
    ("find warm", "s", true, ["-", "1.5x"]),
    ("find again", "s", true, ["-", "1.5x"]),
    ("rm -r of 200000", "s", true, ["-", "-"]),
    ("rm -r of the source tree", "s", true, ["-", "-"]),
    ("dbench", "MiB/s", false, ["-", "1.5x"]),
];

type Found = BTreeMap<&'static str, Vec<f64>>;

fn seconds(command: &mut Command) -> Result<f64> {
    let start = Instant::now();
    tool(command)?;
    Ok(start.elapsed().as_secs_f64())
}

fn create(mount: &Mount, log: &Path) -> Result<f64> {
    let mut command = Command::new("fs_mark");
    command.args(["-S", "0", "-s", "0", "-k", "-n", &(CREATE_FILES / CREATE_THREADS).to_string()]);
    for t in 0..CREATE_THREADS {
        let dir = mount.path().join(format!("t{t}"));
        std::fs::create_dir(&dir)?;
        command.arg("-d").arg(dir);
    }
    command.arg("-l").arg(log);
    Ok(CREATE_FILES as f64 / seconds(&mut command)?)
}

fn many_files(dir: &Path) -> Result<()> {
    for d in 0..FIND_DIRS {
        let sub = dir.join(format!("directory-{d:04}"));
        std::fs::create_dir_all(&sub)?;
        for f in 0..FIND_FILES / FIND_DIRS {
            std::fs::File::create(sub.join(format!("some-file-{f:06}")))?;
        }
    }
    Ok(())
}

/// Looks at the attributes of every file, not only at the names.
fn find(dir: &Path) -> Result<f64> {
    seconds(Command::new("find").arg(dir).args(["-size", "+1", "-newer", "/proc/self"]))
}

fn dbench(mount: &Mount) -> Result<f64> {
    let dir = mount.path().join("dbench");
    std::fs::create_dir(&dir)?;
    let out = tool(Command::new("dbench").arg("-D").arg(&dir).args(["-t", DBENCH_SECONDS, DBENCH_CLIENTS]))?;
    let line = out.lines().find(|l| l.starts_with("Throughput")).context("dbench tells no throughput")?;
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).with_context(|| line.to_owned())
}

fn one_run(bed: &Bed, peer: Peer, archive: &Path, args: &Args, found: &mut Found) -> Result<()> {
    let wanted = |name: &str| args.only.as_ref().is_none_or(|o| name.contains(o.as_str()));
    let mut put = |name: &'static str, value: f64| {
        eprintln!("  {} {name}: {value:.2}", peer.name());
        found.entry(name).or_default().push(value);
    };
    if wanted("create") {
        let mount = bed.fresh(peer)?;
        put("create", create(&mount, &bed.scratch().join("fs_log"))?);
        mount.unmount()?;
        bed.must_be_sound(peer)?;
    }
    if wanted("untar") || wanted("rm -r of the source tree") {
        let mount = bed.fresh(peer)?;
        let dir = mount.path().join("source");
        std::fs::create_dir(&dir)?;
        put("untar", seconds(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&dir))?);
        put("rm -r of the source tree", seconds(Command::new("rm").arg("-r").arg(&dir))?);
        mount.unmount()?;
        bed.must_be_sound(peer)?;
    }
    if wanted("find") || wanted("rm -r of 200000") {
        let mount = bed.fresh(peer)?;
        let name = "many";
        many_files(&mount.path().join(name))?;
        let mount = bed.cold(peer, mount)?;
        put("find cold", find(&mount.path().join(name))?);
        put("find warm", find(&mount.path().join(name))?);
        put("find again", find(&mount.path().join(name))?);
        put("rm -r of 200000", seconds(Command::new("rm").arg("-r").arg(mount.path().join(name)))?);
        mount.unmount()?;
        bed.must_be_sound(peer)?;
    }
    if wanted("dbench") {
        let mount = bed.fresh(peer)?;
        put("dbench", dbench(&mount)?);
        mount.unmount()?;
        bed.must_be_sound(peer)?;
    }
    bed.remove(peer);
    Ok(())
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let bed = Bed::new()?;
    let source = if args.tree == Path::new("/usr") { Path::new("/usr/include") } else { &args.tree };
    let archive = bed.scratch().join("source.tar");
    tool(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(source).arg("."))?;
    let len = std::fs::metadata(&archive)?.len();
    report.note(&format!(
        "{CREATE_FILES} files created in {CREATE_THREADS} threads (fs_mark -S 0 -s 0, no sync); {} of {} MiB untarred; \
         find over {FIND_FILES} files in {FIND_DIRS} directories; dbench with {DBENCH_CLIENTS} clients for \
         {DBENCH_SECONDS} s; median of {} runs",
        source.display(),
        len >> 20,
        args.runs
    ));
    let mut all: Vec<(Peer, Found)> = Peer::ALL.iter().map(|p| (*p, Found::new())).collect();
    // In turns, so that a slow minute of the machine hits all alike.
    for _ in 0..args.runs {
        for (peer, found) in &mut all {
            one_run(&bed, *peer, &archive, args, found)?;
        }
    }
    report.peers(FIGURES, &all);
    Ok(())
}
