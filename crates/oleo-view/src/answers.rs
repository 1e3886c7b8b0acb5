//! What an explorer shows that needs the whole library: maps, checks, tar archives. As with `oleo-browse`, which answers everything else, replies know nothing of who asks: the server of `oleo explore` or
//! the page that is alone.

mod check;

use std::io;
use std::sync::Arc;

use oleo::Image;
use oleo::restore::{RestoreOptions, restore_to_tar};
use oleo_browse::{Query, Refused, Reply, Unread, named};

use crate::{Map, MapError, name_text, to_html, to_svg};

pub use check::{Checked, Pace, check};

/// A map as a page, as a picture or in numbers; `None` if it is none of these that is at an address.
pub fn map(address: &str, map: impl FnOnce() -> Result<Arc<Map>, MapError>) -> Option<Result<Reply, Refused>> {
    let shown: fn(&Map) -> Reply = match address {
        "map.html" => |map| Reply::shown("text/html; charset=utf-8", to_html(map)),
        "map.svg" => |map| Reply::shown("image/svg+xml", to_svg(map)),
        "map.json" => |map| Reply::json(map),
        _ => return None,
    };
    Some(map().map(|map| shown(&map)).map_err(|error| match error {
        MapError::Oleo(error) => Refused::of(&error),
        MapError::Findings(_) => Refused { status: 500, why: error.to_string() },
    }))
}

/// A directory as a tar archive, written as it is read, nested subvolumes included.
///
/// An archive that is not whole does not end as if it were: what had to be left out ends it with an error, after everything else.
///
/// # Errors
/// There is no such directory.
pub fn tar(image: &Arc<Image>, query: &Query<'_>) -> Result<Reply, Unread> {
    let (inode, name) = named(image.fs(), query)?;
    let file = [if name.is_empty() { b"volume" } else { &name[..] }, b".tar"].concat();
    let image = image.clone();
    Ok(Reply::download(&file, None, move |out| {
        // Whoever sends it does so beside.
        let written = restore_to_tar(&image, &inode, &name, out, &RestoreOptions::default().threads(1));
        match written.map_err(|error| io::Error::other(error.to_string()))?.warnings.first() {
            None => Ok(()),
            Some(warning) => {
                let warning = name_text(warning.as_bytes());
                Err(io::Error::other(format!("the archive is not whole: {warning}")))
            }
        }
    }))
}
