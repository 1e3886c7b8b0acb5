//! Devices with their chunks, and block groups with their fill.

use super::svg::{Body, Picture, Table, percent};
use crate::map::{Group, Map};
use crate::text::{human, shortened};

/// Devices that are drawn.
const DEVICES_MAX: usize = 64;
/// Parts of a device that are drawn one by one; more are put together.
const PARTS_MAX: usize = 550;
/// Bars of block groups; more are put together.
const BARS_MAX: usize = 256;

const WIDTH: f64 = 1100.0;

pub(super) fn class(kind: &str) -> &'static str {
    match kind {
        "Data" => "data",
        "Metadata" => "metadata",
        "System" => "system",
        _ => "mixed",
    }
}

/// Neighbours on a device that are drawn as one.
struct Part<'a> {
    from: u64,
    to: u64,
    groups: u64,
    used: u64,
    len: u64,
    /// The one, or the largest.
    first: &'a Group,
}

impl Part<'_> {
    fn title(&self) -> String {
        let what = match self.groups {
            1 => format!("{} {}, logical {}", self.first.kind, self.first.profile, self.first.start),
            n => format!("{n} chunks, the first {} {}", self.first.kind, self.first.profile),
        };
        format!("{what}: {} at {}, {} full", human(self.to - self.from), self.from, percent(self.used, self.len))
    }
}

pub(super) fn devices(map: &Map) -> Picture {
    let mut body = Body::default();
    let mut y = 30.0;
    body.legend(
        0.0,
        y - 14.0,
        &[("data", "data"), ("metadata", "metadata"), ("system", "system"), ("mixed", "mixed"), ("free", "no chunk")],
    );
    let largest = map.devices.iter().map(|device| device.size).max().unwrap_or(0).max(1);
    for device in map.devices.iter().take(DEVICES_MAX) {
        let name = if device.missing { "missing".to_owned() } else { shortened(&device.name, 90) };
        body.text(0.0, y + 12.0, "", &format!("Device {}: {name}", device.devid));
        let free = device.size.saturating_sub(device.allocated);
        body.text(WIDTH, y + 12.0, "d e", &format!("{}, {} in no chunk", human(device.size), human(free)));
        y += 20.0;
        let scale = WIDTH / largest as f64;
        let whole = [0.0, y, device.size as f64 * scale, 36.0];
        body.rect(whole, "free", &format!("device {}: {}", device.devid, human(device.size)));
        for part in parts(map, device.devid, largest) {
            let (x, w) = (part.from as f64 * scale, ((part.to - part.from) as f64 * scale).max(0.5));
            let (kind, title) = (class(part.first.kind), part.title());
            let full = part.used.min(part.len) as f64 / part.len.max(1) as f64 * 36.0;
            body.rect([x, y, w, 36.0], &format!("{kind} part"), &title);
            body.rect([x, y + 36.0 - full, w, full], kind, &title);
        }
        y += 50.0;
    }
    if map.devices.len() > DEVICES_MAX {
        body.text(0.0, y + 12.0, "d", &format!("{} more devices", map.devices.len() - DEVICES_MAX));
        y += 20.0;
    }
    let rows = map.devices.iter().map(|d| {
        let free = d.size.saturating_sub(d.allocated);
        vec![
            d.devid.to_string(),
            if d.missing { "missing".into() } else { d.name.clone() },
            human(d.size),
            human(d.allocated),
            human(free),
        ]
    });
    Picture {
        id: "devices".into(),
        title: "Devices and chunks".into(),
        about: "Each bar is a device, each part of it a chunk where it lies; the solid part of a chunk is how full its block group is.".into(),
        width: WIDTH as u32,
        height: y as u32,
        body: body.0,
        tables: vec![Table::new("Devices", &["device", "name", "size", "in chunks", "in no chunk"], rows)],
    }
}

