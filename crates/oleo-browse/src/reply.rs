//! Answers that are ready to begin.

use std::io;

use serde::Serialize;

use crate::output::Output;

/// What writes an answer. An error means that it is not whole.
pub type Writer = Box<dyn FnOnce(&mut dyn Output) -> io::Result<()> + Send>;

/// An answer that is ready to begin.
pub struct Reply {
    /// Its media type.
    pub kind: &'static str,
    /// What comes from the volume as it is: the name to save it under, or none for what is shown. It must never run.
    pub raw: Option<Vec<u8>>,
    /// What it says.
    pub content: Content,
}

/// What an answer says.
pub enum Content {
    /// This.
    Whole(Vec<u8>),
    /// What is written, and its length if it is known.
    Written(Writer, Option<u64>),
}

impl Reply {
    /// A value.
    pub fn json(value: &impl Serialize) -> Reply {
        // What is said here has names of text only, which cannot fail.
        let bytes = serde_json::to_vec(value).unwrap_or_default();
        Reply { kind: "application/json", raw: None, content: Content::Whole(bytes) }
    }

    /// What is made here, to be shown.
    pub fn shown(kind: &'static str, text: String) -> Reply {
        Reply { kind, raw: None, content: Content::Whole(text.into_bytes()) }
    }

    /// Values, one a line, as they are found.
    pub fn lines(write: impl FnOnce(&mut dyn Output) -> io::Result<()> + Send + 'static) -> Reply {
        Reply { kind: "application/x-ndjson", raw: None, content: Content::Written(Box::new(write), None) }
    }

    /// Contents of a volume, to be saved under a name.
    pub fn download(
        name: &[u8],
        len: Option<u64>,
        write: impl FnOnce(&mut dyn Output) -> io::Result<()> + Send + 'static,
    ) -> Reply {
        Reply {
            kind: "application/octet-stream",
            raw: Some(name.to_vec()),
            content: Content::Written(Box::new(write), len),
        }
    }

    /// A picture of a volume.
    pub fn picture(kind: &'static str, bytes: Vec<u8>) -> Reply {
        Reply { kind, raw: Some(Vec::new()), content: Content::Whole(bytes) }
    }
}
