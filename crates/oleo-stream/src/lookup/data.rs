//! The contents of a file: which bytes of which stream are where in it.
//!
//! Contents are asked for from the end: the last command that touched a range has it. What a command clones is asked for at its source, as that was
//! before the command. What nothing has touched is zeros.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use oleo_format::stream::{COMMAND_HEAD_LEN, Command, CommandHead, EncodedCompression};
use oleo_format::{Compression, Corruption};

use super::chain::{Chain, Inode};
use super::model::{Change, NodeId, Op, Source};
use super::{LookupError, Places, Steps, wrong};
use crate::receive::unpack;

/// A range of a file that is not zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub at: u64,
    pub len: u64,
    link: usize,
    from: From,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    /// Commands of which each writes `each` bytes; of all of them from `skip` on.
    Writes { pos: u64, command_len: u32, each: u32, skip: u64 },
    /// A command with packed bytes; unpacked from `skip` on.
    Packed { pos: u64, command_len: u32, skip: u64 },
}

/// Ranges of a file that are looked for, by where they begin: where they end, and where in the output they belong.
type Wanted = BTreeMap<u64, (u64, u64)>;

/// What was done to an inode, by which link.
type Ops<'c> = Rc<Vec<(usize, &'c Op)>>;
/// That of sources of clones: in the snapshot of which link, and which node of which link.
type Known<'c> = HashMap<(usize, usize, NodeId), Ops<'c>>;
/// Takes bytes of a file, with their place in it.
pub(super) type Emit<'e> = dyn FnMut(u64, &[u8]) -> Result<(), LookupError> + 'e;

struct Task<'c> {
    ops: Ops<'c>,
    /// Only the first ones, up to here.
    upto: usize,
    wanted: Wanted,
}

/// The parts of what is wanted that lie within a range; they are wanted no more.
fn take(wanted: &mut Wanted, range: Range<u64>) -> Vec<(Range<u64>, u64)> {
    let mut out = Vec::new();
    if range.is_empty() {
        return out;
    }
    // The one that begins before it, and those that begin within.
    let before = wanted.range(..range.start).next_back().map(|(at, _)| *at);
    let within: Vec<u64> = wanted.range(range.clone()).map(|(at, _)| *at).collect();
    for at in before.into_iter().chain(within) {
        let Some((end, to)) = wanted.get(&at).copied() else { continue };
        let (from, until) = (at.max(range.start), end.min(range.end));
        if from >= until {
            continue;
        }
        wanted.remove(&at);
        if at < from {
            wanted.insert(at, (from, to));
        }
        if until < end {
            wanted.insert(until, (end, to + (until - at)));
        }
        out.push((from..until, to + (from - at)));
    }
    out
}

impl Chain {
    /// The size of a file.
    pub(super) fn size(&self, inode: &Inode) -> u64 {
        self.ops(inode).into_iter().fold(0, |size: u64, (_, op)| match op.change {
            Change::Write { at, each, count } => size.max(at + u64::from(each) * u64::from(count)),
            Change::Packed { at, len } | Change::Clone { at, len, .. } => size.max(at + len),
            Change::Zeros { at, len, grow: true } => size.max(at + len),
            Change::Truncate { size } => size,
            Change::Zeros { grow: false, .. } | Change::Attrs | Change::Odd => size,
        })
    }

    /// Where the contents of a file are, by their place in it. What is left out is zeros.
    pub(super) fn pieces(&self, inode: &Inode) -> Result<Vec<Piece>, LookupError> {
        self.pieces_in(inode, 0..self.size(inode), &mut Steps::default())
    }

