//! The house rules.
//!
//! 1. Dependencies of crates: what each manifest uses of ours is what the table in `docs/architecture.md` lists, no
//!    more and no less.
//! 2. Banned: calls and markers of unfinished work, bytes in the machine's order.
//! 3. Size: files beyond [`LINES_WARN`] lines are named, beyond [`LINES_MAX`] refused.
//! 4. Dead files: every Rust file is reached by a `mod` from a crate's root. Test programs are listed (`autotests = false`), so that
//!    no file of tests is forgotten, and none becomes one more program by chance.
//! 5. Openings: every module begins with what it is for.
//! 6. Traces of a machine: paths that exist on one computer only.
//! 7. Dependencies of others: `docs/dependencies.md` argues for each one of the workspace, and for nothing else.
//! 8. Links: the targets of links within the repository exist.
//! 9. Words: names and phrases that others have replaced are refused (`words`).
//! 10. Overview: the names in `docs/overview.md` and `docs/architecture.md` exist (`overview`).
//! 11. Circles: the files of a crate do not use each other in a circle, except those listed (`circles`).
//! 12. Locks: the tables of `docs/locking.md` are those of the ranks ([`crate::locking`]), and programs take locks with
//!     ranks only.
//! 13. Facade: every type that the library `oleo` shows can be named from it (`facade`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::locking;

mod circles;
mod facade;
mod links;
mod overview;
mod words;

const LINES_WARN: usize = 1000;
const LINES_MAX: usize = 1500;

/// Directories that are not ours to verify.
const SKIPPED_DIRS: [&str; 4] = ["target", ".git", "corpus", "artifacts"];

/// Runs every rule; prints what is broken.
pub fn run(root: &Path) -> Result<()> {
    let files = files_of(root)?;
    let mut report = Report::default();
    crate_dependencies(root, &mut report)?;
    dependencies(root, &mut report)?;
    for (path, text) in &files {
        banned(path, text, &mut report);
        size(path, text, &mut report);
        traces(path, text, &mut report);
        opening(path, text, &mut report);
        words::check(path, text, &mut report);
    }
    dead_files(&files, &mut report);
    overview::check(&files, &mut report);
    circles::check(&files, &mut report)?;
    facade::check(&files, &mut report);
    links::links(root, &files, &mut report);
    links::named_tests(&files, &mut report);
    locks(&files, &mut report);
    for line in &report.warnings {
        println!("warning: {line}");
    }
    for line in &report.errors {
        println!("error: {line}");
    }
    if !report.errors.is_empty() {
        bail!("{} house rules broken", report.errors.len());
    }
    println!("tidy: {} files, {} warnings", files.len(), report.warnings.len());
    Ok(())
}

/// Draws the circles of files in a crate, or in all (`circles`).
pub fn circles(root: &Path, args: &[String]) -> Result<()> {
    circles::draw(&files_of(root)?, args.first().map(String::as_str))
}

#[derive(Default)]
struct Report {
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Report {
    fn error(&mut self, line: String) {
        self.errors.push(line);
    }
}

/// Every text file, by its path from the root.
fn files_of(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut out = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type()?.is_dir() {
                if !SKIPPED_DIRS.contains(&name.as_str()) {
                    dirs.push(path);
                }
            } else if name == ".git" {
                // In a linked worktree this is a file with the path of the repository.
            } else if let Ok(text) = fs::read_to_string(&path) {
                out.insert(path.strip_prefix(root)?.to_owned(), text);
            }
        }
    }
    Ok(out)
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "rs")
}

/// What one crate may use, and what only its tests may.
#[derive(Default, Debug, PartialEq, Eq)]
struct Uses {
    always: BTreeSet<String>,
    tests: BTreeSet<String>,
}

