//! Empty files in two threads, one commit at the end: in-process, against fs_mark on a kernel mount.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use oleo::fs::{NewInode, NewKind};
use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions};
use oleo_sim::oracle::{self, Loop, Oracle, ReadOnly};

use crate::Args;
use crate::measure::{self, Figure, Report};
use crate::peer::Peer;

const THREADS: u64 = 2;

/// Room for the metadata of a million files, twice (dup), with slack.
const IMAGE_LEN: u64 = 16 << 30;

fn ours(image: &std::path::Path, files: u64) -> Result<f64> {
    let attached = Loop::attach(image, ReadOnly::No)?;
    let device = oleo::device::FileDevice::open(attached.path(), &oleo::device::FileOptions::default().write(true))?;
    oleo::mkfs::make(&[std::sync::Arc::new(device)], &MkfsOptions::default())?;
    let image = Image::open(attached.path(), &OpenOptions::writing())?;
    let top = image.top()?;
    // Made before the clock starts, as fs_mark's threads get theirs.
    let mut dirs = Vec::new();
    for t in 0..THREADS {
        dirs.push(image.fs().create(&top, format!("t{t}").as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?);
    }
    image.sync()?;
    measure::reset_peak();
    let (start, busy) = (Instant::now(), measure::busy_seconds()?);
    std::thread::scope(|s| -> Result<()> {
        let threads: Vec<_> = dirs
            .iter()
            .map(|dir| {
                let fs = image.fs();
                s.spawn(move || -> Result<()> {
                    for n in 0..files / THREADS {
                        // As long as fs_mark's names.
                        let name = format!("{n:08x}~~~~~~~~KQSAZCJ4UUJ1BCSHB3UP7VKV");
                        fs.create(dir, name.as_bytes(), &NewInode::new(NewKind::File, 0o600))?;
                    }
                    Ok(())
                })
            })
            .collect();
        for t in threads {
            t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(())
    })?;
    let (creating, busy_creating) = (start.elapsed().as_secs_f64(), measure::busy_seconds()? - busy);
    image.sync()?;
    let (seconds, busy) = (start.elapsed().as_secs_f64(), measure::busy_seconds()? - busy);
    eprintln!(
        "  ours: created in {creating:.3} s, committed in {:.3} s; processors {busy_creating:.2} s and {:.2} s; at most {} MiB",
        seconds - creating,
        busy - busy_creating,
        measure::memory("VmHWM:")? >> 20
    );
    image.close()?;
    Ok(files as f64 / seconds)
}

fn theirs(oracle: &Oracle, image: &std::path::Path, log: &std::path::Path, files: u64) -> Result<f64> {
    oracle.mkfs(&["-q", "-f"], &[image])?;
    let mounted = oracle.mount(&[image], "")?;
    let mut cmd = Command::new("fs_mark");
    cmd.args(["-S", "0", "-s", "0", "-k", "-n", &(files / THREADS).to_string()]);
    for t in 0..THREADS {
        let dir = mounted.path().join(format!("t{t}"));
        std::fs::create_dir(&dir)?;
        cmd.arg("-d").arg(dir);
    }
    mounted.sync()?;
    cmd.arg("-l").arg(log);
    let start = Instant::now();
    let out = cmd.output().context("fs_mark")?;
    ensure!(out.status.success(), "fs_mark failed: {}", String::from_utf8_lossy(&out.stderr));
    mounted.sync()?;
    let rate = files as f64 / start.elapsed().as_secs_f64();
    mounted.unmount()?;
    Ok(rate)
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    const NAME: &str = "create, committed";
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let scratch = oracle.scratch()?;
    let (image, log) = (scratch.path().join("create.img"), scratch.path().join("fs_log"));
    report.note(&format!("{} files in {THREADS} threads; median of {} runs", args.files, args.runs));
    let figures = [Figure::rate(NAME, "1/s", &[(Peer::Kernel, "5x")])];
    report.in_turns(&figures, &[Peer::Library, Peer::Kernel], args.runs, |peer, found| {
        let _ = std::fs::remove_file(&image);
        std::fs::File::create(&image)?.set_len(IMAGE_LEN)?;
        if peer == Peer::Kernel {
            found.put(peer, NAME, theirs(&oracle, &image, &log, args.files)?);
            return Ok(());
        }
        found.put(peer, NAME, ours(&image, args.files)?);
        oracle.must_be_sound(&[&image], "the image that was measured")
    })
}
