//! When what is there was written: bytes by generation.

use std::collections::HashMap;

use super::subvols::name;
use super::svg::{Body, Picture, Table, number, text_width};
use crate::map::Map;
use crate::text::{day, human, shortened};

/// Generation, time and number of a subvolume.
type Made = (u64, i64, u64);

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 220.0;

pub(super) fn generations(map: &Map) -> Picture {
    let generations = &map.generations;
    let sums: Vec<u64> =
        generations.data.iter().zip(&generations.metadata).map(|(a, b)| a.saturating_add(*b)).collect();
    let most = sums.iter().copied().max().unwrap_or(0).max(1);
    let mut body = Body::default();
    body.legend(0.0, 14.0, &[("data", "data"), ("metadata", "metadata")]);
    body.text(WIDTH, 14.0, "d e", &format!("highest bar: {}", human(most)));
    let w = WIDTH / sums.len().max(1) as f64;
    let base = 30.0 + HEIGHT;
    for (n, sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0) {
        let (from, to) = span(map, n);
        let title = format!(
            "generations {from} to {to}: {} of data, {} of metadata",
            human(generations.data[n]),
            human(generations.metadata[n])
        );
        let scale = HEIGHT / most as f64;
        let (data, all) = (generations.data[n] as f64 * scale, (*sum as f64 * scale).max(1.0));
        body.rect([n as f64 * w, base - all, (w - 1.0).max(0.5), all - data], "metadata", &title);
        body.rect([n as f64 * w, base - data, (w - 1.0).max(0.5), data], "data", &title);
    }
    body.path(&format!("M0 {base}h{WIDTH}"), "line", "");
    // Subvolumes that were made in one bar are one mark.
    let mut marks: Vec<(usize, Vec<&Made>)> = Vec::new();
    for made in &generations.made {
        let bar = usize::try_from(made.0.min(map.generation) / generations.per_bar.max(1)).unwrap_or(0);
        match marks.last_mut() {
            Some(last) if last.0 == bar => last.1.push(made),
            _ => marks.push((bar, vec![made])),
        }
    }
    let names: HashMap<u64, String> =
        map.sharing.subvols.iter().map(|subvol| (subvol.id, shortened(&name(subvol), 60))).collect();
    let called = |id: u64| names.get(&id).cloned().unwrap_or_else(|| id.to_string());
    let mut last_day_at = f64::MIN;
    for (bar, made) in &marks {
        let x = (*bar as f64 + 0.5) * w;
        let mut title: Vec<String> =
            made.iter().take(8).map(|made| format!("{} in {}", called(made.2), made.0)).collect();
        if made.len() > 8 {
            title.push(format!("{} more", made.len() - 8));
        }
        let triangle = format!("M{} {}l5 10h-10z", number(x), base + 4.0);
        body.path(&triangle, "bar", &format!("made: {}", title.join("; ")));
        if let Some(at) = made.iter().map(|made| made.1).find(|at| *at != 0)
            && x - last_day_at > 90.0
        {
            let day = day(at);
            body.text(x.min(WIDTH - text_width(&day)), base + 30.0, "d", &day);
            last_day_at = x;
        }
    }
    body.text(0.0, base + 50.0, "d", "generation 0");
    body.text(WIDTH, base + 50.0, "d e", &format!("generation {}", map.generation));
    let rows = (0..sums.len()).filter(|n| sums[*n] > 0).map(|n| {
        let (from, to) = span(map, n);
        vec![format!("{from} to {to}"), human(generations.data[n]), human(generations.metadata[n])]
    });
    let made = generations.made.iter().map(|(generation, at, id)| {
        vec![generation.to_string(), if *at == 0 { "–".into() } else { day(*at) }, id.to_string(), called(*id)]
    });
    Picture {
        id: "generations".into(),
        title: "Generations".into(),
        about: "The bytes that are there now, by the generation (transaction) that wrote them; triangles are subvolumes and snapshots when they were made.".into(),
        width: WIDTH as u32,
        height: base as u32 + 60,
        body: body.0,
        tables: vec![
            Table::new("Bytes by generation", &["generations", "data", "metadata"], rows),
            Table::new("Subvolumes by generation", &["generation", "day", "number", "path"], made),
        ],
    }
}

fn span(map: &Map, bar: usize) -> (u64, u64) {
    let from = bar as u64 * map.generations.per_bar;
    (from, from.saturating_add(map.generations.per_bar - 1).min(map.generation))
}