fn crate_dependencies(root: &Path, report: &mut Report) -> Result<()> {
    let text = fs::read_to_string(root.join("docs/architecture.md"))?;
    let table = text
        .split_once("<!-- dependencies -->")
        .and_then(|(_, rest)| rest.split_once("<!-- /dependencies -->"))
        .map(|(table, _)| table)
        .context("docs/architecture.md has no table of dependencies")?;
    let mut allowed: BTreeMap<String, Uses> = BTreeMap::new();
    for line in table.lines().filter(|l| l.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [krate, uses] = cells[..] else { continue };
        if krate == "crate" {
            continue;
        }
        let mut entry = Uses::default();
        for word in uses.split_whitespace() {
            match word.strip_prefix("dev:") {
                Some(dev) => entry.tests.insert(dev.to_owned()),
                None => entry.always.insert(word.to_owned()),
            };
        }
        allowed.insert(krate.to_owned(), entry);
    }
    let mut manifests: Vec<PathBuf> =
        fs::read_dir(root.join("crates"))?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    manifests.push(root.join("xtask"));
    manifests.sort();
    for dir in manifests {
        let krate = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let used = uses(&fs::read_to_string(dir.join("Cargo.toml"))?);
        let Some(may) = allowed.remove(&krate) else {
            report.error(format!("{krate} is not in the table of dependencies"));
            continue;
        };
        for to in used.always.difference(&may.always) {
            report.error(format!("{krate} uses {to}, which the table of dependencies does not allow"));
        }
        for to in may.always.difference(&used.always) {
            report.error(format!("{krate} does not use {to}: take it out of the table"));
        }
        // Tests may use the harness and everything the crate itself uses.
        for to in used.tests.iter().filter(|t| *t != "oleo-sim" && !may.tests.contains(*t) && !may.always.contains(*t))
        {
            report.error(format!("the tests of {krate} use {to}, which the table of dependencies does not allow"));
        }
        for to in may.tests.difference(&used.tests) {
            report.error(format!("the tests of {krate} do not use {to}: take it out of the table"));
        }
    }
    for krate in allowed.keys() {
        report.error(format!("{krate} is in the table of dependencies, but there is no such crate"));
    }
    Ok(())
}

/// The dependencies of ours in a manifest. Our manifests are plain: one dependency a line, one section a kind.
fn uses(manifest: &str) -> Uses {
    let mut out = Uses::default();
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or("");
        if name != "oleo" && !name.starts_with("oleo-") {
            continue;
        }
        match section {
            "[dependencies]" | "[build-dependencies]" => out.always.insert(name.to_owned()),
            "[dev-dependencies]" => out.tests.insert(name.to_owned()),
            _ => continue,
        };
    }
    out
}

fn dependencies(root: &Path, report: &mut Report) -> Result<()> {
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let section = manifest.split_once("[workspace.dependencies]").map_or("", |(_, rest)| rest);
    let used: BTreeSet<&str> = section
        .lines()
        .take_while(|l| !l.starts_with('['))
        .filter_map(|l| l.split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| *name != "oleo" && !name.starts_with("oleo-"))
        .collect();
    let text = fs::read_to_string(root.join("docs/dependencies.md"))?;
    let rows = text.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| crate "));
    let argued: BTreeSet<&str> = rows.filter_map(|l| l.trim_matches('|').split('|').next()).map(str::trim).collect();
    for name in used.difference(&argued) {
        report.error(format!("{name} has no line in docs/dependencies.md"));
    }
    for name in argued.difference(&used) {
        report.error(format!("{name} has a line in docs/dependencies.md, but the workspace does not use it"));
    }
    Ok(())
}

/// Crates with locks of their own that nothing is held beside: what only tests and measurements use, and workers of one call.
const UNRANKED: [&str; 7] = ["oleo", "oleo-bench", "oleo-check", "oleo-lock", "oleo-mkfs", "oleo-sim", "oleo-stream"];

fn locks(files: &BTreeMap<PathBuf, String>, report: &mut Report) {
    let page = files.get(Path::new(locking::PAGE)).map_or("", String::as_str);
    match locking::renew(page) {
        Ok(renewed) if renewed == page => {}
        Ok(_) => report.error(format!("{} differs from the ranks: run cargo xtask locking", locking::PAGE)),
        Err(e) => report.error(format!("{}: {e:#}", locking::PAGE)),
    }
    for (path, text) in files.iter().filter(|(path, _)| path.starts_with("crates") && path.ends_with("Cargo.toml")) {
        let krate = path.components().nth(1).map_or("".into(), |part| part.as_os_str().to_string_lossy());
        let normal = text.split_once("[dependencies]").map_or("", |(_, rest)| rest);
        let normal = normal.split("\n[").next().unwrap_or("");
        if !UNRANKED.contains(&&*krate) && normal.lines().any(|line| line.starts_with("parking_lot")) {
            report.error(format!("{krate} uses parking_lot: its locks need ranks, see oleo-lock"));
        }
    }
}

fn banned(path: &Path, text: &str, report: &mut Report) {
    // Put together here so that this file does not contain them.
    let calls = [["to", "do!("], ["unimple", "mented!("], ["db", "g!("], ["to_ne", "_bytes"], ["from_ne", "_bytes"]]
        .map(|p| p.concat());
    let markers = [["FIX", "ME"], ["TO", "DO"], ["XX", "X"]].map(|p| p.concat());
    let is_text = ["rs", "md", "toml", "sh"].iter().any(|e| path.extension().is_some_and(|x| x == *e));
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{}:{}", path.display(), number + 1);
        if is_rust(path) {
            for call in calls.iter().filter(|c| line.contains(c.as_str())) {
                report.error(format!("{}: {call} is banned", place()));
            }
        }
        let word = |w: &str| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|x| x == w);
        for marker in markers.iter().filter(|m| is_text && word(m)) {
            report.error(format!("{}: {marker}: do it or write it down elsewhere", place()));
        }
    }
}

