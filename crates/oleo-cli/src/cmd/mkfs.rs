//! `oleo mkfs`

mod oci;
mod owners;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use oleo::device::Place;
use oleo::mkfs::{
    BuildOptions, BuildReport, FeatureSet, FillOptions, MkfsOptions, Profile, Source, SubvolSpec, TopAttributes,
};
use uuid::Uuid;

pub(crate) use self::owners::under_fakeroot;
use crate::args::{StoreArgs, size};
use crate::cmd::interruptible::{end_by_signal, interruptible};
use crate::out::{Out, human, json, misuse, warn};

/// Make a file system, empty or with the contents of a directory or tar archive
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    oleo mkfs --size 1G disk.img\n  \
    oleo mkfs --rootdir ./root s3://bucket/volume\n  \
    oleo mkfs --rootdir ./root --subvol ro:usr --compress zstd:3 --shrink disk.img\n  \
    tar -c --xattrs . | oleo mkfs --tar - disk.img\n  \
    oleo mkfs --oci ./layout:latest --size 2G disk.img\n  \
    oleo mkfs --rootdir ./root --owner root --group root --owners devices.txt disk.img\n  \
    oleo mkfs --rootdir ./root --offset 1M disk-with-partitions.img\n\n\
    A line of --owners is PATH TYPE MODE UID GID MAJOR MINOR START INC COUNT, as in the device tables of genext2fs, mkfs.ubifs and \
    Buildroot. TYPE is f (file), d (directory), r (directory with everything below it), c or b (device, made), p (fifo, made); - \
    leaves an attribute as it is, and fields may be missing at the end: \"/etc/shadow f 640 0 42\", \"/dev/tty c 666 0 5 4 0 0 1 6\".\n\n\
    SOURCE_DATE_EPOCH makes times, and --seed (or, with SOURCE_DATE_EPOCH, a fixed seed) all identifiers \
    reproducible: same input, same bytes.")]
pub(crate) struct Args {
    /// Image files, block devices, or volumes on object stores; missing files and volumes are created.
    #[arg(value_name = "IMG", required_unless_present = "features")]
    images: Vec<PathBuf>,
    /// Copy the contents of this directory into the file system.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tar", "oci"])]
    rootdir: Option<PathBuf>,
    /// Copy the contents of this tar archive into the file system (- for standard input; also gzip and zstd). Repeat it for
    /// layers, the lowest first: whiteouts (.wh.NAME) remove what is below.
    #[arg(long, value_name = "FILE", conflicts_with = "oci")]
    tar: Vec<PathBuf>,
    /// Copy the layers of a container's image into the file system, from this OCI layout. TAG chooses one of several images.
    #[arg(long, value_name = "DIR[:TAG]")]
    oci: Option<PathBuf>,
    /// Owner of everything in the source, in place of the owners there: a number or a name of this machine.
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Group of everything in the source, likewise.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Owners and modes of single files and directories, and devices to be made: a device table, described below.
    #[arg(long, value_name = "FILE")]
    owners: Option<PathBuf>,
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
    /// Offset of the image in the file, in bytes. In a file or disk with a partition table, the image ends with the partition.
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
    /// Data profile: single, dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5, raid6 [default: single].
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
    /// Owner and group of the top directory, as numbers [default: those of the source; without a source those of the user, or
    /// root if --seed or SOURCE_DATE_EPOCH is given].
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
        if self.rootdir.is_some() && self.owners.is_none() && under_fakeroot() {
            if self.owner.is_none() {
                return Err(misuse!(
                    "fakeroot has no effect on --rootdir: the owners and devices that it shows would be lost. Use \
                     `fakeroot -i STATE tar -c . | oleo mkfs --tar - IMG`, or --owner and --owners, or `unshare -r oleo mkfs`"
                ));
            }
            warn("fakeroot has no effect on --rootdir: devices that it shows become the files that stand for them");
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
                    .uid(self.uid()?)
                    .gid(self.gid()?)
                    .table(self.owners.as_deref().map(owners::table).transpose()?.unwrap_or_default())
                    .top(self.top()?),
            )
            .size(self.size)
            .offset(self.offset)
            .shrink(self.shrink)
            .force(self.force)
            .reflink(self.reflink)
            .places(self.store.places()?);
        let new = new_files(&self.images);
        let report =
            interruptible(&progress, || interrupted(&new), || {}, || oleo::mkfs::build(&self.images, options))??;
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
        // An empty file system is of use only to a user who may write to its top. Equal bytes for all users come first.
        let is_users = self.rootdir.is_none() && self.tar.is_empty() && self.oci.is_none();
        if is_users && self.seed.is_none() && epoch.is_none() {
            options.top_uid = rustix::process::geteuid().as_raw();
            options.top_gid = rustix::process::getegid().as_raw();
        }
        let top = self.top()?;
        options.top_uid = top.uid.or(self.uid()?).unwrap_or(options.top_uid);
        options.top_gid = top.gid.or(self.gid()?).unwrap_or(options.top_gid);
        options.top_mode = top.mode.unwrap_or(options.top_mode);
        Ok(options)
    }

    fn uid(&self) -> anyhow::Result<Option<u32>> {
        self.owner.as_deref().map(owners::user).transpose()
    }

    fn gid(&self) -> anyhow::Result<Option<u32>> {
        self.group.as_deref().map(owners::group).transpose()
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
        if let Some(layout) = &self.oci {
            return Ok(Source::Layers(oci::layers(layout)?));
        }
        let mut streams = self.tar.iter().map(|tar| open_tar(tar)).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(match streams.len() {
            0 => Source::Empty,
            1 => Source::Tar(streams.remove(0)),
            _ => Source::Layers(streams),
        })
    }
}

fn open_tar(tar: &Path) -> anyhow::Result<Box<dyn Read + Send>> {
    if tar.as_os_str() == "-" {
        return Ok(Box::new(std::io::stdin()));
    }
    Ok(Box::new(File::open(tar).with_context(|| format!("cannot open {}", tar.display()))?))
}

/// The image files that are not there yet.
fn new_files(images: &[PathBuf]) -> Vec<PathBuf> {
    let is_new = |path: &&PathBuf| Place::parse(path).is_ok_and(|place| place.is_file()) && !path.exists();
    images.iter().filter(is_new).cloned().collect()
}

/// Ends the program at a signal. Nothing of a new image is left; in one that was there, no reader finds a file system.
fn interrupted(new: &[PathBuf]) {
    for path in new {
        // It need not be there yet.
        let _gone = std::fs::remove_file(path);
    }
    end_by_signal("interrupted: no file system was made")
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
