//! Replaced words: a name or a phrase that another has replaced is refused, and the message names the replacement.
//!
//! [`NAMES`] are whole identifiers, refused everywhere. [`PARTS`] are parts of identifiers (`judge` in `judge_file` and
//! `JudgeFile`), refused below the folders that are named. [`PHRASES`] are prose, refused in comments and in Markdown;
//! `code spans` there count as identifiers. [`EXCEPTIONS`] are files that may use a word, each with its reason. Strings
//! are not searched, nor is the changelog, which describes the past.

use std::path::Path;

use super::{Report, is_rust};

/// Whole identifiers, and what replaced them.
const NAMES: &[(&str, &str)] = &[
    ("FoundLog", "UnreplayedLog"),
    ("STUB_MODE", "EMPTY_SUBVOL_DIR_MODE"),
    ("SubvolWish", "SubvolSpec"),
    ("TurnFrame", "ConversionFrame"),
    ("awaits_let_go", "awaits_eviction"),
    ("bar_log", "disable_log"),
    ("commit_telling", "commit_notifying"),
    ("erase_let_go", "evict_one"),
    ("found_log", "unreplayed_log"),
    ("give_up_kept", "release_idle_reservations"),
    ("give_up_spare", "release_idle_reservations"),
    ("give_up_spent", "release_unused_reservation"),
    ("is_crowded", "over_soft_limit"),
    ("is_overcrowded", "over_hard_limit"),
    ("is_stub", "is_empty_subvol_dir"),
    ("is_young", "is_uncommitted"),
    ("no_capability", "nosec"),
    ("not_due", "clear_flush_due"),
    ("owed_records", "staged_ref_changes"),
    ("owed_records_max", "staged_ref_changes_max"),
    ("unpromise", "cancel_promise"),
    ("widen_credit", "grow_metadata_reserve"),
];

/// Parts of identifiers, what replaced them, and below which folders they are refused; none: everywhere.
const PARTS: &[(&str, &str, &[&str])] = &[
    ("attended", "has_background_committer, has_background_flusher", &["crates/oleo-fs/src"]),
    ("birth", "new_extent", &["crates/oleo-txn/src", "crates/oleo-space/src"]),
    ("births", "new_extents", &["crates/oleo-txn", "crates/oleo-space", "crates/oleo-fs"]),
    ("books", "bookkeeping", &["crates/oleo-txn/src"]),
    ("born", "record_new_extent, is_new", &["crates/oleo-txn/src", "crates/oleo-space/src", "crates/oleo-tree/src"]),
    ("credit", "metadata_reserve", &["crates/oleo-txn/src"]),
    ("crowd", "dirty_inodes, throttled_writers", &["crates/oleo-fs/src"]),
    ("denial", "FaultSpec", &[]),
    ("denials", "faults", &[]),
    ("flight", "writeback", &["crates/oleo-fs/src"]),
    ("fortune", "BlockChange", &[]),
    ("gate", "barrier", &["crates/oleo-txn/src"]),
    ("hear", "reporter, visitor", &["crates/oleo-check/src", "crates/oleo-stream/src"]),
    ("judge", "check, verify", &[]),
    ("judged", "checked, verified", &[]),
    ("judges", "checks, verifies", &[]),
    ("judging", "checking, verifying", &[]),
    ("lane", "cursor", &["crates/oleo-space/src"]),
    ("lanes", "cursors", &["crates/oleo-space/src"]),
    ("lie", "corrupt", &["crates/oleo-fs/src", "crates/oleo-txn/src", "crates/oleo-tree/src"]),
    ("lies", "corrupt", &["crates/oleo-txn/src"]),
    ("linkable", "may_be_linked", &["crates/oleo-fs/src"]),
    ("news", "wakeups", &["crates/oleo-space/src"]),
    ("owed", "staged_ref_changes", &["crates/oleo-txn/src"]),
    ("relieve", "throttle", &["crates/oleo-fs/src"]),
    ("relieving", "throttling", &["crates/oleo-fs/src"]),
    ("room", "crate", &["xtask/src"]),
    ("spoil", "poison, invalidate", &[]),
    ("spoiled", "poisoned, invalidated, damaged", &[]),
    ("stub", "empty_subvol_dir", &["crates/oleo-fs/src", "crates/oleo-sim/src"]),
    (
        "tell",
        "report",
        &["crates/oleo-check/src", "crates/oleo-tree/src", "crates/oleo-txn/src", "crates/oleo-jobs/src"],
    ),
    ("trail", "stream_hint", &["crates/oleo-space/src"]),
    ("turn", "convert_to_full_backref", &["crates/oleo-tree/src"]),
    ("turned", "converted", &["crates/oleo-tree/src"]),
    ("turning", "backref_conversion", &["crates/oleo-tree/src", "crates/oleo-txn/src"]),
    ("wish", "spec, request", &["crates/oleo-mkfs/src", "crates/oleo-jobs/src"]),
];

