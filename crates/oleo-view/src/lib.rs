//! What a volume looks like: numbers behind pictures, the pictures, and an explorer in the browser.
//!
//! [`Map::read`] collects the numbers, in bounded memory, from the trees as the last commit left them; nothing is written, and what cannot be read is counted and passed over, so that
//! damaged volumes have a map too. [`to_svg`] and [`to_html`] draw it: one file, without scripts, that needs nothing else.
//!
//! [`answers`] are what an explorer shows of it, whoever asks; `explore` (a feature, on by default) is the server of one.
//!
//! Everything that comes from a volume (names, labels) is escaped where it is written out: [`name_text`] makes text of bytes, `draw::svg` makes markup of text.

pub mod answers;
mod draw;
#[cfg(feature = "explore")]
pub mod explore;
mod map;
mod text;

pub use draw::{to_html, to_svg};
pub use map::{
    Cells, DeviceBar, Finding, Findings, Generations, Group, Map, MapError, MapOptions, PathNode, Paths, Sample, Set,
    Sharing, Space, Stripe, Subvol,
};
pub use oleo_browse::name_text;
pub use text::human;
