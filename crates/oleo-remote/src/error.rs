//! What goes wrong with a volume on an object store.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oleo_device::{DeviceError, Op};
use oleo_format::{Class, Classified, Corruption, errno};

/// Why a store did not do what it was asked. Each says what is known of the outcome.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such object.
    #[error("no such object")]
    Absent,
    /// The condition was not met; certainly nothing was changed.
    #[error("the condition does not hold")]
    Condition,
    /// The answer does not say: it may have been carried out, or may be later.
    #[error("no clear answer ({0})")]
    Unknown(String),
    /// We may not. Nothing was changed.
    #[error("access denied ({0})")]
    Denied(String),
    /// There is no such bucket. Nothing was changed.
    #[error("the bucket does not exist ({0})")]
    NoBucket(String),
    /// It has too much to do. Nothing was changed, as far as it says.
    #[error("the store asks to slow down")]
    Throttled,
    /// It was not reached. Nothing was changed.
    #[error("the store is not reached ({0})")]
    Away(String),
    /// It answers what makes no sense.
    #[error("the answer makes no sense: {0}")]
    Wrong(String),
    /// No answer in time: it may have been carried out, or may be later.
    #[error("no answer in time")]
    TimedOut,
}

impl StoreError {
    /// Whether the store refuses what it is asked for, and will do so again.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, StoreError::Denied(_) | StoreError::NoBucket(_))
    }
}

/// A word that is no option, or not as it is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// There is no such option.
    #[error("unknown option {0} of a volume on an object store")]
    Unknown(String),
    /// Its value makes no sense.
    #[error("{name}={value}: {name} takes {want}")]
    Value {
        /// The option.
        name: String,
        /// Its value.
        value: String,
        /// What it takes.
        want: &'static str,
    },
}

/// Why something failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The store failed.
    #[error("{doing} {key}: {source}")]
    Store {
        /// What was to be done.
        doing: &'static str,
        /// Which object.
        key: String,
        /// How it failed.
        source: StoreError,
    },
    /// An object holds what it cannot.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// There is no volume.
    #[error("no volume at {prefix}")]
    NoVolume {
        /// Where.
        prefix: String,
    },
    /// There is a volume already.
    #[error("a volume is at {prefix} already")]
    Exists {
        /// Where.
        prefix: String,
    },
    /// Another writer has taken over.
    #[error("overtaken by {} (epoch {epoch}): nothing is written any more", shown(owner))]
    Overtaken {
        /// Who.
        owner: String,
        /// Its epoch.
        epoch: u32,
    },
    /// Another writer has it.
    #[error("held by {}; if it is gone for good, open it with --take-over (mount: -o take_over)", shown(owner))]
    Held {
        /// Who.
        owner: String,
    },
    /// What was there is gone or another.
    #[error("the volume at {prefix} was {what}: nothing is written any more")]
    Replaced {
        /// Where.
        prefix: String,
        /// How.
        what: &'static str,
    },
    /// Two processes act as the same writer.
    #[error("another process writes as epoch {epoch}: nothing is written any more")]
    Split {
        /// The epoch of both.
        epoch: u32,
    },
    /// The volume is sealed and the key is missing or wrong, or it is not sealed and should be.
    #[error("{what}")]
    Key {
        /// What is wrong.
        what: &'static str,
    },
    /// The volume was seen in a newer state than the store shows.
    #[error(
        "the store shows an older state of the volume (epoch {}, commit {}) than was seen before (epoch {}, commit {}); verify \
         it, then open it with --accept-older",
        found.0, found.1, seen.0, seen.1
    )]
    Older {
        /// Epoch and sequence that were seen.
        seen: (u32, u64),
        /// Those of the head that the store has.
        found: (u32, u64),
    },
    /// Another sealed volume was seen in this place before.
    #[error(
        "the store shows another volume at {prefix} ({found}) than was seen there before ({seen}); verify it, then open it \
         with --accept-older"
    )]
    Another {
        /// Where.
        prefix: String,
        /// The UUID that was seen.
        seen: String,
        /// That of the volume that is there.
        found: String,
    },
    /// The local disk failed.
    #[error("{}: {source}", path.display())]
    Local {
        /// Which file or directory.
        path: PathBuf,
        /// How.
        source: Arc<io::Error>,
    },
    /// The log on the local disk has what the store has not, and cannot be taken into the volume.
    #[error("what was only on this machine is kept in {}: {what}; open the volume again to go on without it", path.display())]
    LogKept {
        /// The log, under its new name.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// Another process of this machine has the log on the local disk.
    #[error("{} is in use: another process of this machine writes the volume", path.display())]
    LogBusy {
        /// The log.
        path: PathBuf,
    },
    /// The store does not keep the conditions that one writer at a time is built on.
    #[error("the store does not keep conditions ({which}): volumes on it could lose data")]
    NoConditions {
        /// Which.
        which: &'static str,
    },
    /// A reader needs an object that was removed after it opened.
    #[error("{what} is gone: the volume has moved on; open it again, or pin what is to be read")]
    Stale {
        /// Which.
        what: String,
    },
    /// Nothing went on for too long.
    #[error("the store did not take what was written within {:.0} s", after.as_secs_f64())]
    Stalled {
        /// How long was waited.
        after: Duration,
    },
    /// There is no pin of this name.
    #[error("no pin {name}")]
    NoPin {
        /// Which.
        name: String,
    },
    /// There is a pin of this name.
    #[error("a pin {name} is there already")]
    PinExists {
        /// Which.
        name: String,
    },
    /// There are no streams.
    #[error("no streams at {prefix}")]
    NoStreams {
        /// Where.
        prefix: String,
    },
    /// There is no stream of this snapshot.
    #[error("no snapshot {name} among the streams")]
    NoSnapshot {
        /// Which.
        name: String,
    },
    /// The same snapshot is there already, whole or built on the same.
    #[error("the snapshot {name} is among the streams already")]
    SnapshotExists {
        /// Which.
        name: String,
    },
    /// A stream is built on one that is not there.
    #[error("the stream of {name} cannot be received: it is built on {need}, which is not among the streams")]
    BrokenChain {
        /// Of which snapshot.
        name: String,
        /// The id of what it needs.
        need: String,
    },
    /// An upload was taken off the list while it was under way.
    #[error("the upload of {name} was given up by somebody, or what it is built on was removed: send it again")]
    UploadGone {
        /// Of which snapshot.
        name: String,
    },
    /// Something needs what a pin keeps.
    #[error("{name} is needed by {by}")]
    PinNeeded {
        /// Which.
        name: String,
        /// By what.
        by: String,
    },
    /// A limit of the format or of the options.
    #[error("{what}")]
    Limit {
        /// Which.
        what: String,
    },
    /// A name that is no URL of a volume.
    #[error("{url}: {what}")]
    Url {
        /// The name.
        url: String,
        /// What is wrong with it.
        what: String,
    },
    /// What this build, or this kind of volume, cannot do.
    #[error("{what}")]
    Unsupported {
        /// What.
        what: String,
    },
    /// An option that is not understood.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// An earlier failure ended writing.
    #[error("refused after an earlier failure: {first}")]
    Latched {
        /// That failure.
        first: Arc<RemoteError>,
    },
}

