//! `cargo xtask foreign`: the library on other systems than Linux, as far as that can be seen from here.
//!
//! 1. Windows: the example `any_system` is compiled by Debian's mingw and run by wine: it makes an image, writes and reads files, and tries to open it twice. Then `btrfs check` looks at the image, and the kernel reads it.
//! 2. macOS, on both processors: the library is type-checked, without zlib and zstd, whose C needs Apple's compiler.
//!
//! `cargo xtask foreign --check` only type-checks, for Windows, too.
//! Missing tools are installed: by rustup the targets [`WINDOWS`] and [`MACS`], and packages of Debian.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tools::{install, install_target, must};

const WINDOWS: &str = "x86_64-pc-windows-gnu";
const MACS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-apple-darwin"];
const MINGW: &str = "x86_64-w64-mingw32-gcc";
/// Where Debian's wine is, which is not in `PATH` by itself.
const WINE: &str = "/usr/lib/wine/wine64";
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
        install_target(root, target)?;
    }
    install(&[(MINGW, "gcc-mingw-w64-x86-64")])?;
    for target in MACS {
        cargo(root, &["clippy", "--target", target, "--features=lzo", "--lib"])?;
    }
    let windows = ["--target", WINDOWS, "--features=zlib,lzo,zstd"];
    cargo(root, &[&["clippy", "--lib", "--example=any_system"], &windows[..]].concat())?;
    if only_check {
        return Ok(());
    }
    cargo(root, &[&["build", "--example=any_system"], &windows[..]].concat())?;
    install(&[(WINE, "wine64")])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let dir = target.join("foreign");
    // What an earlier run left.
    let _none = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    // Wine looks for libraries beside the program.
    let (program, random) = (dir.join("any_system.exe"), dir.join("random.c"));
    std::fs::copy(target.join(WINDOWS).join("debug/examples/any_system.exe"), &program)?;
    std::fs::write(&random, RANDOM_C)?;
    must(Command::new(MINGW).args(["-shared", "-o"]).arg(dir.join(RANDOM_DLL)).arg(&random).arg("-ladvapi32"))?;
    let image = dir.join("windows.img");
    must(Command::new(WINE).env("WINEDEBUG", "-all").env("WINEPREFIX", dir.join("wine")).arg(&program).arg(&image))?;
    must(Command::new("btrfs").args(["check", "--check-data-csum"]).arg(&image))?;
    read_by_kernel(&dir, &image)
}

/// The library, without what is not there.
fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    let mut command = crate::cargo(root);
    command.args(args).args(["--package=oleo", "--no-default-features", "--locked"]);
    if args[0] == "clippy" {
        command.args(["--", "--deny", "warnings"]);
    }
    must(&mut command)
}

/// The kernel mounts what was written on Windows, and finds what was written.
fn read_by_kernel(dir: &Path, image: &Path) -> Result<()> {
    let at = dir.join("mounted");
    std::fs::create_dir_all(&at)?;
    must(Command::new("mount").args(["-o", "loop,ro"]).arg(image).arg(&at))?;
    let read = compare(&at);
    must(Command::new("umount").arg(&at))?;
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
