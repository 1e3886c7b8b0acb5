//! What several commands take.

mod store;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::Args;
use oleo::fs::InodeRef;
use oleo::{Image, OnNotice, OpenOptions, SubvolRef, TreeId};

use crate::out::warn;
pub(crate) use store::StoreArgs;

/// Which image, and what belongs to it.
#[derive(Args)]
pub(crate) struct ImageArgs {
    /// Image file or block device.
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    #[command(flatten)]
    pub others: DeviceArgs,
}

/// The heading of [`DeviceArgs`] in help pages.
const VOLUME_OPTIONS: &str = "Volume options";

/// How a volume is opened: its other devices, and where it begins.
#[derive(Args, Clone)]
pub(crate) struct DeviceArgs {
    /// Another device of the same volume; repeat it for each.
    #[arg(long, value_name = "FILE", help_heading = VOLUME_OPTIONS)]
    pub device: Vec<PathBuf>,
    /// Search this directory for the other devices of the volume.
    #[arg(long, value_name = "DIR", help_heading = VOLUME_OPTIONS)]
    pub scan: Vec<PathBuf>,
    /// Go on without devices that are missing, as far as the profiles allow: for changes, only if no data is lost with them.
    #[arg(long, help_heading = VOLUME_OPTIONS)]
    pub degraded: bool,
    /// Do not replay the log; show the last committed state.
    #[arg(long, help_heading = VOLUME_OPTIONS)]
    pub no_log_replay: bool,
    /// Offset of the image in the file, in bytes (suffixes K, M, G, T).
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true,
          help_heading = VOLUME_OPTIONS)]
    pub offset: u64,
    #[command(flatten)]
    pub store: StoreArgs,
    /// The command is the scrub that a message about a device with missed writes advises.
    #[arg(skip)]
    pub scrubs: bool,
}

/// Where paths begin.
#[derive(Args)]
pub(crate) struct SubvolArg {
    /// Resolve paths from this subvolume (path or ID; ./257 is a path) instead of the top level.
    #[arg(long, value_name = "PATH|ID")]
    pub subvol: Option<OsString>,
}

/// Passes on what the library reports, without the advice to scrub.
fn warn_scrubbing(line: &str) {
    warn(line.split_once(": `oleo scrub start`").map_or(line, |(what, _)| what));
}

impl ImageArgs {
    /// How to open it for reading.
    pub fn options(&self) -> oleo::Result<OpenOptions> {
        Ok(OpenOptions::default()
            .devices(self.others.device.clone())
            .scan(self.others.scan.clone())
            .degraded(self.others.degraded)
            .no_log_replay(self.others.no_log_replay)
            .offset(self.others.offset)
            .places(self.others.store.places()?)
            .on_notice(OnNotice::new(if self.others.scrubs { warn_scrubbing } else { warn })))
    }

    /// Opens for reading.
    pub fn read(&self) -> oleo::Result<Image> {
        Image::open(&self.image, &self.options()?)
    }

    /// Opens for changes.
    pub fn write(&self) -> oleo::Result<Image> {
        Image::open(&self.image, &self.options()?.access(oleo::Access::Write))
    }

    /// Opens for a look at the structures themselves.
    pub fn inspect(&self) -> oleo::Result<oleo::inspect::Inspector> {
        oleo::inspect::Inspector::open(&self.image, &self.options()?)
    }
}

impl SubvolArg {
    /// The directory that paths begin in.
    pub fn start(&self, image: &Image) -> oleo::Result<InodeRef> {
        match &self.subvol {
            Some(spec) => image.subvol(subvol_ref(spec)),
            None => image.top(),
        }
    }
}

/// The subvolume that an argument names: digits alone are an ID, anything else is a path (`./257` is a path, too).
pub(crate) fn subvol_ref(text: &OsStr) -> SubvolRef {
    let digits = |text: &&str| text.bytes().all(|b| b.is_ascii_digit());
    match text.to_str().filter(digits).and_then(|text| text.parse().ok()) {
        Some(id) => SubvolRef::Id(TreeId(id)),
        None => SubvolRef::from(text),
    }
}

