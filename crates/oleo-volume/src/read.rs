//! Reading: the copy most likely to be good first, then the others, then parity; bad copies are counted and healed.
//!
//! A read has two steps. (1) The *first pass* fetches everything from the best source of each piece, in one batch per
//! device, devices in parallel. (2) Bytes that failed to read or to verify are *recovered*: the remaining sources are
//! tried for just those bytes. If a later source is good and the volume is open for writing, the bad copies are
//! overwritten with it. Only bytes verified by a checksum are used for healing.
//!
//! Order of sources: devices that are present before devices that missed writes; among equals, spread by address, so
//! that large reads use the devices of all copies. Healing bypasses the latch: the volume continues if a disk cannot be
//! healed. The space read must be allocated, and stay so until the read returns: healing writes in place.

use oleo_format::{ByteLen, CheckedNode, Corruption, Logical, NodeExpect, NodeRules};
use uuid::Uuid;

use crate::Volume;
use crate::batch::Batch;
use crate::error::VolumeError;
use crate::geometry::{ChunkMap, Piece, STRIPE_LEN};
use crate::member::{Count, Standing};
use crate::profile::Profile;
use crate::rebuild::{Lost, rebuild, ways};
use crate::table::Placed;

/// Logical bytes after which the next copy is preferred.
const SPREAD_LEN: u64 = 1 << 20;
/// The place of the fsid in a tree block's header.
const HEADER_FSID: std::ops::Range<usize> = 32..48;

/// One way to get a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// From a stripe that has a copy.
    Copy { stripe: usize },
    /// From the rest of the row.
    Parity(Lost),
}

impl Volume {
    /// Reads a tree block from any copy that matches `expect`. Bad copies are counted, and overwritten with a good one if the
    /// volume is open for writing.
    pub fn read_block(&self, expect: &NodeExpect) -> Result<CheckedNode, VolumeError> {
        let len = u64::from(self.rules.nodesize);
        let (placed, at) = self.block_place(expect.logical)?;
        let pieces: Vec<_> = placed.map.pieces(at, len).map(|p| (p, sources(&placed, &p))).collect();
        let tries = pieces.iter().map(|(_, s)| s.len()).max().unwrap_or(0);
        let mut failed: Vec<(Source, Piece)> = Vec::new();
        let mut first_error = None;
        let mut unsummed = None;
        for attempt in 0..tries {
            let mut bytes = vec![0; len as usize].into_boxed_slice();
            let mut used = Vec::with_capacity(pieces.len());
            let mut result = Ok(());
            for (piece, sources) in &pieces {
                let Some(&source) = sources.get(attempt.min(sources.len().saturating_sub(1))) else { continue };
                let from = (piece.at - at) as usize;
                used.push((source, *piece));
                result = self.read_source(&placed, piece, source, &mut bytes[from..from + piece.len as usize]);
                if result.is_err() {
                    break;
                }
            }
            let node = result.and_then(|()| {
                let rules = self.rules_for(&bytes);
                if self.ignore_block_csums && unsummed.is_none() {
                    unsummed = CheckedNode::verify_without_csum(bytes.clone(), rules, expect).ok();
                }
                CheckedNode::verify(bytes, rules, expect).map_err(|e| {
                    count_corruption(&placed, &used, &e);
                    e.into()
                })
            });
            match node {
                Ok(node) => {
                    self.heal_block(&placed, at, &failed, node.bytes());
                    return Ok(node);
                }
                Err(e) => {
                    failed.extend(used);
                    first_error.get_or_insert(e);
                }
            }
        }
        unsummed.ok_or_else(|| no_good_copy(expect.logical, len, first_error))
    }

