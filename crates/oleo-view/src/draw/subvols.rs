//! Subvolumes: the tree with what each holds, and the matrix of what each two share.

use std::collections::BTreeMap;

use super::svg::{Body, Picture, Table, percent, step, text_width};
use crate::map::{Map, Subvol};
use crate::text::{day, human, shortened};

/// Rows of the tree.
const ROWS_MAX: usize = 150;
/// Pairs in the table of the matrix.
const PAIRS_MAX: usize = 400;
/// Squares of the matrix have titles up to this many subvolumes.
const TITLED_MAX: usize = 24;

const WIDTH: f64 = 1100.0;
/// Left end of the bars of the tree. Their right end leaves room for the widest numbers.
const BARS_AT: f64 = 560.0;

pub(super) fn name(subvol: &Subvol) -> String {
    match subvol.path.as_deref() {
        Some("") => "(top level)".into(),
        Some(path) => path.to_owned(),
        None if subvol.deleted => format!("(deleted subvolume {})", subvol.id),
        None => format!("(subvolume {})", subvol.id),
    }
}

/// Each subvolume below the one that it is in, with how deep that is.
fn ordered(map: &Map) -> Vec<(usize, &Subvol)> {
    let subvols = &map.sharing.subvols;
    let mut inside: BTreeMap<u64, Vec<&Subvol>> = BTreeMap::new();
    let mut due: Vec<(usize, &Subvol)> = Vec::new();
    for subvol in subvols.iter().rev() {
        match subvol.parent.filter(|parent| *parent != subvol.id && map.sharing.subvol(*parent).is_some()) {
            Some(parent) => inside.entry(parent).or_default().push(subvol),
            None => due.push((0, subvol)),
        }
    }
    let mut rows = Vec::new();
    while let Some((depth, subvol)) = due.pop() {
        rows.push((depth, subvol));
        due.extend(inside.remove(&subvol.id).unwrap_or_default().into_iter().map(|below| (depth + 1, below)));
    }
    // What is left lies in each other, and below nothing.
    rows.extend(inside.into_values().flatten().map(|subvol| (0, subvol)));
    rows
}

pub(super) fn tree(map: &Map) -> Picture {
    let rows = ordered(map);
    let most = rows.iter().filter_map(|(_, subvol)| subvol.reached).max().unwrap_or(0).max(1);
    let sizes = |subvol: &Subvol| {
        let (reached, alone) = (subvol.reached?, subvol.alone?);
        Some((reached, alone, format!("{} alone of {}", human(alone), human(reached))))
    };
    let widest = rows.iter().filter_map(|(_, subvol)| Some(text_width(&sizes(subvol)?.2))).fold(0.0, f64::max);
    let scale = (WIDTH - BARS_AT - widest - 8.0) / most as f64;
    let mut body = Body::default();
    body.legend(0.0, 14.0, &[("data", "reached by it alone"), ("alone", "shared with others")]);
    let mut y = 30.0;
    for (depth, subvol) in rows.iter().take(ROWS_MAX) {
        let indent = (*depth).min(12) as f64 * 16.0;
        let mut text = shortened(&name(subvol), 50 - (*depth).min(12) * 2);
        if subvol.read_only {
            text.push_str(" (ro)");
        }
        body.text(indent, y + 13.0, "", &text);
        if let Some(source) = subvol.snapshot_of {
            body.text(430.0, y + 13.0, "d", &format!("snapshot of {source}"));
        }
        if let Some((reached, alone, numbers)) = sizes(subvol) {
            let title = format!("{}: reaches {}, alone {}", name(subvol), human(reached), human(alone));
            let (a, s) = (alone as f64 * scale, reached.saturating_sub(alone) as f64 * scale);
            body.rect([BARS_AT, y, a, 16.0], "data", &title);
            body.rect([BARS_AT + a, y, s, 16.0], "alone", &title);
            body.text(WIDTH, y + 13.0, "d e", &numbers);
        }
        y += 22.0;
    }
    if rows.len() > ROWS_MAX {
        body.text(0.0, y + 13.0, "d", &format!("{} more subvolumes", rows.len() - ROWS_MAX));
        y += 22.0;
    }
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "–".into(), human);
    let table = rows.iter().map(|(_, subvol)| {
        let made = match subvol.made_at {
            0 => subvol.made.to_string(),
            at => format!("{} ({})", subvol.made, day(at)),
        };
        let source = subvol.snapshot_of.map_or_else(|| "–".into(), |id| id.to_string());
        vec![subvol.id.to_string(), name(subvol), source, made, bytes(subvol.reached), bytes(subvol.alone)]
    });
    Picture {
        id: "subvolumes".into(),
        title: "Subvolumes and snapshots".into(),
        about: "Each below the subvolume that it is in, with the bytes that it alone reaches and those that others reach too. Bytes that one alone reaches are what deleting it would free."
            .into(),
        width: WIDTH as u32,
        height: y as u32 + 10,
        body: body.0,
        tables: vec![Table::new(
            "Subvolumes",
            &["number", "path", "snapshot of", "made in generation", "reaches", "alone"],
            table,
        )],
    }
}

