//! Reads a stream command by command, with bounded memory, and returns each command with its position.
//!
//! Normal path: [`Commands::next`] (1) reads the stream's header if one must follow: at the beginning, and after an END
//! if the input continues; (2) reads a command's header, and refuses a length beyond [`Limits`]; (3) reads the
//! attributes into one buffer that is reused; (4) compares the checksum; (5) decodes.
//!
//! Invariants: the buffer holds at most one command and what was read ahead, or, if commands are kept, those since the
//! last [`Commands::take_used`]. After an error nothing more is read.
//! Not here: which commands may follow which (see the interpreter).

use std::io::{self, Read};

use oleo_format::stream::{self, COMMAND_HEAD_LEN, COMMAND_LEN_MAX_V1, Command, CommandHead, HEADER_LEN};
use oleo_format::{Class, Classified, Corruption, errno};

/// Bytes of one read of the input: large, so that small commands do not need a read each.
const READ_LEN: usize = 256 << 10;

/// How much of a stream is believed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The longest command in bytes, its header included, from version 2 on. Version 1 has its own, 64 KiB.
    pub command_len_max: usize,
}

impl Default for Limits {
    /// 8 MiB: the kernel writes up to 144 KiB, other senders may write more; memory for one command stays small.
    fn default() -> Limits {
        Limits { command_len_max: 8 << 20 }
    }
}

oleo_format::setters!(Limits { command_len_max: usize });

/// Why a stream cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The bytes are not those of a stream; the place within is the position in bytes from the beginning.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The stream ends where it must not.
    #[error("the stream ends at byte {at}, within {within}")]
    Truncated {
        /// Bytes read in all.
        at: u64,
        /// What was being read.
        within: &'static str,
    },
    /// Reading failed.
    #[error("cannot read the stream at byte {at}: {source}")]
    Io {
        /// At which byte.
        at: u64,
        /// Why.
        source: io::Error,
    },
}

impl Classified for StreamError {
    #[deny(clippy::wildcard_enum_match_arm)]
    fn class(&self) -> Class {
        match self {
            // The stream is damaged, not the image.
            StreamError::Corrupt(_) | StreamError::Truncated { .. } => Class::refusal(errno::EINVAL),
            StreamError::Io { source, .. } => Class::of_io(source),
        }
    }
}

/// One command and its position.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// Bytes from the beginning of the input to the command's header.
    pub position: u64,
    /// Bytes from the beginning of the input to the end of the command.
    pub end: u64,
    /// The version of the stream it is in.
    pub version: u32,
    /// The command.
    pub command: Command<'a>,
    /// All its bytes, the header included.
    pub bytes: &'a [u8],
}

/// The commands of one or more streams after one another.
#[derive(Debug)]
pub struct Commands<R> {
    input: R,
    limits: Limits,
    /// Bytes read and not yet used are `buffer[from..to]`.
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    /// Position of `buffer[from]` in the input.
    position: u64,
    /// Of the stream being read; none before a header.
    version: Option<u32>,
    /// Whether a stream has been read to its END.
    complete: bool,
    failed: bool,
    /// Used bytes stay in the buffer until [`Commands::take_used`].
    keep: bool,
}

impl<R: Read> Commands<R> {
    /// Reads from `input`, which should not be buffered: it is read in large pieces.
    pub fn new(input: R, limits: Limits) -> Commands<R> {
        let buffer = vec![0; READ_LEN];
        let (from, to, position) = (0, 0, 0);
        Commands {
            input,
            limits,
            buffer,
            from,
            to,
            position,
            version: None,
            complete: false,
            failed: false,
            keep: false,
        }
    }

    /// Like [`Commands::new`], but keeps all commands in `buffer` in order; [`Commands::used`] is the end of the last
    /// one.
    pub(crate) fn keeping(input: R, limits: Limits, buffer: Vec<u8>) -> Commands<R> {
        Commands { buffer, keep: true, ..Commands::new(input, limits) }
    }

    /// Bytes of the buffer up to the end of the last command.
    pub(crate) fn used(&self) -> usize {
        self.from
    }

