//! Requests about scrub.

use crate::Image;
use crate::control::error::Error;
use crate::control::reply::{Reply, ScrubShown};
use crate::control::request::ScrubChange;

/// Carries a change out, or leaves it to whoever runs scrubs.
pub(super) fn change(image: &Image, change: ScrubChange) -> Result<Reply, Error> {
    let scrubber = image.scrubber();
    Ok(match change {
        ScrubChange::Start { want } => Reply::Number(scrubber.start(want)?),
        ScrubChange::Resume { want } => Reply::Number(scrubber.resume(want)?),
        ScrubChange::Cancel => scrubber.cancel().map(|()| Reply::Done)?,
        ScrubChange::Limit { limits } => {
            limits.into_iter().for_each(|(device, bytes_per_second)| scrubber.limit(device, bytes_per_second));
            Reply::Done
        }
    })
}

/// How it is, with the files that could not be healed if they are wanted.
pub(super) fn status(image: &Image, files: bool) -> Result<Reply, Error> {
    let status = image.scrub_status();
    let unhealed = if files { image.scrub_unhealed()? } else { Vec::new() };
    let fsid = image.volume().super_block().fsid();
    let paths = image.volume().devices().into_iter().map(|device| (device.devid, device.name.into())).collect();
    Ok(Reply::Scrub(Box::new(ScrubShown { fsid, status, unhealed, paths, unkept: image.scrubber().unkept() })))
}
