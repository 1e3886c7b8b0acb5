//! `cargo xtask guest`: a kernel of Debian 12 (Linux 6.1) with its own client of network block devices, in a virtual machine, which
//! verifies what `oleo serve nbd` serves.
//!
//! Normal path: (1) packages are downloaded into `target/guest` and unpacked there, never installed; (2) the modules that are needed
//! are put in the order in which they can be loaded; (3) `initrd` is made: busybox, nbd-client, btrfs, their libraries, modules, and
//! `init` (`guest/init.sh`); (4) the tests `guest::` of `oleo-cli` boot it. It is emulated, without `/dev/kvm`, which not every machine has in working order: a boot
//! takes some seconds all the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::tools::install;

/// The package whose dependency is the newest kernel, which is small and made for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// What else is unpacked: libraries that a machine need not have.
const PACKAGES: [&str; 4] = ["busybox-static", "nbd-client", "libnl-genl-3-200", "libnl-3-200"];
/// Modules, and before each whatever it depends on. What is missing is part of the kernel.
const MODULES: [&str; 9] = [
    "virtio_pci",
    "virtio_net",
    "crc32c_generic",
    "crc32c-intel",
    "xxhash_generic",
    "sha256_generic",
    "blake2b_generic",
    "btrfs",
    "nbd",
];

/// Makes the guest if it is not there, and runs the tests that need it.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    if !args.is_empty() {
        bail!("usage: cargo xtask guest");
    }
    prepare(root)?;
    let mut command = crate::cargo(root);
    command.args([
        "test",
        "--locked",
        "--package=oleo-cli",
        "--test=it",
        "--",
        "--ignored",
        "--test-threads=1",
        "nbd::guest::",
    ]);
    if !command.status().context("cannot run cargo")?.success() {
        bail!("the guest is not content");
    }
    Ok(())
}

/// Makes `target/guest/vmlinuz` and `target/guest/initrd`, and installs what runs them.
pub fn prepare(root: &Path) -> Result<()> {
    install(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    let dir = root.join("target/guest");
    let init = root.join("xtask/guest/init.sh");
    let unpacked = dir.join("root");
    if !dir.join("vmlinuz").exists() {
        let _ = fs::remove_dir_all(&unpacked);
        fs::create_dir_all(&dir)?;
        let kernel = shell(&dir, "apt-cache", &["depends", KERNEL])?;
        let kernel = kernel.lines().find_map(|l| l.trim().strip_prefix("Depends: ")).context("apt knows no kernel")?;
        let download = [&["download", "-q", kernel][..], &PACKAGES].concat();
        shell(&dir, "apt-get", &download)?;
        for package in files(&dir, "deb")? {
            let unpacked = unpacked.display().to_string();
            shell(&dir, "dpkg-deb", &["-x", &package.display().to_string(), &unpacked])?;
            fs::remove_file(package)?;
        }
        let boot = fs::read_dir(unpacked.join("boot"))?.filter_map(Result::ok).map(|e| e.path());
        let is_kernel =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"));
        let kernel = boot.into_iter().find(is_kernel).context("no kernel in the package")?;
        fs::copy(kernel, dir.join("vmlinuz"))?;
    }
    let mut archive = Archive::default();
    for name in ["bin", "dev", "proc", "sys", "mnt", "m", "tmp", "etc", "run", "var"] {
        archive.put(name, 0o40755, &[]);
    }
    archive.put("init", 0o100755, &fs::read(init)?);
    archive.put("bin/busybox", 0o100755, &fs::read(unpacked.join("bin/busybox"))?);
    archive.put("bin/sh", 0o120777, b"busybox");
    let btrfs = shell(&dir, "sh", &["-c", "command -v btrfs"])?;
    let programs = [unpacked.join("sbin/nbd-client"), PathBuf::from(btrfs.trim())];
    for program in &programs {
        let name = program.file_name().context("a program has a name")?.to_string_lossy().into_owned();
        archive.put(&format!("bin/{name}"), 0o100755, &fs::read(program)?);
    }
    for library in libraries(&programs, &unpacked)? {
        archive.put_with_parents(&library.0, 0o100755, &fs::read(library.1)?);
    }
    for (number, module) in modules(&unpacked)?.iter().enumerate() {
        let name = module.file_name().context("a module has a name")?.to_string_lossy().into_owned();
        archive.put(&format!("m/{number:03}-{name}"), 0o100644, &fs::read(module)?);
    }
    fs::write(dir.join("initrd"), archive.end())?;
    Ok(())
}

fn shell(dir: &Path, program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program).args(args).current_dir(dir).env("LC_ALL", "C").output();
    let out = out.with_context(|| format!("cannot run {program}"))?;
    ensure!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The libraries of programs: their names in the guest, and where they are here.
fn libraries(programs: &[PathBuf], unpacked: &Path) -> Result<BTreeSet<(String, PathBuf)>> {
    let own = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
        .map(|dir| unpacked.join(dir).display().to_string())
        .join(":");
    let mut all = BTreeSet::new();
    for program in programs {
        let out = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", &own).output().context("cannot run ldd")?;
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [name, "=>", "not", "found"] => bail!("{} needs {name}", program.display()),
                [name, "=>", path, _] => {
                    all.insert((format!("lib/x86_64-linux-gnu/{name}"), PathBuf::from(path)));
                }
                [loader, _] if loader.starts_with('/') => {
                    all.insert((loader.trim_start_matches('/').to_owned(), PathBuf::from(loader)));
                }
                _ => {}
            }
        }
    }
    // Threads that are ended load it when they are.
    let gcc = Path::new("/lib/x86_64-linux-gnu/libgcc_s.so.1");
    if gcc.exists() {
        all.insert(("lib/x86_64-linux-gnu/libgcc_s.so.1".into(), gcc.into()));
    }
    Ok(all)
}

