//! The pictures of a map: one SVG or HTML file, without scripts, that needs nothing else.
//!
//! Each picture is a `svg::Picture`: markup with a title and a description, and a table with the same numbers for whoever does not see it. Lists are cut at what a page can show, and
//! say how much is left out; what is left out of the pictures of subvolumes, block groups and paths is summed up there.
//!
//! Colours: those of types are from the palette of Okabe and Ito (Color Universal Design, 2008), which people with any kind of colour blindness tell apart; amounts go from dark blue to
//! yellow, so that more is lighter in any kind of sight. Nothing is said by colour alone: there are titles, legends and tables.

mod devices;
mod findings;
mod flow;
mod hilbert;
mod page;
mod paths;
mod space;
mod subvols;
mod svg;
mod time;

pub use page::{to_html, to_svg};
