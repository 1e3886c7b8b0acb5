//! Names and attributes on a mount: creating, untarring, finding, removing, and dbench.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::Args;
use crate::measure::{Figure, Found, Report};
use crate::mounted::{Files, Fixture, Mount, tool};
use crate::peer::Peer;

const CREATE_THREADS: u64 = 2;
const CREATE_FILES: u64 = 100_000;
const FIND_DIRS: u64 = 200;
const FIND_FILES: u64 = 200_000;
const DBENCH_CLIENTS: &str = "4";
const DBENCH_SECONDS: &str = "10";

/// The figures: name, unit, whether less is better, and the aims beside the kernel and the pass-through.
const FIGURES: &[Figure] = &[
    Figure::rate("create", "files/s", &[(Peer::Kernel, "1x"), (Peer::Null, "0.9x")]),
    Figure::time("untar", "s", &[]),
    Figure::time("find cold", "s", &[(Peer::Kernel, "1x")]),
    Figure::time("find warm", "s", &[(Peer::Kernel, "1x")]),
    Figure::time("find again", "s", &[(Peer::Kernel, "1x")]),
    Figure::time("rm -r of 200000", "s", &[]),
    Figure::time("rm -r of the source tree", "s", &[]),
    Figure::rate("dbench", "MiB/s", &[(Peer::Pass, "1.5x")]),
];

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

fn one_run(fixture: &Fixture, peer: Peer, archive: &Path, args: &Args, found: &mut Found) -> Result<()> {
    let wanted = |name: &str| args.wants(name);
    let mut put = |name, value| found.put(peer, name, value);
    if wanted("create") {
        let mount = fixture.fresh(peer, Files::Many)?;
        put("create", create(&mount, &fixture.scratch().join("fs_log"))?);
        mount.unmount()?;
        fixture.must_be_sound(peer)?;
    }
    if peer == Peer::Null {
        return Ok(());
    }
    if wanted("untar") || wanted("rm -r of the source tree") {
        let mount = fixture.fresh(peer, Files::Many)?;
        let dir = mount.path().join("source");
        std::fs::create_dir(&dir)?;
        put("untar", seconds(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&dir))?);
        put("rm -r of the source tree", seconds(Command::new("rm").arg("-r").arg(&dir))?);
        mount.unmount()?;
        fixture.must_be_sound(peer)?;
    }
    if wanted("find") || wanted("rm -r of 200000") {
        let mount = fixture.fresh(peer, Files::Many)?;
        let name = "many";
        many_files(&mount.path().join(name))?;
        let mount = fixture.cold(peer, Files::Many, mount)?;
        put("find cold", find(&mount.path().join(name))?);
        put("find warm", find(&mount.path().join(name))?);
        put("find again", find(&mount.path().join(name))?);
        put("rm -r of 200000", seconds(Command::new("rm").arg("-r").arg(mount.path().join(name)))?);
        mount.unmount()?;
        fixture.must_be_sound(peer)?;
    }
    if wanted("dbench") {
        let mount = fixture.fresh(peer, Files::Few)?;
        put("dbench", dbench(&mount)?);
        mount.unmount()?;
        fixture.must_be_sound(peer)?;
    }
    fixture.remove(peer);
    Ok(())
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let fixture = Fixture::new(args.old.as_deref())?;
    let source = if args.tree == Path::new("/usr") { Path::new("/usr/include") } else { &args.tree };
    let archive = fixture.scratch().join("source.tar");
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
    let (few, many) = (fixture.pass_through(Files::Few), fixture.pass_through(Files::Many));
    report.note(&format!("the pass-through is {few} for dbench, {many} for the rest"));
    report.in_turns(FIGURES, &args.peers(Peer::ALL), args.runs, |peer, found| {
        one_run(&fixture, peer, &archive, args, found)
    })
}
