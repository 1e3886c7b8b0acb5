//! The header is the one that the source stands for.

use std::path::Path;

/// Goal: `include/oleo.h` declares what the library has. Method: cbindgen makes it anew; with `OLEO_WRITE_HEADER=1` it is written.
#[test]
fn is_current() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(crate_dir).with_config(config).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = crate_dir.join("include/oleo.h");
    if std::env::var_os("OLEO_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == made, "run OLEO_WRITE_HEADER=1 cargo test -p oleo-c --test it header::");
}

/// Goal: every function that C can call is in the header, and the other way round.
#[test]
fn has_every_function() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(crate_dir.join("include/oleo.h")).unwrap();
    let mut defined = Vec::new();
    for file in std::fs::read_dir(crate_dir.join("src")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for (at, _) in text.match_indices("#[unsafe(no_mangle)]") {
            let rest = text[at..].split_once("fn ").unwrap().1;
            defined.push(rest.split('(').next().unwrap().to_owned());
        }
    }
    assert!(defined.len() > 30, "{defined:?}");
    for name in &defined {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
}