    /// Returns the buffer with all commands since the last call, and continues in `fresh`, whose contents do not
    /// matter.
    pub(crate) fn take_used(&mut self, mut fresh: Vec<u8>) -> Vec<u8> {
        let rest = self.from..self.to;
        if fresh.len() < rest.len() {
            fresh.resize(rest.len().next_multiple_of(READ_LEN), 0);
        }
        fresh[..rest.len()].copy_from_slice(&self.buffer[rest.clone()]);
        (self.from, self.to) = (0, rest.len());
        std::mem::replace(&mut self.buffer, fresh)
    }

    /// Bytes used of the input so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next command, or none after the END of the last stream. An input without any stream is truncated.
    #[allow(clippy::should_implement_trait, reason = "what it yields borrows from it")]
    pub fn next(&mut self) -> Result<Option<Next<'_>>, StreamError> {
        if self.failed {
            return Ok(None);
        }
        // The borrow checker cannot see that an error borrows nothing, so the place is found first and lent after.
        match self.advance() {
            Ok(None) => Ok(None),
            Ok(Some((version, len))) => {
                let position = self.position;
                let start = self.from;
                self.take(len);
                let bytes = &self.buffer[start..start + len];
                let (head, attrs) = bytes.split_first_chunk().expect("a command has a header");
                let decoded = Command::decode(version, CommandHead::parse(head).kind, attrs);
                self.failed = decoded.is_err();
                let command = decoded.map_err(|e| e.within(at(position)))?;
                if matches!(command, Command::End) {
                    self.version = None;
                    self.complete = true;
                }
                Ok(Some(Next { position, end: position + len as u64, version, command, bytes }))
            }
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    /// Has a whole command with the right checksum in the buffer: the stream's version and the command's length. None at the end.
    fn advance(&mut self) -> Result<Option<(u32, usize)>, StreamError> {
        let version = match self.version {
            Some(version) => version,
            None => {
                if self.complete && self.fill(1)? == 0 {
                    return Ok(None);
                }
                self.need(HEADER_LEN, "its header")?;
                let header = self.buffer[self.from..].first_chunk().expect("it was read");
                let version = stream::version(header).map_err(|e| e.within(at(self.position)))?;
                self.take(HEADER_LEN);
                *self.version.insert(version)
            }
        };
        self.need(COMMAND_HEAD_LEN, "the header of a command, before its end")?;
        let head = CommandHead::parse(self.buffer[self.from..].first_chunk().expect("it was read"));
        let len_max = if version == 1 { COMMAND_LEN_MAX_V1 } else { self.limits.command_len_max };
        let len = usize::try_from(head.len).ok().and_then(|n| n.checked_add(COMMAND_HEAD_LEN)).unwrap_or(usize::MAX);
        if len > len_max {
            let wrong = Corruption::new("stream command", "length in bytes", len, format_args!("at most {len_max}"));
            return Err(wrong.within(at(self.position)).into());
        }
        self.need(len, "a command")?;
        let crc = head.checksum(&self.buffer[self.from + COMMAND_HEAD_LEN..self.from + len]);
        if crc != head.crc {
            let have = format!("{:#010x}", head.crc);
            let wrong = Corruption::new("stream command", "checksum", have, format_args!("{crc:#010x}"));
            return Err(wrong.within(at(self.position)).into());
        }
        Ok(Some((version, len)))
    }

    fn take(&mut self, len: usize) {
        self.from += len;
        self.position += len as u64;
    }

    fn need(&mut self, len: usize, within: &'static str) -> Result<(), StreamError> {
        let have = self.fill(len)?;
        if have < len {
            return Err(StreamError::Truncated { at: self.position + have as u64, within });
        }
        Ok(())
    }

    /// Fills the buffer with at least `len` bytes, or as many as there are; returns how many.
    fn fill(&mut self, len: usize) -> Result<usize, StreamError> {
        if self.to - self.from >= len {
            return Ok(self.to - self.from);
        }
        if self.from + len > self.buffer.len() && !self.keep {
            self.buffer.copy_within(self.from..self.to, 0);
            self.to -= self.from;
            self.from = 0;
        }
        if self.from + len > self.buffer.len() {
            self.buffer.resize((self.from + len).next_multiple_of(READ_LEN), 0);
        }
        while self.to - self.from < len {
            // Reads no more at a time than stays in the processor's cache until it is used.
            let end = self.buffer.len().min(self.to + READ_LEN.max(self.from + len - self.to));
            match self.input.read(&mut self.buffer[self.to..end]) {
                Ok(0) => break,
                Ok(n) => self.to += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let at = self.position + (self.to - self.from) as u64;
                    return Err(StreamError::Io { at, source });
                }
            }
        }
        Ok(self.to - self.from)
    }
}

