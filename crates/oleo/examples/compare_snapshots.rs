//! Compares two snapshots: what came, went, moved and changed. Only the parts of the trees that differ are read, so it does not
//! matter how much the snapshots have in common.
//!
//! `cargo run --release -p oleo --example compare_snapshots [IMG OLD NEW]`

use std::error::Error;

use oleo::receive::{Command, Commands, Limits};
use oleo::send::SendOptions;
use oleo::{Image, OpenOptions, SnapshotOptions};

/// One difference, as a line.
fn line(command: &Command<'_>) -> Option<String> {
    let show = |path: &[u8]| path.escape_ascii().to_string();
    Some(match command {
        Command::MkFile { path, .. } | Command::MkNod { path, .. } | Command::Symlink { path, .. } => {
            format!("new       {}", show(path))
        }
        Command::MkDir { path, .. } => format!("new dir   {}", show(path)),
        Command::Rename { path, to } => format!("moved     {} to {}", show(path), show(to)),
        Command::Link { path, target } => format!("linked    {} to {}", show(path), show(target)),
        Command::Unlink { path } | Command::RmDir { path } => format!("gone      {}", show(path)),
        Command::UpdateExtent { path, offset, len } => format!("contents  {}: {len} bytes at {offset}", show(path)),
        Command::Truncate { path, size } => format!("size      {}: {size}", show(path)),
        Command::Chmod { path, mode } => format!("mode      {}: {mode:o}", show(path)),
        _ => return None,
    })
}

/// What makes `new` out of `old`; both are read-only.
///
/// The difference of two snapshots is what an incremental stream says. Without contents it is short.
pub fn differences(image: &Image, old: &str, new: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let (old, new) = (image.subvol(old)?.tree(), image.subvol(new)?.tree());
    let mut stream = Vec::new();
    let options = SendOptions::default().parent(Some(old)).no_data(true);
    image.send(&[new], &options, &mut stream)?;
    let mut commands = Commands::new(stream.as_slice(), Limits::default());
    let mut lines = Vec::new();
    while let Some(next) = commands.next()? {
        lines.extend(line(&next.command));
    }
    Ok(lines)
}

fn example() -> oleo::Result<Image> {
    let image = Image::create_in_memory(256 << 20)?;
    let read_only = SnapshotOptions::default().read_only(true);
    image.create_subvol("home")?;
    image.write("home/kept", b"as it was")?;
    image.write("home/letter", b"Dear reader")?;
    image.write("home/old", b"not needed")?;
    image.snapshot("home", "before", &read_only)?;
    image.create_dir("home/drawer")?;
    image.rename(&image.top()?, b"home/letter", b"home/drawer/letter")?;
    image.remove(&image.top()?, b"home/old", oleo::fs::Depth::One)?;
    image.write("home/new", &[7; 10_000])?;
    image.snapshot("home", "after", &read_only)?;
    Ok(image)
}

/// Runs the example; fails if what it shows is not so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [img, old, new] = args.as_slice()
        && std::path::Path::new(img).exists()
    {
        let image = Image::open(img, &OpenOptions::default())?;
        differences(&image, old, new)?.iter().for_each(|l| println!("{l}"));
        return Ok(());
    }
    let lines = differences(&example()?, "before", "after")?;
    lines.iter().for_each(|l| println!("{l}"));
    let says = |what: &str, path: &str| lines.iter().any(|l| l.starts_with(what) && l.contains(path));
    if !says("contents", "new") || !says("gone", "old") || lines.iter().any(|l| l.contains("kept")) {
        return Err(format!("the differences are not those that were made: {lines:#?}").into());
    }
    Ok(())
}
