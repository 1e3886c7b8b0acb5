//! The types that the library `oleo` shows can be named from it: every type in the signature of a public function, in a
//! public field or in a variant of a public enum below `crates/oleo/src` must be exported by one of its public modules,
//! whichever crate it is from.
//!
//! The source is read as text: names that begin with a capital are types, those of one letter are parameters. Imports
//! from `std`, and names in every file's prelude, are allowed. Two types with one name count once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Report, is_rust};

/// The sources of the library.
const SOURCE: &str = "crates/oleo/src";
/// Names that every file has, or that are written with their path.
const PRELUDE: [&str; 22] = [
    "Arc", "AsRef", "Box", "Clone", "Copy", "Default", "Display", "Err", "Fn", "FnMut", "FnOnce", "From", "Into",
    "Iterator", "None", "Ok", "Option", "Self", "Send", "Sized", "Some", "Sync",
];
/// More of them.
const STD: [&str; 4] = ["Result", "String", "Vec", "Error"];

/// Refuses types that cannot be named from outside.
pub(super) fn check(files: &BTreeMap<PathBuf, String>, report: &mut Report) {
    let source: BTreeMap<&Path, String> = files
        .iter()
        .filter(|(path, _)| path.starts_with(SOURCE) && is_rust(path) && !path.ends_with("tests.rs"))
        .map(|(path, text)| (path.as_path(), code(text)))
        .collect();
    let Some(root) = source.get(Path::new(SOURCE).join("lib.rs").as_path()) else { return };
    let mut exported = exports(root);
    for line in root.lines() {
        let Some(name) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) else { continue };
        if let Some(module) = source.get(Path::new(SOURCE).join(format!("{name}.rs")).as_path()) {
            exported.extend(exports(module));
        }
    }
    for (path, text) in &source {
        let from_std = imports_of_std(text);
        for (what, name) in shown(text) {
            if !(exported.contains(&name) || from_std.contains(&name) || is_known(&name)) {
                report.error(format!("{}: {what} shows `{name}`, which no public module exports", path.display()));
            }
        }
    }
}

fn is_known(name: &str) -> bool {
    name.len() == 1 || PRELUDE.contains(&name) || STD.contains(&name)
}

/// The lines of code before the tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines =
        text.lines().filter(|line| !line.trim_start().starts_with("//") && !line.trim_start().starts_with("#["));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Identifiers, in order.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn types(text: &str) -> impl Iterator<Item = String> {
    let lifetimes_gone = text.replace("'static", "").replace("'_", "");
    let found: Vec<String> = words(&lifetimes_gone)
        .filter(|word| {
            word.starts_with(|c: char| c.is_ascii_uppercase()) && word.contains(|c: char| c.is_ascii_lowercase())
        })
        .map(str::to_owned)
        .collect();
    found.into_iter()
}

/// The exports of a public module: its public `use`s and definitions.
fn exports(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for statement in text.split("pub use ").skip(1) {
        names.extend(types(statement.split(';').next().unwrap_or_default()));
    }
    for kind in ["pub struct ", "pub enum ", "pub trait ", "pub type "] {
        names.extend(text.split(kind).skip(1).filter_map(|rest| words(rest).next()).map(str::to_owned));
    }
    names
}

fn imports_of_std(text: &str) -> BTreeSet<String> {
    let statements = text.split("use std::").skip(1);
    statements.flat_map(|rest| types(rest.split(';').next().unwrap_or_default())).collect()
}

/// The types that a file's public items show, with what shows them.
fn shown(text: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for rest in text.split("pub fn ").skip(1) {
        let signature = rest.split(['{', ';']).next().unwrap_or_default();
        let name = words(signature).next().unwrap_or_default();
        all.extend(types(signature).map(|shown| (format!("fn {name}"), shown)));
    }
    for kind in ["pub struct ", "pub enum "] {
        for rest in text.split(kind).skip(1) {
            let name = words(rest).next().unwrap_or_default();
            let head = rest.lines().next().unwrap_or_default();
            let body = if head.ends_with('{') { rest.split("\n}").next().unwrap_or_default() } else { head };
            for line in body.lines().skip(usize::from(head.ends_with('{'))).map(str::trim) {
                let fields = match (kind, line.split_once('(')) {
                    ("pub enum ", Some((_, payload))) => payload,
                    ("pub enum ", None) => line.split_once(": ").map_or("", |(_, of)| of),
                    (_, Some((_, payload))) if line == head => payload.strip_prefix("pub ").unwrap_or_default(),
                    _ => line.strip_prefix("pub ").and_then(|line| line.split_once(": ")).map_or("", |(_, of)| of),
                };
                all.extend(types(fields).map(|shown| (name.to_owned(), shown)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(root: &str, module: &str) -> Vec<String> {
        let file = |name: &str, text: &str| (Path::new(SOURCE).join(name), text.to_owned());
        let files = BTreeMap::from([file("lib.rs", root), file("things.rs", module)]);
        let mut report = Report::default();
        check(&files, &mut report);
        report.errors
    }

    /// Goal: a type in a signature, a field or a variant that is not exported is found; exported, defined and std ones are not.
    #[test]
    fn types_without_a_name_are_found() {
        let module = "use std::path::Path;\npub struct Own {\n    pub field: Vec<Field>,\n    private: Hidden,\n}\npub enum Kind {\n    \
                      A(Box<Payload>),\n    B {\n        what: Other,\n    },\n}\nimpl Own {\n    pub fn get<T>(&self, path: &Path) -> \
                      Result<Own, Wrong> {\n        Inside::call()\n    }\n    pub(crate) fn inner(&self) -> Hidden {\n    }\n}\n";
        let found = errors("pub mod things;\n", module);
        let names: Vec<&str> = found.iter().filter_map(|line| line.split('`').nth(1)).collect();
        assert_eq!(names, ["Wrong", "Field", "Payload", "Other"]);
        let uses =
            "pub mod things;\npub use lower::{Field, Payload};\npub use other::Other;\npub use lower::error::Wrong;\n";
        assert_eq!(errors(uses, module), [""; 0]);
        assert_eq!(errors("mod things;\n", module).len(), 5, "a private module exports nothing");
    }
}
