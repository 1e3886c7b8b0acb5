use std::collections::BTreeMap;

use super::*;

/// Goal: a range is found where the tree's items put each of its sectors, in the fewest pieces that they allow; what no item has is an error. Method:
/// random items over three remapped chunks with others between them; random ranges; a map of sectors as the model.
#[test]
fn ranges_are_where_the_items_put_them() {
    const UNIT: u64 = 4096;
    const CHUNK: u64 = 64;
    let mut state = 11_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..200 {
        let area = |nth: u64| Area {
            start: 2 * nth * CHUNK * UNIT,
            end: (2 * nth + 1) * CHUNK * UNIT,
            types: BlockGroupFlags::DATA,
            has_stripes: true,
        };
        let mut remaps = Remaps { areas: (1..4).map(area).collect(), runs: Vec::new() };
        let (mut model, mut items) = (BTreeMap::new(), 0);
        for area in remaps.areas.clone() {
            let (mut at, mut to) = (area.start / UNIT, 1000 * CHUNK);
            while at < area.end / UNIT {
                let len = (1 + random(9)).min(area.end / UNIT - at);
                // Left out, in its own place, behind the one before it, or somewhere else.
                let from = match random(4) {
                    0 => None,
                    1 => Some(at),
                    2 => Some(to),
                    _ => Some(1000 * CHUNK + random(1000)),
                };
                if let Some(from) = from {
                    remaps.push(Run { from: at * UNIT, len: len * UNIT, to: from * UNIT }).expect("room");
                    model.extend((0..len).map(|sector| (at + sector, from + sector)));
                    (to, items) = (from + len, items + 1);
                }
                at += len;
            }
            let kept = model.range(area.start / UNIT..area.end / UNIT).filter(|(from, to)| from == to).count() as u64;
            assert_eq!(remaps.kept_in(Logical(area.start)..Logical(area.end)), kept * UNIT);
        }
        assert!(remaps.runs.len() <= items);
        for _ in 0..100 {
            let (at, len) = (random(8 * CHUNK), 1 + random(3 * CHUNK));
            let is_inside = |sector: &u64| (1..4).any(|nth| (2 * nth * CHUNK..(2 * nth + 1) * CHUNK).contains(sector));
            let want: Option<Vec<u64>> = (at..at + len)
                .map(|sector| if is_inside(&sector) { model.get(&sector).copied() } else { Some(sector) })
                .collect();
            let found = remaps.runs(Logical(at * UNIT), len * UNIT).ok();
            let have = found.map(|runs| runs.iter().flat_map(|(to, len)| to.0 / UNIT..(to.0 + len) / UNIT).collect());
            assert_eq!(have, want, "{at} {len} of {remaps:?}");
        }
    }
    assert!(Remaps::default().runs(Logical(u64::MAX), 2).is_err());
}