/// In which unit numbers of bytes are shown; the largest that fits if nothing is said.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct UnitArgs {
    /// Show bytes without a unit.
    #[arg(long, short = 'b', group = "unit")]
    raw: bool,
    /// Show KiB (with --si: kB).
    #[arg(long, short = 'k', group = "unit")]
    kbytes: bool,
    /// Show MiB (with --si: MB).
    #[arg(long, short = 'm', group = "unit")]
    mbytes: bool,
    /// Show GiB (with --si: GB).
    #[arg(long, short = 'g', group = "unit")]
    gbytes: bool,
    /// Show TiB (with --si: TB).
    #[arg(long, short = 't', group = "unit")]
    tbytes: bool,
    /// Show the largest unit that fits (the default).
    #[arg(long, short = 'h', group = "unit")]
    human_readable: bool,
    /// Use powers of 1000.
    #[arg(long, short = 'H')]
    si: bool,
    /// Use powers of 1024 (the default).
    #[arg(long, conflicts_with = "si")]
    iec: bool,
    /// Print help.
    // The letter means something else with btrfs. The command itself says `disable_help_flag`.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl UnitArgs {
    /// A number of bytes as it was asked for.
    pub fn show(&self, bytes: u64) -> String {
        const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        const DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
        if self.raw {
            return bytes.to_string();
        }
        let (step, names) = if self.si { (1000u64, DECIMAL) } else { (1024, BINARY) };
        let asked = [self.kbytes, self.mbytes, self.gbytes, self.tbytes].iter().position(|asked| *asked);
        let fitting = || bytes.checked_ilog(step).unwrap_or(0) as usize;
        let unit = asked.map_or_else(fitting, |at| at + 1);
        format!("{:.2}{}", bytes as f64 / step.pow(unit as u32) as f64, names[unit])
    }
}

/// A path inside an image: any bytes.
#[derive(Clone)]
pub(crate) struct InPath(pub Vec<u8>);

impl From<OsString> for InPath {
    fn from(path: OsString) -> InPath {
        InPath(path.into_vec())
    }
}

impl InPath {
    /// As a path of the host, for showing and joining.
    pub fn shown(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.0))
    }
}

/// A number of bytes: digits, and K, M, G, T, P for powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let trimmed = lower.strip_suffix("ib").or(lower.strip_suffix('b')).unwrap_or(&lower);
    let (digits, shift) = match trimmed.char_indices().next_back() {
        Some((at, 'k')) => (&trimmed[..at], 10),
        Some((at, 'm')) => (&trimmed[..at], 20),
        Some((at, 'g')) => (&trimmed[..at], 30),
        Some((at, 't')) => (&trimmed[..at], 40),
        Some((at, 'p')) => (&trimmed[..at], 50),
        _ => (trimmed, 0),
    };
    let wrong = || format!("{text} is not a number of bytes (such as 4096, 16K, 1G)");
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)).ok_or_else(wrong)
}

/// A quota group: level, slash, number. The level is in the upper 16 bits of what comes out.
pub(crate) fn qgroup(text: &str) -> Result<u64, String> {
    let parts = text
        .split_once('/')
        .and_then(|(level, number)| Some((level.parse::<u16>().ok()?, number.parse::<u64>().ok()?)));
    match parts {
        Some((level, number)) if number < 1 << 48 => Ok(u64::from(level) << 48 | number),
        _ => Err(format!("{text} is not a quota group (such as 0/256, 1/100)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers of bytes in the unit that was asked for, and at the edges.
    #[test]
    fn units() {
        let of = UnitArgs::default();
        assert_eq!(
            (of.show(0), of.show(1536), of.show(u64::MAX)),
            ("0.00B".into(), "1.50KiB".into(), "16.00EiB".into())
        );
        assert_eq!(UnitArgs { raw: true, ..of }.show(1536), "1536");
        assert_eq!(UnitArgs { mbytes: true, ..of }.show(1 << 19), "0.50MiB");
        assert_eq!(UnitArgs { gbytes: true, si: true, ..of }.show(2_500_000_000), "2.50GB");
        assert_eq!(UnitArgs { si: true, ..of }.show(1_000_000), "1.00MB");
        assert_eq!(UnitArgs { tbytes: true, ..of }.show(u64::MAX), "16777216.00TiB");
    }

    /// Goal: digits alone are an ID, whatever else is a path, and a path with digits alone can be written so that it is one.
    #[test]
    fn subvolumes() {
        for (text, id) in [
            ("257", Some(257)),
            ("5", Some(5)),
            ("./257", None),
            ("257/", None),
            ("home", None),
            ("+5", None),
            ("", None),
        ] {
            let which = subvol_ref(OsStr::new(text));
            assert_eq!(which, id.map_or(SubvolRef::from(text), |id| SubvolRef::Id(TreeId(id))), "{text}");
        }
        assert_eq!(subvol_ref(OsStr::new("99999999999999999999")), SubvolRef::from("99999999999999999999"));
    }

    /// Goal: sizes read as people write them; nonsense and overflow are refused.
    #[test]
    fn sizes() {
        for (text, bytes) in [("4096", 4096), ("16k", 16384), ("1GiB", 1 << 30), ("3M", 3 << 20), ("2TB", 2 << 40)] {
            assert_eq!(size(text), Ok(bytes));
        }
        assert_eq!(qgroup("1/2"), Ok(1 << 48 | 2));
        for text in ["", "1", "1/", "-1/1", "65536/1", "1/999999999999999"] {
            assert!(qgroup(text).is_err(), "{text}");
        }
        for text in ["", "k", "-1", "1.5G", "99999999P"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
