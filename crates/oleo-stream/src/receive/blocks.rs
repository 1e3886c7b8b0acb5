//! Commands gathered into blocks by a thread of its own, so that reading and verifying the stream goes on while what came
//! before is applied.
//!
//! Memory: [`BLOCKS_AHEAD`] blocks wait, one is being filled, one applied; each holds [`BLOCK_BYTES`] and one command.
//! The thread ends with the stream, with an error, or when nobody takes blocks any more. It is not waited for: it may be
//! inside a read that lasts as long as the sender likes.

use std::io::Read;
use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use oleo_format::stream::{COMMAND_HEAD_LEN, Command};

use crate::{Commands, Limits, StreamError};

/// Bytes of commands from which on a block is full.
const BLOCK_BYTES: usize = 4 << 20;
/// Commands from which on a block is full.
const BLOCK_COMMANDS: usize = 8192;
/// Blocks that wait to be applied.
const BLOCKS_AHEAD: usize = 2;

/// Some commands.
#[derive(Default)]
pub(super) struct Block {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// What ended the stream after them.
    pub error: Option<StreamError>,
}

struct Entry {
    position: u64,
    version: u32,
    kind: u16,
    /// Where in `bytes` the command is, with its header.
    range: Range<usize>,
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
    pub fn commands(&self) -> impl Iterator<Item = Result<InBlock<'_>, StreamError>> {
        self.entries.iter().map(|entry| {
            let (header, attrs) = self.bytes[entry.range.clone()].split_at(COMMAND_HEAD_LEN);
            let end = entry.position + entry.range.len() as u64;
            let command = Command::decode(entry.version, entry.kind, attrs)?;
            Ok(InBlock { position: entry.position, end, header, command })
        })
    }

    fn is_full(&self, commands_max: usize) -> bool {
        self.bytes.len() >= BLOCK_BYTES || self.entries.len() >= commands_max
    }
}

/// Starts reading. Blocks are `commands_max` long at most.
pub(super) fn read<R: Read + Send + 'static>(input: R, limits: Limits, commands_max: usize) -> Receiver<Block> {
    let commands_max = commands_max.clamp(1, BLOCK_COMMANDS);
    let (sender, receiver) = sync_channel(BLOCKS_AHEAD);
    thread::spawn(move || {
        let mut commands = Commands::new(input, limits);
        loop {
            let (block, more) = fill(&mut commands, commands_max);
            if sender.send(block).is_err() || !more {
                return;
            }
        }
    });
    receiver
}

/// The next block, and whether there may be more.
fn fill<R: Read>(commands: &mut Commands<R>, commands_max: usize) -> (Block, bool) {
    let mut block = Block { bytes: Vec::with_capacity(BLOCK_BYTES + (256 << 10)), ..Block::default() };
    while !block.is_full(commands_max) {
        match commands.next() {
            Ok(Some(next)) => {
                let start = block.bytes.len();
                block.bytes.extend_from_slice(next.bytes);
                let (position, version, kind) = (next.position, next.version, next.command.kind().number());
                block.entries.push(Entry { position, version, kind, range: start..block.bytes.len() });
            }
            Ok(None) => return (block, false),
            Err(error) => {
                block.error = Some(error);
                return (block, false);
            }
        }
    }
    (block, true)
}
