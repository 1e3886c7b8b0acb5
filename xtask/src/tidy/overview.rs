//! The names in `docs/overview.md` and `docs/architecture.md` must exist: a page that names functions is useful only as long as
//! they do.
//!
//! A `code span` of these pages is looked up by its form: `oleo-txn` is a crate, `data/flush.rs` (or `crates/…`) a file
//! or a folder, `Type::name` a name defined in a file that also defines or implements the type, `module::name` one
//! defined in that module, and `name`, `name()` or `Type` one defined anywhere. Spans with blanks or other characters
//! (commands, options) are skipped. Names of the kernel are set in *italics*, not as code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Report, is_rust};

/// The pages.
const PAGES: [&str; 2] = ["docs/overview.md", "docs/architecture.md"];

/// Words that begin the definition of a name.
const DEFINES: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules!"];

/// Refuses names that are nowhere.
pub(super) fn check(files: &BTreeMap<PathBuf, String>, report: &mut Report) {
    let source = Source::of(files);
    for page in PAGES {
        match files.get(Path::new(page)) {
            Some(text) => check_page(page, text, &source, report),
            None => report.error(format!("{page} is not there")),
        }
    }
}

fn check_page(page: &str, text: &str, source: &Source<'_>, report: &mut Report) {
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        for span in line.split('`').skip(1).step_by(2) {
            if !source.has(span) {
                report.error(format!("{page}:{}: `{span}` is nowhere in the source", number + 1));
            }
        }
    }
}

/// The definitions of each file, and the types it implements something for.
struct Source<'a> {
    files: BTreeMap<&'a Path, Names<'a>>,
}

#[derive(Default)]
struct Names<'a> {
    defined: BTreeSet<&'a str>,
    implemented: BTreeSet<&'a str>,
}

impl<'a> Source<'a> {
    fn of(files: &'a BTreeMap<PathBuf, String>) -> Source<'a> {
        let rust = files.iter().filter(|(path, _)| is_rust(path));
        Source { files: rust.map(|(path, text)| (path.as_path(), Names::of(text))).collect() }
    }

    fn has(&self, span: &str) -> bool {
        let name = span.strip_suffix("()").unwrap_or(span);
        if name.is_empty() || name.contains(|c: char| !c.is_ascii_alphanumeric() && !"_-:/.".contains(c)) {
            return true;
        }
        if name.contains('/') || name.ends_with(".rs") || name.ends_with(".md") {
            let inside = |path: &Path| path.ancestors().any(|at| at.ends_with(name.trim_end_matches('/')));
            return name.ends_with(".md") || self.files.keys().any(|path| inside(path));
        }
        if name.contains('-') || name == "oleo" {
            return self.files.keys().any(|path| path.starts_with(Path::new("crates").join(name)));
        }
        match name.rsplit_once("::") {
            None => self.files.values().any(|names| names.defined.contains(name)),
            Some((of, name)) => {
                let of = of.rsplit("::").next().unwrap_or(of);
                self.files.iter().any(|(path, names)| {
                    let here = names.defined.contains(of) || names.implemented.contains(of) || is_module(path, of);
                    here && names.defined.contains(name)
                })
            }
        }
    }
}

/// Whether a file is the module, or a part of it.
fn is_module(path: &Path, module: &str) -> bool {
    path.file_stem().is_some_and(|stem| stem == module) || path.components().any(|part| part.as_os_str() == module)
}

impl<'a> Names<'a> {
    fn of(text: &'a str) -> Names<'a> {
        let mut out = Names::default();
        for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
            let mut words = line.split(|c: char| c.is_whitespace() || "(){}<>,;:&'=\"".contains(c));
            let mut before = words.next().unwrap_or("");
            let implements = before == "impl";
            for word in words.filter(|word| !word.is_empty()) {
                if DEFINES.contains(&before) {
                    out.defined.insert(word);
                } else if implements {
                    out.implemented.insert(word);
                }
                before = word;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::{PAGES, check};
    use crate::tidy::Report;

    /// Goal: names that are there pass, others are refused, each with its line. Method: a source of three files; a page with
    /// one name of each form that is there and one that is not.
    #[test]
    fn names_are_looked_up() {
        let source = [
            (
                "crates/oleo-fs/src/data/write.rs",
                "pub(crate) fn write(at: u64) {}\nimpl Core {\n    fn reserve(&self) {}\n}\n",
            ),
            ("crates/oleo-fs/src/core.rs", "pub struct Core;\n"),
            ("crates/oleo-txn/src/commit.rs", "impl<'a> Engine for Inner<'a> {\n    pub fn settle() {}\n}\n"),
        ];
        let errors = |page: &str| {
            let mut files: BTreeMap<PathBuf, String> =
                source.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
            files.extend([(PAGES[0].into(), String::new()), (PAGES[1].into(), page.to_owned())]);
            let mut report = Report::default();
            check(&files, &mut report);
            report.errors
        };
        let there =
            "`oleo-fs` `write` `write()` `data::write` `Core::reserve` `Inner::settle` `data/write.rs` `crates/oleo-fs`
`Core` `cargo xtask tidy` `-o ro`\n```\n`nothing`\n```\n";
        assert_eq!(errors(there), Vec::<String>::new());
        for name in ["oleo-sfs", "rewrite", "Core::settle", "Engine::reserve", "data/read.rs", "commit::write"] {
            let found = errors(&format!("\nSee `{name}`.\n"));
            assert!(found.len() == 1 && found[0].contains(&format!(":2: `{name}`")), "{name}: {found:?}");
        }
    }
}
