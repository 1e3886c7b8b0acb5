//! Why there is no map.

use std::fmt;

/// Why a volume has no map.
#[derive(Debug)]
pub enum MapError {
    /// What the library says.
    Oleo(oleo::Error),
    /// The text of findings is not what `oleo check --json` or `oleo scrub --json` writes.
    Findings(String),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::Oleo(error) => error.fmt(f),
            MapError::Findings(why) => write!(f, "no findings of a check or scrub: {why}"),
        }
    }
}

impl std::error::Error for MapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MapError::Oleo(error) => Some(error),
            MapError::Findings(_) => None,
        }
    }
}

impl From<oleo::Error> for MapError {
    fn from(error: oleo::Error) -> MapError {
        MapError::Oleo(error)
    }
}
