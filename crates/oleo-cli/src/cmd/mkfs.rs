//! `oleo mkfs`

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use oleo::{
    BuildOptions, BuildReport, FeatureSet, FillOptions, MkfsOptions, Profile, Source, SubvolSpec, TopAttributes,
};
use uuid::Uuid;

use crate::args::size;
use crate::out::{Out, human, json, misuse};

/// Make a file system, empty or with everything of a directory or a tar archive in it
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    oleo mkfs --size 1G disk.img\n  \
    oleo mkfs --rootdir ./root --subvol ro:usr --compress zstd:3 --shrink disk.img\n  \
    tar -c --xattrs . | oleo mkfs --tar - disk.img\n\n\
    SOURCE_DATE_EPOCH makes times, and --seed (or, with SOURCE_DATE_EPOCH, a fixed seed) all identifiers \
    reproducible: same input, same bytes.")]
pub(crate) struct Args {
    /// Image files or block devices; files that are not there are made.
    #[arg(value_name = "IMG", required_unless_present = "features")]
    images: Vec<PathBuf>,
    /// Put everything of this directory in.
    #[arg(long, value_name = "DIR", conflicts_with = "tar")]
    rootdir: Option<PathBuf>,
    /// Put everything of this tar archive in (- for standard input; gzip and zstd are understood).
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Make a directory of the source a subvolume. TYPE is rw, ro, default or default-ro; repeat it for each.
    #[arg(long, value_name = "[TYPE:]PATH")]
    subvol: Vec<OsString>,
    /// Compress data: zlib[:1-9], lzo, zstd[:1-15].
    #[arg(long, value_name = "ALGO[:LEVEL]")]
    compress: Option<String>,
    /// Share data with the files of --rootdir instead of copying it, where the host's file system can.
    #[arg(long, requires = "rootdir", conflicts_with = "compress")]
    reflink: bool,
    /// Bytes of each image (K, M, G, T are understood).
    #[arg(long, short = 'b', value_name = "BYTES", value_parser = size)]
    size: Option<u64>,
    /// Where in the file the image begins.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true)]
    offset: u64,
    /// Cut the image behind the last byte that is needed.
    #[arg(long)]
    shrink: bool,
    /// The name of the file system.
    #[arg(long, short = 'L', value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: String,
    /// The UUID of the file system.
    #[arg(long, short = 'U', value_name = "UUID")]
    uuid: Option<Uuid>,
    /// The checksum of everything: crc32c, xxhash, sha256, blake2.
    #[arg(long, alias = "csum", value_name = "TYPE", default_value = "crc32c")]
    checksum: String,
    /// Bytes of a tree block [default: 16K].
    #[arg(long, short = 'n', value_name = "BYTES", value_parser = size)]
    nodesize: Option<u64>,
    /// Bytes of a data block.
    #[arg(long, short = 's', value_name = "BYTES", default_value = "4096", value_parser = size)]
    sectorsize: u64,
    /// How data lies on the devices: single, dup, raid0, raid1, raid1c3, raid1c4, raid10 [default: single].
    #[arg(long, short = 'd', value_name = "PROFILE")]
    data: Option<Profile>,
    /// How metadata lies on the devices [default: dup on one, raid1 on several].
    #[arg(long, short = 'm', value_name = "PROFILE")]
    metadata: Option<Profile>,
    /// Data and metadata share their space: for very small devices.
    #[arg(long, short = 'M')]
    mixed: bool,
    /// Features to switch on, or off with ^, separated by commas; "list-all" shows them.
    #[arg(long, short = 'O', value_name = "LIST", value_delimiter = ',')]
    features: Vec<String>,
    /// Owner and group of the top directory, as numbers [default: those of the source, or root].
    #[arg(long, value_name = "UID:GID")]
    top_owner: Option<String>,
    /// Permissions of the top directory, in octal [default: those of the source, or 755].
    #[arg(long, value_name = "MODE")]
    top_mode: Option<String>,
    /// Make all identifiers follow from this text.
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// Threads that read and compress [default: one per core].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Overwrite what is there.
    #[arg(long, short)]
    force: bool,
    /// Show a summary as JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        if self.features.iter().any(|word| word == "list-all") {
            for (name, what) in FeatureSet::NAMES {
                out.note(format!("{name:18} {what}"));
            }
            return Ok(());
        }
        if self.images.is_empty() {
            return Err(misuse!("name an image file or device to make"));
        }
        let epoch = source_date_epoch()?;
        let progress = out.progress("filling");
        let options = BuildOptions {
            mkfs: self.mkfs_options(epoch)?,
            source: self.source()?,
            fill: FillOptions {
                subvols: self.subvol.iter().map(wish).collect::<anyhow::Result<_>>()?,
                compress: self.compress.as_deref().map(oleo::parse_compress).transpose()?.flatten(),
                epoch_seconds: epoch,
                threads: self.threads,
                on_progress: progress.callback(),
                top: self.top()?,
                ..FillOptions::default()
            },
            size: self.size,
            offset: self.offset,
            shrink: self.shrink,
            force: self.force,
            reflink: self.reflink,
        };
        let report = oleo::build(&self.images, options)?;
        drop(progress);
        out.warnings(&report.filled.warnings);
        if self.json {
            json(&summary(&report));
        } else {
            let (made, done) = (&report.made, &report.filled.done);
            let files = match done.files + done.dirs + done.links + done.others + done.subvols {
                0 => String::new(),
                n => format!(", {n} entries with {} of data", human(done.data_bytes)),
            };
            let names: Vec<String> = self.images.iter().map(|p| p.display().to_string()).collect();
            let what = format!("{}: btrfs {} of {}{files}", names.join(" "), made.fsid, human(report.bytes));
            out.note(what);
            out.detail(|| {
                format!(
                    "node size {}, sector size {}, data {}, metadata {}",
                    made.nodesize, made.sectorsize, made.data, made.metadata
                )
            });
        }
        Ok(())
    }

    fn mkfs_options(&self, epoch: Option<i64>) -> anyhow::Result<MkfsOptions> {
        let mut features = FeatureSet { mixed: self.mixed, ..FeatureSet::default() };
        for word in &self.features {
            features.apply(word)?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let seed = match (&self.seed, epoch) {
            (Some(text), _) => oleo::seed_from_text(text),
            // Whoever asks for reproducible times wants the rest reproducible too.
            (None, Some(_)) => oleo::seed_from_text(""),
            (None, None) => oleo::random_seed(),
        };
        let mut options = MkfsOptions {
            nodesize: self.nodesize.map(u32::try_from).transpose().context("this node size is too large")?,
            sectorsize: u32::try_from(self.sectorsize).context("this sector size is too large")?,
            csum: oleo::parse_checksum(&self.checksum)?,
            features,
            data: self.data,
            metadata: self.metadata,
            label: self.label.clone(),
            fsid: self.uuid,
            seed,
            created_seconds: epoch.unwrap_or(i64::try_from(now)?),
            ..MkfsOptions::default()
        };
        let top = self.top()?;
        options.top_uid = top.uid.unwrap_or(options.top_uid);
        options.top_gid = top.gid.unwrap_or(options.top_gid);
        options.top_mode = top.mode.unwrap_or(options.top_mode);
        Ok(options)
    }

    fn top(&self) -> anyhow::Result<TopAttributes> {
        let mut top = TopAttributes::default();
        if let Some(owner) = &self.top_owner {
            let (uid, gid) = owner.split_once(':').context("--top-owner takes two numbers, as in 0:0")?;
            top.uid = Some(uid.parse().context("the owner is not a number")?);
            top.gid = Some(gid.parse().context("the group is not a number")?);
        }
        if let Some(mode) = &self.top_mode {
            top.mode = Some(u32::from_str_radix(mode, 8).context("--top-mode takes an octal number, as in 755")?);
        }
        Ok(top)
    }

    fn source(&self) -> anyhow::Result<Source> {
        if let Some(dir) = &self.rootdir {
            return Ok(Source::Dir(dir.clone()));
        }
        let Some(tar) = &self.tar else { return Ok(Source::Empty) };
        let stream: Box<dyn Read + Send> = if tar.as_os_str() == "-" {
            Box::new(std::io::stdin())
        } else {
            Box::new(File::open(tar).with_context(|| format!("cannot open {}", tar.display()))?)
        };
        Ok(Source::Tar(stream))
    }
}

