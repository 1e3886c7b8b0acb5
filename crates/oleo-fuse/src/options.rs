//! Mount options, as mount(8) passes them: one list, separated by commas, with the names that btrfs uses.
//!
//! Unknown options are refused. Options of every mount (nosuid, noexec …) and those of FUSE are accepted.

use std::path::PathBuf;
use std::time::Duration;

use oleo::device::PlaceOptions;
use oleo::error::{Class, Classified};
use oleo::fs::{Compress, parse_compress};
use rustix::mount::MountFlags;

use crate::transport::HaltPolling;

/// Default of the seconds between commits, as in btrfs.
const COMMIT_SECONDS: u64 = 30;
/// The same of a mount to which the kernel passes no sync(2) on.
const COMMIT_SECONDS_UNSYNCED: u64 = 5;
/// The longest time between commits that is taken.
const COMMIT_SECONDS_MAX: u64 = 24 * 60 * 60;
/// How late a mount that follows may be at most.
const FOLLOW_SECONDS_MAX: u64 = 24 * 60 * 60;
/// Default of the most threads that answer requests.
const THREADS: usize = 16;
/// The most threads that can be requested.
const THREADS_MAX: usize = 256;

/// Bytes of tree blocks below which hardly anything works: the ways down a few large trees.
const CACHE_BYTES_MIN: u64 = 4 << 20;
/// The smallest useful number of nodes: what a few programs have open.
const NODES_MIN: u64 = 256;

/// What mount(8) and /etc/fstab may pass along, and what btrfs does anyway: nothing changes.
const OF_NO_EFFECT: &[&str] = &[
    "defaults",
    "default_permissions",
    "auto",
    "noauto",
    "nouser",
    "_netdev",
    "nofail",
    "loud",
    "nostrictatime",
    "norelatime",
    "nolazytime",
    "acl",
    "barrier",
    "space_cache",
    "treelog",
    "noautodefrag",
    "noloop",
    "flushoncommit",
    "noflushoncommit",
];

/// Options of btrfs without a meaning here. They are hints, or switch off or on what does not exist here, so a mount without them
/// serves as well; they are reported.
const IGNORED: &[&str] = &[
    "ssd",
    "nossd",
    "ssd_spread",
    "nossd_spread",
    "autodefrag",
    "noacl",
    "nobarrier",
    "notreelog",
    "clear_cache",
    "inode_cache",
    "noinode_cache",
    "enospc_debug",
    "noenospc_debug",
    "rescan_uuid_tree",
    "lazytime",
    "iversion",
    "noiversion",
    "silent",
    "mand",
    "nomand",
    "check_int",
    "check_int_data",
];
/// The same with a value.
const IGNORED_WITH_VALUE: &[&str] = &["metadata_ratio", "fatal_errors", "check_int_print_mask", "alloc_start"];

/// Why an option is not taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown mount option {0:?}")]
    Unknown(String),
    /// Its value makes no sense.
    #[error("mount option {name}: {value:?} is not {want}")]
    Value {
        /// The option.
        name: String,
        /// The value given.
        value: String,
        /// What the option accepts.
        want: &'static str,
    },
    /// The same of an option that is for volumes on object stores.
    #[error("mount option {0}")]
    Store(String),
}

impl Classified for OptionError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            OptionError::Unknown(_) | OptionError::Value { .. } | OptionError::Store(_) => Class::USAGE,
        }
    }
}

/// When reading changes the time of the last access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Atime {
    /// Never.
    Never,
    /// When it is older than the last change, or than a day.
    #[default]
    Relative,
    /// Always.
    Strict,
}

/// Whether requests come through io_uring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Uring {
    /// If the kernel offers it and no device is behind a network: one that does not answer would keep other requests waiting.
    #[default]
    Auto,
    /// Or not at all.
    On,
    /// Never.
    Off,
}

