//! `cargo xtask package`: checks that the crates can be published, and under which licences. Nothing is uploaded.
//!
//! 1. Manifests: published crates have all metadata that a registry shows, and depend on nothing that is not published.
//!    Dependencies on our crates carry a version; dev-dependencies on our crates carry none, so that packaging drops
//!    them: some are circular.
//! 2. Licences: `deny.toml` allows each dependency's licence, and each dependency comes from crates.io. This is the
//!    part of `cargo deny` that needs no tool and no network; `cargo deny check` reads the same file.
//! 3. Packages: `cargo package` makes each of them from the sources, in the order in which they can be published.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Runs all three; prints what is wrong.
pub fn run(root: &Path) -> Result<()> {
    let metadata = metadata(root)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let mut errors = Vec::new();
    let order = manifests(packages, &mut errors);
    let deny = std::fs::read_to_string(root.join("deny.toml")).context("deny.toml")?;
    let others = licences(&metadata, packages, &allowed(&deny), &exceptions(&deny), &mut errors);
    for error in &errors {
        println!("error: {error}");
    }
    if !errors.is_empty() {
        bail!("{} things stand in the way of publishing", errors.len());
    }
    let mut command = crate::cargo(root);
    command.args(["package", "--no-verify", "--offline", "--locked", "--allow-dirty", "--quiet"]);
    for name in &order {
        command.args(["--package", name.as_str()]);
    }
    if !command.status().context("cannot run cargo")?.success() {
        bail!("cargo package failed");
    }
    println!("package: {others} dependencies allowed; can be published in this order: {}", order.join(", "));
    Ok(())
}

/// Cargo's metadata of all packages that are built on this machine.
fn metadata(root: &Path) -> Result<Value> {
    let rustc = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let about = String::from_utf8_lossy(&rustc.stdout).into_owned();
    let host = about.lines().find_map(|l| l.strip_prefix("host: ")).context("rustc does not name its host")?;
    let mut command = crate::cargo(root);
    command.args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed; after `cargo fetch --locked` it needs no network");
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

/// Ours that are published have no list of registries; the others an empty one.
fn is_published(package: &Value) -> bool {
    package["source"].is_null() && package["publish"].is_null()
}

/// The crates to publish, each after those that it needs.
fn manifests(packages: &[Value], errors: &mut Vec<String>) -> Vec<String> {
    let published: BTreeMap<&str, &Value> =
        packages.iter().filter(|p| is_published(p)).map(|p| (text(p, "name"), p)).collect();
    let mut needs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, package) in &published {
        for field in ["description", "license", "readme", "rust_version"] {
            if text(package, field).is_empty() {
                errors.push(format!("{name} has no {field} in its manifest"));
            }
        }
        for field in ["keywords", "categories"] {
            if package[field].as_array().is_none_or(Vec::is_empty) {
                errors.push(format!("{name} has no {field} in its manifest"));
            }
        }
        let all = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        for dependency in all.iter().filter(|d| d["path"].is_string()) {
            let (to, has_version) = (text(dependency, "name"), text(dependency, "req") != "*");
            if dependency["kind"] == "dev" {
                if has_version {
                    errors.push(format!("{name} has a dev-dependency on {to} with a version: give its path alone"));
                }
                continue;
            }
            if !published.contains_key(to) {
                errors.push(format!("{name} needs {to}, which is not published"));
            } else if !has_version {
                errors.push(format!("{name} needs {to} without a version"));
            }
            needs.entry(name).or_default().insert(to);
        }
    }
    let mut order: Vec<String> = Vec::new();
    while order.len() < published.len() {
        let done = |name: &str| order.iter().any(|o| o == name);
        let is_next = |name: &&&str| !done(name) && needs.get(**name).is_none_or(|n| n.iter().all(|to| done(to)));
        let Some(next) = published.keys().find(is_next) else {
            errors.push("crates need each other in a circle".into());
            break;
        };
        order.push((*next).to_owned());
    }
    order
}

