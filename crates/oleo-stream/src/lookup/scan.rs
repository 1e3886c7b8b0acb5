//! Indexes of streams that lie somewhere without one: of every subvolume that an input has, in one pass.

use std::io::Read;

use oleo_format::Corruption;
use oleo_format::stream::Command;
use uuid::Uuid;

use super::LookupError;
use super::model::{Growing, Model, Odd};
use crate::{Commands, Limits};

/// A subvolume of an input. Its places are those in the whole input.
pub struct Scanned {
    pub(super) model: Model,
}

impl Scanned {
    /// The UUID of the snapshot.
    pub fn uuid(&self) -> Uuid {
        self.model.uuid
    }

    /// That of the snapshot it is built on.
    pub fn parent(&self) -> Option<Uuid> {
        self.model.parent
    }
}

/// Reads one stream or several, one behind the other, to the end, and returns the subvolumes in them. What is kept of them takes no more than
/// `bytes_max` of memory, about; that is taken off.
///
/// # Errors
/// It is no stream, or a damaged one, cannot be read, does what its own names do not allow, or has too much for the memory.
pub fn scan(input: impl Read, bytes_max: &mut usize) -> Result<Vec<Scanned>, LookupError> {
    let mut commands = Commands::new(input, Limits::default());
    let mut found = Vec::new();
    let mut growing: Option<Growing> = None;
    while let Some(next) = commands.next()? {
        let (position, len) = (next.position, next.bytes.len() as u32);
        let begins = match next.command {
            Command::Subvol { uuid, .. } => Some((uuid, None)),
            Command::Snapshot { uuid, clone_uuid, .. } => Some((uuid, Some(clone_uuid))),
            _ => None,
        };
        let taken = if let Some((uuid, parent)) = begins {
            let begun = Growing::new(next.version, uuid, parent);
            let taken = begun.bytes;
            found.extend(growing.replace(begun));
            taken
        } else if matches!(next.command, Command::End) {
            found.extend(growing.take());
            0
        } else {
            let odd = |Odd| {
                let wrong =
                    Corruption::new("stream", next.command.kind().name(), "one", "what the names before it allow");
                wrong.within(format!("byte {position} of the stream"))
            };
            let of_it = growing.as_mut().ok_or(Odd).map_err(odd)?;
            let before = of_it.bytes;
            of_it.command(&next.command, position, len).map_err(odd)?;
            of_it.bytes - before
        };
        *bytes_max = bytes_max.checked_sub(taken).ok_or_else(|| {
            let text = format!("the stream is about more files than can be looked at, from byte {position} on");
            LookupError::Unsupported(text)
        })?;
    }
    // The model is checked as one that is read from a store; its memory was counted above.
    let checked = |Growing { model, .. }| {
        let model = Model::decode(&model.encode(), &mut { usize::MAX })?;
        Ok(Scanned { model })
    };
    found.into_iter().map(checked).collect()
}

#[cfg(test)]
mod tests;
