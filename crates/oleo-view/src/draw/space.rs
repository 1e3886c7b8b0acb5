//! The space map: one square for each way to colour it.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::hilbert;
use super::svg::{Body, Picture, STEPS, Table, percent, step};
use crate::map::{Cells, Map};
use crate::text::human;

const SIDE: f64 = 512.0;
/// Marks of findings on a map.
const MARKS_MAX: usize = 400;

/// The mean sizes of pieces that the steps of fragmentation begin with, largest first.
const PIECES: [u64; STEPS - 1] = [64 << 20, 16 << 20, 4 << 20, 1 << 20, 256 << 10, 64 << 10, 16 << 10];

/// The class of a cell; none: nothing is there.
type ClassOf = dyn Fn(&Cells, usize) -> Option<String>;

/// How a cell is coloured, and by which class.
struct Colouring {
    id: &'static str,
    title: &'static str,
    about: String,
    class: Box<ClassOf>,
    /// From which amount to which, for the scale; none: types.
    scale: Option<(String, String)>,
    /// What the classes are in words, for the table.
    word: Box<dyn Fn(&str) -> String>,
}

fn taken(cells: &Cells, n: usize) -> u64 {
    cells.data[n].saturating_add(cells.metadata[n])
}

fn kinds() -> Colouring {
    Colouring {
        id: "kind",
        title: "Space by type",
        about: "What lies where; pale where less than half of a cell is taken.".into(),
        class: Box::new(|cells, n| {
            if taken(cells, n) == 0 {
                return None;
            }
            let kind = match cells.kind[n] {
                _ if cells.data[n] > cells.metadata[n] => "data",
                3 => "system",
                _ => "metadata",
            };
            Some(kind.to_owned())
        }),
        scale: None,
        word: Box::new(str::to_owned),
    }
}

fn amounts(
    id: &'static str,
    title: &'static str,
    about: &str,
    scale: (&str, &str),
    of: impl Fn(&Cells, usize) -> Option<(u64, u64)> + 'static,
) -> Colouring {
    Colouring {
        id,
        title,
        about: about.into(),
        class: Box::new(move |cells, n| of(cells, n).map(|(part, whole)| format!("r{}", step(part, whole)))),
        scale: Some((scale.0.into(), scale.1.into())),
        word: Box::new(|class| {
            let step: usize = class.trim_start_matches('r').parse().unwrap_or(0);
            let from = step * 100 / (STEPS - 1);
            match step + 1 == STEPS {
                true => "all".into(),
                false => format!("{from} % to {} %", (step + 1) * 100 / (STEPS - 1)),
            }
        }),
    }
}

fn pieces(cell_bytes: u64) -> Colouring {
    Colouring {
        id: "fragmentation",
        title: "Space by fragmentation",
        about: "The mean size of the extents and runs of free space that begin in a cell: the lighter, the smaller."
            .into(),
        class: Box::new(move |cells, n| {
            if taken(cells, n) == 0 {
                return None;
            }
            let runs = cells.extents[n] + cells.free_runs[n];
            // Where nothing begins, one piece goes through.
            let mean = cell_bytes.checked_div(runs).unwrap_or(u64::MAX);
            Some(format!("r{}", PIECES.partition_point(|piece| mean < *piece)))
        }),
        scale: Some((format!("{} and more", human(PIECES[0])), format!("less than {}", human(PIECES[STEPS - 2])))),
        word: Box::new(|class| {
            let step: usize = class.trim_start_matches('r').parse().unwrap_or(0);
            match step {
                0 => format!("{} and more", human(PIECES[0])),
                n if n < PIECES.len() => format!("{} to {}", human(PIECES[n]), human(PIECES[n - 1])),
                _ => format!("less than {}", human(PIECES[PIECES.len() - 1])),
            }
        }),
    }
}

pub(super) fn all(map: &Map) -> Vec<Picture> {
    let generation = map.generation;
    let sampled = map
        .sample
        .map_or_else(String::new, |sample| format!(" An estimate from one of {} data extents.", sample.one_in));
    let mut all = vec![
        kinds(),
        amounts(
            "age",
            "Space by age",
            "The mean generation of what is in a cell: the lighter, the newer.",
            ("oldest", "newest"),
            move |cells, n| (taken(cells, n) > 0).then_some((cells.generation[n], generation)),
        ),
        amounts(
            "shared",
            "Space by sharing",
            &format!("How much of what is in a cell is reached by several subvolumes.{sampled}"),
            ("one subvolume", "shared"),
            |cells, n| (taken(cells, n) > 0).then(|| (cells.shared[n], taken(cells, n))),
        ),
        pieces(map.space.cell_bytes),
        amounts(
            "compression",
            "Space by compression",
            &format!("How much of the data in a cell is compressed.{sampled}"),
            ("not compressed", "compressed"),
            |cells, n| (cells.data[n] > 0).then(|| (cells.compressed[n], cells.data[n])),
        ),
    ];
    if map.sharing.subvols.iter().all(|subvol| subvol.reached.is_none()) {
        all.retain(|colouring| !matches!(colouring.id, "shared" | "compression"));
    }
    all.iter().map(|colouring| draw(map, colouring)).collect()
}

