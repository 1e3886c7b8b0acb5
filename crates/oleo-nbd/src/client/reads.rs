//! Reads of a call as requests: neighbours joined, long ones split, edges of blocks read and thrown away.
//!
//! Normal path: (1) [`Reads::plan`] with what is wanted; (2) [`Reads::pieces`] are asked for, with the plan as the sink
//! of the data; (3) [`Reads::sort`] says what is to be asked again, how, and what has failed.

use smallvec::SmallVec;

use super::batch::{Outcome, Piece};
use super::link::Sink;
use super::slots::{Ask, ServerError};
use crate::wire::{Command, CommandFlags};

/// Longest request that is made, in bytes: longer ones would keep others waiting on the same connection.
const REQUEST_LEN_MAX: u32 = 1 << 20;

/// How long requests may be, and where they may begin; in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    /// Offsets and lengths are multiples of this power of two.
    pub(super) block: u32,
    /// They are cut at multiples of this power of two.
    preferred: u32,
    /// The longest; a multiple of `block`.
    len_max: u32,
}

impl Cut {
    /// By the limits that a server told.
    pub(super) fn new(blocks: crate::wire::option::BlockSizes) -> Cut {
        let len_max = blocks.max.min(REQUEST_LEN_MAX);
        Cut { block: blocks.min, preferred: blocks.preferred, len_max: len_max - len_max % blocks.min }
    }

    /// The offset, rounded down to a block.
    pub(super) fn down(&self, offset: u64) -> u64 {
        offset - offset % u64::from(self.block)
    }

    /// The offset, rounded up to a block.
    pub(super) fn up(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.block.into())
    }

    /// Where a request that begins at `start`, which a block does, has to end.
    pub(super) fn end_max(&self, start: u64) -> u64 {
        let end = start + u64::from(self.len_max);
        let even = end - end % u64::from(self.preferred);
        if even > start { even } else { end }
    }
}

/// Bytes that are wanted.
#[derive(Debug)]
pub(super) struct Want<'a> {
    /// Where on the device.
    pub(super) offset: u64,
    /// Which of the caller's reads it belongs to.
    pub(super) req: u32,
    /// Where they go.
    pub(super) buf: &'a mut [u8],
}

impl Want<'_> {
    /// Its end on the device.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.buf.len() as u64
    }
}

/// One request: its wants follow one another. Before and after them may be bytes that nobody wants.
#[derive(Debug)]
struct ReadPiece<'a> {
    start: u64,
    end: u64,
    wants: SmallVec<[Want<'a>; 2]>,
}

/// The reads of a call.
#[derive(Debug)]
pub(super) struct Reads<'a> {
    pieces: Vec<ReadPiece<'a>>,
    /// Where unwanted bytes go.
    waste: Vec<u8>,
}

/// What has become of reads; see [`Reads::sort`].
#[derive(Default, Debug)]
pub(super) struct Sorted<'a> {
    /// Not answered.
    pub(super) again: Vec<Want<'a>>,
    /// They were part of a request that failed, perhaps for the sake of others in it.
    pub(super) apart: Vec<Want<'a>>,
    /// Failed: the caller's read, why.
    pub(super) failed: Vec<(u32, ServerError)>,
}

