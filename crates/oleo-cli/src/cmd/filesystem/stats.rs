//! `oleo filesystem stats`

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use oleo::control::{LogStats, Reply, Request};

use crate::args::DeviceArgs;
use crate::out::{json, println_or_end, text};
use crate::target::{self, Access, answer};

/// Show counters of a mount: fsyncs, log commits, latencies, rows with parity, requests to devices on the network
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Any path on a mount (on an image all counters are 0).
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Print JSON; latencies are in nanoseconds.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let target = target::open(&self.path, &self.others, Access::Read, None)?;
        let stats = answer!(target.ask(Request::Stats)?, Reply::Stats(stats) => *stats)?;
        if self.json {
            json(&serde_json::to_value(&stats)?);
            return Ok(());
        }
        show(&stats.log);
        println_or_end(&format!("{:30}{:>12}", "qgroup.dirty_extents", stats.qgroup.dirty_extents));
        println_or_end(&format!("{:30}{:>12}", "inodes in memory", stats.inodes));
        if let Some(nodes) = stats.nodes {
            println_or_end(&format!("{:30}{nodes:>12}", "inodes known to the kernel"));
        }
        for (name, count) in stats.rows.iter().flat_map(|rows| rows.lines()) {
            println_or_end(&format!("{name:30}{count:>12}"));
        }
        for device in &stats.devices {
            println_or_end(&format!("device {}: {}", device.devid, text(device.path.as_os_str().as_bytes())));
            for (name, count) in &device.counts {
                println_or_end(&format!("{:30}{count:>12}", format!("  {name}")));
            }
        }
        Ok(())
    }
}

fn show(log: &LogStats) {
    let line = |name: &str, value: String| println_or_end(&format!("{name:30}{value:>12}"));
    line("fsyncs", log.fsyncs.to_string());
    line("  with nothing to write", log.idle.to_string());
    line("log commits", log.log_commits.to_string());
    line("  bytes of tree blocks", log.log_bytes.to_string());
    line("commits in their place", log.full_commits.to_string());
    for (rule, n) in log.full_commits_by.iter().filter(|(_, n)| *n > 0) {
        line(&format!("  because of {rule}"), n.to_string());
    }
    line("commits by link and rename", log.commits_by_link_rename.to_string());
    let micros = |nanos: u64| format!("{:.1} us", nanos as f64 / 1e3);
    line("latency of fsync, median", micros(log.latency_p50));
    line("  99 of 100 below", micros(log.latency_p99));
    line("  longest", micros(log.latency_max));
    let last = log.batches.len().saturating_sub(1);
    for (octave, n) in log.batches.iter().enumerate().filter(|(_, n)| **n > 0) {
        let calls = match octave {
            0 => "1 call".to_owned(),
            _ if octave == last => format!("more than {} calls", 1u64 << (octave - 1)),
            _ => format!("up to {} calls", 1u64 << octave),
        };
        line(&format!("log commits for {calls}"), n.to_string());
    }
    line("  most calls", log.batch_max.to_string());
}