/// What of a damaged volume to overlook; all of these are for reading only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rescue {
    /// Use an older tree root when the newest cannot be read.
    pub use_backup_root: bool,
    /// Leave the log alone.
    pub no_log_replay: bool,
    /// Go on with trees that cannot be read.
    pub ignore_bad_roots: bool,
    /// Do not compare data with its checksums.
    pub ignore_data_csums: bool,
    /// Do not compare tree blocks with their checksums.
    pub ignore_meta_csums: bool,
}

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Overwrite what is in the place of records of stripes on devices of volumes with parity.
    pub wipe_stripe_records: bool,
    /// Nothing can be changed.
    pub read_only: bool,
    /// The subvolume to show as root, by path.
    pub subvol: Option<String>,
    /// The same by number.
    pub subvolid: Option<u64>,
    /// Compress new data.
    pub compress: Option<Compress>,
    /// New files are overwritten in place.
    pub no_data_cow: bool,
    /// New files have no checksums.
    pub no_data_sum: bool,
    /// Seconds between commits; the default depends on whether the kernel passes sync(2) on.
    pub commit_seconds: Option<u64>,
    /// Discard what becomes free on the device.
    pub discard: bool,
    /// When reading changes times.
    pub atime: Atime,
    /// Directories are exempt from that.
    pub no_dir_atime: bool,
    /// Show what another machine writes to a volume on a store, at most so many seconds late.
    pub follow: Option<u64>,
    /// Go on without devices that are missing.
    pub degraded: bool,
    /// The most bytes of a file that are stored inline in its item.
    pub inline_max: Option<u32>,
    /// The most threads that answer requests.
    pub threads: usize,
    /// The kernel keeps what was written and writes it later (FUSE_WRITEBACK_CACHE).
    pub writeback_cache: bool,
    /// Bytes of tree blocks kept in memory; the default depends on the machine's memory.
    pub cache_bytes: Option<u64>,
    /// The number of inodes known to the kernel above which it is asked to forget some; the default depends on the
    /// machine's memory.
    pub nodes_max: Option<u64>,
    /// Users may delete their own subvolumes.
    pub user_subvol_rm_allowed: bool,
    /// A balance that was interrupted stays so.
    pub skip_balance: bool,
    /// A volume without free-space tree stays as it is (`space_cache=v1`, `nospace_cache`).
    pub keep_space_cache: bool,
    /// The directory in which the state of scrubs is kept; none: it is not.
    pub scrub_state: Option<PathBuf>,
    /// What to overlook.
    pub rescue: Rescue,
    /// Users other than the one who mounts may use it. Default for root, as with every file system.
    pub allow_other: Option<bool>,
    /// What df shows as the source.
    pub fsname: Option<String>,
    /// The part of the type behind `fuse.`.
    pub subtype: Option<String>,
    /// Further devices of the volume.
    pub devices: Vec<String>,
    /// How requests come.
    pub uring: Uring,
    /// Whether processors are kept from being halted while requests come through io_uring.
    pub halt_polling: HaltPolling,
    /// Flags of every mount.
    pub flags: MountFlags,
    /// How devices are reached that are no files of this machine. Words that are no options of mounts may be some of
    /// volumes on object stores.
    pub places: PlaceOptions,
    /// Options of btrfs that were given and have no meaning here.
    pub ignored: Vec<String>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            wipe_stripe_records: false,
            read_only: false,
            subvol: None,
            subvolid: None,
            compress: None,
            no_data_cow: false,
            no_data_sum: false,
            commit_seconds: None,
            discard: false,
            atime: Atime::default(),
            no_dir_atime: false,
            follow: None,
            degraded: false,
            inline_max: None,
            threads: THREADS,
            writeback_cache: false,
            cache_bytes: None,
            nodes_max: None,
            user_subvol_rm_allowed: false,
            skip_balance: false,
            keep_space_cache: false,
            scrub_state: None,
            rescue: Rescue::default(),
            allow_other: None,
            fsname: None,
            subtype: None,
            devices: Vec::new(),
            uring: Uring::default(),
            halt_polling: HaltPolling::default(),
            flags: MountFlags::empty(),
            places: PlaceOptions::default(),
            ignored: Vec::new(),
        }
    }
}