impl<'a> Reads<'a> {
    /// Makes requests of wants, none of which is empty. `join`: those that touch may become one.
    pub(super) fn plan(mut wants: Vec<Want<'a>>, cut: Cut, join: bool) -> Reads<'a> {
        wants.sort_by_key(|want| want.offset);
        let mut pieces: Vec<ReadPiece<'a>> = Vec::with_capacity(wants.len());
        for mut want in wants {
            let mut fresh = !join;
            while !want.buf.is_empty() {
                let room = pieces.last().filter(|piece| !fresh && piece.end == want.offset);
                let room = room.map_or(0, |piece| cut.end_max(piece.start).saturating_sub(piece.end));
                if room == 0 {
                    let (start, wants) = (cut.down(want.offset), SmallVec::new());
                    pieces.push(ReadPiece { start, end: want.offset, wants });
                    fresh = false;
                    continue;
                }
                let Some(piece) = pieces.last_mut() else { break };
                let len = want.buf.len().min(room as usize);
                let (buf, rest) = std::mem::take(&mut want.buf).split_at_mut(len);
                piece.wants.push(Want { offset: want.offset, req: want.req, buf });
                piece.end += len as u64;
                want.buf = rest;
                want.offset += len as u64;
            }
        }
        Reads { pieces, waste: vec![0; cut.block as usize] }
    }

    /// The requests.
    pub(super) fn pieces(&self, cut: Cut) -> Vec<Piece<'static>> {
        let ask = |piece: &ReadPiece<'_>| {
            let len = (cut.up(piece.end) - piece.start) as u32;
            Ask { command: Command::Read, flags: CommandFlags::empty(), offset: piece.start, len }
        };
        self.pieces.iter().map(|piece| Piece { ask: ask(piece), parts: &[] }).collect()
    }

    /// Looks at the answers.
    pub(super) fn sort(self, outcome: &mut Outcome) -> Sorted<'a> {
        let mut sorted = Sorted::default();
        for (piece, answer) in self.pieces.into_iter().zip(&mut outcome.answers) {
            match answer.take().map(|answer| answer.error) {
                None => sorted.again.extend(piece.wants),
                Some(None) => {}
                Some(Some(error)) => match piece.wants.as_slice() {
                    [one] => sorted.failed.push((one.req, error)),
                    _ => sorted.apart.extend(piece.wants),
                },
            }
        }
        sorted
    }
}

impl Sink for Reads<'_> {
    fn target(&mut self, piece: u32, at: u32) -> &mut [u8] {
        let piece = &mut self.pieces[piece as usize];
        let at = piece.start + u64::from(at);
        let next = piece.wants.partition_point(|want| want.end() <= at);
        match piece.wants.get_mut(next) {
            Some(want) if want.offset <= at => &mut want.buf[(at - want.offset) as usize..],
            Some(want) => &mut self.waste[..(want.offset - at) as usize],
            None => &mut self.waste,
        }
    }
}

#[cfg(test)]
mod tests {
    use oleo_sim::rng::Rng;

    use super::*;
    use crate::wire::option::BlockSizes;

    /// Goal: requests keep to the limits, and every byte that comes goes where it is wanted and nowhere else. Method:
    /// seeded wants of all kinds, split and joined; a device whose bytes say where they are fills the requests in
    /// steps of random length; compare.
    #[test]
    fn every_byte_goes_where_it_is_wanted() {
        let byte = |at: u64| (at * 31 + at / 251) as u8;
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let min = 1 << rng.below(13);
            let preferred = (min << rng.below(3)).max(512);
            let max = preferred * (1 + rng.below(5) as u32);
            let cut = Cut::new(BlockSizes { min, preferred, max });
            let mut at = rng.below(5000);
            let mut bufs = Vec::new();
            for _ in 0..1 + rng.below(30) {
                let len = 1 + rng.below(20_000);
                bufs.push((at, vec![0u8; len as usize]));
                at += len + if rng.one_in(2) { 0 } else { rng.below(9000) };
            }
            let join = rng.one_in(2);
            let wants: Vec<Want<'_>> = bufs
                .iter_mut()
                .enumerate()
                .map(|(i, (offset, buf))| Want { offset: *offset, req: i as u32, buf })
                .rev()
                .collect();
            let count = wants.len();
            let mut reads = Reads::plan(wants, cut, join);
            let pieces = reads.pieces(cut);
            assert!(join || pieces.len() >= count);
            for (index, piece) in pieces.iter().enumerate() {
                let Ask { offset, len, .. } = piece.ask;
                assert!(offset.is_multiple_of(min.into()) && len.is_multiple_of(min) && len <= max, "seed {seed}");
                let mut done = 0;
                while done < len {
                    let some = (1 + rng.below(5000) as u32).min(len - done);
                    let target = reads.target(index as u32, done);
                    let some = target.len().min(some as usize);
                    assert!(some > 0);
                    for (i, out) in target[..some].iter_mut().enumerate() {
                        *out = byte(offset + u64::from(done) + i as u64);
                    }
                    done += some as u32;
                }
            }
            drop(reads);
            for (at, buf) in &bufs {
                assert!(buf.iter().enumerate().all(|(i, b)| *b == byte(at + i as u64)), "seed {seed} at {at}");
            }
        }
    }
}
