//! `cargo xtask foreign`: the library on other systems than Linux, as far as that can be seen from here.
//!
//! 1. Windows: the example `any_system` is compiled by Debian's mingw and run by wine: it makes an image, writes and reads files, and tries to open it twice. Then `btrfs check` looks at the image, and the kernel reads it.
//! 2. macOS, on both processors: the library is type-checked, without zlib and zstd, whose C needs Apple's compiler.
//!
//! `cargo xtask foreign --check` only type-checks, for Windows, too.
//! What is needed is installed by hand: `rustup target add` for [`WINDOWS`] and [`MACS`], and the packages that are named when they are missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::web::has_target;

const WINDOWS: &str = "x86_64-pc-windows-gnu";
const MACS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-apple-darwin"];
const MINGW: &str = "x86_64-w64-mingw32-gcc";
/// Debian's wine 8 has no `bcryptprimitives.dll`, of which Rust's library wants one function: random bytes, by another function of Windows that it has.
const RANDOM_DLL: &str = "bcryptprimitives.dll";
const RANDOM_C: &str = "#include <stddef.h>\n\
    unsigned char __stdcall SystemFunction036(void *, unsigned long);\n\
    __declspec(dllexport) int __stdcall ProcessPrng(unsigned char *to, size_t len)\n\
    { return SystemFunction036(to, (unsigned long)len); }\n";
/// What the example writes beside others, with `line of file N` as often as two to the power of two N.
const FILES: u32 = 8;

/// Runs all of it; fails at the first that does not hold.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let only_check = match args {
        [] => false,
        [check] if check == "--check" => true,
        _ => bail!("usage: cargo xtask foreign [--check]"),
    };
    for target in MACS.iter().chain([&WINDOWS]) {
        if !has_target(&std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()), target) {
            bail!("nothing here compiles for {target}: run `rustup target add {target}`");
        }
    }
    for target in MACS {
        cargo(root, &["clippy", "--target", target, "--features=lzo", "--lib"])?;
    }
    let windows = ["--target", WINDOWS, "--features=zlib,lzo,zstd"];
    must_have(MINGW, "gcc-mingw-w64-x86-64")?;
    cargo(root, &[&["clippy", "--lib", "--example=any_system"], &windows[..]].concat())?;
    if only_check {
        return Ok(());
    }
    cargo(root, &[&["build", "--example=any_system"], &windows[..]].concat())?;
    let wine = ["wine", "wine64", "/usr/lib/wine/wine64"].into_iter().find(|name| runs(name));
    let Some(wine) = wine else { bail!("there is no wine: `apt-get install wine64`") };
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let dir = target.join("foreign");
    // What an earlier run left.
    let _none = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    // Wine looks for libraries beside the program.
    let (program, random) = (dir.join("any_system.exe"), dir.join("random.c"));
    std::fs::copy(target.join(WINDOWS).join("debug/examples/any_system.exe"), &program)?;
    std::fs::write(&random, RANDOM_C)?;
    done(Command::new(MINGW).args(["-shared", "-o"]).arg(dir.join(RANDOM_DLL)).arg(&random).arg("-ladvapi32"))?;
    let image = dir.join("windows.img");
    done(Command::new(wine).env("WINEDEBUG", "-all").env("WINEPREFIX", dir.join("wine")).arg(&program).arg(&image))?;
    done(Command::new("btrfs").args(["check", "--check-data-csum"]).arg(&image))?;
    read_by_kernel(&dir, &image)
}

/// The library, without what is not there.
fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    let mut command = crate::cargo(root);
    command.args(args).args(["--package=oleo", "--no-default-features", "--locked"]);
    if args[0] == "clippy" {
        command.args(["--", "--deny", "warnings"]);
    }
    done(&mut command)
}

fn done(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

fn runs(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success())
}

fn must_have(name: &str, package: &str) -> Result<()> {
    if !runs(name) {
        bail!("there is no {name}: `apt-get install {package}`");
    }
    Ok(())
}

/// The kernel mounts what was written on Windows, and finds what was written.
fn read_by_kernel(dir: &Path, image: &Path) -> Result<()> {
    let at = dir.join("mounted");
    std::fs::create_dir_all(&at)?;
    done(Command::new("mount").args(["-o", "loop,ro"]).arg(image).arg(&at))?;
    let read = compare(&at);
    done(Command::new("umount").arg(&at))?;
    read?;
    println!("{}: written on Windows, sound, and read by the kernel", image.display());
    Ok(())
}

fn compare(at: &Path) -> Result<()> {
    let last = (FILES - 1, ["zlib/text", "lzo/text", "zstd/text", "snapshot/text"]);
    let numbered = (0..FILES).map(|n| (n, format!("files/{n}")));
    for (n, name) in numbered.chain(last.1.map(|name| (last.0, name.to_owned()))) {
        let want = format!("line of file {n}\n").repeat(1 << (2 * n));
        let have = std::fs::read(at.join(&name)).with_context(|| name.clone())?;
        if have != want.as_bytes() {
            bail!("{name} is not what was written");
        }
    }
    Ok(())
}
