//! `oleo ls`

use oleo::Image;
use oleo::fs::{Attr, Descent, FileKind, InodeRef};
use serde_json::json;

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::{date, json, println_or_end, text};

/// List files in an image
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// File or directory to list [default: /].
    #[arg(value_name = "PATH", default_value = "/", hide_default_value = true)]
    path: InPath,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Show modes, owners, sizes and times.
    #[arg(long, short)]
    long: bool,
    /// List directories and subvolumes recursively.
    #[arg(long, short = 'R')]
    recursive: bool,
    /// Print JSON: one object for each entry.
    #[arg(long)]
    json: bool,
}

/// One line of a listing.
struct Line {
    name: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
    inode: InodeRef,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let start = self.subvol.start(&image)?;
        let inode = image.resolve(&start, &self.path.0)?;
        let mut all = Vec::new();
        if image.fs().attr(&inode).kind != FileKind::Dir {
            let line = line(&image, self.path.0.clone(), inode)?;
            self.show(&line, &line.name, &mut all);
        } else {
            self.directories(&image, inode, &mut all)?;
        }
        if self.json {
            json(&serde_json::Value::Array(all));
        }
        Ok(())
    }

    fn directories(&self, image: &Image, top: InodeRef, all: &mut Vec<serde_json::Value>) -> anyhow::Result<()> {
        let mut descent = Descent::new(&top);
        let mut stack = vec![(Vec::new(), top)];
        let mut first = true;
        while let Some((prefix, dir)) = stack.pop() {
            if self.recursive && !self.json {
                let gap = if first { "" } else { "\n" };
                println_or_end(&format!("{gap}{}:", if prefix.is_empty() { ".".into() } else { text(&prefix) }));
            }
            first = false;
            let mut lines = Vec::new();
            for entry in image.list_dir(&dir)? {
                if let Some(inode) = image.fs().open_entry(&dir, &entry)? {
                    lines.push(line(image, entry.name, inode)?);
                }
            }
            lines.sort_by(|a, b| a.name.cmp(&b.name));
            let below = stack.len();
            for line in lines {
                let path = if prefix.is_empty() { line.name.clone() } else { [&prefix[..], b"/", &line.name].concat() };
                self.show(&line, &path, all);
                if self.recursive
                    && line.attr.kind == FileKind::Dir
                    && descent.enters(image.fs(), &dir, &line.name, &line.inode)
                {
                    stack.push((path, line.inode));
                }
            }
            stack[below..].reverse();
        }
        Ok(())
    }

    fn show(&self, line: &Line, path: &[u8], all: &mut Vec<serde_json::Value>) {
        let a = &line.attr;
        if self.json {
            all.push(json!({
                "path": text(path),
                "type": kind_name(a.kind),
                "subvolume": a.subvol.0,
                "inode": a.ino.0,
                "mode": format!("{:04o}", a.mode & 0o7777),
                "links": a.nlink,
                "uid": a.uid,
                "gid": a.gid,
                "size": a.size,
                "mtime": format!("{}.{:09}", a.mtime.sec, a.mtime.nsec),
                "target": line.target.as_deref().map(text),
            }));
        } else if self.long {
            let size = match a.kind {
                FileKind::CharDevice | FileKind::BlockDevice => format!("{}, {}", a.rdev.major, a.rdev.minor),
                _ => a.size.to_string(),
            };
            let target = line.target.as_deref().map_or(String::new(), |target| format!(" -> {}", text(target)));
            println_or_end(&format!(
                "{} {:>3} {:>6} {:>6} {size:>12} {} {}{target}",
                mode_text(a),
                a.nlink,
                a.uid,
                a.gid,
                date(a.mtime),
                text(&line.name)
            ));
        } else {
            println_or_end(&text(&line.name));
        }
    }
}

fn line(image: &Image, name: Vec<u8>, inode: InodeRef) -> anyhow::Result<Line> {
    let attr = image.fs().attr(&inode);
    let target = if attr.kind == FileKind::Symlink { Some(image.fs().read_link(&inode)?) } else { None };
    Ok(Line { name, attr, target, inode })
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        _ => "unknown",
    }
}

fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::File => '-',
        FileKind::Dir => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        _ => '?',
    };
    let mut shown = String::from(kind);
    // For each of owner, group, others: the special bit, and how it shows with and without the right to execute.
    for (shift, special, with, without) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = attr.mode >> shift;
        shown.push(if bits & 4 != 0 { 'r' } else { '-' });
        shown.push(if bits & 2 != 0 { 'w' } else { '-' });
        shown.push(match (bits & 1 != 0, attr.mode & special != 0) {
            (true, true) => with,
            (false, true) => without,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    shown
}
