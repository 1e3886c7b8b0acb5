//! How much of a device the file system uses: more, or less.
//!
//! Normal path: (1) everything is committed, so that the chunks in the trees are those in memory; (2) what is asked for
//! becomes a number of bytes; (3) when shrinking, chunks that reach beyond it are counted, and if there are any, it is
//! refused: moving them is a balance; (4) the device's item changes, in the volume and in the chunk tree at once, so that
//! no new chunk goes by the old size (`Staged::resize_device`); (5) a commit; (6) a file that became too long is cut.
//!
//! Crash: before (5) the device has its old size; a file may be longer than that already, or still.

use oleo_format::{ByteLen, DevId};
use oleo_fs::{Fs, errno};
use serde::{Deserialize, Serialize};

use crate::JobError;

/// The first bytes of a device, which no chunk uses, and one more chunk's stripe.
const DEVICE_MIN: u64 = 2 << 20;

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
    /// What users of btrfs write: `[DEVID:][+/-]SIZE` or `[DEVID:]max`, with K, M, G, T, P, E for powers of 1024.
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
}

/// Changes how much of a device the file system uses; the only one, if none is named.
///
/// # Errors
/// There is no such device, it has no room, or chunks are in the way.
pub fn resize(fs: &Fs, devid: Option<DevId>, to: NewSize) -> Result<Resized, JobError> {
    fs.sync()?;
    let volume = fs.engine().volume().clone();
    let devices = volume.devices();
    let device = match (devid, devices.as_slice()) {
        (None, [only]) => only,
        (None, _) => return Err(JobError::refused(errno::EINVAL, "there are several devices; say which: DEVID:SIZE")),
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
        return Err(JobError::refused(errno::EINVAL, format!("device {devid} has {before} bytes: that makes no size")));
    };
    if now == before {
        return Ok(Resized { devid, before, now });
    }
    if now < before {
        must_fit(fs, devid, now)?;
    }
    fs.engine().stage(|staged| staged.resize_device(devid, now))?;
    fs.sync()?;
    if now < before {
        volume.cut_device(devid)?;
    }
    Ok(Resized { devid, before, now })
}

/// Fails where chunks reach beyond the new end, and says how much would have to move.
fn must_fit(fs: &Fs, devid: DevId, now: ByteLen) -> Result<(), JobError> {
    let (mut moving, mut count, mut last_end) = (0u64, 0u64, 0u64);
    for chunk in fs.engine().volume().chunks() {
        for stripe in chunk.stripes.iter().filter(|s| s.devid == devid) {
            let end = stripe.offset.0 + chunk.stripe_bytes().0;
            last_end = last_end.max(end);
            if end > now.0 {
                moving += chunk.stripe_bytes().0;
                count += 1;
            }
        }
    }
    if count == 0 {
        return Ok(());
    }
    let text = format!(
        "device {devid} cannot shrink to {now} bytes: {count} stripes of chunks with {moving} bytes lie behind that and \
         would have to move, which needs a balance; it can shrink to {last_end}"
    );
    Err(JobError::refused(errno::EOPNOTSUPP, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes read as users of btrfs write them; nonsense is refused.
    #[test]
    fn sizes() {
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
