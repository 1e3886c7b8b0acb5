//! How scrubs are shown: as btrfs shows them, and what it does not show.

use oleo::control::{ScrubShown, UnhealedShown, What};
use oleo::scrub::DeviceScrub;

use crate::out::{human, println_or_end, text};

/// All counters, in the order of btrfs, and those that only we have.
fn counters(scrub: &DeviceScrub) -> [(&'static str, u64); 17] {
    [
        ("data_extents_scrubbed", scrub.data_extents_scrubbed),
        ("tree_extents_scrubbed", scrub.tree_extents_scrubbed),
        ("data_bytes_scrubbed", scrub.data_bytes_scrubbed),
        ("tree_bytes_scrubbed", scrub.tree_bytes_scrubbed),
        ("read_errors", scrub.read_errors),
        ("csum_errors", scrub.csum_errors),
        ("verify_errors", scrub.verify_errors),
        ("no_csum", scrub.no_csum),
        ("csum_discards", scrub.csum_discards),
        ("super_errors", scrub.super_errors),
        ("malloc_errors", scrub.malloc_errors),
        ("uncorrectable_errors", scrub.uncorrectable_errors),
        ("unverified_errors", 0),
        ("corrected_errors", scrub.corrected_errors),
        ("last_physical", scrub.last_physical),
        ("parity_bytes_scrubbed", scrub.parity_bytes_scrubbed),
        ("parity_errors", scrub.parity_errors),
    ]
}

/// What was found, of all devices together or of each.
pub(super) fn print(shown: &ScrubShown, per_device: bool, raw: bool, word: &str) {
    if !per_device {
        return one(shown, &shown.status.total(), raw, shown.status.remaining_ms);
    }
    for (devid, scrub) in &shown.status.devices {
        println_or_end(&format!("\nScrub device {} (id {devid}) {word}", path_of(shown, devid.0)));
        one(shown, scrub, raw, None);
    }
}

fn path_of(shown: &ScrubShown, devid: u64) -> String {
    let found = shown.paths.iter().find(|(known, _)| known.0 == devid);
    found.map_or_else(|| format!("devid {devid}"), |(_, path)| text(path.as_os_str().as_encoded_bytes()))
}

fn one(shown: &ScrubShown, scrub: &DeviceScrub, raw: bool, remaining_ms: Option<u64>) {
    let line = |name: &str, value: String| println_or_end(&format!("{:<18}{value}", format!("{name}:")));
    if scrub.t_start == 0 {
        println_or_end("\tno stats available");
    } else {
        line("Scrub started", date(scrub.t_start));
        if scrub.t_resumed > 0 {
            line("Scrub resumed", date(scrub.t_resumed));
        }
        let status = match (shown.status.running, scrub.finished, scrub.canceled) {
            (_, true, _) => "finished",
            (true, ..) => "running",
            (.., true) => "aborted",
            _ => "interrupted",
        };
        line("Status", status.into());
        line("Duration", duration(scrub.duration));
    }
    if raw {
        counters(scrub).iter().for_each(|(name, value)| println_or_end(&format!("\t{name}: {value}")));
        return;
    }
    if let Some(left) = remaining_ms.map(|ms| ms.div_ceil(1000)) {
        line("Time left", duration(left));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        line("ETA", date(now + left));
    }
    line("Total to scrub", human(scrub.expected_bytes.max(scrub.bytes())));
    if shown.status.running || !scrub.finished {
        let percent = scrub.bytes() as f64 * 100.0 / scrub.expected_bytes.max(1) as f64;
        line("Bytes scrubbed", format!("{}  ({:.2}%)", human(scrub.bytes()), percent.min(100.0)));
    }
    line("Rate", format!("{}/s", human(scrub.bytes().checked_div(scrub.duration).unwrap_or(0))));
    line("Error summary", summary(scrub));
    if scrub.errors() > 0 {
        line("  Corrected", scrub.corrected_errors.to_string());
        line("  Uncorrectable", scrub.uncorrectable_errors.to_string());
        line("  Unverified", "0".into());
    }
}

fn summary(scrub: &DeviceScrub) -> String {
    let kinds = [
        ("read", scrub.read_errors),
        ("super", scrub.super_errors),
        ("verify", scrub.verify_errors),
        ("csum", scrub.csum_errors),
        ("parity", scrub.parity_errors),
    ];
    let found: Vec<String> =
        kinds.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name}={count}")).collect();
    if found.is_empty() { "no errors found".into() } else { found.join(" ") }
}

