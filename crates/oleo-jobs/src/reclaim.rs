//! Reclaims groups that are nearly empty: moves their contents into the free space of other groups.
//!
//! Unlike a balance it never makes a new group to empty another, begins with the emptiest, and leaves nothing on disk
//! that would have to be resumed. If it is interrupted, what was moved stays moved.

use oleo_format::{BlockGroupFlags, ByteLen};
use oleo_fs::{Fs, errno};
use oleo_space::{GroupInfo, Kind};
use oleo_txn::TxnError;
use serde::{Deserialize, Serialize};

use crate::unreadable::named;
use crate::{Balancer, JobError};

/// What was reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Block groups that are gone.
    pub groups: u64,
    /// The bytes that the groups occupied on devices.
    pub freed: ByteLen,
    /// Used bytes that were moved for that.
    pub moved: ByteLen,
}

/// Reclaims groups of data and metadata of which less than `percent` is used, as far as other groups have room for
/// their contents. Empty groups are always removed, except the last of each type.
///
/// # Errors
/// `percent` is not a percentage, a balance is under way, or the image is damaged. If only some group is still in use, all others were reclaimed.
pub fn reclaim(fs: &Fs, balancer: &Balancer, percent: u64) -> Result<Reclaimed, JobError> {
    if percent > 100 {
        return Err(JobError::refused(errno::EINVAL, format!("{percent} is not a percentage")));
    }
    balancer.exclusively("reclaiming groups", |goes_on| {
        fs.sync()?;
        let mut groups: Vec<GroupInfo> = fs.engine().space().groups();
        groups.retain(|g| !g.flags.contains(BlockGroupFlags::SYSTEM) && is_low(g, percent));
        groups.sort_unstable_by_key(|g| (g.used, g.start));
        let (mut done, mut in_use) = (Reclaimed::default(), None);
        for group in groups {
            if !goes_on() {
                break;
            }
            match reclaim_one(fs, &group, percent, goes_on) {
                Ok(None) => {}
                Ok(Some((freed, moved))) => {
                    done.groups += 1;
                    done.freed += freed;
                    done.moved += moved;
                }
                // As with a balance: it does not keep the others.
                Err(error @ TxnError::StillUsed(_)) => in_use = in_use.or(Some(error)),
                Err(error) => return Err(named(fs, error)),
            }
        }
        fs.sync()?;
        in_use.map_or(Ok(done), |error| Err(error.into()))
    })
}

fn is_low(group: &GroupInfo, percent: u64) -> bool {
    group.used.0 == 0 || u128::from(group.used.0) * 100 < u128::from(group.len.0) * u128::from(percent)
}

/// Moves the contents of a group, if it is still as empty and other groups have room; returns the bytes it occupied on
/// devices, and what was moved.
fn reclaim_one(
    fs: &Fs,
    group: &GroupInfo,
    percent: u64,
    goes_on: &dyn Fn() -> bool,
) -> Result<Option<(ByteLen, ByteLen)>, TxnError> {
    let engine = fs.engine();
    let now = engine.space().group(group.start).ok().filter(|g| g.start == group.start && is_low(g, percent));
    let Some(now) = now.filter(|g| !g.read_only) else { return Ok(None) };
    let kind = if now.flags.contains(BlockGroupFlags::DATA) { Kind::Data } else { Kind::Metadata };
    let totals = engine.space().totals(kind);
    let own = now.len.0.saturating_sub(now.used.0 + now.excluded.0);
    let elsewhere = totals.free.0.saturating_sub(totals.reserved.0).saturating_sub(own);
    if totals.total == now.len || elsewhere < now.used.0 {
        return Ok(None);
    }
    let chunk = engine.volume().chunk_of(now.start)?;
    let on_devices = ByteLen(chunk.stripe_bytes().0 * chunk.stripes.len() as u64);
    match engine.relocate_group(now.start, &|_| goes_on()) {
        Ok(moved) => Ok(moved.map(|_| (on_devices, now.used))),
        Err(TxnError::NoSpace { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