/// Prose, in lower case, and its replacement; below which folders, none: everywhere.
const PHRASES: &[(&str, &str, &[&str])] = &[
    ("at once", "immediately; together; in parallel; in one step", &[]),
    ("arrows", "dependencies", &["docs", "README.md", "xtask"]),
    ("births", "new extents", &["docs", "crates/oleo-fs", "crates/oleo-space", "crates/oleo-txn"]),
    ("judge", "check", &[]),
    ("judged", "checked", &[]),
    ("judges", "checks", &[]),
    ("lane", "start cursor", &["docs", "crates/oleo-space"]),
    ("lanes", "start cursors", &["docs", "crates/oleo-space"]),
    ("room above", "crate above", &[]),
    ("rooms", "crates", &["docs", "README.md", "xtask"]),
    ("stand-in", "empty subvolume directory", &[]),
    ("stand-ins", "empty subvolume directories", &[]),
    ("the gate", "the transaction barrier; joins are blocked", &["docs", "crates/oleo-fs", "crates/oleo-txn"]),
    ("the image lies", "the image is damaged", &[]),
    ("this room", "this crate", &[]),
];

/// Files that may use a word, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// Files that are not searched: the tables themselves, their tests, and what describes the past.
const SKIPPED: [&str; 3] = ["xtask/src/tidy/words.rs", "xtask/src/tidy/tests.rs", "CHANGELOG.md"];

/// Refuses replaced words.
pub(super) fn check(path: &Path, text: &str, report: &mut Report) {
    let file = path.to_string_lossy();
    let markdown = path.extension().is_some_and(|e| e == "md");
    if SKIPPED.contains(&file.as_ref()) || !(is_rust(path) || markdown) {
        return;
    }
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        let (code, prose) = if markdown { ("", line) } else { split(line) };
        let fence = prose.trim_start().starts_with("```");
        fenced ^= fence;
        let mut names = code_without_strings(code);
        let mut words = String::new();
        for (span, part) in prose.split('`').enumerate() {
            let to = if fenced || span % 2 == 1 { &mut names } else { &mut words };
            to.push_str(part);
            to.push(' ');
        }
        for (gone, now) in found(&file, &names, &words) {
            report.error(format!("{file}:{}: `{gone}` has gone: {now}", number + 1));
        }
    }
}

/// A line's code and its comment.
fn split(line: &str) -> (&str, &str) {
    line.find("//").map_or((line, ""), |at| line.split_at(at))
}

/// Leaves out text between quotes, so that only names are left.
fn code_without_strings(code: &str) -> String {
    code.split('"').step_by(2).collect::<Vec<_>>().join(" ") + " "
}

/// The replaced words of one line, and their replacements.
fn found<'a>(file: &'a str, names: &str, words: &str) -> Vec<(&'a str, &'a str)> {
    let applies = |gone: &str, below: &[&str]| {
        (below.is_empty() || below.iter().any(|dir| Path::new(file).starts_with(dir)))
            && !EXCEPTIONS.iter().any(|(path, word, _)| *path == file && *word == gone)
    };
    let mut out = Vec::new();
    for name in names.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|name| !name.is_empty()) {
        out.extend(NAMES.iter().filter(|(gone, _)| *gone == name && applies(gone, &[])).copied());
        let parts = parts(name);
        let of_name = PARTS.iter().filter(|(gone, _, below)| parts.iter().any(|p| p == gone) && applies(gone, below));
        out.extend(of_name.map(|(gone, now, _)| (*gone, *now)));
    }
    let words = words.to_lowercase();
    let of_prose = PHRASES.iter().filter(|(gone, _, below)| has_phrase(&words, gone) && applies(gone, below));
    out.extend(of_prose.map(|(gone, now, _)| (*gone, *now)));
    out
}