fn at(position: u64) -> String {
    format!("byte {position} of the stream")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields a byte or two at a time, and interrupts.
    struct SlowReader<'a>(&'a [u8], usize);
    impl Read for SlowReader<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let n = self.0.len().min(1 + self.1 % 2);
            buf[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn two_streams() -> Vec<u8> {
        let mut bytes = stream::header(1).to_vec();
        Command::Unlink { path: b"a" }.encode(1, &mut bytes);
        Command::End.encode(1, &mut bytes);
        bytes.extend(stream::header(2));
        Command::Write { path: b"b", offset: 1, data: &[9; 300 << 10] }.encode(2, &mut bytes);
        Command::End.encode(2, &mut bytes);
        bytes
    }

    fn all(input: impl Read) -> Result<Vec<(u64, String)>, StreamError> {
        let mut commands = Commands::new(input, Limits::default());
        let mut seen = Vec::new();
        while let Some(next) = commands.next()? {
            assert_eq!(next.end, next.position + next.bytes.len() as u64);
            seen.push((next.position, next.command.kind().name().to_string()));
        }
        Ok(seen)
    }

    /// Goal: concatenated streams are read, however the bytes arrive. Method: whole, and one byte at a time.
    #[test]
    fn reads_streams() {
        let bytes = two_streams();
        let want: Vec<_> = [(17, "unlink"), (32, "end"), (59, "write"), (307_288, "end")]
            .map(|(at, name)| (at, name.to_string()))
            .into();
        assert_eq!(all(&bytes[..]).unwrap(), want);
        assert_eq!(all(SlowReader(&bytes, 0)).unwrap(), want);
    }

    /// Goal: a stream that is cut short is noticed wherever it is cut, one that is not never.
    #[test]
    fn every_truncation_is_noticed() {
        let bytes = two_streams();
        for len in (0..bytes.len()).filter(|n| *n < 200 || *n > bytes.len() - 100) {
            let result = all(&bytes[..len]);
            if len == 42 {
                assert_eq!(result.unwrap().len(), 2);
            } else {
                assert!(matches!(result, Err(StreamError::Truncated { .. })), "{len}: {result:?}");
            }
        }
    }

    /// Goal: any flipped bit is noticed, with the position of its command. Method: every bit of a short stream.
    #[test]
    fn flipped_bits() {
        let mut bytes = stream::header(2).to_vec();
        Command::Truncate { path: b"file", size: 4096 }.encode(2, &mut bytes);
        Command::End.encode(2, &mut bytes);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match all(&bad[..]) {
                Err(StreamError::Corrupt(e)) => assert!(e.to_string().contains(" of the stream"), "{e}"),
                Err(StreamError::Truncated { .. }) => {}
                // The version of the stream has no checksum.
                other => assert_eq!(bit / 8, 13, "{other:?}"),
            }
        }
    }

    /// Goal: a length beyond reason is refused before anything of that size is allocated.
    #[test]
    fn huge_command() {
        for (version, len, most) in [(2u32, u32::MAX, 8 << 20), (1, 1 << 16, 64 << 10)] {
            let mut bytes = stream::header(version).to_vec();
            bytes.extend(len.to_le_bytes());
            bytes.extend([1, 0, 0, 0, 0, 0]);
            let error = all(&bytes[..]).unwrap_err().to_string();
            assert!(error.contains(&format!("want at most {most}")), "{error}");
        }
    }
}
