//! Receiving from an object store: a snapshot, and before it what it is built on.

use std::io::Read;
use std::path::Path;

use oleo::control::{Reply, Request, Subvol};
use oleo::remote::RemoteError;
use oleo::remote::streams::{ChainBytes, StreamList, StreamName, Streams, find};
use oleo::remote::url::is_url;
use oleo::streams::missing;

use super::{Args, apply, print_report, reported};
use crate::cmd::remote::streams::costs;
use crate::out::{Out, misuse};
use crate::target::{self, answer};

/// What the input is, if it is on a store.
pub(super) fn named(file: Option<&Path>) -> anyhow::Result<Option<StreamName>> {
    let Some(text) = file.and_then(Path::to_str).filter(|text| is_url(text)) else { return Ok(None) };
    Ok(Some(StreamName::parse(text).map_err(oleo::Error::from)?))
}

/// Streams on a store.
pub(super) struct Stored {
    streams: Streams,
    list: StreamList,
    snapshot: Option<String>,
}

impl Stored {
    pub fn open(args: &Args, name: &StreamName) -> anyhow::Result<Stored> {
        if args.terminate_on_end {
            return Err(misuse!("-e is not for stores: each stream there is one"));
        }
        let places = args.others.store.places()?;
        let streams = Streams::open(&name.url, &places.remote).map_err(oleo::Error::from)?;
        let list = streams.list().map_err(oleo::Error::from)?;
        Ok(Stored { streams, list, snapshot: name.snapshot.clone() })
    }

    pub fn run(&self, args: &Args, out: &Out) -> anyhow::Result<()> {
        if args.dump {
            let stream = find(&self.list, self.snapshot.as_deref()).map_err(oleo::Error::from)?;
            let bytes = ChainBytes::open(&self.streams, &[stream]).map_err(oleo::Error::from)?;
            let error = bytes.error();
            let done = args.dump(Box::new(bytes));
            return blamed(error.get(), done);
        }
        let Some(target) = &args.target else { return Err(misuse!("missing argument IMG or PATH")) };
        let done = self.receive(args, target, out);
        costs(&self.streams, out);
        done
    }

    fn receive(&self, args: &Args, target: &Path, out: &Out) -> anyhow::Result<()> {
        let how = args.how();
        if args.to_dir {
            // Snapshots are copies of what is received before them, so all of it is one input.
            let bytes = self.missing(&[])?;
            let (error, total) = (bytes.error(), bytes.len());
            let input = reported(Box::new(bytes), Some(total), out);
            let (report, result) = oleo::receive::receive_to_dir(target, input, &how);
            print_report(out, &report);
            return blamed(error.get(), result.map_err(Into::into));
        }
        match target::mount_of(target)? {
            Some(mount) => {
                let there = answer!(mount.ask(Request::SubvolList)?, Reply::Subvols(subvols) => subvols)?;
                self.each(&there, out, |input| args.on_mount(&mount, target, input, out))
            }
            None => {
                let image = args.open(target, &how)?;
                let there = image.subvols()?;
                self.each(&there, out, |input| Ok(apply(&image, input, &how, out)?))?;
                Ok(image.close()?)
            }
        }
    }

    fn missing(&self, there: &[Subvol]) -> oleo::Result<ChainBytes> {
        let chain = missing(&self.list, self.snapshot.as_deref(), there)?;
        Ok(ChainBytes::open(&self.streams, &chain)?)
    }

    /// Receives what is missing, each stream by itself, so that one that was cut can be resumed.
    fn each(
        &self,
        there: &[Subvol],
        out: &Out,
        mut receive: impl FnMut(Box<dyn Read + Send>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let missing = self.missing(there)?.split();
        if missing.is_empty() {
            out.note("the snapshot is there already");
        }
        for bytes in missing {
            let (error, total) = (bytes.error(), bytes.len());
            let done = receive(reported(Box::new(bytes), Some(total), out));
            blamed(error.get(), done)?;
        }
        Ok(())
    }
}

/// Of a receive that failed because the input could not be read, the error that says why.
fn blamed(error: Option<&RemoteError>, done: anyhow::Result<()>) -> anyhow::Result<()> {
    match error {
        Some(error) if done.is_err() => Err(oleo::Error::from(error.clone()).into()),
        _ => done,
    }
}
