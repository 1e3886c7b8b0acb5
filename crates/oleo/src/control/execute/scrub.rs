//! Requests about scrub.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Image;
use crate::control::bytes::Bytes;
use crate::control::error::Error;
use crate::control::reply::{Reply, ScrubShown};
use crate::control::request::ScrubChange;
use crate::scrub::{Candidates, Sources};

/// Carries a change out, or leaves it to whoever runs scrubs.
pub(super) fn change(image: &Image, change: ScrubChange) -> Result<Reply, Error> {
    let scrubber = image.scrubber();
    Ok(match change {
        ScrubChange::Start { want, from } => Reply::Number(scrubber.start_from(want, sources(&from)?)?),
        ScrubChange::Resume { want, from } => Reply::Number(scrubber.resume_from(want, sources(&from)?)?),
        ScrubChange::Cancel => scrubber.cancel().map(|()| Reply::Done)?,
        ScrubChange::Limit { limits } => {
            limits.into_iter().for_each(|(device, bytes_per_second)| scrubber.limit(device, bytes_per_second));
            Reply::Done
        }
    })
}

/// Who has what no copy has.
fn sources(from: &[Bytes]) -> Result<Option<Arc<dyn Candidates>>, Error> {
    if from.is_empty() {
        return Ok(None);
    }
    let paths: Vec<PathBuf> = from.iter().map(|path| OsStr::from_bytes(&path.0).into()).collect();
    Ok(Some(Arc::new(Sources::open(&paths)?)))
}

/// How it is, with the files that could not be healed if they are wanted.
pub(super) fn status(image: &Image, files: bool) -> Result<Reply, Error> {
    let status = image.scrub_status();
    let (unhealed, healed) = if files { (image.scrub_unhealed()?, image.scrub_healed()?) } else { Default::default() };
    let fsid = image.volume().super_block().fsid();
    let paths = image.volume().devices().into_iter().map(|device| (device.devid, device.name.into())).collect();
    Ok(Reply::Scrub(Box::new(ScrubShown { fsid, status, unhealed, healed, paths, unkept: image.scrubber().unkept() })))
}