fn draw(map: &Map, colouring: &Colouring) -> Picture {
    let space = &map.space;
    let side = 1u32 << space.order;
    let count = space.cells.kind.len();
    let mut grid: Vec<Option<String>> = vec![None; count];
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let pale = colouring.scale.is_none();
    for n in 0..count {
        let (x, y) = hilbert::place(space.order, n as u64);
        let outside = (n as u64).saturating_mul(space.cell_bytes) >= space.bytes;
        let class = (colouring.class)(&space.cells, n).filter(|_| !outside);
        let bytes = taken(&space.cells, n);
        let class = match (class, outside) {
            (Some(class), _) => {
                let sum = sums.entry(class.clone()).or_default();
                *sum = (sum.0 + 1, sum.1.saturating_add(bytes));
                if pale && bytes < space.cell_bytes / 2 { Some(format!("{class} part")) } else { Some(class) }
            }
            (None, false) => Some("free".into()),
            (None, true) => None,
        };
        grid[(y * side + x) as usize] = class;
    }
    let mut body = Body::default();
    let scale = SIDE / f64::from(side);
    let _ = write!(body.0, "<g transform=\"translate(0 4) scale({scale})\" shape-rendering=\"crispEdges\">");
    let mut paths: BTreeMap<&str, String> = BTreeMap::new();
    for y in 0..side {
        let row = &grid[(y * side) as usize..((y + 1) * side) as usize];
        let mut x = 0;
        for run in row.chunk_by(|a, b| a == b) {
            if let Some(class) = &run[0] {
                let path = paths.entry(class).or_default();
                let n = run.len();
                let _ = write!(path, "M{x} {y}h{n}v1h-{n}z");
            }
            x += run.len();
        }
    }
    for (class, path) in &paths {
        let plain = class.trim_end_matches(" part");
        let title = match *class {
            "free" => "nothing".to_owned(),
            class if class.ends_with(" part") => format!("{plain}, less than half full"),
            _ => (colouring.word)(plain),
        };
        body.path(path, class, &title);
    }
    body.0.push_str("</g>");
    for (cell, n) in map.findings.cells.iter().take(MARKS_MAX) {
        let (x, y) = hilbert::place(space.order, *cell as u64);
        let (x, y) = ((f64::from(x) + 0.5) * scale, (f64::from(y) + 0.5) * scale + 4.0);
        let title = match space.addresses(*cell) {
            Some((first, last)) => format!("{n} findings between addresses {first} and {last}"),
            None => format!("{n} findings"),
        };
        let cross = format!("M{} {}l10 10m0 -10l-10 10", x - 5.0, y - 5.0);
        body.path(&cross, "markback", "");
        body.path(&cross, "mark", &title);
    }
    match &colouring.scale {
        None => body.legend(
            0.0,
            SIDE + 24.0,
            &[("data", "data"), ("metadata", "metadata"), ("system", "system"), ("free", "free")],
        ),
        Some((low, high)) => body.scale(0.0, SIDE + 24.0, low, high),
    }
    let cells = format!("A cell is {}; addresses follow a Hilbert curve from the top left.", human(space.cell_bytes));
    body.text(0.0, SIDE + 44.0, "d", &cells);
    if !map.findings.cells.is_empty() {
        body.text(0.0, SIDE + 62.0, "d", "Crosses: something was found there.");
    }
    let total: u64 = sums.values().fold(0, |sum, one| sum.saturating_add(one.1));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (class, (cells, bytes)) in &sums {
        rows.push(vec![(colouring.word)(class), cells.to_string(), human(*bytes), percent(*bytes, total)]);
    }
    Picture {
        id: format!("space-{}", colouring.id),
        title: colouring.title.into(),
        about: format!("{} {cells}", colouring.about),
        width: SIDE as u32,
        height: SIDE as u32 + 70,
        body: body.0,
        tables: vec![Table::new(
            colouring.title,
            &["in the cell", "cells", "bytes in them", "of all"],
            rows.into_iter(),
        )],
    }
}
