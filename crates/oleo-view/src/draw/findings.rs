//! What a check or scrub found, as a list; where it is stands on the space maps.

use std::collections::BTreeMap;

use super::svg::{Body, Picture, Table};
use crate::map::Map;

/// Kinds that are drawn.
const KINDS_MAX: usize = 30;

pub(super) fn findings(map: &Map) -> Picture {
    let found = &map.findings;
    let mut body = Body::default();
    let mut y = 20.0;
    let about = match (found.of.is_empty(), found.list.len() as u64 + found.left_out) {
        (true, _) => "Nobody looked for damage: a map can be made with what a check or scrub found.".to_owned(),
        (false, 0) => format!("Nothing was found by {}.", found.of.join(" and ")),
        (false, 1) => format!("One finding of {}.", found.of.join(" and ")),
        (false, n) => format!("{n} findings of {}.", found.of.join(" and ")),
    };
    body.text(0.0, y, "", &about);
    let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for finding in &found.list {
        *kinds.entry((&finding.severity, &finding.kind)).or_default() += 1;
    }
    let most = kinds.values().copied().max().unwrap_or(1).max(1);
    for ((severity, kind), count) in kinds.iter().take(KINDS_MAX) {
        y += 24.0;
        body.text(0.0, y, "s", &format!("{severity}: {kind}"));
        let class = if *severity == "error" { "metadata" } else { "bar" };
        body.rect([320.0, y - 12.0, *count as f64 / most as f64 * 600.0, 15.0], class, &format!("{kind}: {count}"));
        body.text(930.0, y, "s", &count.to_string());
    }
    let rows = found.list.iter().map(|finding| {
        let place = match (finding.at, finding.device) {
            (Some(at), _) => format!("address {at}"),
            (None, Some(device)) => format!("device {device}"),
            (None, None) => "–".into(),
        };
        let path = finding.path.clone().unwrap_or_else(|| "–".into());
        vec![finding.severity.clone(), finding.kind.clone(), place, path, finding.text.clone()]
    });
    let mut table = Table::new("Findings", &["severity", "kind", "where", "path", "what"], rows);
    table.left_out += usize::try_from(found.left_out).unwrap_or(usize::MAX);
    let tables = if found.list.is_empty() { Vec::new() } else { vec![table] };
    Picture {
        id: "findings".into(),
        title: "Findings".into(),
        about,
        width: 1100,
        height: y as u32 + 20,
        body: body.0,
        tables,
    }
}
