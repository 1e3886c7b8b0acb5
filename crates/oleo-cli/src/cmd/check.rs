//! `oleo check`

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use oleo::Image;
use oleo::check::{CheckOptions, Counts, Finding, Kind, Progress, Report, Severity, Start};
use serde_json::json;

use crate::args::ImageArgs;
use crate::out::{self, DAMAGED, Out, human, json, println_or_end, text as escaped};

/// Check an image, without changing it
///
/// Rebuilds everything from what is on disk and compares: superblocks, chunks, devices, every tree block and copy of it,
/// extents and their references, free space, checksums, files, directories, subvolumes, quota.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 sound, possibly with warnings; 3 damaged; others, as in oleo --help: the check could not be done.\n\n\
    There is one way to check, with little memory and on all cores; --mode is accepted for compatibility.",
    override_usage = "oleo check [OPTIONS] IMG..."
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Other devices of the volume, as with --device.
    #[arg(value_name = "IMG")]
    more: Vec<PathBuf>,
    /// Also verify all data that has checksums, on every copy.
    #[arg(long, visible_alias = "check-data-csum")]
    data: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
    /// Show progress, with an estimate of the total, also where standard error is no terminal.
    #[arg(long, short)]
    progress: bool,
    /// Accepted for compatibility: both modes are the same.
    #[arg(long, value_name = "MODE", value_parser = ["original", "lowmem"])]
    mode: Option<String>,
    /// Change nothing (the default).
    #[arg(long)]
    readonly: bool,
    /// Start from the backup roots of the previous transaction in the superblock.
    #[arg(long, short)]
    backup: bool,
    /// Start from this copy of the superblock instead of the best: 0, 1 or 2 (at 64 KiB, 64 MiB, 256 GiB).
    #[arg(long = "super", short, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    super_copy: Option<u8>,
    /// Number of threads; 0: one per core.
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true)]
    threads: usize,
    /// Show at most this many findings of each kind.
    #[arg(long, value_name = "N", default_value = "100")]
    max: usize,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        if self.check(out)?.has_errors() {
            let _ = std::io::stdout().flush();
            std::process::exit(DAMAGED.into());
        }
        Ok(())
    }

    fn check(&self, out: &Out) -> oleo::Result<Report> {
        let line = Line { began: Instant::now(), shown: AtomicU64::new(0) };
        let bar = out.progress("checking");
        let show = |progress: Progress| match self.progress {
            true => line.show(&progress),
            false => bar.show(shown(&progress)),
        };
        let how = CheckOptions::default()
            .threads(self.threads)
            .data(self.data)
            .kept_max(self.max)
            .progress((self.progress || bar.is_shown()).then_some(&show));
        let mut open = self.image.options()?;
        open.devices.extend_from_slice(&self.more);
        let start = Start::default().backup(self.backup.then_some(0)).super_copy(self.super_copy.map(usize::from));
        let report = oleo::check::image(&self.image.image, &open, start, &how);
        drop(bar);
        if self.progress {
            eprintln!();
        }
        let report = report?;
        if report.has_errors() {
            out::is_damaged();
        }
        let files = Files::of(&report, || Image::open(&self.image.image, &open));
        match self.json {
            true => json(&as_json(&report, &files)),
            false => print_report(out, &report, &files, line.began),
        }
        Ok(report)
    }
}

/// The files of bad data, for each finding about data.
struct Files(Vec<Vec<String>>);

/// Names that are shown for one finding.
const NAMES_MAX: usize = 100;

impl Files {
    /// Asks the volume, which is opened only if there is bad data. One that cannot be opened has no names to give.
    fn of(report: &Report, open: impl FnOnce() -> oleo::Result<Image>) -> Files {
        let address = |finding: &Finding| match finding.kind {
            Kind::DataChecksum | Kind::DataUnreadable | Kind::DataMirror => finding.at.block,
            _ => None,
        };
        let mut names = vec![Vec::new(); report.findings.len()];
        if report.findings.iter().any(|finding| address(finding).is_some())
            && let Ok(image) = open()
        {
            for (finding, names) in report.findings.iter().zip(&mut names) {
                let places = address(finding).and_then(|at| image.files_at(at).ok()).unwrap_or_default();
                let paths = places.into_iter().flat_map(|place| place.paths).map(|path| escaped(&path.0));
                names.extend(paths.take(NAMES_MAX));
            }
        }
        Files(names)
    }
}

/// The line that says how far it has come: a few times a second.
struct Line {
    began: Instant,
    /// Tenths of a second, when it was shown last.
    shown: AtomicU64,
}

