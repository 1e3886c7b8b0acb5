//! Sending to an object store.

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use anyhow::Context;
use oleo::control::{Feed, Reply, Request, SentShown, Subvol};
use oleo::remote::streams::{StreamEntry, StreamName, Streams};
use oleo::remote::url::is_url;
use oleo::send::SendOptions;
use oleo::streams::{Base, StoredPlan, StoredUpload};
use oleo::{Image, TreeId};

use super::Args;
use crate::args::StoreArgs;
use crate::cmd::remote::streams::costs;
use crate::out::{Out, human, misuse};
use crate::target::{Target, answer};

/// Where the output goes, if that is a store.
pub(super) fn named(file: Option<&Path>) -> anyhow::Result<Option<StreamName>> {
    let Some(text) = file.and_then(Path::to_str).filter(|text| is_url(text)) else { return Ok(None) };
    let name = StreamName::parse(text).map_err(oleo::Error::from)?;
    if name.snapshot.is_some() {
        return Err(misuse!("the name of a snapshot is its own: -f has no ?snapshot="));
    }
    Ok(Some(name))
}

fn open(name: &StreamName, store: &StoreArgs) -> anyhow::Result<Streams> {
    Ok(Streams::open_or_make(&name.url, &store.places()?.remote).map_err(oleo::Error::from)?)
}

/// Sums up.
fn add(sum: &mut SentShown, sent: SentShown) {
    sum.bytes += sent.bytes;
    sum.commands += sent.commands;
    sum.data_bytes += sent.data_bytes;
    sum.cloned_bytes += sent.cloned_bytes;
}

fn note(out: &Out, streams: &Streams, entry: &StreamEntry, parent: Option<&str>) {
    let on = parent.map_or_else(|| "whole".into(), |parent| format!("on top of {parent}"));
    let (name, bytes, stored) = (&entry.name, human(entry.bytes), human(entry.stored_bytes));
    out.note(format!("{name}, {on}: {bytes} stored as {stored} at {}", streams.describe()));
    if entry.index_bytes == 0 {
        let text =
            format!("{name} has no index, so its files cannot be had without receiving it; more --memory may help");
        out.warnings(&[text]);
    }
}

/// Subvolumes of an image, each as a stream of its own.
pub(super) fn of_image(
    args: &Args,
    name: &StreamName,
    image: &Image,
    subvols: &[TreeId],
    options: &SendOptions<'_>,
    out: &Out,
) -> anyhow::Result<SentShown> {
    let streams = open(name, &args.others.store)?;
    let base = match options.parent {
        Some(parent) => Base::Parent(parent),
        None if args.incremental => Base::Best,
        None => Base::Whole,
    };
    let mut sum = SentShown::default();
    for subvol in subvols {
        let stored = image.send_to_store(&streams, *subvol, base, options)?;
        note(out, &streams, &stored.entry, stored.parent.as_deref());
        add(&mut sum, stored.sent.into());
    }
    costs(&streams, out);
    Ok(sum)
}

/// Subvolumes of a mount, whose server makes the streams.
pub(super) fn of_mount(args: &Args, name: &StreamName, mount: &Target, out: &Out) -> anyhow::Result<SentShown> {
    let id = |thing: &std::ffi::OsString| -> anyhow::Result<TreeId> {
        let shown =
            answer!(mount.ask(Request::SubvolShow { which: mount.which(thing)? })?, Reply::Subvol(shown) => shown)?;
        Ok(shown.subvol.id)
    };
    let ids = |things: &[std::ffi::OsString]| things.iter().map(id).collect::<anyhow::Result<Vec<_>>>();
    let (subvols, clone_sources) = (ids(&args.targets)?, ids(&args.clone_source)?);
    let base = match args.parent.as_ref().map(id).transpose()? {
        Some(parent) => Base::Parent(parent),
        None if args.incremental => Base::Best,
        None => Base::Whole,
    };
    let there: Vec<Subvol> = answer!(mount.ask(Request::SubvolList)?, Reply::Subvols(subvols) => subvols)?;
    let streams = open(name, &args.others.store)?;
    let mut sum = SentShown::default();
    for subvol in subvols {
        let list = streams.list().map_err(oleo::Error::from)?;
        let plan = StoredPlan::new(&list, &there, subvol, base, &clone_sources)?;
        let memory = usize::try_from(args.memory).unwrap_or(usize::MAX);
        let upload = StoredUpload::begin(&streams, plan.new, memory)?;
        let (back, lent) = channel();
        let which = oleo::control::SubvolRef::Id(subvol);
        let parent = plan.parent.map(oleo::control::SubvolRef::Id);
        let clone_sources = clone_sources.iter().map(|id| oleo::control::SubvolRef::Id(*id)).collect();
        let made =
            made_by(args, mount, vec![which], parent, clone_sources, Box::new(Lent { upload: Some(upload), back }));
        let upload = lent.recv().context("the upload is gone")?;
        let (entry, sent) = upload.finish(&list, made)?;
        note(out, &streams, &entry, plan.parent_name.as_deref());
        add(&mut sum, sent);
    }
    costs(&streams, out);
    Ok(sum)
}

/// Has the server make a stream, and waits for all of it.
fn made_by(
    args: &Args,
    mount: &Target,
    subvols: Vec<oleo::control::SubvolRef>,
    parent: Option<oleo::control::SubvolRef>,
    clone_sources: Vec<oleo::control::SubvolRef>,
    output: Box<dyn Write + Send>,
) -> oleo::Result<SentShown> {
    let (feed, collected) = Feed::collect(output).map_err(oleo::Error::Output)?;
    let request = Request::Send { subvols, parent, clone_sources, feed: feed.name(), how: args.how(None) };
    let reply = mount.ask(request);
    if reply.is_err() {
        feed.give_up();
    }
    let written = collected.join().unwrap_or_else(|_| Err(io::Error::other("the thread that stores it panicked")));
    // What could not be stored is why the server could not go on.
    written.map_err(oleo::Error::Output)?;
    match reply? {
        Reply::Sent(sent) => Ok(sent),
        other => Err(oleo::Error::Request(format!("unexpected reply from the mount's server: {other:?}"))),
    }
}

/// An upload that comes back when whoever writes to it is done.
struct Lent {
    upload: Option<StoredUpload>,
    back: Sender<StoredUpload>,
}

impl Write for Lent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.upload {
            Some(upload) => upload.write(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            // Nobody waits for it only after a panic.
            let _unwanted = self.back.send(upload);
        }
    }
}
