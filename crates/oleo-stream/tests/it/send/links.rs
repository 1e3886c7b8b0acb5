//! Symbolic links as `mkfs.btrfs --rootdir` stores them: with a zero byte behind the target, which the size does not count.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use oleo::fs::{Depth, Sharing};
use oleo::receive::{Receive, receive_to_dir};
use oleo::restore::{RestoreOptions, restore_to_dir};
use oleo::{Image, OpenOptions};
use oleo_format::TreeId;
use oleo_sim::oracle::{oracle, run};

use crate::send::common::{Sender, id_of};

/// Short, and so long that it fills most of an item.
fn targets() -> [(&'static str, String); 2] {
    [("short", "target".into()), ("long", "y".repeat(1000))]
}

fn target_of(image: &Image, path: &str) -> Result<String> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = if dir.is_empty() { image.top()? } else { image.find(dir)? };
    let link = image.fs().lookup(&dir, name.as_bytes())?.context("no such name")?;
    Ok(String::from_utf8(image.fs().read_link(&link)?)?)
}

fn expect_targets(of: impl Fn(&str) -> Result<String>, what: &str) -> Result<()> {
    for (name, target) in targets() {
        let found = of(name).with_context(|| format!("{what}: {name}"))?;
        ensure!(found == target, "{what}: {name} leads to {found:?}");
    }
    Ok(())
}

fn on_host(dir: &Path, name: &str) -> Result<String> {
    Ok(fs::read_link(dir.join(name))?.to_string_lossy().into_owned())
}

/// Goal: targets end with the inode's size wherever they are read: looked up, restored, copied, sent, received from the kernel's
/// stream, which has the byte, into an image and a directory; the check finds nothing. Method: an image of `mkfs.btrfs --rootdir`.
#[test]
fn targets_of_mkfs() -> Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    let scratch = oracle.scratch()?;
    let source = scratch.dir("source")?;
    for (name, target) in targets() {
        symlink(&target, source.join(name))?;
    }
    fs::write(source.join("zz"), "after the links")?;
    let image: PathBuf = scratch.image("image", 256 << 20)?;
    oracle.mkfs(&["--rootdir", source.to_str().context("a path")?], &[&image])?;
    // A read-only snapshot, and the kernel's stream of it.
    let mounted = oracle.mount(&[&image], "")?;
    let snapshot = mounted.path().join("snapshot");
    run(
        "btrfs",
        ["subvolume".as_ref(), "snapshot".as_ref(), "-r".as_ref(), mounted.path().as_os_str(), snapshot.as_os_str()],
    )?;
    let theirs = scratch.path().join("stream");
    run("btrfs", ["send".as_ref(), "-q".as_ref(), "-f".as_ref(), theirs.as_os_str(), snapshot.as_os_str()])?;
    mounted.unmount()?;
    let theirs = fs::read(theirs)?;

    let opened = Image::open(&image, &OpenOptions::writing())?;
    let report = oleo::check::volume(opened.volume(), &Default::default())?;
    ensure!(!report.has_errors(), "{:?}", report.findings);
    let top = opened.top()?;
    let stored = opened.fs().lookup(&top, b"short")?.context("no link")?;
    let item = opened.fs().engine().blocks().get(
        &opened.fs().engine().root(TreeId::FS)?.context("no tree")?,
        &oleo_format::Key::extent_data(stored.ino(), 0),
    )?;
    if !item.context("no item")?.ends_with(b"target\0") {
        eprintln!("this mkfs.btrfs stores no zero byte");
    }
    expect_targets(|name| target_of(&opened, name), "read")?;
    let out = scratch.path().join("out");
    restore_to_dir(&opened, &top, b"", &out, &RestoreOptions::default())?;
    expect_targets(|name| on_host(&out, name), "restored")?;
    ensure!(fs::read(out.join("zz"))? == b"after the links");
    opened.create_dir("copies")?;
    for (name, _) in targets() {
        opened.copy(&top, name.as_bytes(), format!("copies/{name}").as_bytes(), Depth::Tree, Sharing::Copy)?;
    }
    expect_targets(|name| target_of(&opened, &format!("copies/{name}")), "copied")?;
    ensure!(id_of(&opened, "snapshot").is_ok());

    let (ours, _) = Sender::default().send(&opened, "snapshot", None, &[])?;
    for (what, bytes) in [("our stream", ours), ("the kernel's stream", theirs)] {
        let other = Image::create(scratch.path().join(what), 256 << 20)?;
        other.receive(Cursor::new(bytes.clone()), &Receive::default())?;
        expect_targets(|name| target_of(&other, &format!("snapshot/{name}")), what)?;
        other.close()?;
        let dir = scratch.dir(&format!("{what} dir"))?;
        receive_to_dir(&dir, Cursor::new(bytes), &Receive::default()).1?;
        expect_targets(|name| on_host(&dir.join("snapshot"), name), &format!("{what}, into a directory"))?;
    }
    opened.close()?;
    oracle.must_be_sound(&[&image], "with copies")
}
