//! `oleo map`

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use oleo::Access;
use oleo::check::{CheckOptions, Start};
use oleo::control::{Reply, Request};
use oleo::inspect::Inspector;
use oleo_view::{Findings, Map, MapOptions, to_html, to_svg};

use crate::args::{DeviceArgs, ImageArgs, size};
use crate::out::{Out, human, misuse, print_or_end};
use crate::target::{self, Target, answer};

/// Draw a volume: devices, block groups, space, subvolumes and what they share, paths, generations, damage
///
/// Writes one file that needs nothing else: a page with a table of numbers behind each picture (.html), or the pictures alone
/// (.svg). What is drawn is the last commit. Of a volume that is in use, blocks that change meanwhile count as unreadable;
/// then the map is made anew, up to three times.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    oleo map disk.img -o map.html\n  \
    oleo map --check disk.img -o map.svg\n  \
    oleo map --json disk.img | jq '.sharing.subvols'")]
pub(crate) struct Args {
    /// Image file, block device, or any path on a mount.
    #[arg(value_name = "IMG|PATH")]
    path: PathBuf,
    #[command(flatten)]
    others: DeviceArgs,
    /// Write here, as SVG or HTML according to the name [default: HTML on standard output].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the numbers behind the pictures, as JSON.
    #[arg(long)]
    json: bool,
    /// Check the volume, too, and put what is found on the map. Not on a mount: there see `oleo scrub start`, and --findings.
    #[arg(long)]
    check: bool,
    /// Put on the map what `oleo check --json` or a scrub with --json has written to this file; repeat it for each.
    #[arg(long, value_name = "FILE")]
    findings: Vec<PathBuf>,
    /// Memory for tables, about (suffixes K, M, G). Of what does not fit, a sample is taken, which the map says.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
    /// Leave out who shares what and the paths, which takes reading all trees of files.
    #[arg(long)]
    space_only: bool,
}

/// What is written.
#[derive(Clone, Copy)]
enum Form {
    Html,
    Svg,
    Json,
}

/// How often a map of a volume in use is tried.
const TRIES_MAX: usize = 3;

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let form = self.form()?;
        let mut findings = Vec::new();
        for path in &self.findings {
            let text = fs::read_to_string(path).map_err(|error| misuse!("cannot read {}: {error}", path.display()))?;
            findings.push(Findings::of_json(&text).map_err(|error| misuse!("{}: {error}", path.display()))?);
        }
        let source = Source::find(&self.path, &self.others)?;
        if self.check {
            // First, since a volume that is in use is refused here.
            let report =
                oleo::check::image(&source.image, &source.options, Start::default(), &CheckOptions::default())?;
            findings.insert(0, Findings::of_check(&report));
        }
        if let Some(mount) = &source.mount {
            let shown = answer!(mount.ask(Request::ScrubStatus { files: true })?, Reply::Scrub(shown) => shown)?;
            // Nothing is known of what others did.
            if shown.status.number > 0 {
                findings.insert(0, Findings::of_scrub(&shown));
            }
        }
        let mut map = source.map(&MapOptions { table_bytes: self.memory, space_only: self.space_only })?;
        findings.into_iter().for_each(|found| map.add_findings(found));
        let text = match form {
            Form::Html => to_html(&map),
            Form::Svg => to_svg(&map),
            Form::Json => serde_json::to_string(&map)? + "\n",
        };
        match &self.output {
            None => print_or_end(text.as_bytes()),
            Some(path) => {
                fs::write(path, &text)
                    .map_err(|error| anyhow::Error::new(error).context(format!("cannot write {}", path.display())))?;
                out.note(format!("{}: {}", path.display(), human(text.len() as u64)));
            }
        }
        out.warnings(&map.notes);
        Ok(())
    }

    fn form(&self) -> anyhow::Result<Form> {
        let extension = self.output.as_deref().and_then(Path::extension).and_then(OsStr::to_str);
        Ok(match (self.json, extension) {
            (true, _) => Form::Json,
            (false, Some("svg")) => Form::Svg,
            (false, Some("html" | "htm")) => Form::Html,
            (false, Some("json")) => Form::Json,
            (false, None) if self.output.is_none() => Form::Html,
            _ => return Err(misuse!("the name of the output has to end in .html, .svg or .json")),
        })
    }
}

/// Where a volume is read from.
pub(crate) struct Source {
    pub image: PathBuf,
    pub options: oleo::OpenOptions,
    /// The mount that has it, if one has.
    pub mount: Option<Target>,
}

impl Source {
    /// The image; or the devices below a mount, after what is in its memory was written out.
    pub fn find(path: &Path, others: &DeviceArgs) -> anyhow::Result<Source> {
        let options = ImageArgs { image: path.to_owned(), others: others.clone() }.options()?;
        let Some(mount) = target::mount_of(path)? else {
            if fs::metadata(path).is_ok_and(|meta| meta.is_dir()) {
                // It says what is wrong with it.
                target::open(path, others, target::Access::Read, None)?;
            }
            return Ok(Source { image: path.to_owned(), options, mount: None });
        };
        mount.ask(Request::Sync)?;
        let usage = answer!(mount.ask(Request::Usage)?, Reply::Usage(usage) => usage)?;
        let mut devices = usage.devices.into_iter().filter(|device| !device.missing).map(|device| device.path);
        let Some(image) = devices.next() else { anyhow::bail!("{}: the mount has no devices", path.display()) };
        let options = options.access(Access::ReadOnlyInUse).devices(devices.collect::<Vec<_>>());
        Ok(Source { image, options, mount: Some(mount) })
    }

    /// A map; on a mount of the last commit of a moment in which nothing that was read changed, if there is one.
    pub fn map(&self, options: &MapOptions) -> anyhow::Result<Map> {
        let mut tries = if self.mount.is_some() { TRIES_MAX } else { 1 };
        loop {
            tries -= 1;
            let inspector = Inspector::open(&self.image, &self.options)?;
            match Map::read(&inspector, options) {
                Ok(map) if tries == 0 || map.unread == 0 => return Ok(map),
                Err(error) if tries == 0 => return Err(said(error)),
                _ => {}
            }
        }
    }
}

/// An error of the map as one that has a kind.
pub(crate) fn said(error: oleo_view::MapError) -> anyhow::Error {
    match error {
        oleo_view::MapError::Oleo(error) => error.into(),
        other => misuse!("{other}"),
    }
}
