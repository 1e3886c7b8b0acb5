//! Carrying out requests on an open image.
//!
//! A request is whole or an error, but for those that say otherwise. What a snapshot is of is on disk when its request
//! is done, as with the kernel, and so is a new label; other changes are durable with the next commit.

mod balance;
mod devices;
mod names;
mod properties;
mod quota;
mod receive;
mod scrub;
mod send;
mod space;
mod subvols;

use oleo_format::TreeId;
use oleo_fs::{FileKind, FsError, InodeRef, Received, Time, errno};
use oleo_jobs::{DefragOptions, TrimRange};

use super::caller::{Caller, READ, WRITE, is_subvol_root};
use super::error::Error;
use super::invalidation::Invalidation;
use super::location::Location;
use super::reply::{DeviceCounts, DuLine, QgroupStats, Reply, Stats, Subvol};
use super::request::Request;
use crate::{Hint, Image, SubvolRef};

type Done = (Reply, Vec<Invalidation>);

/// Carries out a request for a caller.
///
/// # Errors
/// The caller may not, or it cannot be done.
pub fn execute(image: &Image, caller: &Caller, request: Request) -> Result<(Reply, Vec<Invalidation>), Error> {
    let ask = Executor { image, caller };
    match request {
        Request::SubvolCreate { at, parents, groups } => ask.create(&at, parents, &groups),
        Request::Snapshot { source, at, read_only, into, groups } => {
            let at = if into { ask.inside_of(&source, at)? } else { at };
            ask.snapshot(&source, &at, read_only, &groups)
        }
        Request::SubvolDelete { which, recursive } => ask.delete(&which, recursive),
        Request::SetDefault { which } => ask.set_default(&which),
        Request::SetReceived { which, uuid, stransid, stime } => {
            let stime = Time { sec: stime.0, nsec: stime.1 };
            ask.set_received(&which, &Received { uuid, stransid, stime })
        }
        Request::Receive { into, feed, rebase, how } => {
            let rebase = rebase.map(|which| ask.subvol(&which).map(|root| root.tree())).transpose()?;
            receive::receive(image, caller, &into, &feed, rebase, &how)
        }
        Request::Send { subvols, parent, clone_sources, feed, how } => {
            caller.must_be_privileged("send")?;
            let id = |which: &SubvolRef| ask.subvol(which).map(|root| root.tree());
            let parts = send::Parts {
                subvols: subvols.iter().map(id).collect::<Result<_, _>>()?,
                parent: parent.as_ref().map(id).transpose()?,
                clone_sources: clone_sources.iter().map(id).collect::<Result<_, _>>()?,
            };
            changed(send::send(image, caller, parts, &feed, &how)?, vec![])
        }
        Request::PropertySet { at, property, force } => ask.set_property(&at, &property, force),
        Request::DeviceErrors { reset, only } => {
            caller.must_be_privileged("see the errors of devices")?;
            let is_asked_for = |devid| only.is_none_or(|only| only == devid);
            if !image.volume().devices().iter().any(|device| is_asked_for(device.devid)) {
                return Err(Error::refused(errno::ENODEV, "there is no such device"));
            }
            let mut errors = if reset { space::reset_errors(image, &is_asked_for)? } else { space::errors(image) };
            errors.retain(|of| is_asked_for(of.devid));
            changed(Reply::DeviceErrors(errors), vec![])
        }
        Request::SetLabel { label } => {
            caller.must_be_privileged("change the label")?;
            image.set_label(&label.0)?;
            image.fs().commit()?;
            changed(Reply::Done, vec![])
        }
        Request::Resize { devid, to } => {
            caller.must_be_privileged("resize")?;
            changed(Reply::Resized(oleo_jobs::resize(image.fs(), image.balancer(), devid, to)?), vec![])
        }
        Request::Defragment { at, recursive, options } => ask.defragment(&at, recursive, &options),
        Request::Trim { start, len, min_len } => {
            caller.must_be_privileged("trim")?;
            let range = TrimRange { start, len, min_len };
            changed(Reply::Bytes(oleo_jobs::trim(image.fs(), &range)?), vec![])
        }
        Request::QuotaChange { change } => {
            caller.must_be_privileged("change quota")?;
            quota::change(image.fs(), change, |which| Ok(ask.subvol(which)?.tree()))?;
            changed(Reply::Done, vec![])
        }
        Request::Balance { change } => {
            caller.must_be_privileged("balance")?;
            changed(balance::change(image.balancer(), change)?, vec![])
        }
        Request::Device { change } => {
            caller.must_be_privileged("change the devices")?;
            changed(devices::change(image, change)?, vec![])
        }
        Request::Scrub { change } => {
            caller.must_be_privileged("scrub")?;
            changed(scrub::change(image, change)?, vec![])
        }
        Request::Reclaim { percent } => {
            caller.must_be_privileged("move block groups")?;
            changed(Reply::Reclaimed(oleo_jobs::reclaim(image.fs(), image.balancer(), percent)?), vec![])
        }
        Request::Sync => changed(Reply::Generation(image.sync()?), vec![]),
        reads => Ok((ask.look(reads)?, Vec::new())),
    }
}