/// `[TYPE:]PATH`
fn wish(text: &OsString) -> anyhow::Result<SubvolSpec> {
    let bytes = text.as_bytes();
    let (kind, path) = match bytes.iter().position(|&b| b == b':') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (&b"rw"[..], bytes),
    };
    let (read_only, default) = match kind {
        b"rw" => (false, false),
        b"ro" => (true, false),
        b"default" => (false, true),
        b"default-ro" => (true, true),
        _ => {
            return Err(misuse!(
                "there is no subvolume type {}; choose one of rw, ro, default, default-ro",
                kind.escape_ascii()
            ));
        }
    };
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
    let path = path.strip_prefix("/").unwrap_or(&path).components().collect();
    Ok(SubvolSpec { path, read_only, default })
}

fn source_date_epoch() -> anyhow::Result<Option<i64>> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => Ok(Some(text.parse().context("SOURCE_DATE_EPOCH is not a number of seconds")?)),
        Err(_) => Ok(None),
    }
}

fn summary(report: &BuildReport) -> serde_json::Value {
    let (made, done) = (&report.made, &report.filled.done);
    serde_json::json!({
        "uuid": made.fsid.to_string(),
        "label": made.label,
        "nodesize": made.nodesize,
        "sectorsize": made.sectorsize,
        "data": made.data.to_string(),
        "metadata": made.metadata.to_string(),
        "bytes": report.bytes,
        "files": done.files,
        "directories": done.dirs,
        "links": done.links,
        "others": done.others,
        "subvolumes": done.subvols,
        "data_bytes": done.data_bytes,
        "warnings": report.filled.warnings,
    })
}