/// The lines of all places: those that were healed, and those that could not be.
pub(super) fn places(shown: &ScrubShown) -> Vec<String> {
    let status = &shown.status;
    let mut lines = Vec::new();
    for (places, more, end) in
        [(&shown.healed, status.healed_more, " (healed)"), (&shown.unhealed, status.unhealed_more, "")]
    {
        let of_place = |one| place(shown, one).into_iter().map(|line| format!("{line}{end}"));
        lines.extend(places.iter().flat_map(of_place));
        if more > 0 {
            lines.push(format!("and {more} more places{end}"));
        }
    }
    lines
}

/// A place that was bad, a line for each file.
fn place(shown: &ScrubShown, unhealed: &UnhealedShown) -> Vec<String> {
    let place = &unhealed.place;
    let what = if place.what == What::Data { "data" } else { "tree block" };
    let at = format!(
        "{what} at logical {} on dev {}, physical {}, length {}: {}",
        place.at,
        path_of(shown, place.devid.0),
        place.offset,
        place.len,
        crate::out::plain(&place.why, &[])
    );
    let mut lines: Vec<String> = Vec::new();
    for file in &unhealed.files {
        let inode = format!("{at}, root {}, inode {}, offset {}", file.tree, file.ino, file.at);
        lines.extend(file.paths.iter().map(|path| format!("{inode} (path: {})", text(&path.0))));
        if file.paths.is_empty() {
            lines.push(inode);
        }
    }
    if unhealed.more > 0 {
        lines.push(format!("{at}, and {} more places in files", unhealed.more));
    }
    if lines.is_empty() {
        lines.push(at);
    }
    lines
}

pub(super) fn as_json(shown: &ScrubShown) -> serde_json::Value {
    let status = &shown.status;
    let device = |(devid, scrub): (&oleo::format::DevId, &DeviceScrub)| {
        let mut value = serde_json::to_value(scrub).unwrap_or_default();
        value["devid"] = devid.0.into();
        value["device"] = path_of(shown, devid.0).into();
        value
    };
    let file = |file: &oleo::control::Place| {
        let paths: Vec<String> = file.paths.iter().map(|path| text(&path.0)).collect();
        serde_json::json!({ "root": file.tree, "inode": file.ino, "offset": file.at, "paths": paths })
    };
    let unhealed = |one: &UnhealedShown| {
        let mut value = serde_json::to_value(&one.place).unwrap_or_default();
        value["files"] = one.files.iter().map(file).collect();
        value["more_files"] = one.more.into();
        value
    };
    serde_json::json!({
        "uuid": shown.fsid.to_string(),
        "running": status.running,
        "repair": status.repair,
        "end": status.end,
        "elapsed_ms": status.elapsed_ms,
        "remaining_ms": status.remaining_ms,
        "limit": status.limit,
        "limits": status.limits,
        "total": status.total(),
        "devices": status.devices.iter().map(device).collect::<Vec<_>>(),
        "unhealed": shown.unhealed.iter().map(unhealed).collect::<Vec<_>>(),
        "more_unhealed": status.unhealed_more,
        "healed": shown.healed.iter().map(unhealed).collect::<Vec<_>>(),
        "more_healed": status.healed_more,
    })
}

/// As btrfs has it, hours and more without end.
fn duration(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// As asctime(3) has it, in UTC.
fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let plain = crate::out::date(oleo::fs::Time { sec: i64::try_from(seconds).unwrap_or(i64::MAX / 2), nsec: 0 });
    let parts: Vec<&str> = plain.split(['-', ' ']).collect();
    let [year, month, day, clock] = parts[..] else { return plain };
    let month = month.parse().ok().and_then(|month: usize| MONTHS.get(month.wrapping_sub(1)));
    let weekday = DAYS[(seconds / 86_400 % 7) as usize];
    let day = day.trim_start_matches('0');
    format!("{weekday} {} {day:>2} {clock} {year}", month.unwrap_or(&"?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: dates and durations read as those of btrfs.
    #[test]
    fn as_btrfs_has_it() {
        assert_eq!(date(1_795_591_123), "Wed Nov 25 07:18:43 2026");
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(
            (duration(0), duration(3_725), duration(360_000)),
            ("0:00:00".into(), "1:02:05".into(), "100:00:00".into())
        );
    }
}