    /// The same of a range of it.
    fn pieces_in(&self, inode: &Inode, range: Range<u64>, steps: &mut Steps) -> Result<Vec<Piece>, LookupError> {
        let mut out = Vec::new();
        let mut known = Known::new();
        let ops = Rc::new(self.ops(inode));
        let wanted = [(range.start, (range.end, range.start))].into();
        let mut tasks = vec![Task { upto: ops.len(), ops, wanted }];
        while let Some(Task { ops, upto, mut wanted }) = tasks.pop() {
            for (link, op) in ops[..upto].iter().rev() {
                if wanted.is_empty() {
                    break;
                }
                steps.take(1)?;
                match &op.change {
                    Change::Write { at, each, count } => {
                        let end = at + u64::from(*each) * u64::from(*count);
                        for (range, to) in take(&mut wanted, *at..end) {
                            let (pos, command_len, skip) = (op.pos, op.len, range.start - at);
                            let from = From::Writes { pos, command_len, each: *each, skip };
                            out.push(Piece { at: to, len: range.end - range.start, link: *link, from });
                        }
                    }
                    Change::Packed { at, len } => {
                        for (range, to) in take(&mut wanted, *at..at + len) {
                            let from = From::Packed { pos: op.pos, command_len: op.len, skip: range.start - at };
                            out.push(Piece { at: to, len: range.end - range.start, link: *link, from });
                        }
                    }
                    Change::Zeros { at, len, .. } => drop(take(&mut wanted, *at..at + len)),
                    Change::Truncate { size } => drop(take(&mut wanted, *size..u64::MAX)),
                    Change::Clone { at, len, from, source_at } => {
                        let found = take(&mut wanted, *at..at + len);
                        if found.is_empty() {
                            continue;
                        }
                        let moved = |(range, to): (Range<u64>, u64)| {
                            let from = source_at + (range.start - at);
                            (from, (from + (range.end - range.start), to))
                        };
                        let wanted = found.into_iter().map(moved).collect();
                        let ops = self.source_ops(*link, from, &mut known, steps)?;
                        let upto = match from {
                            Source::Here(_) => ops.partition_point(|(l, o)| (*l, o.pos) < (*link, op.pos)),
                            Source::Other(..) => ops.len(),
                        };
                        tasks.push(Task { ops, upto, wanted });
                    }
                    Change::Attrs => {}
                    Change::Odd => {
                        let text = "the stream has no data of a file, or moves it in a way that is not supported";
                        return Err(LookupError::Unsupported(text.into()));
                    }
                }
            }
        }
        out.sort_by_key(|piece| piece.at);
        Ok(out)
    }

