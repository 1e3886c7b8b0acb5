//! Writes of a call as requests: neighbours joined, long ones split, and blocks of which only a part is written made
//! whole.
//!
//! Normal path: (1) [`Edges::of`] finds blocks that are written in part; if there are any, [`Edges::wants`] are read,
//! under a lock, and [`Edges::patch`] puts the new bytes in; (2) [`runs`] takes the whole blocks of the call and those;
//! (3) [`plan`] makes requests of them.

use std::collections::BTreeMap;

use oleo_device::WriteReq;

use super::batch::Piece;
use super::reads::{Cut, Want};
use super::slots::Ask;
use super::unflushed::{Ranges, Witness};
use crate::wire::{Command, CommandFlags};

/// So many pieces of memory make a request that is ended at the next border of blocks.
const PARTS_COUNT: usize = 512;

/// Bytes that follow one another on the device and in memory.
pub(super) type Run<'a> = (u64, &'a [u8]);

/// One request.
#[derive(Debug)]
pub(super) struct WritePiece<'a> {
    offset: u64,
    len: u64,
    parts: Vec<&'a [u8]>,
}

/// Makes requests of runs that do not overlap. They begin and end at borders of blocks where they do not touch.
pub(super) fn plan<'a>(mut runs: Vec<Run<'a>>, cut: Cut) -> Vec<WritePiece<'a>> {
    runs.sort_by_key(|(offset, _)| *offset);
    let mut pieces: Vec<WritePiece<'a>> = Vec::new();
    for (mut offset, mut bytes) in runs {
        while !bytes.is_empty() {
            let room = pieces.last().filter(|piece| piece.offset + piece.len == offset).map_or(0, |piece| {
                let full = piece.parts.len() >= PARTS_COUNT && cut.down(offset) == offset;
                if full { 0 } else { cut.end_max(piece.offset).saturating_sub(offset) }
            });
            if room == 0 {
                pieces.push(WritePiece { offset, len: 0, parts: Vec::new() });
                continue;
            }
            let Some(piece) = pieces.last_mut() else { break };
            let (part, rest) = bytes.split_at(bytes.len().min(room as usize));
            piece.parts.push(part);
            piece.len += part.len() as u64;
            offset += part.len() as u64;
            bytes = rest;
        }
    }
    pieces
}

