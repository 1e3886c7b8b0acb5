//! Reads all data that has checksums, from every copy, and verifies it.
//!
//! Parity is not checked: wrong parity shows only if data has to be rebuilt from it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use oleo_format::{ItemType, Key, Logical};
use oleo_volume::{CopyRead, VolumeError};
use rayon::prelude::*;

use crate::finding::{Kind, Place};
use crate::input::{Input, TreeStart};
use crate::walk::{Context, Progress};

/// Bytes that one thread reads at a time, of each copy.
const READ_LEN: usize = 1 << 20;
/// Reads that are gathered before they are handed to all threads.
const GATHER: usize = 64;

/// A range and its checksums.
struct Job {
    at: u64,
    csums: Vec<u8>,
}

/// Verifies everything; returns how many bytes were verified, each copy counted.
pub(crate) fn verify(cx: &Context<'_>, input: &Input<'_>, csum_trees: &[TreeStart], expected: u64) -> u64 {
    let unit = cx.env.rules.sectorsize as usize;
    let csum_len = cx.env.rules.csum.csum_len();
    let (done, verified) = (AtomicU64::new(0), AtomicU64::new(0));
    let run = |jobs: &mut Vec<Job>| {
        let one = |job: &Job| {
            verified.fetch_add(verify_job(cx, job), Ordering::Relaxed);
            let len = (job.csums.len() / csum_len * unit) as u64;
            let done = done.fetch_add(len, Ordering::Relaxed) + len;
            if let Some(progress) = cx.progress {
                progress(Progress { what: "data", done, expected });
            }
        };
        match cx.parallel && jobs.len() > 1 {
            true => jobs.par_iter().for_each(one),
            false => jobs.iter().for_each(one),
        }
        jobs.clear();
    };
    let mut jobs: Vec<Job> = Vec::new();
    for tree in csum_trees {
        input.each(tree, Key::MIN, Key::MAX, &mut |key, item| {
            if key.item_type == ItemType::EXTENT_CSUM {
                let chunk_end = |at| cx.volume.chunk_of(Logical(at)).ok().map(|chunk| chunk.end().0);
                for (at, count) in parts(key.offset, item.len() / csum_len, unit, chunk_end) {
                    let first = at.saturating_sub(key.offset) as usize / unit * csum_len;
                    let csums = item.get(first..first + count * csum_len).unwrap_or_default();
                    jobs.push(Job { at, csums: csums.to_vec() });
                }
                if jobs.len() >= GATHER {
                    run(&mut jobs);
                }
            }
            ControlFlow::Continue(())
        });
    }
    run(&mut jobs);
    verified.into_inner()
}

/// Divides a run of sectors into parts that are read at a time, each with its address and its number of sectors. No part goes beyond
/// the end of its chunk, since the next chunk may have another number of copies.
fn parts(at: u64, sectors: usize, unit: usize, chunk_end: impl Fn(u64) -> Option<u64>) -> Vec<(u64, usize)> {
    let (mut at, mut left, mut parts) = (at, sectors, Vec::new());
    while left > 0 {
        let in_chunk = chunk_end(at).map_or(left, |end| (end.saturating_sub(at) / unit as u64).max(1) as usize);
        let count = left.min(in_chunk).min((READ_LEN / unit).max(1));
        parts.push((at, count));
        at = at.saturating_add((count * unit) as u64);
        left -= count;
    }
    parts
}

/// One sector on one copy.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Sector {
    Good,
    /// It was read, and does not fit its checksum.
    Wrong,
    /// Its device failed to read it.
    Unread(String),
    /// Its device is missing, which the user has asked to do without.
    Absent,
}

/// A range that no copy has, and why.
struct Unreadable {
    at: u64,
    len: u64,
    why: String,
}