    /// What was done to the source of a clone.
    fn source_ops<'c>(
        &'c self,
        link: usize,
        from: &Source,
        known: &mut Known<'c>,
        steps: &mut Steps,
    ) -> Result<Ops<'c>, LookupError> {
        let (link, node) = match from {
            Source::Here(id) => (link, (link, *id)),
            Source::Other(uuid, path) => {
                let link = self.source(link, *uuid)?;
                let missing = || wrong("source of a clone", path.escape_ascii(), "a path of its snapshot");
                (link, self.locate(link, path).ok_or_else(missing)?)
            }
        };
        let key = (link, node.0, node.1);
        if let Some(ops) = known.get(&key) {
            return Ok(ops.clone());
        }
        let ops = Rc::new(self.ops(&self.inode(link, node, steps)?));
        steps.take(ops.len() as u64)?;
        known.insert(key, ops.clone());
        Ok(ops)
    }

    /// A range of what is at a path of the snapshot of a link, zeros behind its end; none if there is nothing.
    ///
    /// # Errors
    /// It cannot be read, or takes too many steps.
    pub fn read_at(
        &self,
        link: usize,
        path: &[u8],
        (at, len): (u64, usize),
        places: &mut dyn Places,
        steps: &mut Steps,
    ) -> Result<Option<Vec<u8>>, LookupError> {
        let Some((inode, pieces)) = self.pieces_at(link, path, at..at.saturating_add(len as u64), steps)? else {
            return Ok(None);
        };
        let size = self.size(&inode);
        let mut out = vec![0; len];
        for piece in pieces {
            self.read_piece(&piece, places, &mut |place, bytes| {
                let from = (place - at) as usize;
                out[from..from + bytes.len()].copy_from_slice(bytes);
                Ok(())
            })?;
        }
        Ok((at < size).then_some(out))
    }

    /// What a byte of a file in the snapshot of a link is packed in, as the stream has it: how, and all of its bytes. None if it is not packed.
    ///
    /// # Errors
    /// As those of [`Chain::read_at`].
    pub fn packed_at(
        &self,
        link: usize,
        path: &[u8],
        at: u64,
        places: &mut dyn Places,
        steps: &mut Steps,
    ) -> Result<Option<(Compression, Vec<u8>)>, LookupError> {
        let Some((_, pieces)) = self.pieces_at(link, path, at..at.saturating_add(1), steps)? else { return Ok(None) };
        let Some(Piece { link, from: From::Packed { pos, command_len, .. }, .. }) = pieces.first() else {
            return Ok(None);
        };
        let bytes = places.get(*link, *pos, *command_len)?;
        let mut found = None;
        self.each_command(*link, &bytes, |command| {
            if let Command::EncodedWrite { compression, encryption: 0, data, .. } = command {
                found = Some((EncodedCompression::from_number(compression)?.kind, data.to_vec()));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// An inode at a path of the snapshot of a link that is a file, and where a range of it is.
    fn pieces_at(
        &self,
        link: usize,
        path: &[u8],
        range: Range<u64>,
        steps: &mut Steps,
    ) -> Result<Option<(Inode, Vec<Piece>)>, LookupError> {
        let Some(inode) = self.at(link, path, steps)? else { return Ok(None) };
        steps.take(self.ops(&inode).len() as u64)?;
        let pieces = self.pieces_in(&inode, range, steps)?;
        Ok(Some((inode, pieces)))
    }

    /// A command at a place of a stream.
    pub(super) fn each_command(
        &self,
        link: usize,
        bytes: &[u8],
        mut each: impl FnMut(Command<'_>) -> Result<(), LookupError>,
    ) -> Result<(), LookupError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let cut = || wrong("length of a command", rest.len(), "that of a command");
            let (head, after) = rest.split_first_chunk::<COMMAND_HEAD_LEN>().ok_or_else(cut)?;
            let head = CommandHead::parse(head);
            let attrs = after.get(..head.len as usize).ok_or_else(cut)?;
            let sum = head.checksum(attrs);
            if sum != head.crc {
                let (have, want) = (format!("{:#x}", head.crc), format!("{sum:#x}"));
                return Err(Corruption::new("stream command", "checksum", have, want).into());
            }
            each(Command::decode(self.parts[link].model.version, head.kind, attrs)?)?;
            rest = &after[head.len as usize..];
        }
        Ok(())
    }

    /// Reads a piece, from its beginning to its end; each part comes with its place in the file.
    pub(super) fn read_piece(
        &self,
        piece: &Piece,
        places: &mut dyn Places,
        emit: &mut Emit<'_>,
    ) -> Result<(), LookupError> {
        let other = |have: &str, want: String| LookupError::from(wrong("place", have, want));
        match piece.from {
            From::Packed { pos, command_len, skip } => {
                let bytes = places.get(piece.link, pos, command_len)?;
                self.each_command(piece.link, &bytes, |command| {
                    let unpacked = unpack(&command).map_err(|e| other(&e.to_string(), "an encoded write".into()))?;
                    let part = unpacked.get(skip as usize..).and_then(|rest| rest.get(..piece.len as usize));
                    let part = part.ok_or_else(|| other("fewer bytes", format!("{} more", piece.len)))?;
                    emit(piece.at, part)
                })
            }
            From::Writes { pos, command_len, each, skip } => {
                let mut done = 0;
                while done < piece.len {
                    let at = skip + done;
                    // What is not empty is covered by commands of at least a byte.
                    let (number, inside) = (at / u64::from(each), at % u64::from(each));
                    let bytes = places.get(piece.link, pos + number * u64::from(command_len), command_len)?;
                    let len = (u64::from(each) - inside).min(piece.len - done);
                    self.each_command(piece.link, &bytes, |command| {
                        let Command::Write { data, .. } = command else {
                            return Err(other(command.kind().name(), "a write".into()));
                        };
                        if data.len() != each as usize {
                            return Err(other(&format!("{} bytes", data.len()), format!("{each}")));
                        }
                        emit(piece.at + done, &data[inside as usize..(inside + len) as usize])
                    })?;
                    done += len;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what lies within a range is taken, what lies beside stays wanted, each with its place. Method: against an array.
    #[test]
    fn ranges() {
        for seed in 0..2000u64 {
            let pick = |n: u64, below: u64| (seed * 2654435761 + n * 40503).rotate_left(7) % below;
            let mut wanted: Wanted = [(0, (20, 100)), (30, (50, 200))].into();
            let mut plain: Vec<Option<u64>> = (0..60)
                .map(|at| match at {
                    0..20 => Some(100 + at),
                    30..50 => Some(200 + at - 30),
                    _ => None,
                })
                .collect();
            for step in 0..4 {
                let (from, len) = (pick(step, 50), pick(step + 9, 15));
                for (range, to) in take(&mut wanted, from..from + len) {
                    for at in range.clone() {
                        assert_eq!(plain[at as usize].take(), Some(to + at - range.start), "{seed}");
                    }
                }
                let left = (from..from + len).filter(|at| plain.get(*at as usize).copied().flatten().is_some()).count();
                assert_eq!(left, 0, "{seed}");
            }
            let rest: u64 = wanted.iter().map(|(at, (end, _))| end - at).sum();
            assert_eq!(rest as usize, plain.iter().flatten().count(), "{seed}");
        }
    }
}
