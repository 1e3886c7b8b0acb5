//! The flow from subvolumes to what they hold: alone, or together with exactly which others.

use super::subvols::name;
use super::svg::{Body, Picture, Table, number};
use crate::map::{Map, Set};
use crate::text::{human, shortened};

/// Subvolumes on the left; those that reach less are put together.
const LEFT_MAX: usize = 16;
/// Sets on the right; those with less are put together.
const RIGHT_MAX: usize = 20;

const HEIGHT: f64 = 640.0;
const GAP: f64 = 6.0;

/// One end of the flows: where it begins and how much of it is taken.
struct End {
    label: String,
    bytes: u64,
    y: f64,
    taken: f64,
}

fn laid_out(mut ends: Vec<End>, scale: f64) -> Vec<End> {
    let mut y = 30.0;
    for end in &mut ends {
        end.y = y;
        y += end.bytes as f64 * scale + GAP;
    }
    ends
}

fn set_label(map: &Map, set: &Set) -> String {
    match set.subvols.as_slice() {
        [one] => match map.sharing.subvol(*one) {
            Some(subvol) => format!("{} alone", shortened(&name(subvol), 30)),
            None => "others alone".into(),
        },
        several => {
            let shown: Vec<String> = several.iter().take(4).map(u64::to_string).collect();
            let more = if several.len() > 4 { ", …" } else { "" };
            format!("{} share ({}{more})", several.len(), shown.join(", "))
        }
    }
}

pub(super) fn flow(map: &Map) -> Picture {
    let sharing = &map.sharing;
    let mut largest: Vec<(u64, u64)> = sharing
        .subvols
        .iter()
        .filter_map(|subvol| Some((subvol.reached.filter(|bytes| *bytes > 0)?, subvol.id)))
        .collect();
    largest.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    largest.truncate(LEFT_MAX);
    largest.sort_by_key(|(_, id)| *id);
    let place = |id: u64| largest.binary_search_by_key(&id, |(_, id)| *id).unwrap_or(largest.len());
    let sets = &sharing.sets[..sharing.sets.len().min(RIGHT_MAX)];
    // Bytes from each end on the left to each on the right; what is shared counts once for each subvolume that has it.
    let mut links: Vec<(usize, usize, u64)> = Vec::new();
    for (right, set) in sharing.sets.iter().enumerate() {
        for id in &set.subvols {
            let (left, right) = (place(*id), right.min(sets.len()));
            match links.iter_mut().find(|link| link.0 == left && link.1 == right) {
                Some(link) => link.2 = link.2.saturating_add(set.bytes),
                None => links.push((left, right, set.bytes)),
            }
        }
    }
    links.sort_unstable();
    let sum = |wanted: &dyn Fn(&(usize, usize, u64)) -> bool| {
        links.iter().filter(|link| wanted(link)).fold(0u64, |sum, link| sum.saturating_add(link.2))
    };
    let called = |id: u64| sharing.subvol(id).map_or_else(|| id.to_string(), |subvol| shortened(&name(subvol), 32));
    let mut left: Vec<End> = largest
        .iter()
        .enumerate()
        .map(|(n, (_, id))| End { label: called(*id), bytes: sum(&|link| link.0 == n), y: 0.0, taken: 0.0 })
        .collect();
    left.push(End { label: "others".into(), bytes: sum(&|link| link.0 == largest.len()), y: 0.0, taken: 0.0 });
    let mut right: Vec<End> = sets
        .iter()
        .enumerate()
        .map(|(n, set)| End { label: set_label(map, set), bytes: sum(&|link| link.1 == n), y: 0.0, taken: 0.0 })
        .collect();
    right.push(End { label: "other sets".into(), bytes: sum(&|link| link.1 == sets.len()), y: 0.0, taken: 0.0 });
    let total = sum(&|_| true).max(1);
    let scale = (HEIGHT - GAP * left.len().max(right.len()) as f64).max(100.0) / total as f64;
    let (mut left, mut right) = (laid_out(left, scale), laid_out(right, scale));
    let mut body = Body::default();
    body.text(0.0, 16.0, "d", "subvolumes");
    body.text(760.0, 16.0, "d", "what exactly these reach");
    let mut drawn: Vec<(usize, usize, u64)> = links.clone();
    drawn.sort_by_key(|link| (link.1, link.0));
    for (from, to, bytes) in &links {
        let width = *bytes as f64 * scale;
        let y = left[*from].y + left[*from].taken + width / 2.0;
        left[*from].taken += width;
        let below: f64 = drawn
            .iter()
            .take_while(|link| (link.1, link.0) != (*to, *from))
            .filter(|link| link.1 == *to)
            .map(|link| link.2 as f64 * scale)
            .sum();
        let z = right[*to].y + below + width / 2.0;
        let class = if right[*to].label.ends_with(" alone") { "data" } else { "alone" };
        let (h, w) = (width.max(0.6) / 2.0, number);
        let d = format!(
            "M250 {}C500 {} 500 {} 750 {}V{}C500 {} 500 {} 250 {}z",
            w(y - h),
            w(y - h),
            w(z - h),
            w(z - h),
            w(z + h),
            w(z + h),
            w(y + h),
            w(y + h)
        );
        body.path(
            &d,
            &format!("{class} link"),
            &format!("{}: {} of {}", left[*from].label, human(*bytes), right[*to].label),
        );
        right[*to].taken += width;
    }
    for (ends, x, label_x, class) in [(&left, 240.0, 234.0, "s e"), (&right, 750.0, 766.0, "s")] {
        let mut last = f64::MIN;
        for end in ends.iter().filter(|end| end.bytes > 0) {
            let height = end.bytes as f64 * scale;
            let middle = end.y + height / 2.0 + 4.0;
            body.rect([x, end.y, 10.0, height.max(1.0)], "bar", &format!("{}: {}", end.label, human(end.bytes)));
            // Where there is no room, pointing and the table tell.
            if middle - last > 12.0 {
                body.text(label_x, middle, class, &end.label);
                last = middle;
            }
        }
    }
    let rows = sharing.sets.iter().map(|set| {
        let ids: Vec<String> = set.subvols.iter().take(20).map(u64::to_string).collect();
        let more = if set.subvols.len() > 20 { format!(" and {} more", set.subvols.len() - 20) } else { String::new() };
        vec![set.subvols.len().to_string(), ids.join(", ") + &more, human(set.bytes)]
    });
    let mut table = Table::new("Bytes by exactly who reaches them", &["subvolumes", "which", "bytes"], rows);
    if sharing.other_sets > 0 {
        table.rows.push(vec!["–".into(), "all other sets".into(), human(sharing.other_sets)]);
    }
    let height = left.iter().chain(&right).map(|end| end.y + end.bytes as f64 * scale).fold(0.0, f64::max);
    Picture {
        id: "flow".into(),
        title: "Who holds what with whom".into(),
        about: "From each subvolume to what it reaches: alone, or together with exactly which others. What several share is drawn once for each of them.".into(),
        width: 1100,
        height: height as u32 + 20,
        body: body.0,
        tables: vec![table],
    }
}