fn parts(map: &Map, devid: u64, largest: u64) -> Vec<Part<'_>> {
    let on = map.groups.iter().flat_map(|group| group.stripes.iter().map(move |stripe| (group, stripe)));
    let mut all: Vec<Part<'_>> = on
        .filter(|(_, stripe)| stripe.devid == devid)
        .map(|(group, stripe)| Part {
            from: stripe.offset,
            to: stripe.offset.saturating_add(stripe.len),
            groups: 1,
            used: group.used.unwrap_or(0),
            len: group.len,
            first: group,
        })
        .collect();
    all.sort_by_key(|part| part.from);
    if all.len() <= PARTS_MAX {
        return all;
    }
    let step = largest.div_ceil(PARTS_MAX as u64).max(1);
    let mut fewer: Vec<Part<'_>> = Vec::new();
    for part in all {
        match fewer.last_mut() {
            Some(last) if last.from / step == part.from / step => {
                last.to = last.to.max(part.to);
                last.groups += 1;
                last.used = last.used.saturating_add(part.used);
                last.len = last.len.saturating_add(part.len);
            }
            _ => fewer.push(part),
        }
    }
    fewer
}

pub(super) fn groups(map: &Map) -> Picture {
    const HEIGHT: f64 = 160.0;
    let mut body = Body::default();
    body.legend(
        0.0,
        14.0,
        &[("data", "data"), ("metadata", "metadata"), ("system", "system"), ("mixed", "mixed"), ("free", "free")],
    );
    let each = map.groups.len().div_ceil(BARS_MAX).max(1);
    let bars: Vec<&[Group]> = map.groups.chunks(each).collect();
    let w = (WIDTH / bars.len().max(1) as f64).min(60.0);
    for (n, bar) in bars.iter().enumerate() {
        let Some(first) = bar.first() else { continue };
        let len: u64 = bar.iter().fold(0, |sum, group| sum.saturating_add(group.len));
        let used: u64 = bar.iter().fold(0, |sum, group| sum.saturating_add(group.used.unwrap_or(0)));
        let full = used.min(len) as f64 / len.max(1) as f64 * HEIGHT;
        let title = format!(
            "{}logical {}, {} {}: {} of {} used, {}",
            if bar.len() > 1 { format!("{} block groups from ", bar.len()) } else { String::new() },
            first.start,
            first.kind,
            first.profile,
            human(used),
            human(len),
            percent(used, len)
        );
        let x = n as f64 * w;
        let gap = if w > 6.0 { 1.0 } else { 0.0 };
        body.rect([x, 24.0, w - gap, HEIGHT], "free", &title);
        body.rect([x, 24.0 + HEIGHT - full, w - gap, full], class(first.kind), &title);
    }
    let rows = map.groups.iter().map(|group| {
        let mut devices: Vec<String> = group.stripes.iter().take(8).map(|stripe| stripe.devid.to_string()).collect();
        if group.stripes.len() > 8 {
            devices.push("…".into());
        }
        let used = group.used.map_or_else(|| "not known".into(), human);
        let part = group.used.map_or_else(|| "–".into(), |used| percent(used, group.len));
        vec![
            group.start.to_string(),
            group.kind.into(),
            group.profile.into(),
            human(group.len),
            used,
            part,
            devices.join(", "),
        ]
    });
    let mut sums: std::collections::BTreeMap<(&str, &str), (u64, u64, u64)> = std::collections::BTreeMap::new();
    for group in &map.groups {
        let sum = sums.entry((group.kind, group.profile)).or_default();
        let used = group.used.unwrap_or(0);
        *sum = (sum.0 + 1, sum.1.saturating_add(group.len), sum.2.saturating_add(used));
    }
    let sums = sums.into_iter().map(|((kind, profile), (count, len, used))| {
        vec![kind.into(), profile.into(), count.to_string(), human(len), human(used), percent(used, len)]
    });
    let about = match each {
        1 => "One bar for each block group, by address; the solid part is used.".to_owned(),
        n => format!("One bar for every {n} block groups, by address; the solid part is used."),
    };
    Picture {
        id: "groups".into(),
        title: "Block groups".into(),
        about,
        width: WIDTH as u32,
        height: HEIGHT as u32 + 30,
        body: body.0,
        tables: vec![
            Table::new("By type and profile", &["type", "profile", "block groups", "size", "used", "full"], sums),
            Table::new("Block groups", &["address", "type", "profile", "size", "used", "full", "devices"], rows),
        ],
    }
}
