//! The one error for "the image is damaged".

use std::borrow::Cow;
use std::fmt::Display;

use crate::failure::{Class, Classified};

/// Something on disk is not what the format allows: which structure, where, which field, what it is and what it should
/// be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt {structure}{}{at}: {what} is {have}, want {want}", if at.is_empty() { "" } else { " at " })]
pub struct Corruption {
    /// The structure that is wrong, by its name in the format.
    pub structure: &'static str,
    /// The place: a block and slot, a device offset. Empty while only an item by itself is checked.
    pub at: String,
    /// What about the structure is wrong.
    pub what: Cow<'static, str>,
    /// What was found.
    pub have: String,
    /// What would have been right.
    pub want: String,
}

impl Corruption {
    /// An error that does not know its place yet.
    #[cold]
    pub fn new(
        structure: &'static str,
        what: impl Into<Cow<'static, str>>,
        have: impl Display,
        want: impl Display,
    ) -> Corruption {
        Corruption { structure, at: String::new(), what: what.into(), have: have.to_string(), want: want.to_string() }
    }

    /// Returns the error with its place, before what is already known of the place.
    #[cold]
    pub fn within(mut self, place: impl Display) -> Corruption {
        self.at = if self.at.is_empty() { place.to_string() } else { format!("{place}, {}", self.at) };
        self
    }
}

impl Classified for Corruption {
    fn class(&self) -> Class {
        Class::DAMAGE
    }
}

/// Returns a [`Corruption`] unless the condition holds.
macro_rules! ensure {
    ($cond:expr, $structure:expr, $what:expr, $have:expr, $want:expr $(,)?) => {
        if !$cond {
            return Err($crate::error::Corruption::new($structure, $what, $have, $want));
        }
    };
}
pub(crate) use ensure;

/// Bytes in hexadecimal, for messages.
pub(crate) struct Hex<'a>(pub &'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
