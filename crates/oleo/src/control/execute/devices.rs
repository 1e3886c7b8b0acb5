//! Requests that change which devices a volume has.

use std::path::Path;

use crate::Image;
use crate::control::error::Error;
use crate::control::reply::Reply;
use crate::control::request::DeviceChange;
use crate::devices::AddOptions;

pub(super) fn change(image: &Image, change: DeviceChange) -> Result<Reply, Error> {
    Ok(match change {
        DeviceChange::Add { place, force, discard } => {
            let options = AddOptions::default().force(force).discard(discard);
            Reply::Number(image.device_add(Path::new(&place), &options)?.0)
        }
        DeviceChange::Sprout { place, force, discard } => {
            let options = AddOptions::default().force(force).discard(discard);
            image.sprout_beside(Path::new(&place), &options)?.close()?;
            Reply::Done
        }
        DeviceChange::Remove { which, avoid_reading } => {
            Reply::DeviceRemoved(image.device_remove(&which, avoid_reading)?)
        }
        DeviceChange::Replace { source, place, force, discard, avoid_reading } => {
            let options = AddOptions::default().force(force).discard(discard);
            image.device_replace(&source, Path::new(&place), &options, avoid_reading)?;
            Reply::Done
        }
        DeviceChange::ResumeReplace => image.replacer().resume().map(|()| Reply::Done)?,
        DeviceChange::CancelReplace => image.replacer().cancel().map(|()| Reply::Done)?,
        DeviceChange::CancelRemoval => image.members().cancel().map(|()| Reply::Done)?,
    })
}