/// The licences in the list `allow` of `deny.toml`.
fn allowed(deny: &str) -> BTreeSet<String> {
    let list = deny.split_once("[licenses]").and_then(|(_, rest)| rest.split_once("allow = ["));
    let list = list.and_then(|(_, rest)| rest.split_once(']')).map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The licences in the list `exceptions` of `deny.toml`, each for one crate. They are written on one line each.
fn exceptions(deny: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for (at, _) in deny.match_indices("{ crate = ") {
        let line = deny[at..].lines().next().unwrap_or("");
        let mut quoted = line.split('"').skip(1).step_by(2).map(str::to_owned);
        if let Some(name) = quoted.next() {
            all.insert(name, quoted.collect());
        }
    }
    all
}

/// Checks the licence of each dependency that is not ours; returns their number.
fn licences(
    metadata: &Value,
    packages: &[Value],
    allowed: &BTreeSet<String>,
    exceptions: &BTreeMap<String, BTreeSet<String>>,
    errors: &mut Vec<String>,
) -> usize {
    let mut count = 0;
    let nodes = metadata["resolve"]["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let used: BTreeSet<&str> = nodes.iter().map(|n| text(n, "id")).collect();
    let others = packages.iter().filter(|p| !p["source"].is_null() && used.contains(text(p, "id")));
    for package in others {
        count += 1;
        let (name, licence) = (text(package, "name"), text(package, "license"));
        if text(package, "source") != CRATES_IO {
            errors.push(format!("{name} does not come from crates.io"));
        }
        let excepted = exceptions.get(name).is_some_and(|for_it| is_allowed(licence, for_it));
        if !excepted && !is_allowed(licence, allowed) {
            errors.push(format!("{name} has the licence {licence:?}, which deny.toml does not allow"));
        }
    }
    count
}

/// Whether an SPDX expression leaves a way that is allowed. `/`, as in old manifests, is OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest, allowed) && rest.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut result = all_of(words, allowed);
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        result |= all_of(words, allowed);
    }
    result
}

fn all_of(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let mut result = one(words, allowed);
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        result &= one(words, allowed);
    }
    result
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> bool {
    let Some((word, rest)) = words.split_first() else { return false };
    *words = rest;
    if *word == "(" {
        let result = any_of(words, allowed);
        if words.first() == Some(&")") {
            *words = &words[1..];
        }
        return result;
    }
    if words.len() >= 2 && words[0] == "WITH" {
        let name = format!("{word} WITH {}", words[1]);
        *words = &words[2..];
        return allowed.contains(&name);
    }
    allowed.contains(*word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a licence counts if one way through its expression is allowed. Method: all forms that our dependencies have.
    #[test]
    fn expressions() {
        let allowed =
            allowed("[licenses]\nallow = [\n \"MIT\",\n \"Unicode-3.0\",\n \"Apache-2.0 WITH LLVM-exception\",\n]\n");
        let yes = ["MIT", "MIT/Apache-2.0", "GPL-2.0 OR MIT", "(MIT OR GPL-2.0) AND Unicode-3.0"];
        for expression in yes.into_iter().chain(["Apache-2.0 WITH LLVM-exception OR GPL-3.0"]) {
            assert!(is_allowed(expression, &allowed), "{expression}");
        }
        for expression in ["", "GPL-2.0", "MIT AND GPL-2.0", "Apache-2.0", "MIT) OR", "MIT MIT"] {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }

    /// Goal: an exception is for its crate alone.
    #[test]
    fn exceptions_are_for_one_crate() {
        let deny = "[licenses]\nallow = [\"MIT\"]\nexceptions = [{ crate = \"a\", allow = [\"MPL-2.0\"] }]\n";
        let of =
            |name: &str| serde_json::json!({ "name": name, "id": name, "source": CRATES_IO, "license": "MPL-2.0" });
        let metadata = serde_json::json!({ "resolve": { "nodes": [{ "id": "a" }, { "id": "b" }] } });
        let mut errors = Vec::new();
        let count = licences(&metadata, &[of("a"), of("b")], &allowed(deny), &exceptions(deny), &mut errors);
        assert_eq!((count, errors.len()), (2, 1));
        assert!(errors[0].starts_with("b has the licence"), "{errors:?}");
    }

    fn package(name: &str, dependencies: Value) -> Value {
        serde_json::json!({
            "name": name, "source": null, "publish": null, "description": "d", "license": "MIT", "readme": "r",
            "rust_version": "1.90", "keywords": ["k"], "categories": ["c"], "dependencies": dependencies,
        })
    }

    /// Goal: the order is one in which each crate comes after those that it needs; a dependency that cannot be published is found.
    #[test]
    fn order() {
        let on = |name: &str, req: &str, kind: Value| serde_json::json!({ "name": name, "req": req, "kind": kind, "path": "p" });
        let packages = [
            package("a", serde_json::json!([on("c", "^0.1.0", Value::Null), on("b", "*", "dev".into())])),
            package("b", serde_json::json!([on("a", "^0.1.0", Value::Null)])),
            package("c", serde_json::json!([])),
        ];
        let mut errors = Vec::new();
        assert_eq!(manifests(&packages, &mut errors), ["c", "a", "b"]);
        assert_eq!(errors, Vec::<String>::new());
        let packages = [
            package("a", serde_json::json!([on("c", "*", Value::Null), on("x", "*", Value::Null)])),
            package("c", serde_json::json!([on("a", "^0.1.0", "dev".into())])),
        ];
        manifests(&packages, &mut errors);
        assert_eq!(
            errors[..3],
            [
                "a needs c without a version",
                "a needs x, which is not published",
                "c has a dev-dependency on a with a version: give its path alone"
            ]
        );
    }
}
