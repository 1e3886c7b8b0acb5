//! How a volume is opened, and what bounds it.
//!
//! People give options as words, `take-over` or `claim=60`: on a command line, in a list of mount options, in a variable of
//! the environment. [`StoreOptions::set`] is where all of them are read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{OptionError, RemoteError};
use crate::format::OBJECT_LEN_MAX;
use crate::host::{Host, SystemHost};
use crate::keys::KeySource;

/// Beginnings of settings, as programs of those clouds know them: names of variables of the environment.
const SETTINGS: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// How a volume is opened.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Time and randomness.
    pub host: Arc<dyn Host>,
    /// Who writes, in words, for others who find the volume held: host, process, user. At most 512 bytes are kept.
    pub owner: String,
    /// For how long others take the writer for alive when it is silent; whole seconds; zero: until another process takes over
    /// by word. The keeper renews it three times in that time, idle or not.
    pub claim: Duration,
    /// Whether a writer that has had nothing to write for the time of its claim releases the volume until it writes again.
    pub release_idle: bool,
    /// Called before opening waits for the claim of another writer.
    pub on_wait: Option<OnWait>,
    /// Whether a thread renews the claim, deletes what nothing needs, and renews the lease of a reader. Without it whoever has
    /// the device does that.
    pub keeper: bool,
    /// For how long objects stay that nothing living names; until then readers without a lease go on.
    pub grace: Duration,
    /// Whether opening for reading takes a lease, so that what is read stays. Without it the keeper takes one after ten minutes.
    pub lease: bool,
    /// Whether another device has what this one has, so that a read had better fail than wait once it is known that the store is away.
    pub mirrored: bool,
    /// Write although another writer has it, or had it and did not close it.
    pub take_over: bool,
    /// What is said to programs of clouds by variables of the environment, name and value: `AWS_ACCESS_KEY_ID`,
    /// `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, and `HOME`, below which profiles are. Later ones win.
    pub settings: Vec<(String, String)>,
    /// Where the store is, if not where its cloud has it: a URL.
    pub endpoint: Option<String>,
    /// Whether conditions name contents without quotation marks, as the gateway of Ceph compares them (seen of 16.2).
    pub bare_etags: bool,
    /// The region of an S3 store.
    pub region: Option<String>,
    /// Whose keys and region are taken from the files that the programs of AWS have.
    pub profile: Option<String>,
    /// The proxy through which stores are reached: a URL.
    pub proxy: Option<String>,
    /// What opens a volume that is sealed (encrypted). A volume that is made with it is sealed; one that is not sealed is
    /// refused with it.
    pub key: Option<KeySource>,
    /// Whether the store of a volume that is made is probed first, in a short way, and refused if it does not keep conditions.
    pub probe: bool,
    /// Whether a volume that is made compresses what is written, with zstd.
    pub compress: bool,
    /// Where parts of objects are kept on the local disk.
    pub cache: Option<CacheOptions>,
    /// Where a flush makes what was written durable before it returns.
    pub durable: Durable,
    /// How long the log on the local disk may be that [`Durable::Local`] has, bytes; at least 1 MiB.
    pub log_bytes_max: u64,
    /// Open a volume although it is older than it was when it was last seen; see [`RemoteError::Older`](crate::RemoteError).
    pub accept_older: bool,
    /// Open the parent of a branch that is not sealed in another bucket or directory.
    pub trust_origins: bool,
    /// Sizes and times.
    pub bounds: Bounds,
}

/// Why opening waits.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClaimWait {
    /// The writer that has the volume, as it names itself.
    pub owner: String,
    /// How long opening waits at most. It is refused earlier if the writer shows that it is alive.
    pub most: Duration,
}

/// A function that is called with a [`ClaimWait`].
pub type OnWait = Arc<dyn Fn(&ClaimWait) + Send + Sync>;

/// Where a flush makes what was written durable.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Durable {
    /// In the store.
    #[default]
    Remote,
    /// In a log beside the cache on the local disk; the store has it about a second later. It survives a crash of this machine,
    /// and is lost if another one takes over before. Claims do not run out then: nobody takes over without a word.
    Local,
}

/// A cache on the local disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// Its directory, which is made if need be and must be the user's alone. Volumes may share it, and so may processes.
    pub dir: PathBuf,
    /// Bytes that a volume may take in it.
    pub bytes_max: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            host: Arc::new(SystemHost::new()),
            owner: String::new(),
            claim: Duration::from_secs(60),
            release_idle: false,
            on_wait: None,
            keeper: true,
            grace: Duration::from_secs(3600),
            lease: false,
            mirrored: false,
            take_over: false,
            settings: Vec::new(),
            endpoint: None,
            bare_etags: false,
            region: None,
            profile: None,
            proxy: None,
            key: None,
            probe: true,
            compress: false,
            cache: None,
            durable: Durable::Remote,
            log_bytes_max: LOG_BYTES,
            accept_older: false,
            trust_origins: false,
            bounds: Bounds::default(),
        }
    }
}

