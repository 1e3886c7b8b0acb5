//! Rebuilds a part of a lost data unit from the other units of its row.
//!
//! Units are counted as in the geometry: data from 0, then P, then Q. The arithmetic is in `oleo_format::raid6`.

use oleo_format::DevId;
use oleo_format::raid6::{self, Parity};

use crate::batch::Batch;
use crate::error::VolumeError;
use crate::geometry::{Piece, STRIPE_LEN};
use crate::table::Placed;

/// The unit to be rebuilt, and the lost ones, as units of the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    /// The data unit that is wanted.
    pub want: usize,
    /// Another unit that cannot be used.
    pub other: Option<usize>,
}

impl Lost {
    /// Which parity serves, of how many units of the row, and which of them are lost: with Q lost, the row is one of RAID5.
    fn plan(self, data: usize) -> (Parity, usize, Vec<usize>) {
        match self.other {
            Some(other) if other != data + 1 => (Parity::Raid6, data + 2, vec![self.want, other]),
            _ => (Parity::Raid5, data + 1, vec![self.want]),
        }
    }
}

/// Every way to rebuild the data unit of a piece that does without the units that are missing, the cheapest first.
pub(crate) fn ways(placed: &Placed, piece: &Piece) -> Vec<Lost> {
    let map = &placed.map;
    let (data, units) = (map.data_stripes() as usize, map.stripes.len());
    let row = piece.offset / STRIPE_LEN;
    let want = map.unit_of(piece.stripe, piece.offset);
    let missing: Vec<usize> = (0..units).filter(|&u| u != want && !placed.on[map.rotated(row, u)].is_sound()).collect();
    let others: Vec<Option<usize>> = match (units - data, &missing[..]) {
        (1, []) => vec![None],
        (2, [other]) => vec![Some(*other)],
        // Without Q first: the plain exclusive or; then without P; then without each other unit.
        (2, []) => [data + 1, data].into_iter().chain((0..data).filter(|&u| u != want)).map(Some).collect(),
        _ => Vec::new(),
    };
    others.into_iter().map(|other| Lost { want, other }).collect()
}

/// Fills `out` with what lies in the lost unit at `offset` of its stripe; all of it is in one unit. Nobody writes to the row meanwhile. `patch`
/// corrects parity that was read from a place of a device.
///
/// # Errors
/// One of the other units cannot be read.
pub(crate) fn rebuild(
    placed: &Placed,
    offset: u64,
    lost: Lost,
    out: &mut [u8],
    patch: impl Fn(DevId, u64, &mut [u8]),
) -> Result<(), VolumeError> {
    let map = &placed.map;
    let row = offset / STRIPE_LEN;
    let (parity, count, gone) = lost.plan(map.data_stripes() as usize);
    let mut units: Vec<Vec<u8>> = (0..count).map(|_| vec![0; out.len()]).collect();
    let mut batch = Batch::default();
    for (unit, buf) in units.iter_mut().enumerate().filter(|(unit, _)| !gone.contains(unit)) {
        let stripe = map.rotated(row, unit);
        let member = &placed.on[stripe];
        if !member.is_sound() {
            return Err(VolumeError::OnMissing { devid: member.devid });
        }
        batch.add(member, map.physical(stripe, offset).0, buf, stripe);
    }
    for (stripe, result) in batch.run() {
        result.map_err(|e| placed.on[stripe].read_failed(e))?;
    }
    for (unit, buf) in units.iter_mut().enumerate().skip(map.data_stripes() as usize) {
        let stripe = map.rotated(row, unit);
        patch(placed.on[stripe].devid, map.physical(stripe, offset).0, buf);
    }
    let mut views: Vec<&mut [u8]> = units.iter_mut().map(Vec::as_mut_slice).collect();
    let done = raid6::rebuild(&mut views, parity, &gone);
    assert_eq!(done, Ok(()), "no more is lost than the plan says");
    out.copy_from_slice(&units[lost.want]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no unit is read that is lost, and parity is there for what is. Method: every loss of two in rows of 1 to 5 data units.
    #[test]
    fn plans_do_without_what_is_lost() {
        for data in 1..=5 {
            for want in 0..data {
                for other in (0..data + 2).filter(|&other| other != want).map(Some).chain([None]) {
                    let (parity, count, gone) = Lost { want, other }.plan(data);
                    assert_eq!(count, data + parity.count());
                    assert!(gone.contains(&want) && gone.len() <= parity.count());
                    assert!(other.is_none_or(|other| gone.contains(&other) || other >= count), "{want} {other:?}");
                }
            }
        }
    }
}
