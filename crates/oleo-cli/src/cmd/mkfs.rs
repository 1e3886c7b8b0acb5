//! `oleo mkfs`

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use oleo::mkfs::{
    BuildOptions, BuildReport, FeatureSet, FillOptions, MkfsOptions, Profile, Source, SubvolSpec, TopAttributes,
};
use uuid::Uuid;

use crate::args::{StoreArgs, size};
use crate::out::{Out, human, json, misuse};

/// Make a file system, empty or with the contents of a directory or tar archive
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    oleo mkfs --size 1G disk.img\n  \
    oleo mkfs --rootdir ./root s3://bucket/volume\n  \
    oleo mkfs --rootdir ./root --subvol ro:usr --compress zstd:3 --shrink disk.img\n  \
    tar -c --xattrs . | oleo mkfs --tar - disk.img\n\n\
    SOURCE_DATE_EPOCH makes times, and --seed (or, with SOURCE_DATE_EPOCH, a fixed seed) all identifiers \
    reproducible: same input, same bytes.")]
pub(crate) struct Args {
    /// Image files, block devices, or volumes on object stores; missing files and volumes are created.
    #[arg(value_name = "IMG", required_unless_present = "features")]
    images: Vec<PathBuf>,
    /// Copy the contents of this directory into the file system.
    #[arg(long, value_name = "DIR", conflicts_with = "tar")]
    rootdir: Option<PathBuf>,
    /// Copy the contents of this tar archive into the file system (- for standard input; also gzip and zstd).
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Make a directory of the source a subvolume. TYPE is rw, ro, default or default-ro; repeat it for each.
    #[arg(long, value_name = "[TYPE:]PATH")]
    subvol: Vec<OsString>,
    /// Compress data: zlib[:1-9], lzo, zstd[:1-15].
    #[arg(long, value_name = "ALGO[:LEVEL]")]
    compress: Option<String>,
    /// Share data with the files of --rootdir instead of copying it, if the host's file system can.
    #[arg(long, requires = "rootdir", conflicts_with = "compress")]
    reflink: bool,
    /// Size of each image in bytes (suffixes K, M, G, T) [default: what is there or what the source needs; 1T on object
    /// stores, where only what is written takes room].
    #[arg(long, short = 'b', value_name = "BYTES", value_parser = size)]
    size: Option<u64>,
    /// Offset of the image in the file, in bytes.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true)]
    offset: u64,
    /// Truncate the image after the last byte that is needed.
    #[arg(long)]
    shrink: bool,
    /// Label of the file system.
    #[arg(long, short = 'L', value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: String,
    /// UUID of the file system.
    #[arg(long, short = 'U', value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Checksum of data and metadata: crc32c, xxhash, sha256, blake2.
    #[arg(long, alias = "csum", value_name = "TYPE", default_value = "crc32c")]
    checksum: String,
    /// Size of a tree block in bytes [default: 16K].
    #[arg(long, short = 'n', value_name = "BYTES", value_parser = size)]
    nodesize: Option<u64>,
    /// Size of a data block in bytes.
    #[arg(long, short = 's', value_name = "BYTES", default_value = "4096", value_parser = size)]
    sectorsize: u64,
    /// Data profile: single, dup, raid0, raid1, raid1c3, raid1c4, raid10 [default: single].
    #[arg(long, short = 'd', value_name = "PROFILE")]
    data: Option<Profile>,
    /// Metadata profile [default: dup on one device, raid1 on several].
    #[arg(long, short = 'm', value_name = "PROFILE")]
    metadata: Option<Profile>,
    /// Mix data and metadata in the same block groups, for very small devices.
    #[arg(long, short = 'M')]
    mixed: bool,
    /// Features to enable, or with ^ to disable, separated by commas; "list-all" lists them.
    #[arg(long, short = 'O', value_name = "LIST", value_delimiter = ',')]
    features: Vec<String>,
    /// Owner and group of the top directory, as numbers [default: those of the source, or root].
    #[arg(long, value_name = "UID:GID")]
    top_owner: Option<String>,
    /// Permissions of the top directory, in octal [default: those of the source, or 755].
    #[arg(long, value_name = "MODE")]
    top_mode: Option<String>,
    /// Derive all identifiers from this text.
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// Threads that read and compress [default: one per core].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Overwrite an existing file system or file.
    #[arg(long, short)]
    force: bool,
    /// Show a summary as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
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
            return Err(misuse!("missing argument IMG"));
        }
        let epoch = source_date_epoch()?;
        let progress = out.progress("filling");
        let options = BuildOptions::default()
            .mkfs(self.mkfs_options(epoch)?)
            .source(self.source()?)
            .fill(
                FillOptions::default()
                    .subvols(self.subvol.iter().map(wish).collect::<anyhow::Result<_>>()?)
                    .compress(self.compress.as_deref().map(oleo::fs::parse_compress).transpose()?.flatten())
                    .epoch_seconds(epoch)
                    .threads(self.threads)
                    .on_progress(progress.callback())
                    .top(self.top()?),
            )
            .size(self.size)
            .offset(self.offset)
            .shrink(self.shrink)
            .force(self.force)
            .reflink(self.reflink)
            .places(self.store.places()?);
        let report = oleo::mkfs::build(&self.images, options)?;
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
        let mut features = FeatureSet::default().mixed(self.mixed);
        for word in &self.features {
            features.apply(word)?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let seed = match (&self.seed, epoch) {
            (Some(text), _) => oleo::mkfs::seed_from_text(text),
            // Whoever asks for reproducible times wants the rest reproducible too.
            (None, Some(_)) => oleo::mkfs::seed_from_text(""),
            (None, None) => oleo::mkfs::random_seed(),
        };
        let mut options = MkfsOptions::default()
            .nodesize(self.nodesize.map(u32::try_from).transpose().map_err(|_| misuse!("--nodesize is too large"))?)
            .sectorsize(u32::try_from(self.sectorsize).map_err(|_| misuse!("--sectorsize is too large"))?)
            .csum(oleo::mkfs::parse_checksum(&self.checksum)?)
            .features(features)
            .data(self.data)
            .metadata(self.metadata)
            .label(self.label.clone())
            .fsid(self.uuid)
            .seed(seed)
            .created_seconds(epoch.unwrap_or(i64::try_from(now)?));
        let top = self.top()?;
        options.top_uid = top.uid.unwrap_or(options.top_uid);
        options.top_gid = top.gid.unwrap_or(options.top_gid);
        options.top_mode = top.mode.unwrap_or(options.top_mode);
        Ok(options)
    }

    fn top(&self) -> anyhow::Result<TopAttributes> {
        let mut top = TopAttributes::default();
        if let Some(owner) = &self.top_owner {
            let wrong = || misuse!("--top-owner takes two numbers, UID:GID, as in 0:0");
            let (uid, gid) = owner.split_once(':').ok_or_else(wrong)?;
            top.uid = Some(uid.parse().map_err(|_| wrong())?);
            top.gid = Some(gid.parse().map_err(|_| wrong())?);
        }
        if let Some(mode) = &self.top_mode {
            let wrong = |_| misuse!("--top-mode takes an octal number, as in 755");
            top.mode = Some(u32::from_str_radix(mode, 8).map_err(wrong)?);
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
            return Err(misuse!("unknown subvolume type {}: use rw, ro, default or default-ro", kind.escape_ascii()));
        }
    };
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
    let path: PathBuf = path.strip_prefix("/").unwrap_or(&path).components().collect();
    Ok(SubvolSpec::new(path).read_only(read_only).default(default))
}

fn source_date_epoch() -> anyhow::Result<Option<i64>> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => Ok(Some(text.parse().map_err(|_| misuse!("SOURCE_DATE_EPOCH is not a number of seconds"))?)),
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