impl MountOptions {
    /// Parses a list of options; later ones win.
    ///
    /// # Errors
    /// An option is unknown, or its value is invalid.
    pub fn parse(&mut self, list: &str) -> Result<(), OptionError> {
        for option in list.split(',').filter(|o| !o.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            self.take(option, name, value)?;
        }
        self.discard &= !self.read_only;
        Ok(())
    }

    /// How long a change waits for a commit at most.
    pub(crate) fn commit_interval(&self, passes_sync: bool) -> Duration {
        let default = if passes_sync { COMMIT_SECONDS } else { COMMIT_SECONDS_UNSYNCED };
        Duration::from_secs(self.commit_seconds.unwrap_or(default))
    }

    fn take(&mut self, option: &str, name: &str, value: Option<&str>) -> Result<(), OptionError> {
        if (if value.is_some() { IGNORED_WITH_VALUE } else { IGNORED }).contains(&name) {
            self.ignored.push(option.to_owned());
            return Ok(());
        }
        if let Some(value) = value {
            return self.take_value(name, value);
        }
        if OF_NO_EFFECT.contains(&name) {
            return Ok(());
        }
        match name {
            "rw" => self.read_only = false,
            "ro" => self.read_only = true,
            "degraded" => self.degraded = true,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "datacow" => self.no_data_cow = false,
            "nodatacow" => (self.no_data_cow, self.no_data_sum) = (true, true),
            "datasum" => (self.no_data_sum, self.no_data_cow) = (false, false),
            "nodatasum" => self.no_data_sum = true,
            "compress" => self.compress = compress("zlib", false)?,
            "compress-force" => self.compress = compress("zlib", true)?,
            "noatime" => self.set_atime(Atime::Never),
            "relatime" | "atime" => self.set_atime(Atime::Relative),
            "strictatime" => self.set_atime(Atime::Strict),
            "nodiratime" | "diratime" => {
                self.no_dir_atime = name == "nodiratime";
                self.flags.set(MountFlags::NODIRATIME, self.no_dir_atime);
            }
            "user_subvol_rm_allowed" => self.user_subvol_rm_allowed = true,
            "skip_balance" => self.skip_balance = true,
            "nospace_cache" => self.keep_space_cache = true,
            "writeback_cache" => self.writeback_cache = true,
            "nowriteback_cache" => self.writeback_cache = false,
            "allow_other" => self.allow_other = Some(true),
            "usebackuproot" | "recovery" => self.rescue.use_backup_root = true,
            "nologreplay" | "norecovery" => self.rescue.no_log_replay = true,
            "nosuid" | "suid" => self.flags.set(MountFlags::NOSUID, name == "nosuid"),
            "nodev" | "dev" => self.flags.set(MountFlags::NODEV, name == "nodev"),
            // As in mount(8), since users other than root may control its contents.
            "user" | "users" => self.flags.insert(MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC),
            "owner" | "group" => self.flags.insert(MountFlags::NOSUID | MountFlags::NODEV),
            "noexec" | "exec" => self.flags.set(MountFlags::NOEXEC, name == "noexec"),
            "sync" | "async" => self.flags.set(MountFlags::SYNCHRONOUS, name == "sync"),
            "dirsync" => self.flags.insert(MountFlags::DIRSYNC),
            _ if name.starts_with("x-") || name.starts_with("comment") => {}
            _ => return self.take_of_store(option),
        }
        Ok(())
    }

    /// The flags are for programs that list mounts; the server obeys the policy.
    fn set_atime(&mut self, atime: Atime) {
        self.atime = atime;
        self.flags.set(MountFlags::NOATIME, atime == Atime::Never);
        self.flags.set(MountFlags::STRICTATIME, atime == Atime::Strict);
    }

