//! `cargo xtask web`: the explorer without a server, one HTML file: `target/web/oleo.html`.
//!
//! 1. `oleo-web` is compiled for `wasm32-unknown-unknown`. If the toolchain has that target (`rustup target add wasm32-unknown-unknown`), as usual. If not, with Debian's compiler: packages `rustc-web`,
//!    `rust-web-src` and `lld-19`; the standard library is then built from its sources.
//! 2. The page of the explorer, its scripts and style, and the compiled part go into one file, whose policy lets nothing run but these, and nothing be fetched or sent.
//!
//! `cargo xtask web --check` only verifies that it compiles.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use sha2::{Digest, Sha256};

const TARGET: &str = "wasm32-unknown-unknown";
/// Bytes of memory that a worker of the page may have, whatever it is shown. Whoever needs more is told so, and the page begins anew.
const MEMORY_MAX: u32 = 256 << 20;
/// The profile in `Cargo.toml`.
const PROFILE: &str = "wasm";
/// Debian's compiler for it, its linker, and the sources of its standard library.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_LINKER: &str = "/usr/bin/wasm-ld-19";
const DEBIAN_SOURCES: &str = "/usr/lib/rustlib/src/rust/library/std";

/// Makes the page, or verifies that it compiles.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let mut command = crate::cargo(root);
    match args {
        [] => command.args(["rustc", "--lib", "--crate-type=cdylib", "--profile", PROFILE]),
        [check] if check == "--check" => command.args(["check", "--lib"]),
        _ => bail!("usage: cargo xtask web [--check]"),
    };
    command.args(["--package=oleo-web", "--locked", "--target", TARGET]);
    let asked = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    if !has_target(&asked, TARGET) {
        let missing: Vec<&str> =
            [(DEBIAN_RUSTC, "rustc-web"), (DEBIAN_SOURCES, "rust-web-src"), (DEBIAN_LINKER, "lld-19")]
                .into_iter()
                .filter(|(path, _)| !Path::new(path).exists())
                .map(|(_, package)| package)
                .collect();
        if !missing.is_empty() {
            bail!(
                "nothing here compiles for {TARGET}: run `rustup target add {TARGET}`, or, on Debian, `apt-get install {}`",
                missing.join(" ")
            );
        }
        command.args(["-Z", "build-std=std,panic_abort"]);
        command.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
        command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", DEBIAN_LINKER);
    }
    if args.is_empty() {
        command.args(["--", "-C"]).arg(format!("link-arg=--max-memory={MEMORY_MAX}"));
    }
    if !command.status().context("cannot run cargo")?.success() {
        bail!("oleo-web does not compile for {TARGET}");
    }
    if !args.is_empty() {
        return Ok(());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let wasm = target.join(TARGET).join(PROFILE).join("oleo_web.wasm");
    let out = root.join("target/web");
    std::fs::create_dir_all(&out)?;
    let page = page(root, &std::fs::read(&wasm).with_context(|| wasm.display().to_string())?)?;
    std::fs::write(out.join("oleo.html"), &page)?;
    std::fs::copy(&wasm, out.join("oleo.wasm"))?;
    println!("{}: {} KiB", out.join("oleo.html").display(), page.len() / 1024);
    Ok(())
}

/// Smaller by two thirds; browsers know how to undo it.
fn deflated(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes)?;
    Ok(packed.finish()?)
}

/// Whether a compiler has a standard library for a target.
pub fn has_target(rustc: &std::ffi::OsStr, target: &str) -> bool {
    let asked = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    asked.is_ok_and(|out| out.status.success() && Path::new(String::from_utf8_lossy(&out.stdout).trim()).exists())
}

/// The page with everything in it.
fn page(root: &Path, wasm: &[u8]) -> Result<String> {
    let read = |path: &str| {
        let path = root.join("crates").join(path);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let (html, style) = (read("oleo-browse/assets/index.html")?, read("oleo-browse/assets/app.css")?);
    let (alone, app) = (read("oleo-web/assets/alone.js")?, read("oleo-browse/assets/app.js")?);
    let worker = read("oleo-web/assets/engine.js")? + &read("oleo-web/assets/worker.js")?;
    let choose = read("oleo-web/assets/choose.html")?;
    // Maps are shown in tabs that have the policy of the page.
    let (pictures, around) = (read("oleo-view/assets/map.css")?, read("oleo-view/assets/map-page.css")?);
    for script in [&alone, &app, &worker, &style] {
        if script.contains("</") || script.contains("<!--") {
            bail!("a script or style that stands in a page must not have `</` or `<!--` in it");
        }
    }
    let hash = |text: &str| format!("'sha256-{}'", BASE64.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src {} {} 'wasm-unsafe-eval'; style-src {} {} {}; worker-src blob:; img-src blob:; base-uri 'none'; form-action 'none'",
        hash(&alone),
        hash(&app),
        hash(&style),
        hash(&pictures),
        hash(&around)
    );
    let mut page = html;
    for (from, to) in [
        ("<link rel=\"icon\" href=\"icon.svg\" type=\"image/svg+xml\">\n", String::new()),
        (
            "<meta charset=\"utf-8\">\n",
            format!("<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n"),
        ),
        ("<link rel=\"stylesheet\" href=\"app.css\">\n", format!("<style>{style}</style>\n")),
        ("<script src=\"app.js\" defer></script>\n", String::new()),
        ("</header>\n", format!("{choose}</header>\n")),
        (
            "</body>\n",
            format!(
                "<script type=\"text/plain\" id=\"worker\">{worker}</script>\n<script type=\"text/plain\" id=\"wasm\">{}</script>\n<script>{alone}</script>\n<script>{app}</script>\n</body>\n",
                BASE64.encode(deflated(wasm)?)
            ),
        ),
    ] {
        if page.matches(from).count() != 1 {
            bail!("the page has to have {from:?} once");
        }
        page = page.replacen(from, &to, 1);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the page has everything in it, nothing of a server's, and lets only its own scripts run.
    #[test]
    fn one_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = page(root, b"\0asm").unwrap();
        let packed = BASE64.encode(deflated(b"\0asm").unwrap());
        assert!(
            page.contains(&format!("id=\"wasm\">{packed}<"))
                && page.contains("default-src 'none'; script-src 'sha256-")
        );
        assert!(!page.contains("src=\"") && !page.contains("stylesheet"));
    }
}