/// The requests, as they are asked.
pub(super) fn pieces<'a>(writes: &'a [WritePiece<'a>], flags: CommandFlags) -> Vec<Piece<'a>> {
    let piece = |write: &'a WritePiece<'a>| {
        let ask = Ask { command: Command::Write, flags, offset: write.offset, len: write.len as u32 };
        Piece { ask, parts: &write.parts }
    };
    writes.iter().map(piece).collect()
}

/// What they write.
pub(super) fn ranges(writes: &[WritePiece<'_>]) -> Ranges {
    writes.iter().map(|write| (write.offset, write.offset + write.len)).collect()
}

/// Some of them as witnesses.
pub(super) fn witnesses(writes: &[WritePiece<'_>]) -> Vec<Witness> {
    Witness::worth(writes.len()).map(|n| Witness::of(writes[n].offset, &writes[n].parts)).collect()
}

/// The whole blocks of a call, as runs, and the patched ones.
pub(super) fn runs<'a>(reqs: &[WriteReq<'a>], cut: Cut, edges: &'a Edges) -> Vec<Run<'a>> {
    let mut out: Vec<Run<'a>> = edges.blocks.iter().map(|(offset, block)| (*offset, &block[..])).collect();
    for req in reqs {
        let (start, end) = (cut.up(req.offset), cut.down(req.offset + req.len()));
        each_part(req, |offset, part| {
            let part_end = offset + part.len() as u64;
            let (from, to) = (offset.max(start), part_end.min(end));
            if from < to {
                out.push((from, &part[(from - offset) as usize..(to - offset) as usize]));
            }
        });
    }
    out
}

fn each_part<'a>(req: &WriteReq<'a>, mut each: impl FnMut(u64, &'a [u8])) {
    let mut offset = req.offset;
    for part in req.parts {
        each(offset, part);
        offset += part.len() as u64;
    }
}

/// Blocks that are written in part: by their offset.
#[derive(Default, Debug)]
pub(super) struct Edges {
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Edges {
    /// Those of a call.
    pub(super) fn of(reqs: &[WriteReq<'_>], cut: Cut) -> Edges {
        let mut edges = Edges::default();
        for req in reqs.iter().filter(|req| !req.is_empty()) {
            for at in [req.offset, req.offset + req.len()] {
                if cut.down(at) != at {
                    edges.blocks.entry(cut.down(at)).or_insert_with(|| vec![0; cut.block as usize]);
                }
            }
        }
        edges
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// To be read first.
    pub(super) fn wants(&mut self) -> Vec<Want<'_>> {
        self.blocks.iter_mut().map(|(offset, block)| Want { offset: *offset, req: 0, buf: block }).collect()
    }

    /// Puts what is written into them.
    pub(super) fn patch(&mut self, reqs: &[WriteReq<'_>], cut: Cut) {
        let block_len = u64::from(cut.block);
        for req in reqs {
            each_part(req, |offset, part| {
                let end = offset + part.len() as u64;
                for (&at, block) in self.blocks.range_mut(cut.down(offset)..end.max(cut.down(offset))) {
                    let (from, to) = (offset.max(at), end.min(at + block_len));
                    if from < to {
                        block[(from - at) as usize..(to - at) as usize]
                            .copy_from_slice(&part[(from - offset) as usize..(to - offset) as usize]);
                    }
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use oleo_sim::rng::Rng;

    use super::*;
    use crate::wire::option::BlockSizes;

    /// Goal: requests keep to the limits and do to a device what the call wants, nothing else. Method: seeded batches
    /// of disjoint writes in odd parts, applied request by request to one vector and directly to another.
    #[test]
    fn requests_write_what_the_call_does() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let min = 1 << rng.below(13);
            let preferred = (min << rng.below(3)).max(512);
            let max = preferred * (1 + rng.below(5) as u32);
            let cut = Cut::new(BlockSizes { min, preferred, max });
            let mut want = rng.bytes(1 << 18);
            let mut have = want.clone();
            let mut data = Vec::new();
            let mut at = rng.below(3000);
            while at < 1 << 17 {
                let len = 1 + if rng.one_in(3) { rng.below(30_000) } else { rng.below(600) };
                let bytes = rng.bytes(len as usize);
                data.push((at, bytes, rng.below(3)));
                at += len + if rng.one_in(2) { 0 } else { rng.below(3000) };
            }
            let parts: Vec<Vec<&[u8]>> = data
                .iter()
                .map(|(_, bytes, kind)| match kind {
                    0 => vec![&bytes[..]],
                    1 => bytes.chunks(bytes.len().div_ceil(700)).collect(),
                    _ => vec![&bytes[..bytes.len() / 3], &[], &bytes[bytes.len() / 3..]],
                })
                .collect();
            let reqs: Vec<WriteReq<'_>> =
                data.iter().zip(&parts).map(|((at, ..), parts)| WriteReq { offset: *at, parts }).rev().collect();
            for (at, bytes, _) in &data {
                want[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
            let mut edges = Edges::of(&reqs, cut);
            assert!(min > 1 || edges.is_empty());
            for read in edges.wants() {
                let (from, to) = (read.offset as usize, read.end() as usize);
                read.buf.copy_from_slice(&have[from..to]);
            }
            edges.patch(&reqs, cut);
            let writes = plan(runs(&reqs, cut, &edges), cut);
            let touched = ranges(&writes);
            for Piece { ask, parts } in pieces(&writes, CommandFlags::empty()) {
                assert!(ask.offset.is_multiple_of(min.into()) && ask.len.is_multiple_of(min), "seed {seed} {ask:?}");
                assert!(ask.len <= max && ask.len as usize == parts.iter().map(|p| p.len()).sum::<usize>());
                assert!(touched.overlaps(ask.offset, ask.offset + u64::from(ask.len)));
                let mut at = ask.offset as usize;
                for part in parts {
                    have[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
            }
            assert!(have == want, "seed {seed}, blocks of {min}");
        }
    }
}
