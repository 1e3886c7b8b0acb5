//! `oleo remote streams`

mod cat;
mod gc;
mod get;
mod list;
mod ls;
mod prune;
mod repack;
mod restore;
mod verify;

use oleo::remote::streams::{StreamEntry, StreamList, StreamName, Streams, find};

use crate::args::StoreArgs;
use crate::out::Out;

/// Show and manage snapshots that are kept as streams on an object store
///
/// "oleo send -f s3://BUCKET/PREFIX" puts them there, "oleo receive -f" takes them back. A stream is whole, or the difference to another one
/// that is there, too; what a stream is built on stays as long as the stream does. The prefix is one for streams alone.
#[derive(clap::Subcommand)]
#[command(after_help = "Examples:\n  \
    oleo send disk.img --subvol monday -f s3://bucket/backups\n  \
    oleo send disk.img --subvol tuesday --incremental -f s3://bucket/backups\n  \
    oleo remote streams list s3://bucket/backups\n  \
    oleo remote streams restore 's3://bucket/backups?snapshot=monday' home/me/letter.txt letter\n  \
    oleo remote streams prune s3://bucket/backups --keep-last 3 --keep-daily 7 --keep-monthly 12\n  \
    oleo receive other.img -f s3://bucket/backups")]
pub(crate) enum Command {
    List(list::Args),
    Verify(verify::Args),
    Prune(prune::Args),
    Repack(repack::Args),
    Gc(gc::Args),
    Get(get::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Restore(restore::Args),
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::List(args) => args.run(out),
            Command::Verify(args) => args.run(out),
            Command::Prune(args) => args.run(out),
            Command::Repack(args) => args.run(out),
            Command::Gc(args) => args.run(out),
            Command::Get(args) => args.run(out),
            Command::Ls(args) => args.run(out),
            Command::Cat(args) => args.run(out),
            Command::Restore(args) => args.run(out),
        }
    }
}

/// Streams on an object store.
#[derive(clap::Args)]
pub(crate) struct StreamsUrl {
    /// Where they are: s3://BUCKET/PREFIX, gs://…, az://…, file:///DIRECTORY. With ?snapshot=NAME behind it one snapshot is meant, by its
    /// name, its UUID or the id of its stream; else the newest.
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    store: StoreArgs,
}

/// Streams that can be asked.
pub(crate) struct Opened {
    pub streams: Streams,
    pub list: StreamList,
    snapshot: Option<String>,
}

impl StreamsUrl {
    /// Opens them.
    pub fn open(&self) -> oleo::Result<Opened> {
        let name = StreamName::parse(&self.url)?;
        let streams = Streams::open(&name.url, &self.store.places()?.remote)?;
        let list = streams.list()?;
        Ok(Opened { streams, list, snapshot: name.snapshot })
    }
}

impl Opened {
    /// The stream that is meant.
    pub fn stream(&self) -> oleo::Result<&StreamEntry> {
        Ok(find(&self.list, self.snapshot.as_deref())?)
    }

    /// Says what it cost, to those who want to know.
    pub fn costs(&self, out: &Out) {
        costs(&self.streams, out);
    }
}

/// Says what was asked of a store, to those who want to know.
pub(crate) fn costs(streams: &Streams, out: &Out) {
    out.detail(|| {
        let counts = streams.counts();
        let asked = counts.iter().filter(|(name, n)| *n > 0 && !name.starts_with("us to "));
        asked.map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
    });
}