fn changed(reply: Reply, invalid: Vec<Invalidation>) -> Result<Done, Error> {
    Ok((reply, invalid))
}

/// A request's surroundings.
struct Executor<'a> {
    image: &'a Image,
    caller: &'a Caller,
}

impl Executor<'_> {
    /// Requests that change nothing.
    fn look(&self, request: Request) -> Result<Reply, Error> {
        let fs = self.image.fs();
        Ok(match request {
            Request::SubvolList => {
                self.caller.must_be_privileged("list all subvolumes")?;
                Reply::Subvols(fs.subvol_list()?.into_iter().map(Subvol::from).collect())
            }
            Request::SubvolShow { which } => self.show(self.subvol(&which)?.tree())?,
            Request::GetDefault => {
                self.caller.must_be_privileged("ask for the default subvolume")?;
                self.show(fs.default_subvol()?)?
            }
            Request::SubvolPending { ids } => {
                if ids.is_empty() {
                    self.caller.must_be_privileged("list what was deleted")?;
                }
                let mut dead = fs.engine().dead_trees()?;
                dead.retain(|id| ids.is_empty() || ids.contains(id));
                Reply::Subvolumes(dead)
            }
            Request::FindNew { which, since } => self.find_new(&which, since)?,
            Request::LogicalResolve { at, paths } => {
                self.caller.must_be_privileged("turn numbers into names")?;
                self.places(at, paths)?
            }
            Request::Quota => {
                self.caller.must_be_privileged("list quota groups")?;
                Reply::Quota(quota::show(fs)?.map(Box::new))
            }
            Request::BalanceStatus => {
                self.caller.must_be_privileged("ask for the balance")?;
                Reply::Balance(Box::new(self.image.balancer().status()))
            }
            Request::DeviceJob => {
                self.caller.must_be_privileged("ask for work on devices")?;
                Reply::DeviceJob(self.image.members().status())
            }
            Request::ScrubStatus { files } => {
                self.caller.must_be_privileged("ask for the scrub")?;
                scrub::status(self.image, files)?
            }
            Request::ReplaceStatus => {
                self.caller.must_be_privileged("ask for work on devices")?;
                Reply::Replace(Box::new(self.image.replacer().status()))
            }
            Request::SubvolSizes => {
                self.caller.must_be_privileged("list all subvolumes")?;
                Reply::Sizes(oleo_jobs::subvol_sizes(fs)?.into_iter().map(Into::into).collect())
            }
            Request::Frees { subvols } => {
                self.caller.must_be_privileged("sum up subvolumes")?;
                let set: Vec<TreeId> =
                    subvols.iter().map(|which| Ok(self.subvol(which)?.tree())).collect::<Result<_, Error>>()?;
                Reply::Bytes(oleo_format::ByteLen(oleo_jobs::frees(fs, &set)?))
            }
            Request::Df => Reply::Df(space::groups(self.image)),
            Request::Stats => {
                let counts = self.image.volume().devices().into_iter().filter_map(DeviceCounts::of);
                let own_path = |mut device: DeviceCounts| {
                    if !self.caller.privileged {
                        device.path = device.path.file_name().map(Into::into).unwrap_or_default();
                    }
                    device
                };
                Reply::Stats(Box::new(Stats {
                    log: fs.log_stats().into(),
                    qgroup: QgroupStats { dirty_extents: fs.engine().quota_dirty_extents() },
                    inodes: fs.inodes_in_memory() as u64,
                    nodes: None,
                    devices: counts.map(own_path).collect(),
                    rows: self.image.volume().has_parity().then(|| self.image.volume().row_stats().into()),
                }))
            }
            Request::Usage => {
                let mut usage = space::usage(self.image);
                if !self.caller.privileged {
                    // Where files are on the machine is nobody else's business.
                    for device in &mut usage.devices {
                        device.path = device.path.file_name().map(Into::into).unwrap_or_default();
                    }
                }
                Reply::Usage(Box::new(usage))
            }
            Request::Du { at } => {
                let inode = self.find(&at)?;
                match fs.attr(&inode).kind {
                    // What is below may belong to anybody.
                    FileKind::Dir => self.caller.must_be_privileged("sum up directories")?,
                    _ => self.caller.must_have(fs, &inode, READ)?,
                }
                let mut lines = Vec::new();
                let whole = self.image.du(&inode, |name, usage| lines.push(DuLine { path: name.into(), usage }))?;
                lines.push(DuLine { path: Default::default(), usage: whole });
                Reply::Du(lines)
            }
            Request::Label => Reply::Label(self.image.label().into()),
            Request::PropertyGet { at, name } => Reply::Properties(self.properties(&at, name.as_deref())?),
            Request::InodeResolve { tree, ino } => {
                self.caller.must_be_privileged("turn numbers into names")?;
                let inode = fs.inode(&fs.subvol(tree)?, ino)?;
                let paths = self.image.paths(&inode)?;
                Reply::Paths(paths.into_iter().map(Into::into).collect())
            }
            Request::SubvolPath { id } => {
                self.caller.must_be_privileged("turn numbers into names")?;
                Reply::Paths(vec![fs.subvol_info(id)?.path.into()])
            }
            Request::Rootid { at } => Reply::Made(self.find(&at)?.tree()),
            other => return Err(Error::refused(errno::EOPNOTSUPP, format!("{other:?} changes something"))),
        })
    }

    fn find(&self, at: &Location) -> Result<InodeRef, Error> {
        self.caller.find(self.image, at)
    }

    /// The root directory of a subvolume.
    fn subvol(&self, which: &SubvolRef) -> Result<InodeRef, Error> {
        match which {
            SubvolRef::Id(id) => {
                self.caller.must_be_privileged("name subvolumes by number")?;
                Ok(self.image.fs().root(*id)?)
            }
            SubvolRef::At(at) => {
                let inode = self.find(at)?;
                if !is_subvol_root(&inode) {
                    return Err(Error::refused(errno::EINVAL, "not a subvolume"));
                }
                Ok(inode)
            }
        }
    }

    fn defragment(&self, at: &Location, recursive: bool, options: &DefragOptions) -> Result<Done, Error> {
        let fs = self.image.fs();
        let inode = self.find(at)?;
        match fs.attr(&inode).kind {
            FileKind::Dir if !recursive => {
                let mut error: Error = FsError::IsDir.into();
                error.hint = Some(Hint::IncludeContents);
                return Err(error);
            }
            FileKind::Dir => self.caller.must_be_privileged("defragment whole directories")?,
            _ => self.caller.must_have(fs, &inode, WRITE)?,
        }
        if inode.subvol().is_read_only() {
            return Err(FsError::ReadOnly("the subvolume is read-only").into());
        }
        let mut skipped = Vec::new();
        let done = oleo_jobs::defragment(fs, &inode, options, &mut |file, why| {
            let name = self.first_path(file, file.ino()).unwrap_or_default();
            skipped.push(format!("{}: {why}", String::from_utf8_lossy(&name.0)));
        })?;
        changed(
            Reply::Defragmented { done, skipped },
            vec![Invalidation::Inode { tree: inode.tree(), ino: inode.ino() }],
        )
    }
}
