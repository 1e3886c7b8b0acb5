//! Reads all data that has checksums, from every copy, and verifies it.
//!
//! Parity is not checked: wrong parity shows only if data has to be rebuilt from it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use oleo_format::{ItemType, Key, Logical};
use oleo_volume::CopyRead;
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
    let per_job = (READ_LEN / unit).max(1) * csum_len;
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
                for (i, csums) in item.chunks(per_job).enumerate() {
                    let at = key.offset.saturating_add((i * per_job / csum_len * unit) as u64);
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

fn verify_job(cx: &Context<'_>, job: &Job) -> u64 {
    let rules = &cx.env.rules;
    let unit = rules.sectorsize as usize;
    let csum_len = rules.csum.csum_len();
    let sectors = job.csums.len() / csum_len;
    let copies = cx.volume.copies(Logical(job.at));
    let mut buf = vec![0; sectors * unit];
    let mut bad: Vec<Vec<bool>> = Vec::new();
    let mut verified = 0;
    for copy in 0..copies {
        let mut reads: Vec<CopyRead<'_>> = vec![CopyRead::new(Logical(job.at), copy, &mut buf)];
        cx.volume.read_copies(&mut reads);
        let whole = reads[0].result.is_ok();
        drop(reads);
        let one = |i: usize, sector: &[u8], want: &[u8]| {
            if whole {
                return rules.csum.csum(sector)[..csum_len] != *want;
            }
            // Some sector cannot be read, so each is read by itself.
            let mut one = vec![0; unit];
            let at = Logical(job.at + (i * unit) as u64);
            let mut reads = [CopyRead::new(at, copy, &mut one)];
            cx.volume.read_copies(&mut reads);
            let [read] = reads;
            read.result.is_err() || rules.csum.csum(&one)[..csum_len] != *want
        };
        let sectors = buf.chunks(unit).zip(job.csums.chunks_exact(csum_len)).enumerate();
        bad.push(sectors.map(|(i, (sector, want))| one(i, sector, want)).collect());
        verified += buf.len() as u64;
    }
    for i in 0..sectors {
        let at = Logical(job.at + (i * unit) as u64);
        let count = bad.iter().filter(|of_copy| of_copy[i]).count();
        if count == 0 {
            continue;
        }
        let mut place = Place { block: Some(at), ..Place::default() };
        let spare = count == copies && {
            // With parity the sector can be rebuilt.
            let mut sector = vec![0; unit];
            let want = &job.csums[i * csum_len..(i + 1) * csum_len];
            cx.volume.read_data(at, &mut sector, Some(want)).is_ok()
        };
        if count == copies && !spare {
            cx.error(Kind::DataChecksum, place, "data that does not fit on any copy", "a copy that fits its checksum");
            continue;
        }
        for (copy, _) in bad.iter().enumerate().filter(|(_, of_copy)| of_copy[i]) {
            place.device = cx.volume.device_of_copy(at, copy).map(|d| d.0);
            let have = format!("copy {copy} does not fit its checksum");
            cx.error(Kind::DataMirror, place.clone(), have, "the same as the good copy");
        }
    }
    verified
}