/// The modules in the order in which they can be loaded.
fn modules(unpacked: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let mut dirs = vec![unpacked.join("lib/modules")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => dirs.push(entry.path()),
                false if entry.path().extension().is_some_and(|e| e == "ko") => all.push(entry.path()),
                false => {}
            }
        }
    }
    let mut order = Vec::new();
    for name in MODULES {
        load(name, &all, &mut order, 0)?;
    }
    Ok(order)
}

/// Adds a module behind those that it depends on.
fn load(name: &str, all: &[PathBuf], order: &mut Vec<PathBuf>, depth: u32) -> Result<()> {
    let plain = |name: &str| name.replace('-', "_");
    let is_it = |path: &&PathBuf| path.file_stem().is_some_and(|stem| plain(&stem.to_string_lossy()) == plain(name));
    let Some(path) = all.iter().find(is_it) else { return Ok(()) };
    ensure!(depth < 20, "modules depend on each other in a circle");
    if order.contains(path) {
        return Ok(());
    }
    let bytes = fs::read(path)?;
    const KEY: &[u8] = b"\0depends=";
    let at = bytes.windows(KEY.len()).position(|w| w == KEY).context("a module says what it depends on")? + KEY.len();
    let text: Vec<u8> = bytes[at..].iter().copied().take_while(|&b| b != 0).collect();
    for other in String::from_utf8_lossy(&text).split(',').filter(|other| !other.is_empty()) {
        load(other, all, order, depth + 1)?;
    }
    order.push(path.clone());
    Ok(())
}

/// An archive of the kind that the kernel unpacks at its start (cpio, "newc").
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    fn put_with_parents(&mut self, name: &str, mode: u32, data: &[u8]) {
        for (at, _) in name.match_indices('/') {
            self.put(&name[..at], 0o40755, &[]);
        }
        self.put(name, mode, data);
    }

    fn put(&mut self, name: &str, mode: u32, data: &[u8]) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        let number = self.names.len();
        // Number, mode, owner, group, links, time, length, four device numbers, length of the name, no sum.
        let head = [number, mode as usize, 0, 0, 1, 0, data.len(), 0, 0, 0, 0, name.len() + 1, 0];
        self.bytes.extend(b"070701");
        head.iter().for_each(|n| self.bytes.extend(format!("{n:08x}").bytes()));
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.names.clear();
        self.put("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the archive has the form that the kernel expects. Method: by hand.
    #[test]
    fn an_archive() {
        let mut archive = Archive::default();
        archive.put_with_parents("a/b", 0o100644, b"xyz");
        archive.put("a", 0o40755, &[]);
        let bytes = archive.end();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("07070100000001000041ed"), "{text}");
        assert_eq!(text.matches("070701").count(), 3, "a, a/b, and the end: {text}");
        assert!(
            text.contains("a/b\0xyz\0") || text.contains("a/b\0\0xyz\0") || text.contains("a/b\0\0\0xyz\0"),
            "{text}"
        );
        assert_eq!(bytes.len() % 4, 0);
    }
}