    fn take_value(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        match name {
            "subvol" => self.subvol = Some(value.to_owned()),
            "subvolid" => self.subvolid = Some(number(name, value, u64::MAX)?),
            "compress" => self.compress = compress(value, false)?,
            "compress-force" => self.compress = compress(value, true)?,
            "commit" => self.commit_seconds = Some(number(name, value, COMMIT_SECONDS_MAX)?.max(1)),
            "discard" if matches!(value, "sync" | "async") => self.discard = true,
            "max_inline" => self.inline_max = Some(size(name, value)?),
            // That of volumes on object stores is a directory.
            "cache" if value.starts_with('/') => return self.take_of_store(&format!("{name}={value}")),
            "cache" => self.cache_bytes = Some(bytes(name, value)?.max(CACHE_BYTES_MIN)),
            "nodes" => self.nodes_max = Some(number(name, value, u64::MAX)?.max(NODES_MIN)),
            "thread_pool" => self.threads = (number(name, value, THREADS_MAX as u64)? as usize).max(1),
            "rescue" => {
                for what in value.split(':') {
                    self.take_rescue(what)?;
                }
            }
            "follow" => {
                let seconds = number(name, value, FOLLOW_SECONDS_MAX)?;
                self.follow = Some(seconds).filter(|n| *n > 0);
                if self.follow.is_none() {
                    return Err(wrong(name, value, "a number of seconds from 1 to 86400"));
                }
            }
            "fsname" => self.fsname = Some(value.to_owned()),
            "subtype" => self.subtype = Some(value.to_owned()),
            "device" => self.devices.push(value.to_owned()),
            "space_cache" if value == "v2" => {}
            "stripe_record" if value == "wipe" => self.wipe_stripe_records = true,
            "stripe_record" => return Err(wrong(name, value, "wipe")),
            "space_cache" if value == "v1" => self.keep_space_cache = true,
            "io_uring" => {
                self.uring = match value {
                    "auto" => Uring::Auto,
                    "on" => Uring::On,
                    "off" => Uring::Off,
                    _ => return Err(wrong(name, value, "auto, on or off")),
                };
            }
            "halt_poll" => {
                self.halt_polling = match value {
                    "auto" => HaltPolling::Auto,
                    "on" => HaltPolling::On,
                    "off" => HaltPolling::Off,
                    _ => return Err(wrong(name, value, "auto, on or off")),
                };
            }
            _ if name.starts_with("x-") || name == "comment" || name == "uhelper" => {}
            _ => return self.take_of_store(&format!("{name}={value}")),
        }
        Ok(())
    }

    fn take_of_store(&mut self, option: &str) -> Result<(), OptionError> {
        match self.places.set(option) {
            Ok(true) => Ok(()),
            Ok(false) => Err(OptionError::Unknown(option.split('=').next().unwrap_or_default().to_owned())),
            Err(error) => Err(OptionError::Store(error.to_string())),
        }
    }

    fn take_rescue(&mut self, what: &str) -> Result<(), OptionError> {
        let rescue = &mut self.rescue;
        match what {
            "usebackuproot" => rescue.use_backup_root = true,
            "nologreplay" => rescue.no_log_replay = true,
            "ignorebadroots" | "ibadroots" => rescue.ignore_bad_roots = true,
            "ignoredatacsums" | "idatacsums" => rescue.ignore_data_csums = true,
            "ignoremetacsums" | "imetacsums" => rescue.ignore_meta_csums = true,
            // Reading does not depend on these flags.
            "ignoresuperflags" | "isuperflags" => self.ignored.push(format!("rescue={what}")),
            "all" => {
                *rescue = Rescue {
                    no_log_replay: true,
                    ignore_bad_roots: true,
                    ignore_data_csums: true,
                    ignore_meta_csums: true,
                    ..*rescue
                };
            }
            _ => {
                return Err(wrong(
                    "rescue",
                    what,
                    "one of usebackuproot, nologreplay, ignorebadroots, ignoredatacsums, ignoremetacsums, ignoresuperflags, all",
                ));
            }
        }
        Ok(())
    }
}

fn wrong(name: &str, value: &str, want: &'static str) -> OptionError {
    OptionError::Value { name: name.to_owned(), value: value.to_owned(), want }
}

