//! `oleo mount`, and what mount(8) calls: `mount.oleo`, `mount.fuse.oleo`.
//!
//! In the background, the command starts itself once more with `--foreground --announce`, passes its output on until the volume
//! is mounted, and ends. So no process with threads forks, and errors at the start reach the user.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context;
use oleo_fuse::{Log, MountOptions, Mounted, Plan};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::DeviceArgs;
use crate::cmd::ready::{self, READY, announce};
use crate::out::{Out, misuse, warn};

/// Mount a volume through FUSE
///
/// This program serves the volume, in the background unless --foreground is given. `oleo unmount` unmounts it.
///
/// Once it is mounted, a server in the background writes its messages to the system's log (`journalctl -t oleo`, or /var/log/syslog).
/// If there is none, as in most containers, use --foreground: messages go to standard error.
#[derive(clap::Args)]
#[command(override_usage = "oleo mount [OPTIONS] IMG... DIR")]
pub(crate) struct Args {
    /// All images or devices of the volume, then the directory to mount it on.
    #[arg(value_name = "IMG... DIR", required = true, num_args = 1..)]
    places: Vec<PathBuf>,
    /// Mount options, separated by commas: ro, subvol=PATH, subvolid=ID, compress[-force]=ALGORITHM[:LEVEL], nodatacow,
    /// nodatasum, commit=SECONDS, discard, noatime, relatime, strictatime, degraded, follow=SECONDS, max_inline=BYTES, thread_pool=N, cache=BYTES, nodes=N,
    /// user_subvol_rm_allowed, skip_balance, space_cache=v1|v2, nospace_cache, rescue=WHAT, device=FILE, allow_other, fsname=NAME, subtype=NAME, io_uring=auto|on|off,
    /// halt_poll=auto|on|off, writeback_cache, and those of volumes on object stores (`oleo remote --help`).
    #[arg(short = 'o', long = "options", value_name = "OPTS")]
    options: Vec<String>,
    /// Stay in the foreground and write messages to standard error.
    #[arg(long, short)]
    foreground: bool,
    /// Say on standard output when it is mounted, then let go of the terminal.
    #[arg(long, hide = true)]
    announce: bool,
    #[command(flatten)]
    others: DeviceArgs,
}

impl Args {
    pub fn run(mut self, out: &Out) -> anyhow::Result<()> {
        let Some(dir) = self.places.pop() else { return Err(misuse!("missing argument DIR")) };
        if self.places.is_empty() {
            return Err(misuse!("missing argument DIR: the directory to mount {} on", dir.display()));
        }
        let scrub_state = Some(super::scrub::state_dir());
        let mut options = MountOptions { places: self.others.store.places()?, scrub_state, ..MountOptions::default() };
        for list in &self.options {
            options.parse(list)?;
        }
        options.degraded |= self.others.degraded;
        if self.others.no_log_replay {
            options.parse("nologreplay")?;
        }
        if !self.foreground {
            return in_background(out);
        }
        if !options.ignored.is_empty() && !out.quiet {
            warn(&format!("mount options that mean nothing here are ignored: {}", options.ignored.join(",")));
        }
        small_pages();
        flushes_for_others();
        let log = if self.announce { to_syslog() } else { to_stderr() };
        let mut images = self.places.clone();
        images.extend(self.others.device.iter().cloned());
        let plan = Plan { images, scan: self.others.scan.clone(), offset: self.others.offset, dir, options, log };
        let mounted = Mounted::new(plan)?;
        if let Some(switch) = mounted.uring_switch() {
            out.advice(|| format!("requests would be faster through io_uring: as root, echo 1 > {}", switch.display()));
        }
        if self.announce {
            announce()?;
        } else {
            out.note(format!("mounted on {}", mounted.dir().display()));
        }
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let stopper = mounted.stopper();
        std::thread::spawn(move || {
            for _ in signals.forever() {
                stopper.stop();
            }
        });
        Ok(mounted.serve()?)
    }
}

/// Has the system give this process memory by pages of 4 KiB. A huge page is cleared whole when the first request touches it, and a
/// client that waits for each answer waits for that: untar on a new mount took 0.87 s with them and 0.64 s without
/// (docs/decisions/0021-requests.md). Other commands keep them: mkfs of a large tree and check gain by them.
fn small_pages() {
    // A system without huge pages refuses this, and needs nothing.
    _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Keeps the kernel from writing back pages of this mount while it looks for memory for this process: that would wait for the process
/// itself. Threads inherit this, so it comes before the first one.
fn flushes_for_others() {
    // This needs CAP_SYS_RESOURCE. An ordinary user's server has the risk that every FUSE server has without it.
    _ = rustix::process::configure_io_flusher_behavior(true);
}

/// Starts this command once more, without the terminal, and waits until it has mounted.
fn in_background(out: &Out) -> anyhow::Result<()> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if called_as_helper().is_some() {
        arguments = helper_arguments(&arguments)?;
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(program)
        .args(arguments)
        .args(["--foreground", "--announce"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the server")?;
    let mut said = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut said)?;
    }
    if said == READY {
        out.detail(|| format!("served by process {}", child.id()));
        return Ok(());
    }
    // It has said why on standard error.
    let code = child.wait()?.code().unwrap_or(1);
    std::process::exit(code);
}

fn to_stderr() -> Log {
    Arc::new(|line: &str| eprintln!("oleo: {}", crate::out::plain(line, &[])))
}

fn to_syslog() -> Log {
    Arc::new(ready::to_syslog)
}

/// Names under which mount(8) calls this program.
const HELPERS: [&str; 2] = ["mount.oleo", "mount.fuse.oleo"];

/// Whether mount(8) has called, and by which name.
pub(crate) fn called_as_helper() -> Option<&'static str> {
    let name = std::env::args_os().next()?;
    let name = std::path::Path::new(&name).file_name()?.to_owned();
    HELPERS.into_iter().find(|helper| name == *helper)
}

/// Turns the arguments of a mount helper, `SOURCE DIR [-sfnv] [-N NS] [-o OPTS] [-t TYPE]` (mount(8), "External
/// helpers"), into those of `oleo mount`.
pub(crate) fn helper_arguments(given: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let mut arguments: Vec<OsString> = vec!["mount".into()];
    let mut rest = given.iter();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-o") => {
                let list = rest.next().ok_or_else(|| misuse!("missing value of -o"))?;
                arguments.extend(["-o".into(), list.clone()]);
            }
            Some("-t" | "-N") => {
                rest.next().ok_or_else(|| misuse!("missing value of {}", argument.display()))?;
            }
            Some("-f") => return Err(misuse!("-f (a dry run) is not supported")),
            // Sloppy, not in mtab, verbose: nothing to do.
            Some(flags)
                if flags.len() > 1 && flags.starts_with('-') && flags[1..].bytes().all(|b| b"snvw".contains(&b)) => {}
            Some("-r") => arguments.extend(["-o".into(), "ro".into()]),
            _ => arguments.push(argument.clone()),
        }
    }
    Ok(arguments)
}