fn shown(owner: &str) -> String {
    if owner.is_empty() { "somebody".into() } else { owner.escape_debug().to_string() }
}

impl RemoteError {
    /// An error of the store.
    pub(crate) fn store(doing: &'static str, key: impl Into<String>, source: StoreError) -> RemoteError {
        RemoteError::Store { doing, key: key.into(), source }
    }
}

impl Classified for RemoteError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            RemoteError::Store { source: StoreError::Denied(_), .. } => Class::refusal(errno::EACCES),
            RemoteError::Store { source: StoreError::NoBucket(_), .. } => Class::refusal(errno::ENOENT),
            RemoteError::Store { .. } | RemoteError::Stalled { .. } | RemoteError::Split { .. } => Class::DEVICE,
            RemoteError::Corrupt(e) => e.class(),
            RemoteError::NoVolume { .. }
            | RemoteError::NoPin { .. }
            | RemoteError::NoStreams { .. }
            | RemoteError::NoSnapshot { .. } => Class::refusal(errno::ENOENT),
            RemoteError::Exists { .. } | RemoteError::PinExists { .. } | RemoteError::SnapshotExists { .. } => {
                Class::refusal(errno::EEXIST)
            }
            RemoteError::BrokenChain { .. } => Class::DAMAGE,
            RemoteError::Held { .. } | RemoteError::PinNeeded { .. } | RemoteError::LogBusy { .. } => {
                Class::refusal(errno::EBUSY)
            }
            RemoteError::Overtaken { .. }
            | RemoteError::Replaced { .. }
            | RemoteError::Stale { .. }
            | RemoteError::LogKept { .. } => Class { errno: errno::ESTALE, ..Class::DEVICE },
            RemoteError::Key { .. } => Class::refusal(errno::EACCES),
            RemoteError::Older { .. } | RemoteError::Another { .. } | RemoteError::UploadGone { .. } => {
                Class::refusal(errno::ESTALE)
            }
            RemoteError::Local { .. } => Class::DEVICE,
            RemoteError::NoConditions { .. } | RemoteError::Unsupported { .. } => Class::refusal(errno::EOPNOTSUPP),
            RemoteError::Limit { .. } => Class::refusal(errno::EFBIG),
            RemoteError::Url { .. } | RemoteError::Option(_) => Class::USAGE,
            RemoteError::Latched { first } => first.class(),
        }
    }
}

