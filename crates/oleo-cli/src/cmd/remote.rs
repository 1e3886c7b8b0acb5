//! `oleo remote`: volumes on object stores as such, whatever is in them.

mod bench;
mod branch;
mod detach;
mod gc;
mod key;
mod pin;
mod probe;
mod show;
pub(crate) mod streams;
mod unpin;
mod verify;

use std::sync::Arc;

use oleo::remote::store::Store;
use oleo::remote::{StoreOptions, Url, open_store};

use crate::args::StoreArgs;
use crate::out::Out;

/// Show and manage volumes on object stores
///
/// A volume is named by a URL wherever other commands take IMG: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or
/// file:///DIRECTORY. With ?pin=NAME behind it the pin of that name is meant, which can only be read.
///
/// Keys and regions come from where the programs of those clouds have them: variables of the environment (AWS_*, GOOGLE_*,
/// AZURE_*), and for S3 the profiles in ~/.aws. docs/remote.md has more.
#[derive(clap::Subcommand)]
#[command(after_help = "Options of --remote, and of mount's -o:\n  \
    take-over          take over a volume that another writer holds or left open, which fences that writer off\n  \
    claim=SECONDS      let others take over by themselves after so long without a sign of life; 0: never\n  \
    release-idle       let go of the volume while there is nothing to write for the time of the claim\n  \
    grace=SECONDS      keep what died for so long, for readers that have no lease yet\n  \
    lease              keep what is read from the beginning, not only after ten minutes\n  \
    endpoint=URL       where the store is, if not where its cloud has it\n  \
    region=NAME        the region of an S3 store\n  \
    profile=NAME       take keys and region from this profile of ~/.aws\n  \
    proxy=URL          reach the store through this proxy\n  \
    bare-etags         write names of contents in conditions without quotation marks (Ceph's gateway)\n  \
    flush-max=SECONDS  after so long without success an fsync fails, and nothing is written any more\n  \
    read-max=SECONDS   after so long without success a read fails\n  \
    attach-max=SECONDS after so long without success opening fails\n  \
    dirty=BYTES        most memory for what is written and not stored yet\n  \
    read-cache=BYTES   memory for what was read\n  \
    map-memory=BYTES   memory for the map of where data is\n  \
    segment=BYTES      length of the objects that data is stored in\n  \
    inline=BYTES       what is shorter is stored in the head, which saves a request\n  \
    key-file=FILE      what opens an encrypted volume, and encrypts one that is made: 32 bytes, or 64 hexadecimal digits\n  \
    passphrase-file=FILE  the same with a passphrase, the first line of a file\n  \
    compress           compress what is written to a volume that is made\n  \
    cache=DIRECTORY    keep what was read on the local disk\n  \
    cache-bytes=BYTES  how much of it\n  \
    durable=local      let an fsync return when a log in that directory has it, before the store has; or remote\n  \
    log-bytes=BYTES    how long that log may be\n  \
    probe=no           make a volume without finding out whether the store keeps conditions\n  \
    accept-older       open a volume although it is older than it was when it was last seen\n  \
    trust-origins      open the parent of an unencrypted branch in another bucket or directory\n  \
    AWS_…=VALUE        as the variable of that name; also GOOGLE_… and AZURE_…\n\n\
    The variable OLEO_REMOTE has such options for all commands.")]
pub(crate) enum Command {
    Show(show::Args),
    Pin(pin::Args),
    Unpin(unpin::Args),
    Branch(branch::Args),
    Detach(detach::Args),
    Gc(gc::Args),
    Verify(verify::Args),
    Probe(probe::Args),
    Bench(bench::Args),
    #[command(subcommand)]
    Key(key::Command),
    #[command(subcommand)]
    Streams(streams::Command),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Show(args) => args.run(),
            Command::Pin(args) => args.run(out),
            Command::Unpin(args) => args.run(out),
            Command::Branch(args) => args.run(out),
            Command::Detach(args) => args.run(out),
            Command::Gc(args) => args.run(out),
            Command::Verify(args) => args.run(out),
            Command::Probe(args) => args.run(),
            Command::Bench(args) => args.run(),
            Command::Key(command) => command.run(out),
            Command::Streams(command) => command.run(out),
        }
    }
}

/// A volume on an object store.
#[derive(clap::Args)]
pub(crate) struct VolumeUrl {
    /// The volume: s3://BUCKET/PREFIX, gs://…, az://…, file:///DIRECTORY.
    #[arg(value_name = "URL")]
    pub url: String,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// A volume whose store can be asked.
pub(crate) struct Opened {
    pub url: Url,
    pub store: Arc<dyn Store>,
    pub options: StoreOptions,
}

impl VolumeUrl {
    /// Finds the store; nothing is asked of it.
    pub fn open(&self) -> oleo::Result<Opened> {
        let options = self.store.places()?.remote;
        let url = Url::parse(&self.url)?;
        let store = open_store(&url, &options)?;
        Ok(Opened { url, store, options })
    }
}