    /// Reads many tree blocks in one batch; each gets its own result, in order. Devices work in parallel, verification
    /// does not: callers with cores to spare call it from several threads.
    pub fn read_blocks(&self, expects: &[NodeExpect]) -> Vec<Result<CheckedNode, VolumeError>> {
        if let [only] = expects {
            return vec![self.read_block(only)];
        }
        let len = u64::from(self.rules.nodesize);
        let mut bufs: Vec<Box<[u8]>> = expects.iter().map(|_| vec![0; len as usize].into_boxed_slice()).collect();
        let mut batch = Batch::default();
        for (index, (expect, buf)) in expects.iter().zip(&mut bufs).enumerate() {
            let Ok((placed, at)) = self.block_place(expect.logical) else { continue };
            let piece = placed.map.piece(at, len);
            if let Some(&Source::Copy { stripe }) = sources(&placed, &piece).first()
                && piece.len == len
                && placed.on[stripe].is_readable()
            {
                batch.add(&placed.on[stripe], placed.map.physical(stripe, piece.offset).0, buf, index);
            }
        }
        let mut fetched = vec![false; expects.len()];
        for (index, result) in batch.run() {
            fetched[index] = result.is_ok();
        }
        let work: Vec<_> = expects.iter().zip(bufs).zip(fetched).collect();
        let verify = |((expect, bytes), fetched): ((&NodeExpect, Box<[u8]>), bool)| {
            if fetched {
                let rules = self.rules_for(&bytes);
                if let Ok(node) = CheckedNode::verify(bytes, rules, expect) {
                    return Ok(node);
                }
            }
            // Once more, with all sources; this also counts and heals the bad copies.
            self.read_block(expect)
        };
        work.into_iter().map(verify).collect()
    }

    /// Reads data. With checksums (one per sector, concatenated), each sector comes from a copy that fits its
    /// checksum (bad copies are counted and healed, as by [`read_block`](Self::read_block)); without, from the first copy that
    /// can be read. Address and length are whole sectors if there are
    /// checksums.
    pub fn read_data(&self, at: Logical, buf: &mut [u8], csums: Option<&[u8]>) -> Result<(), VolumeError> {
        if self.remaps.is_empty() {
            return self.read_in_place(at, buf, csums);
        }
        Verifier::new(&self.rules, at, buf.len() as u64, csums)?;
        let (unit, csum_len) = (self.rules.sectorsize as usize, self.rules.csum.csum_len());
        let mut done = 0;
        for (at, len) in self.remaps.runs(at, buf.len() as u64)? {
            // Of ranges with checksums, each piece is whole sectors, as the ranges of the tree are.
            let end = done + len as usize;
            let sums = csums.and_then(|sums| sums.get(done / unit * csum_len..end / unit * csum_len));
            self.read_in_place(at, &mut buf[done..end], sums)?;
            done = end;
        }
        Ok(())
    }

    /// The same of a range that is where its chunk says.
    fn read_in_place(&self, at: Logical, buf: &mut [u8], csums: Option<&[u8]>) -> Result<(), VolumeError> {
        let len = buf.len() as u64;
        let verifier = Verifier::new(&self.rules, at, len, csums)?;
        let chunks = self.chunks.now();
        let spans = chunks.spans(at, len)?;
        if spans.iter().any(|(placed, ..)| self.is_placed_by_tree(&placed.map)) {
            return self.read_moved(at, buf, csums);
        }
        let mut parts = Vec::new();
        let mut rest = buf;
        for &(placed, offset, span_len) in &spans {
            for piece in spread(&placed.map, offset, span_len) {
                let (head, tail) = rest.split_at_mut(piece.len as usize);
                let mut sources = sources(placed, &piece);
                if csums.is_none() {
                    without_outdated(placed, &mut sources).map_err(|why| no_good_copy(at, len, Some(why)))?;
                }
                parts.push(Part { placed, piece, sources, buf: head, error: None });
                rest = tail;
            }
        }
        if let [part] = &mut parts[..] {
            if let Some(&source) = part.sources.first() {
                part.error = self.read_source(part.placed, &part.piece, source, part.buf).err();
            }
        } else {
            self.first_pass(&mut parts);
        }
        let mut sector_buf = Vec::new();
        for part in &mut parts {
            self.settle_part(part, &verifier, &mut sector_buf)?;
        }
        Ok(())
    }