impl Line {
    fn show(&self, progress: &Progress) {
        let now = self.began.elapsed().as_millis() as u64 / 100;
        if self.shown.fetch_max(now + 1, Ordering::Relaxed) > now {
            return;
        }
        eprint!("\r{}   ", shown(progress));
    }
}

fn shown(progress: &Progress) -> String {
    let percent = (progress.done.min(progress.expected) * 100).checked_div(progress.expected).unwrap_or(100);
    let amount = |n| if progress.what == "data" { human(n) } else { n.to_string() };
    let (done, expected) = (amount(progress.done), amount(progress.expected));
    format!("{} {done} of at most {expected} ({percent} %)", progress.what)
}

fn print_report(out: &Out, report: &Report, files: &Files, began: Instant) {
    for (finding, names) in report.findings.iter().zip(&files.0) {
        let end = if names.is_empty() { String::new() } else { format!("; files: {}", names.join(", ")) };
        println_or_end(&format!("{}{end}", text(finding)));
    }
    for (kind, count) in &report.left_out {
        println_or_end(&format!("{kind}: {count} more"));
    }
    let c = &report.counts;
    out.note(format!(
        "{} tree blocks, {} extents ({} of data), {} references, {} subvolumes, {} inodes: {}",
        c.blocks,
        c.extents,
        human(c.data_bytes),
        c.refs,
        c.subvolumes,
        c.inodes,
        match (report.findings.len() as u64 + report.left_out.values().sum::<u64>(), report.has_errors()) {
            (0, _) => "clean".to_owned(),
            (1, true) => "1 finding".to_owned(),
            (n, true) => format!("{n} findings"),
            (1, false) => "sound, with 1 warning".to_owned(),
            (n, false) => format!("sound, with {n} warnings"),
        }
    ));
    if report.metadata_only {
        out.note("an image of btrfs-image: it has no data to verify");
    }
    if c.verified_bytes > 0 {
        out.note(format!("{} of data verified, each copy counted", human(c.verified_bytes)));
    }
    out.detail(|| {
        let mut line = format!("{:?} in all, about {} of tables", began.elapsed(), human(report.memory_bytes));
        for (what, time) in &report.times {
            line.push_str(&format!("; {what} {time:?}"));
        }
        line
    });
}

fn text(finding: &Finding) -> String {
    let Finding { severity, kind, at, have, want } = finding;
    let mut place = String::new();
    if let Some(tree) = at.tree {
        place.push_str(&format!(" tree {tree}"));
    }
    if let Some(block) = at.block {
        place.push_str(&format!(" at {block}"));
    }
    if let Some(key) = at.key {
        place.push_str(&format!(" key {key}"));
    }
    if let Some(device) = at.device {
        place.push_str(&format!(" device {device}"));
    }
    let severity = severity_name(*severity);
    format!("{severity}: {kind}:{place}: have {have}; want {want}").replace('\n', " ")
}

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

fn as_json(report: &Report, files: &Files) -> serde_json::Value {
    let finding = |(f, names): (&Finding, &Vec<String>)| {
        json!({
            "severity": severity_name(f.severity),
            "kind": f.kind.name(),
            "tree": f.at.tree.map(|t| t.0),
            "at": f.at.block.map(|b| b.0),
            "key": f.at.key.map(|k| json!([k.objectid, k.item_type.0, k.offset])),
            "device": f.at.device,
            "have": f.have,
            "want": f.want,
            "files": names,
        })
    };
    let left_out: serde_json::Map<_, _> =
        report.left_out.iter().map(|(kind, count)| (kind.name().to_owned(), json!(count))).collect();
    let Counts {
        blocks,
        leaves,
        log_blocks,
        extents,
        data_extents,
        refs,
        log_extents,
        inodes,
        trees,
        subvolumes,
        csum_bytes,
        data_bytes,
        verified_bytes,
    } = report.counts;
    json!({
        "clean": report.is_clean(),
        "sound": !report.has_errors(),
        "metadata_only": report.metadata_only,
        "findings": report.findings.iter().zip(&files.0).map(finding).collect::<Vec<_>>(),
        "left_out": left_out,
        "counts": {
            "blocks": blocks, "leaves": leaves, "log_blocks": log_blocks, "extents": extents, "data_extents": data_extents,
            "refs": refs, "log_extents": log_extents, "inodes": inodes, "trees": trees, "subvolumes": subvolumes,
            "csum_bytes": csum_bytes, "data_bytes": data_bytes, "verified_bytes": verified_bytes,
        },
        "memory_bytes": report.memory_bytes,
    })
}