impl fmt::Debug for StoreOptions {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings: Vec<&str> = self.settings.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("StoreOptions")
            .field("owner", &self.owner)
            .field("claim", &self.claim)
            .field("take_over", &self.take_over)
            .field("settings", &settings)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("profile", &self.profile)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

impl StoreOptions {
    /// Takes a word, `NAME` or `NAME=VALUE`. `_` and `-` are the same in names.
    ///
    /// # Errors
    /// It is no option, or its value makes no sense.
    pub fn set(&mut self, word: &str) -> Result<(), OptionError> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if let Some(value) = value
            && SETTINGS.iter().any(|begin| name.starts_with(begin))
        {
            self.settings.push((name.to_owned(), value.to_owned()));
            return Ok(());
        }
        let given = Given { name: &name.to_ascii_lowercase().replace('_', "-"), value };
        let bounds = &mut self.bounds;
        match given.name {
            "take-over" => self.take_over = given.flag()?,
            "claim" => self.claim = given.seconds()?,
            "release-idle" => self.release_idle = given.flag()?,
            "grace" => self.grace = given.seconds()?,
            "lease" => self.lease = given.flag()?,
            "bare-etags" => self.bare_etags = given.flag()?,
            "endpoint" => self.endpoint = Some(given.text("a URL")?),
            "key-file" => {
                self.key = Some(given.key(KeySource::key_file, "a file of 32 bytes or 64 hexadecimal digits")?)
            }
            "passphrase-file" => {
                self.key = Some(given.key(KeySource::passphrase_file, "a file with a passphrase in its first line")?);
            }
            "probe" => self.probe = given.flag()?,
            "compress" => self.compress = given.flag()?,
            "cache" => self.cache_mut().dir = given.text("a directory")?.into(),
            "cache-bytes" => self.cache_mut().bytes_max = given.bytes()?,
            "durable" => self.durable = given.durable()?,
            "log-bytes" => self.log_bytes_max = given.bytes()?,
            "accept-older" => self.accept_older = given.flag()?,
            "trust-origins" => self.trust_origins = given.flag()?,
            "region" => self.region = Some(given.text("a name")?),
            "profile" => self.profile = Some(given.text("a name")?),
            "proxy" => self.proxy = Some(given.text("a URL")?),
            "flush-max" => bounds.flush_max = given.seconds()?,
            "read-max" => bounds.read_max = given.seconds()?,
            "attach-max" => bounds.attach_max = given.seconds()?,
            "read-cache" => bounds.cache_bytes_max = given.bytes()?,
            "map-memory" => bounds.map_bytes_max = given.bytes()?,
            "dirty" => bounds.dirty_bytes_max = given.bytes()?,
            "segment" => bounds.segment_aim = given.bytes_up_to(OBJECT_LEN_MAX, "a number of bytes up to 64M")?,
            "inline" => bounds.inline_max = given.bytes_up_to(INLINE_MAX, "a number of bytes up to 512K")?,
            _ => return Err(OptionError::Unknown(name.chars().take(100).collect())),
        }
        Ok(())
    }

    /// The cache that is being described.
    fn cache_mut(&mut self) -> &mut CacheOptions {
        self.cache.get_or_insert(CacheOptions { dir: PathBuf::new(), bytes_max: CACHE_BYTES })
    }

    /// The newest value of a setting.
    pub fn setting(&self, name: &str) -> Option<&str> {
        let newest = self.settings.iter().rev().find(|(known, _)| known == name);
        newest.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

/// How much of the local disk a volume's cache takes if nothing is said, bytes.
const CACHE_BYTES: u64 = 10 << 30;
/// How long the log on the local disk may be if nothing is said, bytes.
const LOG_BYTES: u64 = 1 << 30;
/// Most that may go into a head, bytes.
const INLINE_MAX: u32 = 512 << 10;

/// A value without the part before its `@`: in a URL that is a user and a password.
fn without_user(value: &str) -> String {
    value.rsplit_once('@').map_or_else(|| value.into(), |(_, rest)| format!("...@{rest}"))
}

/// An option as it was given.
struct Given<'a> {
    name: &'a str,
    value: Option<&'a str>,
}

impl Given<'_> {
    fn key(
        &self,
        read: impl FnOnce(&Path) -> Result<KeySource, RemoteError>,
        want: &'static str,
    ) -> Result<KeySource, OptionError> {
        let path = self.text(want)?;
        let wrong = || if std::fs::File::open(&path).is_ok() { want } else { "a file that can be read" };
        read(Path::new(&path)).map_err(|_| self.wrong(wrong()))
    }

    fn wrong(&self, want: &'static str) -> OptionError {
        OptionError::Value { name: self.name.into(), value: without_user(self.value.unwrap_or_default()), want }
    }

    fn flag(&self) -> Result<bool, OptionError> {
        match self.value {
            None | Some("yes") => Ok(true),
            Some("no") => Ok(false),
            Some(_) => Err(self.wrong("no value, or yes or no")),
        }
    }