    /// Verifies the results of the first pass, and gets bad bytes from elsewhere.
    fn settle_part(
        &self,
        part: &mut Part<'_, '_>,
        verifier: &Verifier<'_>,
        spare: &mut Vec<u8>,
    ) -> Result<(), VolumeError> {
        let start = part.logical();
        let mut bad = match &part.error {
            Some(_) => vec![(0, part.buf.len())],
            None => verifier.bad_runs(start, part.buf),
        };
        if bad.is_empty() {
            return Ok(());
        }
        let mut first_error = part.error.take();
        let first_failed = first_error.is_some();
        let mut failed: Vec<(Source, (usize, usize))> = Vec::new();
        for (index, source) in std::mem::take(&mut part.sources).into_iter().enumerate() {
            let mut still_bad = Vec::new();
            for (from, to) in std::mem::take(&mut bad) {
                // The first source was read already; once more sector by sector if the read failed as a whole.
                let again = index > 0 || first_failed;
                let left = match again {
                    true => self.read_run(part, source, (from, to), verifier, spare, &mut first_error),
                    false => {
                        part.count_bad(source, verifier, (from, to), &mut first_error);
                        vec![(from, to)]
                    }
                };
                for &(f, t) in &left {
                    failed.push((source, (f, t)));
                }
                still_bad.extend(left);
            }
            bad = still_bad;
            if bad.is_empty() {
                break;
            }
        }
        if let Some(&(from, to)) = bad.first() {
            return Err(no_good_copy(start + ByteLen(from as u64), (to - from) as u64, first_error));
        }
        if verifier.csums.is_some() {
            for (source, (from, to)) in failed {
                let at = part.piece.offset + from as u64;
                self.heal(part.placed, source, at, &part.buf[from..to]);
            }
        }
        Ok(())
    }

    /// Reads a run of a part from a source: whole, and if that fails sector by sector. Returns what is not good.
    fn read_run(
        &self,
        part: &mut Part<'_, '_>,
        source: Source,
        run: (usize, usize),
        verifier: &Verifier<'_>,
        spare: &mut Vec<u8>,
        first_error: &mut Option<VolumeError>,
    ) -> Vec<(usize, usize)> {
        let unit = self.rules.sectorsize as usize;
        let (from, to) = run;
        let start = part.logical();
        let fetch = |f: usize, t: usize, out: &mut [u8]| {
            let sub = Piece {
                at: part.piece.at + f as u64,
                len: (t - f) as u64,
                offset: part.piece.offset + f as u64,
                ..part.piece
            };
            self.read_source(part.placed, &sub, source, out)
        };
        spare.resize(to - from, 0);
        let mut good = Vec::new();
        let mut bad = Vec::new();
        match fetch(from, to, spare) {
            Ok(()) => {
                bad = verifier.bad_runs(start + ByteLen(from as u64), spare);
                for &(f, t) in &bad {
                    part.count_bad(source, verifier, (from + f, from + t), first_error);
                }
            }
            Err(VolumeError::OnMissing { devid }) => {
                first_error.get_or_insert(VolumeError::OnMissing { devid });
                bad.push((0, to - from));
            }
            Err(e) => {
                first_error.get_or_insert(e);
                for f in (0..to - from).step_by(unit) {
                    let t = (f + unit).min(to - from);
                    let fits = fetch(from + f, from + t, &mut spare[f..t]).is_ok()
                        && verifier.bad_runs(start + ByteLen((from + f) as u64), &spare[f..t]).is_empty();
                    if !fits {
                        bad.push((f, t));
                    }
                }
            }
        }
        let mut next = 0;
        for &(f, t) in &bad {
            good.push((next, f));
            next = t;
        }
        good.push((next, to - from));
        for (f, t) in good {
            part.buf[from + f..from + t].copy_from_slice(&spare[f..t]);
        }
        bad.iter().map(|&(f, t)| (from + f, from + t)).collect()
    }

    /// Fetches every part from its best source.
    fn first_pass(&self, parts: &mut [Part<'_, '_>]) {
        let mut batch = Batch::default();
        let mut left = Vec::new();
        for (index, part) in parts.iter_mut().enumerate() {
            match part.sources.first() {
                Some(&Source::Copy { stripe }) if part.placed.on[stripe].is_readable() => {
                    let offset = part.placed.map.physical(stripe, part.piece.offset).0;
                    batch.add(&part.placed.on[stripe], offset, part.buf, index);
                }
                Some(&source) => left.push((index, source)),
                None => {}
            }
        }
        let results = batch.run();
        for (index, result) in results {
            let part = &mut parts[index];
            if let (Err(e), Some(&Source::Copy { stripe })) = (result, part.sources.first()) {
                part.error = Some(part.placed.on[stripe].read_failed(e));
            }
        }
        for (index, source) in left {
            let part = &mut parts[index];
            part.error = self.read_source(part.placed, &part.piece, source, part.buf).err();
        }
    }

