//! Gathers commands into blocks on a thread of its own, so that the stream is read and verified while earlier commands
//! are applied.
//!
//! Memory: [`BLOCKS_AHEAD`] blocks wait, one is being filled, one applied; each holds [`BLOCK_BYTES`] and one command.
//! A target may keep a few more ([`Buffer`]). Their memory is reused.
//! The thread ends with the stream, with an error, or when nobody takes blocks any more. It is not joined: it may be
//! inside a read that lasts as long as the sender likes.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;

use oleo_format::stream::{COMMAND_HEAD_LEN, Command};

use crate::{Commands, Limits, StreamError};

/// Bytes of commands from which on a block is full.
const BLOCK_BYTES: usize = 4 << 20;
/// Room for the command that fills it: longer ones are rare.
const BLOCK_ROOM: usize = BLOCK_BYTES + (512 << 10);
/// Commands from which on a block is full.
const BLOCK_COMMANDS: usize = 8192;
/// Blocks that wait to be applied.
const BLOCKS_AHEAD: usize = 2;

/// Some commands.
pub(super) struct Block {
    bytes: Arc<Buffer>,
    entries: Vec<Entry>,
    /// What ended the stream after them.
    pub error: Option<StreamError>,
}

struct Entry {
    position: u64,
    version: u32,
    kind: u16,
    /// The range of the command in `bytes`, with its header.
    range: Range<usize>,
}

/// The bytes of a block, which live as long as they are used.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Takes them back to be reused.
    home: Sender<Vec<u8>>,
}

impl Buffer {
    /// The range of a part of it.
    ///
    /// # Panics
    /// `part` is not a part of it.
    pub fn place(&self, part: &[u8]) -> Range<usize> {
        let from = (part.as_ptr() as usize).wrapping_sub(self.bytes.as_ptr() as usize);
        assert!(from <= self.bytes.len() && part.len() <= self.bytes.len() - from, "a part of the block");
        from..from + part.len()
    }

    /// The bytes of a range.
    pub fn part(&self, place: &Range<usize>) -> &[u8] {
        &self.bytes[place.clone()]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // If reading has ended, they are not needed.
        let _unwanted = self.home.send(std::mem::take(&mut self.bytes));
    }
}

/// A command of a block.
#[derive(Clone, Copy)]
pub(super) struct InBlock<'b> {
    pub position: u64,
    pub end: u64,
    pub header: &'b [u8],
    pub command: Command<'b>,
}

impl Block {
    pub fn bytes(&self) -> &Arc<Buffer> {
        &self.bytes
    }

    pub fn commands(&self) -> impl Iterator<Item = Result<InBlock<'_>, StreamError>> {
        self.entries.iter().map(|entry| {
            let (header, attrs) = self.bytes.part(&entry.range).split_at(COMMAND_HEAD_LEN);
            let end = entry.position + entry.range.len() as u64;
            let command = Command::decode(entry.version, entry.kind, attrs)?;
            Ok(InBlock { position: entry.position, end, header, command })
        })
    }
}

/// Starts reading. Blocks are `commands_max` long at most.
pub(super) fn read<R: Read + Send + 'static>(input: R, limits: Limits, commands_max: usize) -> Receiver<Block> {
    let commands_max = commands_max.clamp(1, BLOCK_COMMANDS);
    let (sender, receiver) = sync_channel(BLOCKS_AHEAD);
    thread::spawn(move || {
        let (home, used_again) = channel();
        let mut commands = Commands::keeping(input, limits, vec![0; BLOCK_ROOM]);
        loop {
            let (entries, more) = fill(&mut commands, commands_max);
            let more_bytes = used_again.try_recv().unwrap_or_else(|_| vec![0; BLOCK_ROOM]);
            let bytes = Arc::new(Buffer { bytes: commands.take_used(more_bytes), home: home.clone() });
            let ended = !matches!(more, Ok(true));
            let block = Block { bytes, entries, error: more.err() };
            if sender.send(block).is_err() || ended {
                return;
            }
        }
    });
    receiver
}

/// The commands of the next block, and whether there may be more.
fn fill<R: Read>(commands: &mut Commands<R>, commands_max: usize) -> (Vec<Entry>, Result<bool, StreamError>) {
    let mut entries = Vec::new();
    while commands.used() < BLOCK_BYTES && entries.len() < commands_max {
        let next = match commands.next() {
            Ok(Some(next)) => {
                let len = next.bytes.len();
                (next.position, next.version, next.command.kind().number(), len)
            }
            Ok(None) => return (entries, Ok(false)),
            Err(error) => return (entries, Err(error)),
        };
        let (position, version, kind, len) = next;
        entries.push(Entry { position, version, kind, range: commands.used() - len..commands.used() });
    }
    (entries, Ok(true))
}