pub(super) fn matrix(map: &Map) -> Picture {
    let ids = &map.sharing.matrix_of;
    let n = ids.len();
    let mut body = Body::default();
    let size = (640.0 / n.max(1) as f64).min(48.0);
    let left = 80.0;
    let mut pairs: Vec<(u64, u64, u64)> = Vec::new();
    for row in 0..n {
        let whole = map.sharing.matrix[row * n + row];
        let y = 30.0 + row as f64 * size;
        if size > 9.0 {
            body.text(left - 8.0, y + size / 2.0 + 4.0, "s e", &ids[row].to_string());
        }
        for column in 0..n {
            let bytes = map.sharing.matrix[row * n + column];
            let title = match n <= TITLED_MAX {
                true => format!("{} of {} of {} is in {} too", human(bytes), human(whole), ids[row], ids[column]),
                false => String::new(),
            };
            let class = match (row == column, bytes) {
                (true, _) => "bar".to_owned(),
                (_, 0) => "free".into(),
                _ => format!("r{}", step(bytes, whole)),
            };
            let x = left + column as f64 * size;
            body.rect([x, y, size - 0.5, size - 0.5], &class, if row == column { "" } else { &title });
            if column > row && bytes > 0 {
                pairs.push((bytes, ids[row], ids[column]));
            }
        }
    }
    let bottom = 30.0 + n as f64 * size + 24.0;
    body.scale(left, bottom, "nothing", "all of the row's is in the column's too");
    if n < map.sharing.subvols.len() {
        body.text(
            left,
            bottom + 20.0,
            "d",
            &format!("The {n} subvolumes that reach most, of {}.", map.sharing.subvols.len()),
        );
    }
    pairs.sort_by(|a, b| b.cmp(a));
    pairs.truncate(PAIRS_MAX);
    let called = |id: u64| {
        map.sharing.subvol(id).map_or_else(|| id.to_string(), |subvol| format!("{id} {}", shortened(&name(subvol), 60)))
    };
    let rows = pairs.iter().map(|(bytes, a, b)| {
        let whole = map.sharing.subvol(*a).and_then(|subvol| subvol.reached).unwrap_or(0);
        vec![called(*a), called(*b), human(*bytes), percent(*bytes, whole)]
    });
    Picture {
        id: "matrix".into(),
        title: "What each two subvolumes share".into(),
        about: "A row for each subvolume; the lighter a square, the more of what its row's subvolume reaches is reached by its column's, too.".into(),
        width: 760,
        height: bottom as u32 + 30,
        body: body.0,
        tables: vec![Table::new("Pairs that share most", &["subvolume", "and", "share", "of the first's"], rows)],
    }
}