/// Whether a text contains the phrase as whole words.
fn has_phrase(text: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase)
        .any(|(at, _)| !text[..at].ends_with(is_word) && !text[at + phrase.len()..].starts_with(is_word))
}

/// The parts of a name in `snake_case`, `CamelCase` or `SCREAMING_CASE`, in small letters.
fn parts(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    for word in name.split('_').filter(|word| !word.is_empty()) {
        if !word.contains(|c: char| c.is_ascii_lowercase()) {
            out.push(word.to_ascii_lowercase());
            continue;
        }
        let mut part = String::new();
        for c in word.chars() {
            if c.is_ascii_uppercase() && !part.is_empty() {
                out.push(std::mem::take(&mut part));
            }
            part.push(c.to_ascii_lowercase());
        }
        out.push(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{EXCEPTIONS, NAMES, PARTS, PHRASES, check};
    use crate::tidy::Report;

    fn errors(path: &str, text: &str) -> Vec<String> {
        let mut report = Report::default();
        check(Path::new(path), text, &mut report);
        report.errors
    }

    /// Goal: names, parts of names and phrases are refused in their folders, with their replacement, and nowhere else.
    /// Method: one line each; the same words in strings, as parts of other words, in other crates.
    #[test]
    fn gone_words_are_refused() {
        let txn = "crates/oleo-txn/src/a.rs";
        let refused = [
            (txn, "fn bar_log() {}", "disable_log"),
            (txn, "    self.gate.enter();", "barrier"),
            (txn, "struct GatePass;", "barrier"),
            (txn, "const GATE_MAX: u32 = 1;", "barrier"),
            (txn, "/// See [`Gate`].", "barrier"),
            (txn, "let a = 1; // Outside the gate.", "joins are blocked"),
            ("crates/oleo-cli/src/a.rs", "fn judge_file() {}", "check, verify"),
            ("docs/a.md", "The kernel judges it.", "checks"),
            ("docs/a.md", "```rust\nfn judge() {}\n```", "check, verify"),
        ];
        for (path, text, now) in refused {
            let errors = errors(path, text);
            assert!(errors.len() == 1 && errors[0].contains(now), "{path}: {text}: {errors:?}");
        }
        let allowed = [
            (txn, "let x = \"gate\";"),
            (txn, "fn aggregate() {}"),
            (txn, "/// Nothing was misjudged."),
            ("crates/oleo-cli/src/a.rs", "struct Gate;"),
            ("CHANGELOG.md", "The kernel judges it."),
        ];
        for (path, text) in allowed {
            assert_eq!(errors(path, text), Vec::<String>::new(), "{path}: {text}");
        }
    }

    /// Goal: no replacement is itself refused by another line, and exceptions name words in the tables. Method: each
    /// replacement is looked up in the tables as a name and as prose.
    #[test]
    fn replacements_are_not_refused_themselves() {
        let names =
            NAMES.iter().map(|(_, now)| (*now, &[][..])).chain(PARTS.iter().map(|(_, now, below)| (*now, *below)));
        for (now, below) in names {
            for dir in if below.is_empty() { &["crates/a/src"] } else { below } {
                assert_eq!(errors(&format!("{dir}/a.rs"), now), Vec::<String>::new());
            }
        }
        for (_, now, below) in PHRASES {
            for dir in if below.is_empty() { &["docs"] } else { *below } {
                assert_eq!(errors(&format!("{dir}/a.md"), now), Vec::<String>::new());
            }
        }
        let known = |word: &str| NAMES.iter().any(|n| n.0 == word) || PARTS.iter().chain(PHRASES).any(|n| n.0 == word);
        for (path, word, reason) in EXCEPTIONS {
            assert!(known(word) && reason.len() > 20, "{path}: {word}");
        }
    }
}