    /// Fills `buf`, which is as long as the piece, from one source. Nobody writes to a row while it is rebuilt.
    fn read_source(&self, placed: &Placed, piece: &Piece, source: Source, buf: &mut [u8]) -> Result<(), VolumeError> {
        match source {
            Source::Copy { stripe } => placed.on[stripe].read(placed.map.physical(stripe, piece.offset), buf),
            Source::Parity(lost) => {
                let _row = self.rows.lock_one(placed.map.start, piece.offset / STRIPE_LEN);
                rebuild(placed, piece.offset, lost, buf, |devid, at, bytes| self.rows.patch(devid, at, bytes))
            }
        }
    }

    fn block_place(&self, at: Logical) -> Result<(Placed, u64), VolumeError> {
        let len = u64::from(self.rules.nodesize);
        let at = self.remapped(at, len)?;
        let placed = self.placed(at).map_err(|_| VolumeError::Unmapped { at, len })?;
        let offset = at.0 - placed.map.start.0;
        if !at.is_aligned(ByteLen(self.rules.sectorsize.into())) {
            return Err(VolumeError::Unaligned { at, len, csums: 0 });
        }
        match placed.map.len.0 - offset < len {
            true => Err(VolumeError::Unmapped { at, len }),
            false => Ok((placed, offset)),
        }
    }

    /// The rules for a block: those of the seed whose fsid it carries, or the volume's own.
    pub(crate) fn rules_for(&self, bytes: &[u8]) -> &NodeRules {
        let fsid = bytes.get(HEADER_FSID).and_then(|b| Uuid::from_slice(b).ok());
        self.seed_rules.iter().find(|r| Some(r.fsid) == fsid).unwrap_or(&self.rules)
    }

    fn heal_block(&self, placed: &Placed, at: u64, failed: &[(Source, Piece)], good: &[u8]) {
        for (source, piece) in failed {
            let from = (piece.at - at) as usize;
            self.heal(placed, *source, piece.offset, &good[from..from + piece.len as usize]);
        }
    }

    /// Overwrites a bad copy. If it cannot be, that is counted, and the copy stays bad.
    fn heal(&self, placed: &Placed, source: Source, offset: u64, good: &[u8]) {
        let Source::Copy { stripe } = source else { return };
        let member = &placed.on[stripe];
        if self.read_only() || member.seed {
            return;
        }
        let parity = placed.map.profile.has_parity();
        let _row = parity.then(|| self.rows.lock_one(placed.map.start, offset / STRIPE_LEN));
        // A copy that stays bad was counted.
        let _ = member.heal(placed.map.physical(stripe, offset), good);
    }
}

/// A piece of a data read and where it goes.
struct Part<'p, 'b> {
    placed: &'p Placed,
    piece: Piece,
    sources: Vec<Source>,
    buf: &'b mut [u8],
    error: Option<VolumeError>,
}

impl Part<'_, '_> {
    fn logical(&self) -> Logical {
        self.placed.map.start + ByteLen(self.piece.at)
    }

    /// Counts the sectors of a run that were bad in a copy.
    fn count_bad(&self, source: Source, verifier: &Verifier<'_>, run: (usize, usize), first: &mut Option<VolumeError>) {
        let Source::Copy { stripe } = source else { return };
        let member = &self.placed.on[stripe];
        let (from, to) = run;
        for _ in (from..to).step_by(verifier.rules.sectorsize as usize) {
            member.count(Count::Corruption);
        }
        let at = self.logical() + ByteLen(from as u64);
        first.get_or_insert(VolumeError::DataChecksum { at, devid: member.devid });
    }
}

/// Checksums of a range of data.
struct Verifier<'a> {
    rules: &'a NodeRules,
    start: Logical,
    csums: Option<&'a [u8]>,
}

impl<'a> Verifier<'a> {
    fn new(rules: &'a NodeRules, at: Logical, len: u64, csums: Option<&'a [u8]>) -> Result<Verifier<'a>, VolumeError> {
        if let Some(csums) = csums {
            let unit = ByteLen(rules.sectorsize.into());
            let want = len / unit.0 * rules.csum.csum_len() as u64;
            if !at.is_aligned(unit) || !ByteLen(len).is_aligned(unit) || csums.len() as u64 != want {
                return Err(VolumeError::Unaligned { at, len, csums: csums.len() });
            }
        }
        Ok(Verifier { rules, start: at, csums })
    }

    /// Byte ranges of `data`, which lies at `at`, that do not fit their checksums. Neighbouring sectors are one run.
    fn bad_runs(&self, at: Logical, data: &[u8]) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        let Some(csums) = self.csums else { return runs };
        let (unit, csum_len) = (self.rules.sectorsize as usize, self.rules.csum.csum_len());
        let first = ((at - self.start).0 as usize / unit) * csum_len;
        for (i, (sector, want)) in data.chunks(unit).zip(csums[first..].chunks_exact(csum_len)).enumerate() {
            if self.rules.csum.csum(sector)[..csum_len] == *want {
                continue;
            }
            let (from, to) = (i * unit, i * unit + sector.len());
            match runs.last_mut() {
                Some(run) if run.1 == from => run.1 = to,
                _ => runs.push((from, to)),
            }
        }
        runs
    }
}

