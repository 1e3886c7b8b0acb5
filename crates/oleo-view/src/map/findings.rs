//! What a check or a scrub found, and where that is on the map.

use oleo::check::{Report, Severity};
use oleo::control::ScrubShown;
use oleo::scrub::What;
use serde::Serialize;
use serde_json::Value;

use super::error::MapError;
use super::space::Space;
use crate::name_text;

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

    /// What a scrub could not heal.
    pub fn of_scrub(shown: &ScrubShown) -> Findings {
        let list = shown.unhealed.iter().map(|one| {
            let what = if one.place.what == What::Data { "data" } else { "block" };
            let path = one.files.iter().find_map(|file| file.paths.first()).map(|path| name_text(&path.0));
            unhealed(what, Some(one.place.at.0), Some(one.place.devid.0), path, &one.place.why)
        });
        Findings {
            of: vec!["scrub".into()],
            list: list.take(LISTED_MAX).collect(),
            left_out: shown.status.unhealed_more + shown.unhealed.len().saturating_sub(LISTED_MAX) as u64,
            cells: Vec::new(),
        }
    }

    /// Those that `oleo check --json` or `oleo scrub … --json` has written: an object with a list called `findings` or `unhealed`.
    ///
    /// # Errors
    /// The text is nothing of that kind.
    pub fn of_json(text: &str) -> Result<Findings, MapError> {
        let wrong = |why: &str| MapError::Findings(why.into());
        let value: Value = serde_json::from_str(text).map_err(|error| MapError::Findings(error.to_string()))?;
        let lists = ["findings", "unhealed"];
        let list = lists.iter().find_map(|name| value.get(name)?.as_array());
        let list = list.ok_or_else(|| wrong("there is no list of findings"))?;
        let is_scrub = value.get("findings").is_none();
        let number = |value: &Value, name: &str| value.get(name)?.as_u64();
        let word = |value: &Value, name: &str| Some(name_text(value.get(name)?.as_str()?.as_bytes()));
        let found = list.iter().map(|one| {
            if is_scrub {
                let path = one["files"].as_array().and_then(|files| {
                    files.iter().find_map(|file| Some(name_text(file["paths"][0].as_str()?.as_bytes())))
                });
                let (what, why) = (word(one, "what").unwrap_or_default(), word(one, "why").unwrap_or_default());
                return unhealed(&what, number(one, "at"), number(one, "devid"), path, &why);
            }
            Finding {
                severity: word(one, "severity").unwrap_or_else(|| "error".into()),
                kind: word(one, "kind").unwrap_or_else(|| "damage".into()),
                at: number(one, "at"),
                device: number(one, "device"),
                path: word(one, "path"),
                text: match (word(one, "have"), word(one, "want")) {
                    (Some(have), Some(want)) => format!("have {have}; want {want}"),
                    _ => String::new(),
                },
                cell: None,
            }
        });
        let more = match value.get(if is_scrub { "more_unhealed" } else { "left_out" }) {
            Some(Value::Object(counts)) => counts.values().filter_map(Value::as_u64).fold(0, u64::saturating_add),
            Some(other) => other.as_u64().unwrap_or(0),
            None => 0,
        };
        Ok(Findings {
            of: vec![if is_scrub { "scrub" } else { "check" }.into()],
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

/// A place that a scrub could not heal.
fn unhealed(what: &str, at: Option<u64>, device: Option<u64>, path: Option<String>, why: &str) -> Finding {
    Finding {
        severity: "error".into(),
        kind: format!("unhealed {what}"),
        at,
        device,
        path,
        text: name_text(why.as_bytes()),
        cell: None,
    }
}
