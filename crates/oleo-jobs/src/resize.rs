//! Resizing: changes how much of a device the file system uses.
//!
//! Normal path: (1) commit everything, so that the chunks in the trees are those in memory; (2) turn the requested size
//! into a number of bytes; (3) when shrinking, keep new chunks out of the part to be given up
//! (`Engine::keep_free_behind`), and close and move the groups that have a piece there (`vacate`), the highest address
//! first; (4) change the device's item, in the volume and in the chunk tree in one step, so that no new chunk uses the
//! old size (`Staged::resize_device`); (5) commit; (6) cut a file that became too long.
//!
//! A chunk that was being made when (3) began may still be placed behind the new end. (4) finds it, and (3) begins
//! again.
//! Crash or error before (5): the device has its old size, and what was moved stays moved; a file may already be longer
//! than that, or still be longer.

use oleo_format::{ByteLen, DevId};
use oleo_fs::{Fs, errno};
use serde::{Deserialize, Serialize};

use crate::vacate::{self, Watch, behind};
use crate::{Balancer, JobError};

/// The first bytes of a device, which no chunk uses, and one more chunk's stripe.
const DEVICE_MIN: u64 = 2 << 20;

/// How often the end of a device is emptied. Each time but the first there was a chunk that was being made when it began, and of
/// those there is one at a time.
const ROUNDS_MAX: u32 = 8;

/// What size a device is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewSize {
    /// This many bytes.
    To(u64),
    /// That many more.
    Grow(u64),
    /// That many fewer.
    Shrink(u64),
    /// All that the device or file has.
    Max,
}

impl NewSize {
    /// Parses a size as users of btrfs write it: `[DEVID:][+/-]SIZE` or `[DEVID:]max`, with K, M, G, T, P, E for powers
    /// of 1024.
    ///
    /// # Errors
    /// In words.
    pub fn parse(text: &str) -> Result<(Option<DevId>, NewSize), String> {
        let (devid, rest) = match text.split_once(':') {
            Some((id, rest)) => (Some(DevId(id.parse().map_err(|_| format!("{id} is not a device's number"))?)), rest),
            None => (None, text),
        };
        let to = match rest.as_bytes().first() {
            _ if rest == "max" => NewSize::Max,
            Some(b'+') => NewSize::Grow(bytes(&rest[1..])?),
            Some(b'-') => NewSize::Shrink(bytes(&rest[1..])?),
            _ => NewSize::To(bytes(rest)?),
        };
        Ok((devid, to))
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let number = lower.strip_suffix("ib").or(lower.strip_suffix('b')).unwrap_or(&lower);
    let at = number.len().saturating_sub(1);
    let shift = number.get(at..).and_then(|unit| "kmgtpe".find(unit).filter(|_| !unit.is_empty()));
    let (digits, shift) = shift.map_or((number, 0), |power| (&number[..at], 10 * (power as u32 + 1)));
    let plain = Some(digits).filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
    plain
        .and_then(|d| d.parse::<u64>().ok())
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| format!("{text} is not a number of bytes (such as 4096, 16K, 1G)"))
}

/// What a resize did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resized {
    /// The device.
    pub devid: DevId,
    /// Its bytes before.
    pub before: ByteLen,
    /// Its bytes now.
    pub now: ByteLen,
    /// Block groups that were moved for that.
    #[serde(default)]
    pub groups: u64,
}

