use super::*;

fn broken(rule: impl FnOnce(&mut Report)) -> Vec<String> {
    let mut report = Report::default();
    rule(&mut report);
    report.errors
}

/// Goal: manifests are read as cargo reads them, as far as our own go.
#[test]
fn uses_are_read() {
    let found = uses(
        "[dependencies]\noleo-format.workspace = true\nserde = \"1\"\n[dev-dependencies]\noleo = { path = \"x\" }\n",
    );
    assert_eq!(found.always, BTreeSet::from(["oleo-format".to_owned()]));
    assert_eq!(found.tests, BTreeSet::from(["oleo".to_owned()]));
}

/// Goal: a broken rule is reported, and a word that only contains a banned one is not.
#[test]
fn banned_words_are_found() {
    let text = format!("//! x\nlet a = 1; // {}{} later\nlet todos = 2;\nx.{}{}();\n", "TO", "DO", "to_ne", "_bytes");
    let found = broken(|r| banned(Path::new("src/a.rs"), &text, r));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("src/a.rs:2") && found[1].starts_with("src/a.rs:4"));
}

/// Goal: a file that no `mod` names is dead, one that is named from a sibling's directory is not. A test program that the manifest does
/// not list is dead, and so is a file of tests that the listed program does not name.
#[test]
fn dead_files_are_found() {
    let files: BTreeMap<PathBuf, String> = [
        ("crates/a/src/lib.rs", "pub mod b;\nmod c;"),
        ("crates/a/src/b.rs", "#[cfg(test)]\nmod tests;"),
        ("crates/a/src/b/tests.rs", ""),
        ("crates/a/src/c/mod.rs", ""),
        ("crates/a/src/d.rs", ""),
        (
            "crates/a/Cargo.toml",
            "[package]\nautotests = false\n[[test]]\nname = \"it\"\n\n[[test]]\nname = \"alone\"\n",
        ),
        ("crates/a/tests/it/main.rs", "mod common;"),
        ("crates/a/tests/it/common.rs", ""),
        ("crates/a/tests/it/forgotten.rs", ""),
        ("crates/a/tests/alone.rs", ""),
        ("crates/a/tests/unlisted.rs", ""),
        ("crates/a/tests/many/main.rs", ""),
    ]
    .map(|(p, t)| (PathBuf::from(p), t.to_owned()))
    .into();
    let found = broken(|r| dead_files(&files, r));
    let dead = ["src/d", "tests/it/forgotten", "tests/many/main", "tests/unlisted"];
    assert_eq!(found, dead.map(|file| format!("crates/a/{file}.rs is reached by no mod")));
}
