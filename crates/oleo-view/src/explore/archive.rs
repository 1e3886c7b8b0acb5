//! Directories as tar archives, written as they are read, nested subvolumes included.
//!
//! An archive that is not whole does not end as if it were: what had to be left out ends it with an error, after everything else, which cuts the connection.

use std::io;

use oleo::restore::{RestoreOptions, restore_to_tar};
use oleo_browse::{Query, Refused, named};

use super::body::Pieces;
use super::reply::Reply;
use super::volume::Current;
use crate::name_text;

pub(super) fn tar(volume: &Current, query: &Query<'_>) -> Result<Reply, Refused> {
    let (image, (inode, name)) = volume.read(|image| Ok((image.clone(), named(image.fs(), query)?)))?;
    let file = [if name.is_empty() { b"volume" } else { &name[..] }, b".tar"].concat();
    let write = move |out: &mut Pieces| {
        let written = restore_to_tar(&image, &inode, &name, out, &RestoreOptions::default());
        match written.map_err(|error| io::Error::other(error.to_string()))?.warnings.first() {
            None => Ok(()),
            Some(warning) => {
                let warning = name_text(warning.as_bytes());
                Err(io::Error::other(format!("the archive is not whole: {warning}")))
            }
        }
    };
    Ok(Reply::download(&file, None, Box::new(write)))
}