    fn text(&self, want: &'static str) -> Result<String, OptionError> {
        let text = self.value.filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| self.wrong(want))
    }

    fn durable(&self) -> Result<Durable, OptionError> {
        match self.value {
            Some("remote") => Ok(Durable::Remote),
            Some("local") => Ok(Durable::Local),
            _ => Err(self.wrong("remote or local")),
        }
    }

    fn seconds(&self) -> Result<Duration, OptionError> {
        let number = self.value.and_then(|text| text.parse::<u32>().ok());
        number.map(|n| Duration::from_secs(n.into())).ok_or_else(|| self.wrong("a number of seconds"))
    }

    fn bytes(&self) -> Result<u64, OptionError> {
        let read = |text: &str| {
            let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
                "" => 0,
                "k" => 10,
                "m" => 20,
                "g" => 30,
                _ => return None,
            };
            digits.parse::<u64>().ok()?.checked_mul(1 << shift)
        };
        self.value.and_then(read).ok_or_else(|| self.wrong("a number of bytes (suffixes K, M, G)"))
    }

    fn bytes_up_to(&self, most: u32, want: &'static str) -> Result<u32, OptionError> {
        let bytes = self.bytes()?;
        u32::try_from(bytes).ok().filter(|bytes| *bytes <= most).ok_or_else(|| self.wrong(want))
    }
}

/// What memory and time a volume may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Bounds {
    /// A segment is ended when it would become longer than this, bytes; at most 64 MiB.
    pub segment_aim: u32,
    /// Frames up to so many bytes go into the head instead of a segment of their own; at most 512 KiB.
    pub inline_max: u32,
    /// More bytes in memory than this that are not published make a writer publish.
    pub dirty_bytes_max: u64,
    /// Memory of the map, bytes; more is let go of, and read again when it is needed.
    pub map_bytes_max: u64,
    /// Memory of frames that were read, bytes.
    pub cache_bytes_max: u64,
    /// A checkpoint is made after so many segments.
    pub replay_count_max: usize,
    /// Or after so many bytes of segments.
    pub replay_bytes_max: u64,
    /// How long one attempt to replace the head may take.
    pub publish_try: Duration,
    /// How long a flush may take; after that it fails, and nothing is written any more.
    pub flush_max: Duration,
    /// How long a read may take.
    pub read_max: Duration,
    /// How long opening may take, besides waiting for a claim to run out.
    pub attach_max: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            segment_aim: 16 << 20,
            inline_max: 256 << 10,
            dirty_bytes_max: 128 << 20,
            map_bytes_max: 256 << 20,
            cache_bytes_max: 64 << 20,
            replay_count_max: 64,
            replay_bytes_max: 1 << 30,
            publish_try: Duration::from_secs(10),
            flush_max: Duration::from_secs(120),
            read_max: Duration::from_secs(60),
            attach_max: Duration::from_secs(120),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: words set what they name, later ones win, nonsense is refused and changes nothing. Method: a table.
    #[test]
    fn words() {
        let mut options = StoreOptions::default();
        for word in
            ["take-over", "claim=60", "Claim=90", "segment=4M", "flush_max=7", "endpoint=http://h", "AWS_REGION=a"]
        {
            options.set(word).unwrap_or_else(|e| panic!("{word}: {e}"));
        }
        assert!(options.take_over);
        assert_eq!(options.claim, Duration::from_secs(90));
        assert_eq!(options.bounds.segment_aim, 4 << 20);
        assert_eq!(options.bounds.flush_max, Duration::from_secs(7));
        assert_eq!(options.endpoint.as_deref(), Some("http://h"));
        options.set("AWS_REGION=b").expect("set");
        assert_eq!(options.setting("AWS_REGION"), Some("b"));
        assert_eq!(options.setting("AWS_PROFILE"), None);
        options.set("durable=local").expect("set");
        assert_eq!(options.durable, Durable::Local);
        for word in [
            "",
            "durable",
            "durable=disk",
            "log-bytes=much",
            "claim",
            "claim=-1",
            "claim=x",
            "takeover",
            "segment=1G",
            "dirty=1X",
            "region=",
            "AWS_REGION",
        ] {
            assert!(options.set(word).is_err(), "{word}");
        }
        for word in ["secret_access_key=hush", "aws_secret_access_key=hush", "claim=http://user:hush@host"] {
            let refused = options.set(word).expect_err(word).to_string();
            assert!(!refused.contains("hush"), "{refused}");
        }
        assert_eq!(options.claim, Duration::from_secs(90));
    }

    /// Goal: no secret reaches a log by way of the options.
    #[test]
    fn secrets_are_not_shown() {
        let mut options = StoreOptions::default();
        options.set("AWS_SECRET_ACCESS_KEY=hush").expect("set");
        let shown = format!("{options:?}");
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hush"), "{shown}");
    }
}
