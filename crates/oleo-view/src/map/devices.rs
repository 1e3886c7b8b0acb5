//! Devices, chunks and block groups.

use std::collections::BTreeMap;

use oleo::inspect::Inspector;
use serde::Serialize;

use super::notes::Notes;
use crate::name_text;

/// Block groups that are listed one by one; the rest is in the sums of devices and space only.
const GROUPS_MAX: usize = 1 << 16;

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceBar {
    /// Its number.
    pub devid: u64,
    /// Its UUID.
    pub uuid: String,
    /// What it was opened by; empty if it is missing.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Bytes in chunks.
    pub allocated: u64,
    /// It was not given.
    pub missing: bool,
}

/// A part of a chunk on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Stripe {
    /// The device.
    pub devid: u64,
    /// Where on it.
    pub offset: u64,
    /// Bytes there.
    pub len: u64,
}

/// A chunk and its block group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Group {
    /// The first logical address.
    pub start: u64,
    /// Logical bytes.
    pub len: u64,
    /// Bytes that are taken; `None`: no block group says it.
    pub used: Option<u64>,
    /// Data, Metadata, System, Data+Metadata.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// single, DUP, RAID1 …
    pub profile: &'static str,
    /// Where it is.
    pub stripes: Vec<Stripe>,
}

pub(super) fn read(inspector: &Inspector, notes: &mut Notes) -> (Vec<DeviceBar>, Vec<Group>) {
    let volume = inspector.volume();
    let devices: BTreeMap<u64, DeviceBar> = volume
        .devices()
        .into_iter()
        .map(|d| {
            let bar = DeviceBar {
                devid: d.devid.0,
                uuid: d.uuid.to_string(),
                name: name_text(d.name.as_bytes()),
                size: d.total.0,
                allocated: d.used.0,
                missing: d.missing,
            };
            (d.devid.0, bar)
        })
        .collect();
    let chunks = volume.chunks();
    if chunks.len() > GROUPS_MAX {
        notes.push(format!(
            "{} block groups are left out of all pictures: there are more than {GROUPS_MAX}",
            chunks.len() - GROUPS_MAX
        ));
    }
    let mut groups: Vec<Group> = chunks
        .iter()
        .take(GROUPS_MAX)
        .map(|chunk| Group {
            start: chunk.start.0,
            len: chunk.len.0,
            used: None,
            kind: oleo::usage::GroupUsage {
                flags: chunk.flags,
                total: oleo::format::ByteLen(0),
                used: oleo::format::ByteLen(0),
            }
            .type_name(),
            profile: chunk.flags.profile_name(),
            stripes: chunk
                .stripes
                .iter()
                .map(|stripe| Stripe { devid: stripe.devid.0, offset: stripe.offset.0, len: chunk.stripe_bytes().0 })
                .collect(),
        })
        .collect();
    groups.sort_by_key(|group| group.start);
    (devices.into_values().collect(), groups)
}