/// Changes how much of a device the file system uses; if no device is named, of the only one. Chunks behind the new end
/// are moved.
///
/// # Errors
/// There is no such device, it is too small, there is no room for what has to move, or a balance is under way.
pub fn resize(fs: &Fs, balancer: &Balancer, devid: Option<DevId>, to: NewSize) -> Result<Resized, JobError> {
    fs.sync()?;
    let volume = fs.engine().volume().clone();
    let devices = volume.devices();
    let device = match (devid, devices.as_slice()) {
        (None, [only]) => only,
        (None, _) => return Err(JobError::refused(errno::EINVAL, "there are several devices; name one: DEVID:SIZE")),
        (Some(id), all) => all
            .iter()
            .find(|d| d.devid == id)
            .ok_or_else(|| JobError::refused(errno::ENODEV, format!("there is no device {id}")))?,
    };
    let (devid, before) = (device.devid, device.total);
    let sector = u64::from(fs.engine().sectorsize());
    let wanted = match to {
        NewSize::To(bytes) => Some(bytes),
        NewSize::Grow(more) => before.0.checked_add(more),
        NewSize::Shrink(fewer) => before.0.checked_sub(fewer),
        NewSize::Max => Some(volume.device_len(devid)?.0),
    };
    let wanted = wanted.map(|bytes| bytes / sector * sector).filter(|bytes| *bytes >= DEVICE_MIN);
    let Some(now) = wanted.map(ByteLen) else {
        return Err(JobError::refused(
            errno::EINVAL,
            format!("device {devid} has {before} bytes: the new size is out of range"),
        ));
    };
    let mut groups = 0;
    if now < before {
        groups = balancer.exclusively("shrinking a device", |goes_on| shrink(fs, devid, now, goes_on))?;
        volume.cut_device(devid)?;
    } else if now > before {
        fs.engine().stage(|staged| staged.resize_device(devid, now))?;
        fs.sync()?;
    }
    Ok(Resized { devid, before, now, groups })
}

/// Makes a device smaller; returns how many groups were moved.
fn shrink(fs: &Fs, devid: DevId, now: ByteLen, goes_on: &dyn Fn() -> bool) -> Result<u64, JobError> {
    let _kept = fs.engine().keep_free_behind(devid, now)?;
    let mut moved = 0;
    for _ in 0..ROUNDS_MAX {
        let watch = Watch { goes_on, moved: &|_| () };
        moved += vacate::empty(fs, devid, now, &watch)
            .map_err(|error| if error.errno() == errno::ENOSPC { no_room(fs, devid, now) } else { error })?;
        // Space that data has moved from becomes free once the move is durable.
        fs.sync()?;
        match fs.engine().stage(|staged| staged.resize_device(devid, now)) {
            Ok(()) => {
                fs.sync()?;
                return Ok(moved);
            }
            Err(_) if !behind(fs, devid, now).is_empty() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(JobError::refused(errno::EBUSY, format!("new chunks keep being placed at the end of device {devid}")))
}

/// The error if there is no room for what lies behind the new end: names the smallest size the device can have.
fn no_room(fs: &Fs, devid: DevId, end: ByteLen) -> JobError {
    let chunks = fs.engine().volume().chunks();
    let stripes = chunks.iter().flat_map(|chunk| chunk.stripes.iter().map(move |s| (s, chunk.stripe_bytes().0)));
    let last = stripes.filter(|(s, _)| s.devid == devid).map(|(s, len)| s.offset.0 + len).max().unwrap_or(0);
    let text = format!(
        "device {devid} cannot shrink to {end} bytes: there is no room elsewhere for what lies behind that; it can shrink to \
         {last}"
    );
    JobError::refused(errno::ENOSPC, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes read as users of btrfs write them; nonsense is refused.
    #[test]
    fn sizes_are_parsed() {
        assert_eq!(NewSize::parse("1G"), Ok((None, NewSize::To(1 << 30))));
        assert_eq!(NewSize::parse("4096"), Ok((None, NewSize::To(4096))));
        assert_eq!(NewSize::parse("+512MiB"), Ok((None, NewSize::Grow(512 << 20))));
        assert_eq!(NewSize::parse("2:-1k"), Ok((Some(DevId(2)), NewSize::Shrink(1024))));
        assert_eq!(NewSize::parse("3:max"), Ok((Some(DevId(3)), NewSize::Max)));
        for nonsense in ["", "+", "x:1G", "maximum", "--1G", "1:", "99999999999E", "k", "+-1", "1.5G"] {
            assert!(NewSize::parse(nonsense).is_err(), "{nonsense}");
        }
    }
}
