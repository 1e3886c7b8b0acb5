//! A check of the volume, with the paths of what is damaged. What is mounted is not checked from outside: half of what is read would have been overwritten meanwhile.

use std::io;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use oleo::Image;
use oleo::check::{CheckOptions, Finding, Progress, Severity, Start};
use oleo::control::{Caller, Reply as Replied, Request, execute};
use oleo::layers::format::Ino;
use oleo_browse::{Output, Query, Refused};
use serde_json::json;

use super::reply::Reply;
use super::volume::Current;
use crate::{Findings, name_text};

/// Paths of one finding.
const PATHS_MAX: usize = 8;
/// How often progress is told.
const TOLD_EVERY: Duration = Duration::from_millis(200);

/// Checks; with `data=1` the contents of files, too.
pub(super) fn check(volume: &Arc<Current>, query: &Query<'_>) -> Result<Reply, Refused> {
    let data = query.number("data", 0)? != 0;
    if volume.target.mount.is_some() {
        let why = "the volume is mounted: `oleo scrub` on the mount reads and compares everything while it is in use";
        return Err(Refused { status: 409, why: why.into() });
    }
    let volume = volume.clone();
    // Whether one runs is told first; what is found is told by whoever holds the lock.
    if let Err(TryLockError::WouldBlock) = volume.checking.try_lock() {
        return Err(Refused { status: 409, why: "a check is running already".into() });
    }
    Ok(Reply::lines(move |out| {
        let _one = volume.checking.lock();
        let out = Mutex::new((out, Instant::now()));
        let show = |progress: Progress| {
            let Ok(mut out) = out.try_lock() else { return };
            if out.1.elapsed() > TOLD_EVERY {
                out.1 = Instant::now();
                // Nobody may read any more; the check ends by itself.
                let _ =
                    out.0.line(&json!({ "what": progress.what, "done": progress.done, "expected": progress.expected }));
            }
        };
        let how = CheckOptions::default().data(data).kept_max(100).progress(Some(&show));
        let report = oleo::check::image(&volume.target.image, &volume.target.options, Start::default(), &how);
        let (out, _) = out.into_inner().map_err(|_| io::Error::other("a defect of the check"))?;
        let report = match report {
            Ok(report) => report,
            Err(error) => return out.line(&json!({ "error": name_text(error.to_string().as_bytes()) })),
        };
        volume.has_found(Findings::of_check(&report));
        let image = volume.image().map_err(|error| io::Error::other(error.to_string()))?;
        for finding in &report.findings {
            let paths = paths(&image, finding);
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
    }))
}

/// The paths that a finding is about: of the inode in its key, or of what is at its address.
fn paths(image: &Image, finding: &Finding) -> Vec<String> {
    let ask = |request: Request| execute(image, &Caller::owner(), request).ok().map(|reply| reply.0);
    let of_key = finding.at.tree.filter(|tree| tree.is_subvol()).zip(finding.at.key).and_then(|(tree, key)| {
        let reply = ask(Request::InodeResolve { tree, ino: Ino(key.objectid) })?;
        match reply {
            Replied::Paths(paths) => Some(paths),
            _ => None,
        }
    });
    let of_address = || {
        let reply = ask(Request::LogicalResolve { at: finding.at.block?, paths: true })?;
        match reply {
            Replied::Places(places) => Some(places.into_iter().flat_map(|place| place.paths).collect()),
            _ => None,
        }
    };
    let paths = of_key.filter(|paths: &Vec<_>| !paths.is_empty()).or_else(of_address).unwrap_or_default();
    paths.iter().map(|path| name_text(&path.0)).collect()
}
