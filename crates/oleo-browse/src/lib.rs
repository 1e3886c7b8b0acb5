//! What an explorer shows of a volume: directories in pages, contents, search by name, comparisons of subvolumes, archives.
//!
//! [`answer`] takes a path and what is asked for and returns a [`Reply`]: bytes, or what writes them piece by piece. It knows nothing of who asks: the server of `oleo explore` sends replies over HTTP,
//! WebAssembly hands them to the page that it is part of. Both have the same page, `assets/`.
//!
//! Nothing is written; memory is bounded by the sizes of pages and the constants in each file, whatever the volume holds. What comes from a volume is bytes: names are shown as [`name_text`] makes them, and
//! come back percent-encoded.
//!
//! Not here: opening volumes; what needs more than files and trees (checks, maps).

mod archive;
mod compare;
mod files;
mod output;
mod query;
mod refused;
mod reply;
mod search;
mod subvolumes;
mod text;
mod zip;

use oleo_fs::Fs;

pub use files::{copy, file, find, named};
pub use output::Output;
pub use query::{Query, encoded};
pub use refused::{Refused, Unread, wrong};
pub use reply::{Content, Reply, Writer};
pub use text::name_text;

/// The page, what it runs, its style and its icon.
pub mod assets {
    /// HTML.
    pub const PAGE: &str = include_str!("../assets/index.html");
    /// JavaScript.
    pub const SCRIPT: &str = include_str!("../assets/app.js");
    /// CSS.
    pub const STYLE: &str = include_str!("../assets/app.css");
    /// SVG.
    pub const ICON: &str = include_str!("../assets/icon.svg");
}

/// Answers what is asked at an address; `None` if there is nothing at this one.
pub fn answer(fs: &Fs, address: &str, query: &Query<'_>) -> Option<Result<Reply, Unread>> {
    Some(match address {
        "api/subvolumes" => subvolumes::subvolumes(fs),
        "api/list" => files::list(fs, query),
        "api/text" => files::text(fs, query),
        "api/hex" => files::hex(fs, query),
        "image" => files::picture(fs, query),
        "file" => files::download(fs, query),
        "zip" => archive::zip(fs, query),
        "api/search" => search::search(fs, query),
        "api/compare" => compare::compare(fs, query),
        _ => return None,
    })
}
