//! The treemap of paths by the bytes that they alone hold: rectangles in rectangles (squarified, after Bruls, Huizing and van Wijk, 2000).

use super::svg::{Body, Picture, Table, percent};
use crate::map::Map;
use crate::text::{human, shortened};

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 640.0;
/// What is smaller than this on a side is not drawn.
const SIDE_MIN: f64 = 3.0;
/// The room for a directory's name.
const HEAD: f64 = 16.0;

/// Cuts a rectangle into parts of these sizes, which fall.
fn cut([x, y, w, h]: [f64; 4], sizes: &[u64]) -> Vec<[f64; 4]> {
    let total: f64 = sizes.iter().map(|size| *size as f64).sum();
    let mut out = Vec::with_capacity(sizes.len());
    if total <= 0.0 || w <= 0.0 || h <= 0.0 {
        return vec![[x, y, 0.0, 0.0]; sizes.len()];
    }
    let scale = w * h / total;
    let areas: Vec<f64> = sizes.iter().map(|size| *size as f64 * scale).collect();
    let (mut x, mut y, mut w, mut h) = (x, y, w, h);
    let mut at = 0;
    while at < areas.len() {
        let short = w.min(h).max(1e-9);
        // A row takes more as long as that makes its worst part more square.
        let worst = |sum: f64, first: f64, last: f64| {
            let side = sum / short;
            (side * side / last.max(1e-9)).max(first / (side * side).max(1e-9))
        };
        let (mut end, mut sum) = (at + 1, areas[at]);
        while end < areas.len()
            && worst(sum + areas[end], areas[at], areas[end]) <= worst(sum, areas[at], areas[end - 1])
        {
            sum += areas[end];
            end += 1;
        }
        let side = sum / short;
        let mut along = 0.0;
        for area in &areas[at..end] {
            let len = if side > 0.0 { area / side } else { 0.0 };
            out.push(if w >= h { [x, y + along, side, len] } else { [x + along, y, len, side] });
            along += len;
        }
        if w >= h {
            x += side;
            w -= side;
        } else {
            y += side;
            h -= side;
        }
        at = end;
    }
    out
}

pub(super) fn treemap(map: &Map) -> Picture {
    let nodes = &map.paths.nodes;
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate().skip(1) {
        children[node.parent].push(at);
    }
    let mut body = Body::default();
    let mut due: Vec<(usize, [f64; 4], usize)> = Vec::new();
    if !nodes.is_empty() {
        due.push((0, [0.0, 0.0, WIDTH, HEIGHT], 0));
    }
    while let Some((at, [x, y, w, h], depth)) = due.pop() {
        if w < SIDE_MIN || h < SIDE_MIN {
            continue;
        }
        let node = &nodes[at];
        let has_head = w > 40.0 && h > HEAD * 2.0;
        let class = if children[at].is_empty() { "data" } else { ["free", "r1", "r2", "r3"][depth.min(3)] };
        let path = if at == 0 { "the volume".into() } else { map.paths.path(at) };
        let title = format!("{path}: {} in {} files", human(node.bytes), node.files);
        body.rect([x, y, w, h], &format!("{class} box"), &title);
        let name = if at == 0 { "all subvolumes" } else { &node.name };
        if has_head {
            let text_class = if class == "free" { "s" } else { "on" };
            body.text(x + 4.0, y + 12.0, text_class, &shortened(name, ((w - 8.0) / 6.6) as usize));
        }
        if children[at].is_empty() {
            continue;
        }
        let top = if has_head { HEAD } else { 1.0 };
        let inner = [x + 1.0, y + top, w - 2.0, h - top - 1.0];
        let mut sizes: Vec<u64> = children[at].iter().map(|child| nodes[*child].bytes).collect();
        // What is not listed has its place too, where it belongs by size.
        let rest = sizes.partition_point(|size| *size >= node.rest);
        if node.rest > 0 {
            sizes.insert(rest, node.rest);
        }
        for (n, part) in cut(inner, &sizes).into_iter().enumerate() {
            if node.rest > 0 && n == rest {
                body.rect(
                    part,
                    "bar box",
                    &format!("{path}: {} in files that are not drawn one by one", human(node.rest)),
                );
                continue;
            }
            let n = if node.rest > 0 && n > rest { n - 1 } else { n };
            due.push((children[at][n], part, depth + 1));
        }
    }
    let total = nodes.first().map_or(0, |node| node.bytes);
    let rows = nodes.iter().enumerate().skip(1).map(|(at, node)| {
        vec![map.paths.path(at), human(node.bytes), percent(node.bytes, total), node.files.to_string()]
    });
    let mut table = Table::new("Paths", &["path", "holds alone", "of all", "files"], rows);
    table.left_out += usize::try_from(map.paths.left_out).unwrap_or(usize::MAX);
    let sampled = map
        .sample
        .map_or_else(String::new, |sample| format!(" An estimate from one of {} data extents.", sample.one_in));
    Picture {
        id: "paths".into(),
        title: "Paths by what they alone hold".into(),
        about: format!(
            "Each rectangle is a file, in the directories that it is in; its area is the bytes on disk that no other file and no other subvolume holds. Data inside of tree blocks is left out.{sampled}"
        ),
        width: WIDTH as u32,
        height: HEIGHT as u32,
        body: body.0,
        tables: vec![table],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the parts fill the rectangle, in proportion, without overlapping, for falling sizes of any spread.
    #[test]
    fn parts_fill_the_whole() {
        for sizes in [vec![1], vec![6, 6, 4, 3, 2, 2, 1], vec![1 << 50, 1, 1, 0], (0..500).rev().collect::<Vec<u64>>()]
        {
            let whole = [10.0, 20.0, 300.0, 200.0];
            let parts = cut(whole, &sizes);
            assert_eq!(parts.len(), sizes.len());
            let area: f64 = parts.iter().map(|part| part[2] * part[3]).sum();
            assert!((area - 60_000.0).abs() < 1.0, "{area}");
            let total: f64 = sizes.iter().map(|size| *size as f64).sum();
            for ([x, y, w, h], size) in parts.iter().zip(&sizes) {
                assert!((w * h - *size as f64 / total * 60_000.0).abs() < 1.0);
                assert!(*x >= 9.9 && *y >= 19.9 && x + w <= 310.1 && y + h <= 220.1, "{x} {y} {w} {h}");
            }
            for (n, a) in parts.iter().enumerate().take(50) {
                for b in parts[n + 1..].iter().take(50) {
                    let over = |a: [f64; 2], b: [f64; 2]| (a[0] + a[1]).min(b[0] + b[1]) - a[0].max(b[0]);
                    let overlap = over([a[0], a[2]], [b[0], b[2]]).max(0.0) * over([a[1], a[3]], [b[1], b[3]]).max(0.0);
                    assert!(overlap < 0.01);
                }
            }
        }
        assert!(cut([0.0; 4], &[1, 2]).iter().all(|part| part[2] == 0.0));
    }
}