fn size(path: &Path, text: &str, report: &mut Report) {
    let lines = text.lines().count();
    if !is_rust(path) || lines <= LINES_WARN {
        return;
    }
    let line = format!("{} has {lines} lines: look for its second job", path.display());
    if lines > LINES_MAX { report.error(line) } else { report.warnings.push(line) }
}

fn traces(path: &Path, text: &str, report: &mut Report) {
    let paths = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"]].map(|p| p.concat());
    for (number, line) in text.lines().enumerate() {
        for trace in paths.iter().filter(|p| line.contains(p.as_str())) {
            report.error(format!("{}:{}: {trace} is a path of one machine", path.display(), number + 1));
        }
    }
}

fn opening(path: &Path, text: &str, report: &mut Report) {
    let test = path.components().any(|c| c.as_os_str() == "tests") || path.ends_with("tests.rs");
    if is_rust(path) && !test && !text.trim_start().starts_with("//!") && !text.starts_with("#!") {
        report.error(format!("{} does not say at its top what it is for", path.display()));
    }
}

/// Follows `mod` from every crate root; files that are not reached are dead.
fn dead_files(files: &BTreeMap<PathBuf, String>, report: &mut Report) {
    let rust: BTreeSet<&PathBuf> = files.keys().filter(|p| is_rust(p)).collect();
    let is_root = |path: &Path| is_root(path) && is_listed(files, path);
    let mut alive: BTreeSet<PathBuf> = BTreeSet::new();
    let roots: BTreeSet<PathBuf> = rust.iter().filter(|p| is_root(p)).map(|p| (*p).clone()).collect();
    let mut next: Vec<PathBuf> = roots.iter().cloned().collect();
    while let Some(path) = next.pop() {
        if !alive.insert(path.clone()) {
            continue;
        }
        let dir = if roots.contains(&path) || path.ends_with("mod.rs") {
            path.parent().map(Path::to_owned).unwrap_or_default()
        } else {
            path.with_extension("")
        };
        for name in modules(&files[&path]) {
            let candidates = [dir.join(format!("{name}.rs")), dir.join(&name).join("mod.rs")];
            next.extend(candidates.into_iter().filter(|c| rust.contains(c)));
        }
    }
    for path in rust.iter().filter(|p| !alive.contains(**p)) {
        report.error(format!("{} is reached by no mod", path.display()));
    }
}

/// Whether a crate begins here: a library, a program, an integration test, a benchmark, an example, a fuzz target.
fn is_root(path: &Path) -> bool {
    let parent = path.parent().and_then(|p| p.file_name()).unwrap_or_default().to_string_lossy().into_owned();
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let holder = path.parent().and_then(|p| p.parent());
    let in_crate =
        holder.is_some_and(|h| h.components().count() == 2 || h == Path::new("xtask") || h == Path::new("fuzz"));
    // A program of several files: `tests/it/main.rs`, `src/bin/x/main.rs`.
    let is_program =
        |holder: &Path| holder.ends_with("src/bin") || holder.ends_with("tests") && !holder.ends_with("src/tests");
    match parent.as_str() {
        "src" => in_crate && (file == "lib.rs" || file == "main.rs"),
        "bin" => path.parent().is_some_and(|parent| parent.ends_with("src/bin")),
        "tests" | "benches" | "examples" | "fuzz_targets" => in_crate,
        _ if file == "main.rs" => {
            holder.is_some_and(|h| is_program(h) || h.ends_with("fuzz_targets") || h.ends_with("examples"))
        }
        _ => file == "build.rs" && !path.components().any(|part| part.as_os_str() == "tests"),
    }
}

/// Returns whether the manifest of a test program's crate lists it in a `[[test]]`; true for files outside `tests`.
fn is_listed(files: &BTreeMap<PathBuf, String>, path: &Path) -> bool {
    let mut parts = path.components().map(|part| part.as_os_str());
    let Some(at) = parts.clone().position(|part| part == "tests") else { return true };
    let krate: PathBuf = parts.by_ref().take(at).collect();
    let Some(manifest) = files.get(&krate.join("Cargo.toml")) else { return true };
    let program = Path::new(parts.nth(1).unwrap_or_default()).with_extension("");
    let name = format!("name = \"{}\"", program.display());
    manifest.contains("autotests = false")
        && manifest.split("[[test]]\n").skip(1).any(|test| test.lines().next() == Some(name.as_str()))
}

fn modules(text: &str) -> Vec<String> {
    let strip = |line: &str| -> Option<String> {
        let line = line.trim();
        let line = ["pub(crate) ", "pub(super) ", "pub "].iter().find_map(|p| line.strip_prefix(p)).unwrap_or(line);
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    };
    text.lines().filter_map(strip).collect()
}

#[cfg(test)]
mod tests;
