//! What a check or a scrub found, and where that is on the map.

use oleo::check::{Report, Severity};
use serde::Serialize;
use serde_json::Value;

use super::error::MapError;
use super::space::Space;
use crate::text::name_text;

/// Findings that are listed.
const LISTED_MAX: usize = 1000;

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Finding {
    /// error or warning.
    pub severity: String,
    /// What kind.
    pub kind: String,
    /// The logical address, if it has one.
    pub at: Option<u64>,
    /// The device, if it is about one.
    pub device: Option<u64>,
    /// A path, if one is known.
    pub path: Option<String>,
    /// What is wrong.
    pub text: String,
    /// The cell of the space map.
    pub cell: Option<usize>,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    /// Where they are from: check, scrub; none: nobody looked.
    pub of: Vec<String>,
    /// The findings.
    pub list: Vec<Finding>,
    /// How many are not listed.
    pub left_out: u64,
    /// The cells with findings, and how many there are in each.
    pub cells: Vec<(usize, u32)>,
}

impl Findings {
    /// Those of a check.
    pub fn of_check(report: &Report) -> Findings {
        let list = report.findings.iter().map(|finding| Finding {
            severity: if finding.severity == Severity::Error { "error" } else { "warning" }.into(),
            kind: finding.kind.name().into(),
            at: finding.at.block.map(|at| at.0),
            device: finding.at.device,
            path: None,
            text: name_text(format!("have {}; want {}", finding.have, finding.want).as_bytes()),
            cell: None,
        });
        Findings {
            of: vec!["check".into()],
            list: list.take(LISTED_MAX).collect(),
            left_out: report.left_out.values().sum::<u64>() + report.findings.len().saturating_sub(LISTED_MAX) as u64,
            cells: Vec::new(),
        }
    }

    /// Those that `oleo check --json` or `oleo scrub … --json` has written: an object with a list called `findings`, `errors` or `damage`, whose members have an address in `at`,
    /// `logical` or `address`.
    ///
    /// # Errors
    /// The text is nothing of that kind.
    pub fn of_json(text: &str) -> Result<Findings, MapError> {
        let wrong = |why: &str| MapError::Findings(why.into());
        let value: Value = serde_json::from_str(text).map_err(|error| MapError::Findings(error.to_string()))?;
        let lists = ["findings", "errors", "damage"];
        let list = lists.iter().find_map(|name| value.get(name)?.as_array());
        let list = list.ok_or_else(|| wrong("there is no list of findings"))?;
        let number = |value: &Value, names: &[&str]| names.iter().find_map(|name| value.get(name)?.as_u64());
        let word = |value: &Value, names: &[&str]| {
            names.iter().find_map(|name| Some(name_text(value.get(name)?.as_str()?.as_bytes())))
        };
        let found = list.iter().map(|one| Finding {
            severity: word(one, &["severity"]).unwrap_or_else(|| "error".into()),
            kind: word(one, &["kind", "type"]).unwrap_or_else(|| "damage".into()),
            at: number(one, &["at", "logical", "address"]),
            device: number(one, &["device", "devid"]),
            path: word(one, &["path"])
                .or_else(|| one.get("paths")?.as_array()?.first()?.as_str().map(|path| name_text(path.as_bytes()))),
            text: match (word(one, &["have"]), word(one, &["want"])) {
                (Some(have), Some(want)) => format!("have {have}; want {want}"),
                _ => word(one, &["text", "what", "message"]).unwrap_or_default(),
            },
            cell: None,
        });
        let more = match value.get("left_out") {
            Some(Value::Object(counts)) => counts.values().filter_map(Value::as_u64).fold(0, u64::saturating_add),
            Some(other) => other.as_u64().unwrap_or(0),
            None => 0,
        };
        Ok(Findings {
            of: vec![if value.get("sound").is_some() { "check" } else { "scrub" }.into()],
            list: found.take(LISTED_MAX).collect(),
            left_out: more.saturating_add(list.len().saturating_sub(LISTED_MAX) as u64),
            cells: Vec::new(),
        })
    }

    pub(super) fn add(&mut self, more: Findings, space: &Space) {
        self.of.extend(more.of);
        self.left_out = self.left_out.saturating_add(more.left_out);
        for mut finding in more.list {
            if self.list.len() == LISTED_MAX {
                self.left_out += 1;
                continue;
            }
            finding.cell = finding.at.and_then(|at| space.grid.cell(at));
            if let Some(cell) = finding.cell {
                match self.cells.binary_search_by_key(&cell, |known| known.0) {
                    Ok(at) => self.cells[at].1 += 1,
                    Err(at) => self.cells.insert(at, (cell, 1)),
                }
            }
            self.list.push(finding);
        }
    }
}
