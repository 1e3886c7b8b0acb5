//! `oleo filesystem defragment`

use std::ffi::OsString;
use std::path::Path;

use oleo::control::{DefragOptions, Reply, Request};

use crate::args::{DeviceArgs, SubvolArg, size};
use crate::out::{Out, human, misuse};
use crate::target::{self, Access, answer};

/// Rewrite fragmented files in few long extents
#[derive(clap::Args)]
#[command(override_usage = "oleo filesystem defragment [OPTIONS] [IMG] PATH...")]
pub(crate) struct Args {
    /// An image and paths in it, or paths on a mount.
    #[arg(value_name = "[IMG] PATH", required = true)]
    paths: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Defragment directories recursively, without nested subvolumes.
    #[arg(long, short)]
    recursive: bool,
    /// Compress with zlib, lzo or zstd, optionally at a level; this rewrites all data that is not compressed that way.
    #[arg(long, short, value_name = "ALGO[:LEVEL]")]
    compress: Option<String>,
    /// Start at this offset of each file.
    #[arg(long, short, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true)]
    start: u64,
    /// Only this many bytes of each file.
    #[arg(long, short, value_name = "BYTES", value_parser = size)]
    len: Option<u64>,
    /// Leave extents of at least this many bytes alone.
    #[arg(long, short, value_name = "BYTES", default_value = "32M", value_parser = size)]
    target_size: u64,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let compress = match &self.compress {
            Some(text) => oleo::fs::parse_compress(text)?.map(|c| (c.algorithm, c.level)),
            None => None,
        };
        let options = DefragOptions::default()
            .start(self.start)
            .len(self.len.unwrap_or(u64::MAX))
            .threshold(self.target_size)
            .compress(compress);
        let target =
            target::open(Path::new(&self.paths[0]), &self.others, Access::Write, self.subvol.subvol.as_deref())?;
        let paths = if target.is_mount() { &self.paths[..] } else { &self.paths[1..] };
        if paths.is_empty() {
            return Err(misuse!("missing argument PATH"));
        }
        let mut lines = Vec::new();
        for path in paths {
            let request = Request::Defragment { at: target.at(path)?, recursive: self.recursive, options };
            let (done, skipped) =
                answer!(target.ask_of(path, request)?, Reply::Defragmented { done, skipped } => (done, skipped))?;
            out.warnings(&skipped);
            let bytes = human(done.bytes);
            let (files, before, after) = (done.files, done.before, done.after);
            lines.push(format!(
                "{}: {files} files, {bytes} rewritten, {before} pieces before, {after} now",
                path.display()
            ));
        }
        target.close()?;
        lines.iter().for_each(|line| out.note(line));
        Ok(())
    }
}
