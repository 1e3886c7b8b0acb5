//! The thread of one device: its superblocks, then its stripes in their order on it.

use std::sync::Arc;
use std::time::Duration;

use oleo_format::{DevId, Logical, SuperBlock};
use oleo_volume::{ChunkMap, ChunkStripes, VolumeError, read_mirrors};

use super::run::{Run, Task};
use super::{DeviceScrub, copies, rows};

/// How often a superblock that is not as expected is looked at again, since it may be being written, and how long after.
const SUPER_LOOKS_MAX: usize = 5;
const SUPER_LOOK_EVERY: Duration = Duration::from_millis(10);

/// Reads a device from a place on.
pub(super) fn read_device(run: &Run<'_>, task: &Task, chunks: &[Arc<ChunkMap>], from: u64) {
    if from == 0 {
        superblocks(run, task.devid);
    }
    let of_chunk = |chunk: &Arc<ChunkMap>| {
        let mine = chunk.stripes.iter().enumerate().filter(|(_, stripe)| stripe.devid == task.devid);
        mine.map(|(nth, stripe)| (stripe.offset.0, chunk.start, nth)).collect::<Vec<_>>()
    };
    let mut stripes: Vec<(u64, Logical, usize)> = chunks.iter().flat_map(of_chunk).collect();
    stripes.sort_unstable();
    for (physical, start, stripe) in stripes {
        if !run.goes_on() {
            return;
        }
        // One that is gone, or is another one by now, was emptied meanwhile. Nobody waits for it.
        let found = run.volume().stripes_of(start).ok().filter(|chunk| {
            let place = chunk.map().stripes.get(stripe).map(|s| (s.devid, s.offset.0));
            chunk.map().start == start && place == Some((task.devid, physical))
        });
        let Some(chunk) = found else {
            run.chunk_done(start);
            continue;
        };
        let has_parity = chunk.map().profile.has_parity();
        let reads_all = has_parity && reads_for_all(run, &chunk) == Some(task.devid);
        if physical.saturating_add(chunk.map().stripe_bytes().0) <= from {
            if reads_all {
                run.chunk_done(start);
            }
            continue;
        }
        let skip = from.saturating_sub(physical);
        if !has_parity {
            copies::read_stripe(run, task, chunk, stripe, skip);
        } else if reads_all {
            rows::read_rows(run, task, chunk, stripe, skip);
            run.chunk_done(start);
        } else {
            run.wait_for(start);
        }
    }
    run.device_done(task.devid);
}

/// Looks at the superblocks of a device. Those that are wrong are written anew by the commit at the end.
fn superblocks(run: &Run<'_>, devid: DevId) {
    let Some(device) = run.volume().device(devid) else { return };
    let fsid = run.volume().super_block().fsid;
    let is_stale = run.volume().devices().iter().any(|info| info.devid == devid && (info.stale || info.seed));
    let mut bad = 0;
    for look in 1..=SUPER_LOOKS_MAX {
        let newest = run.volume().super_block().generation.get();
        // The other mirrors come after the first.
        let oldest = if is_stale { 0 } else { newest.saturating_sub(u64::from(!run.is_alone())) };
        let mirrors = read_mirrors(&*device);
        let is_bad = |(_, mirror): &&(u64, Result<SuperBlock, VolumeError>)| {
            mirror.as_ref().map_or(true, |sb| (sb.fsid != fsid && !is_stale) || sb.generation.get() < oldest)
        };
        bad = mirrors.iter().filter(is_bad).count() as u64;
        if bad == 0 || look == SUPER_LOOKS_MAX {
            break;
        }
        std::thread::sleep(SUPER_LOOK_EVERY);
    }
    if bad > 0 {
        run.add(devid, &DeviceScrub { super_errors: bad, ..DeviceScrub::default() });
    }
}

/// Which device's thread reads a chunk with parity: of those that are scrubbed, and there, that of the lowest number.
fn reads_for_all(run: &Run<'_>, chunk: &ChunkStripes) -> Option<DevId> {
    let stripes = 0..chunk.map().stripes.len();
    stripes.filter(|&stripe| chunk.is_present(stripe)).map(|s| chunk.devid(s)).filter(|d| run.scrubs(*d)).min()
}