fn number(name: &str, value: &str, max: u64) -> Result<u64, OptionError> {
    value.parse().ok().filter(|n| *n <= max).ok_or_else(|| wrong(name, value, "a number in range"))
}

/// A number of bytes, with k for 1024.
fn size(name: &str, value: &str) -> Result<u32, OptionError> {
    let (digits, unit) = match value.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (value, 1),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    bytes.ok_or_else(|| wrong(name, value, "a number of bytes"))
}

/// A number of bytes, with K, M, G or T for powers of 1024.
fn bytes(name: &str, value: &str) -> Result<u64, OptionError> {
    let unit = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (digits, unit) = value.split_at(unit);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong(name, value, "a number of bytes")),
    };
    let whole = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    whole.ok_or_else(|| wrong(name, value, "a number of bytes"))
}

fn compress(value: &str, force: bool) -> Result<Option<Compress>, OptionError> {
    if matches!(value, "no" | "none") {
        return Ok(None);
    }
    let name = if force { "compress-force" } else { "compress" };
    // lzo has no levels; btrfs overlooks one.
    let value = if value.starts_with("lzo:") { "lzo" } else { value };
    match parse_compress(value) {
        Ok(parsed) => Ok(parsed.map(|c| Compress { force, ..c })),
        Err(oleo::Error::Refused { .. }) => {
            Err(wrong(name, value, "a kind of compression that this program was built with"))
        }
        Err(_) => Err(wrong(name, value, "zlib, lzo or zstd, with :LEVEL where it has levels, or no")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<MountOptions, OptionError> {
        let mut options = MountOptions::default();
        options.parse(list).map(|()| options)
    }

    #[test]
    fn the_later_of_two_wins() {
        let o = parsed("ro,nodatacow,noatime,nosuid,sync,rw,datasum,strictatime,suid,async").unwrap();
        assert!(!o.read_only && !o.no_data_cow && !o.no_data_sum);
        assert_eq!((o.atime, o.flags), (Atime::Strict, MountFlags::STRICTATIME));
        assert!(parsed("discard,ro").unwrap().read_only);
        assert!(!parsed("discard,ro").unwrap().discard, "nothing is freed where nothing is written");
    }

    #[test]
    fn mounts_of_users_are_harmless() {
        let harmless = MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(parsed("users").unwrap().flags, harmless | MountFlags::NOEXEC);
        assert_eq!(parsed("owner").unwrap().flags, harmless);
        assert_eq!(parsed("user,exec,suid").unwrap().flags, MountFlags::NODEV);
    }

    #[test]
    fn words_of_mount_change_nothing() {
        let o = parsed(&OF_NO_EFFECT.join(",")).unwrap();
        assert_eq!(format!("{o:?}"), format!("{:?}", MountOptions::default()));
    }

    /// Goal: lines of fstab for btrfs mount here, and the user learns which words do nothing.
    #[test]
    fn words_of_btrfs_without_meaning_are_reported() {
        let o = parsed("rw,noatime,ssd,autodefrag,metadata_ratio=4,compress=lzo:1,space_cache,subvol=/@").unwrap();
        assert_eq!(o.ignored, ["ssd", "autodefrag", "metadata_ratio=4"]);
        assert!(o.compress.is_some() && o.subvol.is_some());
        let o = parsed(&IGNORED.join(",")).unwrap();
        let rescue = parsed("ro,rescue=ignoresuperflags:nologreplay").unwrap();
        assert!(rescue.ignored == ["rescue=ignoresuperflags"] && rescue.rescue.no_log_replay);
        let without = MountOptions { ignored: Vec::new(), ..o.clone() };
        assert_eq!(
            (o.ignored.len(), format!("{without:?}")),
            (IGNORED.len(), format!("{:?}", MountOptions::default()))
        );
    }

    #[test]
    fn values_are_parsed() {
        let o = parsed("subvolid=257,commit=0,max_inline=2k,thread_pool=4,rescue=usebackuproot:nologreplay").unwrap();
        assert_eq!((o.subvolid, o.commit_seconds, o.inline_max, o.threads), (Some(257), Some(1), Some(2048), 4));
        assert!(o.rescue.use_backup_root && o.rescue.no_log_replay && !o.rescue.ignore_bad_roots);
        let o = parsed("cache=2G,nodes=100000").unwrap();
        assert_eq!((o.cache_bytes, o.nodes_max), (Some(2 << 30), Some(100_000)));
        assert_eq!(parsed("cache=1,nodes=0").unwrap().cache_bytes, Some(CACHE_BYTES_MIN));
        assert!(parsed("skip_balance").unwrap().skip_balance);
        // It costs processor time while nothing happens.
        assert!(matches!(parsed("").unwrap().halt_polling, HaltPolling::Off));
        assert!(matches!(parsed("halt_poll=auto").unwrap().halt_polling, HaltPolling::Auto));
        assert!(parsed("stripe_record=wipe").unwrap().wipe_stripe_records);
        for keeps in ["space_cache=v1", "nospace_cache"] {
            assert!(parsed(keeps).unwrap().keep_space_cache);
        }
        assert!(!parsed("space_cache=v2").unwrap().keep_space_cache);
        assert!(parsed("compress=no").unwrap().compress.is_none());
        assert!(parsed("compress-force=zstd:5").unwrap().compress.is_some_and(|c| c.force));
    }

    /// Goal: commits come more often if no sync arrives, except if their interval is given.
    #[test]
    fn commits_replace_syncs() {
        let seconds = |list: &str| [true, false].map(|passes| parsed(list).unwrap().commit_interval(passes).as_secs());
        assert_eq!((seconds("ro"), seconds("commit=30"), seconds("commit=0")), ([30, 5], [30, 30], [1, 1]));
    }

    #[test]
    fn what_nobody_knows_is_refused() {
        for list in ["nonsense", "nonsense=1", "ro,metadata_ratio", "ssd=1", "subvol"] {
            assert!(matches!(parsed(list), Err(OptionError::Unknown(_))), "{list}");
        }
        // A value may be a secret.
        let error = parsed("aws_secret_access_key=hush").unwrap_err().to_string();
        assert!(error.contains("aws_secret_access_key") && !error.contains("hush"), "{error}");
        for list in [
            "subvolid=x",
            "max_inline=9999999k",
            "rescue=nonsense",
            "compress=rot13",
            "io_uring=perhaps",
            "halt_poll=perhaps",
            "cache=1X",
            "nodes=-1",
            "stripe_record=keep",
        ] {
            assert!(matches!(parsed(list), Err(OptionError::Value { .. })), "{list}");
        }
    }

    /// Goal: options of volumes on stores are taken among the others, and their mistakes are told.
    #[cfg(feature = "remote")]
    #[test]
    fn options_of_stores() {
        let o = parsed("ro,take_over,claim=60,cache=1G,endpoint=http://h:1").unwrap();
        assert!(o.read_only && o.places.remote.take_over);
        assert_eq!(o.places.remote.claim.as_secs(), 60);
        assert!(matches!(parsed("claim=x"), Err(OptionError::Store(_))));
        assert!(matches!(parsed("claims=1"), Err(OptionError::Unknown(_))));
    }

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        let (name, value) = ("a".to_owned(), "b".to_owned());
        oleo_format::assert_classes!(OptionError {
            Unknown: OptionError::Unknown(name.clone()) => Class::USAGE,
            Value: OptionError::Value { name, value, want: "c" } => Class::USAGE,
            Store: OptionError::Store("a".into()) => Class::USAGE,
        });
        use crate::MountError;
        let busy = || std::io::Error::from_raw_os_error(oleo_format::errno::EBUSY);
        let request = || oleo::Error::Request("so".into());
        oleo_format::assert_classes!(MountError {
            Image: request().into() => Class::USAGE,
            Option: MountError::Option("so".into()) => Class::USAGE,
            Attach: MountError::Attach { dir: "d".into(), source: busy() } => Class::refusal(oleo_format::errno::EBUSY),
            Connection: MountError::Connection(busy()) => Class::DEVICE,
        });
    }
}