/// The pieces of a range, cut at each change of the preferred copy.
fn spread(map: &ChunkMap, at: u64, len: u64) -> impl Iterator<Item = Piece> {
    let end = at + len;
    let mut next = at;
    std::iter::from_fn(move || {
        let left = (next < end).then(|| end - next)?;
        let piece = match takes_turns(map) {
            true => map.piece(next, left.min(SPREAD_LEN - (map.start.0 + next) % SPREAD_LEN)),
            false => map.piece(next, left),
        };
        next += piece.len;
        Some(piece)
    })
}

/// Whether copies are on different devices, so that reading from several is a gain.
fn takes_turns(map: &ChunkMap) -> bool {
    map.profile.shape().copies > 1 && map.profile != Profile::Dup
}

/// All ways to get a piece, the most promising first.
fn sources(placed: &Placed, piece: &Piece) -> Vec<Source> {
    if placed.map.profile.has_parity() {
        return parity_sources(placed, piece);
    }
    if piece.copies == 1 {
        return vec![Source::Copy { stripe: piece.stripe }];
    }
    let turn = match takes_turns(&placed.map) {
        true => ((placed.map.start.0 + piece.at) / SPREAD_LEN % piece.copies as u64) as usize,
        false => 0,
    };
    let mut stripes: Vec<usize> = (0..piece.copies).map(|i| piece.stripe + (turn + i) % piece.copies).collect();
    stripes.sort_by_key(|&s| placed.on[s].reluctance());
    stripes.into_iter().map(|stripe| Source::Copy { stripe }).collect()
}

/// The stripe itself, then every way to rebuild it that does without the stripes that are missing.
fn parity_sources(placed: &Placed, piece: &Piece) -> Vec<Source> {
    let mut sources = Vec::new();
    let own = &placed.on[piece.stripe];
    if own.is_readable() {
        sources.push(Source::Copy { stripe: piece.stripe });
    }
    sources.extend(ways(placed, piece).into_iter().map(Source::Parity));
    // What is rebuilt from others is better than what missed writes, or is about to go.
    if own.is_readable() && own.reluctance() > 0 {
        sources.rotate_left(1);
    }
    if sources.is_empty() {
        sources.push(Source::Copy { stripe: piece.stripe }); // fails, and says which device is missing
    }
    sources
}

/// Leaves out copies of which nobody can tell whether they are old, if there are others, here or on a device that is not there. What is on one
/// device alone was not written while it was away.
fn without_outdated(placed: &Placed, sources: &mut Vec<Source>) -> Result<(), VolumeError> {
    if placed.map.profile.losses_max() == 0 {
        return Ok(());
    }
    let outdated = |source: &Source| match source {
        Source::Copy { stripe } => Some(&placed.on[*stripe]).filter(|member| member.standing() == Standing::Stale),
        Source::Parity(_) => None,
    };
    let devid = sources.iter().find_map(outdated).map(|member| member.devid);
    sources.retain(|source| outdated(source).is_none());
    match devid {
        Some(devid) if sources.is_empty() => Err(VolumeError::Outdated { devid }),
        _ => Ok(()),
    }
}

fn count_corruption(placed: &Placed, used: &[(Source, Piece)], why: &Corruption) {
    for (source, _) in used {
        if let Source::Copy { stripe } = source {
            placed.on[*stripe].count_corruption(why);
        }
    }
}

#[cold]
fn no_good_copy(at: Logical, len: u64, why: Option<VolumeError>) -> VolumeError {
    VolumeError::NoGoodCopy { at, len, why: Box::new(why.unwrap_or(VolumeError::Unmapped { at, len })) }
}