fn verify_job(cx: &Context<'_>, job: &Job) -> u64 {
    let rules = &cx.env.rules;
    let unit = rules.sectorsize as usize;
    let csum_len = rules.csum.csum_len();
    let sectors = job.csums.len() / csum_len;
    let copies = cx.volume.copies(Logical(job.at));
    let found: Vec<Vec<Sector>> = (0..copies).map(|copy| verify_copy(cx, job, copy)).collect();
    let read = found.iter().flatten().filter(|sector| matches!(sector, Sector::Good | Sector::Wrong)).count();
    let mut unreadable: Option<Unreadable> = None;
    for i in 0..sectors {
        let at = Logical(job.at + (i * unit) as u64);
        let of_copies = || found.iter().map(|of_copy| &of_copy[i]);
        if of_copies().all(|sector| *sector == Sector::Good) {
            continue;
        }
        let mut place = Place { block: Some(at), ..Place::default() };
        let spare = of_copies().any(|sector| *sector == Sector::Good) || {
            // With parity the sector can be rebuilt.
            let mut sector = vec![0; unit];
            let want = &job.csums[i * csum_len..(i + 1) * csum_len];
            cx.volume.read_data(at, &mut sector, Some(want)).is_ok()
        };
        if !spare && of_copies().any(|sector| *sector == Sector::Wrong) {
            cx.error(Kind::DataChecksum, place, "data that does not fit on any copy", "a copy that fits its checksum");
            continue;
        }
        if !spare {
            let failed =
                of_copies().find_map(|sector| if let Sector::Unread(why) = sector { Some(why.clone()) } else { None });
            let why = failed.unwrap_or_else(|| "only on devices that are missing".into());
            match &mut unreadable {
                Some(run) if run.at + run.len == at.0 && run.why == why => run.len += unit as u64,
                run => {
                    let new = Unreadable { at: at.0, len: unit as u64, why };
                    run.replace(new).into_iter().for_each(|run| report_unreadable(cx, &run));
                }
            }
            continue;
        }
        for (copy, sector) in of_copies().enumerate() {
            let have = match sector {
                Sector::Good | Sector::Absent => continue,
                Sector::Wrong => format!("copy {copy} does not fit its checksum"),
                Sector::Unread(why) => format!("copy {copy} cannot be read: {why}"),
            };
            place.device = cx.volume.device_of_copy(at, copy).map(|d| d.0);
            cx.error(Kind::DataMirror, place.clone(), have, "the same as the good copy");
        }
    }
    unreadable.into_iter().for_each(|run| report_unreadable(cx, &run));
    (read * unit) as u64
}

/// Reads and verifies a range on one copy.
fn verify_copy(cx: &Context<'_>, job: &Job, copy: usize) -> Vec<Sector> {
    let rules = &cx.env.rules;
    let (unit, csum_len) = (rules.sectorsize as usize, rules.csum.csum_len());
    let mut bytes = vec![0; job.csums.len() / csum_len * unit];
    let mut reads = [CopyRead::new(Logical(job.at), copy, &mut bytes)];
    cx.volume.read_copies(&mut reads);
    let [read] = reads;
    let whole = read.result.is_ok();
    let verified = |sector: &[u8], want: &[u8]| {
        if rules.csum.csum(sector)[..csum_len] == *want { Sector::Good } else { Sector::Wrong }
    };
    let sectors = bytes.chunks(unit).zip(job.csums.chunks_exact(csum_len)).enumerate();
    sectors
        .map(|(i, (sector, want))| {
            if whole {
                return verified(sector, want);
            }
            // Some sector cannot be read, so each is read by itself.
            let mut one = vec![0; unit];
            let mut reads = [CopyRead::new(Logical(job.at + (i * unit) as u64), copy, &mut one)];
            cx.volume.read_copies(&mut reads);
            let [read] = reads;
            match read.result {
                Ok(()) => verified(&one, want),
                Err(VolumeError::OnMissing { .. }) => Sector::Absent,
                Err(e) => Sector::Unread(e.to_string()),
            }
        })
        .collect()
}

fn report_unreadable(cx: &Context<'_>, run: &Unreadable) {
    let place = Place { block: Some(Logical(run.at)), ..Place::default() };
    cx.error(Kind::DataUnreadable, place, format_args!("{} bytes that cannot be read: {}", run.len, run.why), "a copy");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a run of sectors that goes across the ends of chunks is divided there, and into reads of bounded length; each sector is in one
    /// part. Method: chunks of 3 MiB from 1 MiB on, and none below and above.
    #[test]
    fn runs_are_divided_at_the_ends_of_chunks() {
        const MIB: u64 = 1 << 20;
        let end = |at: u64| (MIB..7 * MIB).contains(&at).then_some(if at < 4 * MIB { 4 * MIB } else { 7 * MIB });
        let of_mib = |at: u64, sectors: u64| parts(at, sectors as usize, 4096, end);
        assert_eq!(of_mib(MIB, 10), [(MIB, 10)]);
        assert_eq!(of_mib(4 * MIB - 8192, 5), [(4 * MIB - 8192, 2), (4 * MIB, 3)]);
        assert_eq!(of_mib(3 * MIB + 4096, 512), [(3 * MIB + 4096, 255), (4 * MIB, 256), (5 * MIB, 1)]);
        assert_eq!(of_mib(9 * MIB, 300), [(9 * MIB, 256), (10 * MIB, 44)]);
        assert_eq!(of_mib(0, 0), []);
    }
}