/// What a device says of an error.
pub(crate) fn of_device(name: Arc<str>, op: Op, offset: u64, len: u64, error: RemoteError) -> DeviceError {
    DeviceError::Io { name, op, offset, len, source: Arc::new(io::Error::other(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every error is of its kind and has its errno.
    #[test]
    fn every_error_has_its_class() {
        let text = || String::from("x");
        let stale = Class { errno: errno::ESTALE, ..Class::DEVICE };
        let denied = StoreError::Denied(text());
        oleo_format::assert_classes!(RemoteError {
            Store: RemoteError::store("get", "head", StoreError::TimedOut) => Class::DEVICE,
            Store: RemoteError::store("get", "head", denied) => Class::refusal(errno::EACCES),
            Store: RemoteError::store("get", "head", StoreError::NoBucket(text())) => Class::refusal(errno::ENOENT),
            Corrupt: RemoteError::Corrupt(Corruption::new("head", "magic", 1, 2)) => Class::DAMAGE,
            NoVolume: RemoteError::NoVolume { prefix: text() } => Class::refusal(errno::ENOENT),
            Exists: RemoteError::Exists { prefix: text() } => Class::refusal(errno::EEXIST),
            Overtaken: RemoteError::Overtaken { owner: text(), epoch: 2 } => stale,
            NoStreams: RemoteError::NoStreams { prefix: text() } => Class::refusal(errno::ENOENT),
            NoSnapshot: RemoteError::NoSnapshot { name: text() } => Class::refusal(errno::ENOENT),
            SnapshotExists: RemoteError::SnapshotExists { name: text() } => Class::refusal(errno::EEXIST),
            BrokenChain: RemoteError::BrokenChain { name: text(), need: text() } => Class::DAMAGE,
            UploadGone: RemoteError::UploadGone { name: text() } => Class::refusal(errno::ESTALE),
            NoPin: RemoteError::NoPin { name: text() } => Class::refusal(errno::ENOENT),
            PinExists: RemoteError::PinExists { name: text() } => Class::refusal(errno::EEXIST),
            PinNeeded: RemoteError::PinNeeded { name: text(), by: text() } => Class::refusal(errno::EBUSY),
            Held: RemoteError::Held { owner: text() } => Class::refusal(errno::EBUSY),
            Replaced: RemoteError::Replaced { prefix: text(), what: "deleted" } => stale,
            Split: RemoteError::Split { epoch: 2 } => Class::DEVICE,
            Key: RemoteError::Key { what: "x" } => Class::refusal(errno::EACCES),
            Older: RemoteError::Older { seen: (2, 9), found: (1, 3) } => Class::refusal(errno::ESTALE),
            Another: RemoteError::Another { prefix: text(), seen: text(), found: text() } => Class::refusal(errno::ESTALE),
            Local: RemoteError::Local { path: "/x".into(), source: Arc::new(io::Error::other("x")) } => Class::DEVICE,
            LogKept: RemoteError::LogKept { path: "/x".into(), what: text() } => stale,
            LogBusy: RemoteError::LogBusy { path: "/x".into() } => Class::refusal(errno::EBUSY),
            NoConditions: RemoteError::NoConditions { which: "x" } => Class::refusal(errno::EOPNOTSUPP),
            Stale: RemoteError::Stale { what: text() } => stale,
            Stalled: RemoteError::Stalled { after: Duration::ZERO } => Class::DEVICE,
            Limit: RemoteError::Limit { what: text() } => Class::refusal(errno::EFBIG),
            Url: RemoteError::Url { url: text(), what: text() } => Class::USAGE,
            Unsupported: RemoteError::Unsupported { what: text() } => Class::refusal(errno::EOPNOTSUPP),
            Option: OptionError::Unknown(text()).into() => Class::USAGE,
            Latched: RemoteError::Latched { first: Arc::new(RemoteError::Split { epoch: 2 }) } => Class::DEVICE,
        });
    }
}
