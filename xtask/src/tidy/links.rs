//! Links within the repository: the target of each exists, heading included, and so do files of tests that a document names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::Report;

/// Looks at every link of every Markdown file that leads to a file here, or to a heading.
pub(super) fn links(root: &Path, files: &BTreeMap<PathBuf, String>, report: &mut Report) {
    for (path, text) in files.iter().filter(|(path, _)| is_markdown(path)) {
        for (number, target) in targets(text) {
            let place = || format!("{}:{number}", path.display());
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { path.clone() } else { normal(path, file) };
            if !files.contains_key(&to) && !root.join(&to).exists() {
                report.error(format!("{}: {target} leads to nothing", place()));
            } else if !heading.is_empty() && !files.get(&to).is_some_and(|t| headings(t).contains(heading)) {
                report.error(format!("{}: {target} has no such heading", place()));
            }
        }
    }
}

/// Looks at every file of tests that a Markdown file names: the end of its path is enough.
pub(super) fn named_tests(files: &BTreeMap<PathBuf, String>, report: &mut Report) {
    for (path, text) in files.iter().filter(|(path, _)| is_markdown(path)) {
        for (number, line) in prose(text) {
            let spans = line.split('`').skip(1).step_by(2);
            for name in spans.filter(|span| span.contains("tests/") && span.ends_with(".rs") && !span.contains(' ')) {
                if !files.keys().any(|file| file.ends_with(name)) {
                    report.error(format!("{}:{number}: there is no {name}", path.display()));
                }
            }
        }
    }
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "md")
}

/// The lines that are not code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(i, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((i + 1, line))
    })
}

/// Links to files of the repository: those without a scheme.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let links = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
        links.filter(|t| !t.contains(':') && !t.starts_with('/')).map(move |target| (number, target))
    })
}

/// A path from the root for one that is relative to a file.
fn normal(from: &Path, to: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for part in from.parent().unwrap_or(Path::new("")).join(to).components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::Normal(name) => out.push(name),
            _ => {}
        }
    }
    out
}

/// The names under which headings can be linked: lower case, spaces as hyphens, no punctuation.
fn headings(text: &str) -> BTreeSet<String> {
    let name = |heading: &str| -> String {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| name(line.trim_start_matches('#'))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file of tests that moved is found where a document still names its old place.
    #[test]
    fn moved_tests_are_found() {
        let text = "`tests/it/a.rs` `x/tests/it/a.rs` `tests/a.rs`\n```\n`tests/b.rs`\n```\n";
        let files = BTreeMap::from([
            (PathBuf::from("a.md"), text.to_owned()),
            (PathBuf::from("crates/x/tests/it/a.rs"), String::new()),
        ]);
        let mut report = Report::default();
        named_tests(&files, &mut report);
        assert_eq!(report.errors, ["a.md:1: there is no tests/a.rs"]);
    }

    /// Goal: a link to a file or heading that is not there is found; links elsewhere and code are let be.
    #[test]
    fn dead_links_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "# A title: `x`\n[a](src/main.rs) [b](src/none.rs) [c](#a-title-x) [d](#none)\n\
                    [e](https://example.org/x) `f`\n```\n[g](none)\n```\n[h](src/../src/main.rs#x)\n";
        let files =
            BTreeMap::from([(PathBuf::from("a.md"), text.to_owned()), (PathBuf::from("b.rs"), text.to_owned())]);
        let mut report = Report::default();
        links(root, &files, &mut report);
        assert_eq!(
            report.errors,
            [
                "a.md:2: src/none.rs leads to nothing",
                "a.md:2: #none has no such heading",
                "a.md:7: src/../src/main.rs#x has no such heading",
            ]
        );
    }
}
