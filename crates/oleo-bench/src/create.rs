//! Empty files in two threads, one commit at the end: in-process, against fs_mark on a kernel mount.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use oleo::{Image, MkfsOptions, NewInode, NewKind, OpenOptions};
use oleo_sim::oracle;

use crate::Args;
use crate::measure::Report;

const THREADS: u64 = 2;

/// Room for the metadata of a million files, twice (dup), with slack.
const IMAGE_LEN: u64 = 16 << 30;

fn ours(image: &std::path::Path, files: u64) -> Result<f64> {
    let file = std::fs::File::create(image)?;
    file.set_len(IMAGE_LEN)?;
    drop(file);
    let device = oleo::FileDevice::open(image, &oleo::FileOptions { write: true, ..Default::default() })?;
    oleo::make(&[std::sync::Arc::new(device)], &MkfsOptions::default())?;
    let mut options = OpenOptions::writing();
    // Otherwise it would commit whenever some ten thousand inodes have changed.
    options.fs.dirty_inodes_max = usize::MAX;
    let image = Image::open(image, &options)?;
    let top = image.top()?;
    // Made before the clock starts, as fs_mark's threads get theirs.
    let mut dirs = Vec::new();
    for t in 0..THREADS {
        dirs.push(image.fs().create(&top, format!("t{t}").as_bytes(), &NewInode::new(NewKind::Dir, 0o755))?);
    }
    image.sync()?;
    let start = Instant::now();
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
    let creating = start.elapsed().as_secs_f64();
    image.sync()?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("  ours: created in {creating:.3} s, committed in {:.3} s", seconds - creating);
    image.close()?;
    Ok(files as f64 / seconds)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let oracle = oracle::oracle().context("this benchmark needs root, loop devices and the kernel's btrfs")?;
    let scratch = oracle.scratch()?;
    let image = scratch.path().join("create.img");
    report.note(&format!("{} files in {THREADS} threads; median of {} runs", args.files, args.runs));
    let mut mine = Vec::new();
    for _ in 0..args.runs {
        mine.push(ours(&image, args.files)?);
    }
    oracle.must_be_sound(&[&image], "the image that was measured")?;
    let mut theirs = Vec::new();
    for _ in 0..args.runs {
        std::fs::remove_file(&image)?;
        std::fs::File::create(&image)?.set_len(IMAGE_LEN)?;
        oracle.mkfs(&["-q", "-f"], &[&image])?;
        let mounted = oracle.mount(&[&image], "")?;
        let mut cmd = Command::new("fs_mark");
        cmd.args(["-S", "0", "-s", "0", "-k", "-n", &(args.files / THREADS).to_string()]);
        for t in 0..THREADS {
            let dir = mounted.path().join(format!("t{t}"));
            std::fs::create_dir(&dir)?;
            cmd.arg("-d").arg(dir);
        }
        mounted.sync()?;
        let log = scratch.path().join("fs_log");
        cmd.arg("-l").arg(&log);
        let start = Instant::now();
        let out = cmd.output().context("fs_mark")?;
        ensure!(out.status.success(), "fs_mark failed: {}", String::from_utf8_lossy(&out.stderr));
        mounted.sync()?;
        theirs.push(args.files as f64 / start.elapsed().as_secs_f64());
        mounted.unmount()?;
    }
    report.rate("create, one commit", median(mine), "kernel fs_mark", median(theirs), "5x");
    Ok(())
}
