//! A check of a volume, with the paths of what is damaged, told in lines as it goes.

use std::io;
use std::sync::{Arc, Mutex};

use oleo::Image;
use oleo::check::{CheckOptions, Finding, Progress, Report, Severity};
use oleo::layers::format::Ino;
use oleo_browse::Reply;
use serde_json::json;

use crate::{Findings, name_text};

/// Paths of one finding.
const PATHS_MAX: usize = 8;
/// Findings of one kind.
const KEPT_MAX: usize = 100;

/// Says whether it is time to tell how far a check has come.
pub type Pace = Box<dyn FnMut() -> bool + Send>;

/// What is checked, and how.
pub trait Checked: Send + Sync + 'static {
    /// Checks it; the options say the rest.
    ///
    /// # Errors
    /// It cannot be read at all.
    fn check(&self, how: &CheckOptions<'_>) -> oleo::Result<Report>;

    /// The same volume, for paths.
    ///
    /// # Errors
    /// It cannot be opened.
    fn image(&self) -> oleo::Result<Arc<Image>>;

    /// Takes what was found, for maps.
    fn has_found(&self, findings: Findings);

    /// How often progress is told.
    fn pace(&self) -> Pace;
}

/// Checks; with `data` the contents of files, too.
pub fn check(checked: Arc<impl Checked>, data: bool) -> Reply {
    Reply::lines(move |out| {
        let out = Mutex::new((out, checked.pace()));
        let show = |progress: Progress| {
            let Ok(mut out) = out.try_lock() else { return };
            if out.1() {
                // Nobody may read any more; the check ends by itself.
                let _ =
                    out.0.line(&json!({ "what": progress.what, "done": progress.done, "expected": progress.expected }));
            }
        };
        let report = checked.check(&CheckOptions::default().data(data).kept_max(KEPT_MAX).progress(Some(&show)));
        let (out, _) = out.into_inner().map_err(|_| io::Error::other("a defect of the check"))?;
        let report = match report {
            Ok(report) => report,
            Err(error) => return out.line(&json!({ "error": name_text(error.to_string().as_bytes()) })),
        };
        checked.has_found(Findings::of_check(&report));
        // What cannot be opened can be checked all the same; then there are no paths.
        let image = checked.image().ok();
        for finding in &report.findings {
            let paths = image.as_ref().map_or_else(Vec::new, |image| paths(image, finding));
            out.line(&json!({
                "severity": if finding.severity == Severity::Error { "error" } else { "warning" },
                "kind": finding.kind.name(),
                "at": finding.at.block.map(|at| at.0),
                "device": finding.at.device,
                "text": name_text(format!("have {}; want {}", finding.have, finding.want).as_bytes()),
                "paths": &paths[..paths.len().min(PATHS_MAX)],
                "more_paths": paths.len() > PATHS_MAX,
            }))?;
        }
        let left_out: u64 = report.left_out.values().sum();
        out.line(&json!({ "finished": true, "sound": !report.has_errors(), "findings": report.findings.len(), "left_out": left_out }))
    })
}

/// The paths that a finding is about: of the inode in its key, or of what is at its address.
fn paths(image: &Image, finding: &Finding) -> Vec<String> {
    let of_key = finding.at.tree.filter(|tree| tree.is_subvol()).zip(finding.at.key).and_then(|(tree, key)| {
        let inode = image.fs().inode(&image.fs().subvol(tree).ok()?, Ino(key.objectid)).ok()?;
        image.paths(&inode).ok()
    });
    let of_address = || {
        let files = image.files_at(finding.at.block?).ok()?;
        Some(files.into_iter().flat_map(|file| file.paths).map(|path| path.0).collect())
    };
    let paths = of_key.filter(|paths: &Vec<_>| !paths.is_empty()).or_else(of_address).unwrap_or_default();
    paths.iter().map(|path| name_text(path)).collect()
}
