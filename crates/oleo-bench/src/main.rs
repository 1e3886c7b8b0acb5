//! Benchmarks beside the kernel and btrfs-progs: `oleo-bench list`, `oleo-bench NAME [--json]`.
//!
//! Each prints ours, the peer's and the ratio from one run, each figure the median of several, everything on a tmpfs. What
//! both sides do, the durability they give and the state of the caches are said in each benchmark's `what`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;

mod create;
mod image_build;
mod measure;
mod restore;

/// What a run was asked to do.
#[derive(Parser, Debug)]
#[command(name = "oleo-bench", about = "Benchmarks of Oleo beside the kernel and btrfs-progs")]
pub struct Args {
    /// A benchmark, `list`, or `all`.
    name: String,
    /// Print JSON lines.
    #[arg(long)]
    json: bool,
    /// Runs of each side; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The tree that image-build and restore work on.
    #[arg(long, default_value = "/usr")]
    tree: PathBuf,
    /// Files that create makes.
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Only figures whose name holds this.
    #[arg(long)]
    only: Option<String>,
}

struct Bench {
    name: &'static str,
    what: &'static str,
    run: fn(&Args, &mut measure::Report) -> Result<()>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "image-build",
        what: "an image of a directory tree: mkfs --rootdir beside mkfs.btrfs --rootdir and beside kernel mount + cp -a + \
               sync + umount; plain and zstd:3; page cache of the source warm on all sides; peak memory",
        run: image_build::run,
    },
    Bench {
        name: "create",
        what: "empty files in 2 threads, one commit at the end, in-process beside fs_mark -S 0 on a kernel mount",
        run: create::run,
    },
    Bench {
        name: "restore",
        what: "all files out of an image into a tmpfs directory beside kernel mount + cp -a; page cache of the image warm",
        run: restore::run,
    },
];

// Millions of small items are made on one thread and let go of on another; see docs/dependencies.md for the measurement.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let args = Args::parse();
    if args.name == "list" {
        for b in BENCHES {
            println!("{:12} {}", b.name, b.what);
        }
        return Ok(());
    }
    let chosen: Vec<&Bench> = BENCHES.iter().filter(|b| args.name == "all" || b.name == args.name).collect();
    if chosen.is_empty() {
        bail!("no benchmark is called {}; see `list`", args.name);
    }
    for b in chosen {
        let mut report = measure::Report::new(b.name, args.json);
        (b.run)(&args, &mut report)?;
    }
    Ok(())
}
