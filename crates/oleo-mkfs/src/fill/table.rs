//! Device tables: owners, modes and devices of an image, in the format that genext2fs, mkfs.jffs2, mkfs.ubifs and
//! Buildroot's makedevs read.
//!
//! A line is `PATH TYPE MODE UID GID MAJOR MINOR START INC COUNT`, in fields between blanks; fields from MODE on may be `-`,
//! which leaves the attribute as it is, or be left out at the end. Lines that are empty or begin with `#` mean nothing. TYPE is
//! `f` (a file), `d` (a directory, made if it is missing), `r` (a directory and everything below it), `c` or `b` (a device), `p`
//! (a fifo). COUNT makes several devices: PATH with the numbers from START on behind it, whose minor numbers begin at MINOR
//! and rise by INC. `\ooo` in a path is the byte with that octal number, for blanks.
//!
//! The table is applied when everything else is in the image, so it does not depend on the source. Times stay as they are.

use oleo_format::TreeId;
use oleo_fs::{FileKind, Fs, FsError, InodeRef, NewInode, NewKind, Rdev, SetAttr, Times};

use crate::MkfsError;

/// Bytes of a table.
const TABLE_BYTES_MAX: usize = 16 << 20;
/// Devices of one line.
const COUNT_MAX: u32 = 65_536;
/// Entries of a directory that are listed in one go.
const LISTED: usize = 4096;

/// The TYPE of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    File,
    Dir,
    Recursive,
    Char { major: u32 },
    Block { major: u32 },
    Fifo,
}

/// A line of a device table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// Names from the top.
    path: Vec<Vec<u8>>,
    what: What,
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    minor: u32,
    /// Number of the first device and of devices, if there are several.
    several: Option<(u32, u32)>,
    step: u32,
}

/// Reads a device table.
///
/// # Errors
/// A line is wrong; the error names it.
pub fn parse_table(text: &[u8]) -> Result<Vec<TableEntry>, MkfsError> {
    if text.len() > TABLE_BYTES_MAX {
        return Err(MkfsError::Options(format!("a device table of more than {TABLE_BYTES_MAX} bytes")));
    }
    let lines = text.split(|&b| b == b'\n').enumerate();
    let used = lines.filter(|(_, line)| !line.trim_ascii().is_empty() && !line.trim_ascii().starts_with(b"#"));
    used.map(|(nth, line)| {
        parse_line(line).map_err(|why| MkfsError::Options(format!("device table, line {}: {why}", nth + 1)))
    })
    .collect()
}

fn parse_line(line: &[u8]) -> Result<TableEntry, String> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let path = unescaped(fields.next().unwrap_or_default());
    let names: Vec<Vec<u8>> =
        path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec).collect();
    if names.iter().any(|name| name == b"..") {
        return Err("a path with ..".into());
    }
    let kind = fields.next().ok_or("a line is PATH TYPE MODE UID GID MAJOR MINOR START INC COUNT")?;
    let mut number = |what: &str, radix: u32| -> Result<Option<u32>, String> {
        match fields.next() {
            None | Some(b"-") => Ok(None),
            Some(digits) => {
                let value = std::str::from_utf8(digits).ok().and_then(|text| u32::from_str_radix(text, radix).ok());
                value.map(Some).ok_or_else(|| format!("{what} is {}, not a number or -", digits.escape_ascii()))
            }
        }
    };
    let mode = number("MODE", 8)?.map(|mode| mode & 0o7777);
    let (uid, gid) = (number("UID", 10)?, number("GID", 10)?);
    let (major, minor) = (number("MAJOR", 10)?, number("MINOR", 10)?);
    let (start, step, count) = (number("START", 10)?, number("INC", 10)?, number("COUNT", 10)?);
    if fields.next().is_some() {
        return Err("more than ten fields".into());
    }
    let device = || major.ok_or_else(|| "a device needs MAJOR and MINOR".to_owned());
    let what = match kind {
        b"f" => What::File,
        b"d" => What::Dir,
        b"r" => What::Recursive,
        b"c" => What::Char { major: device()? },
        b"b" => What::Block { major: device()? },
        b"p" => What::Fifo,
        other => return Err(format!("unknown type {}: use f, d, r, c, b or p", other.escape_ascii())),
    };
    let is_device = matches!(what, What::Char { .. } | What::Block { .. });
    if is_device && minor.is_none() {
        return Err("a device needs MAJOR and MINOR".into());
    }
    if names.is_empty() && !matches!(what, What::Dir | What::Recursive) {
        return Err("the top is a directory".into());
    }
    let (minor, step, start) = (minor.unwrap_or(0), step.unwrap_or(0), start.unwrap_or(0));
    let several = count.filter(|&count| count > 0 && is_device).map(|count| (start, count));
    if let Some((start, count)) = several {
        let last = step.checked_mul(count).and_then(|more| minor.checked_add(more));
        if count > COUNT_MAX || last.is_none() || start.checked_add(count).is_none() {
            return Err(format!("more than {COUNT_MAX} devices, or numbers that are too large"));
        }
    }
    Ok(TableEntry { path: names, what, mode, uid, gid, minor, several, step })
}

/// A path with `\ooo` resolved.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, more)) = rest.split_first() {
        let octal = more.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|b| (b'0'..=b'7').contains(b)));
        let value = octal.map(|digits| digits.iter().fold(0u32, |sum, b| sum * 8 + u32::from(b - b'0')));
        match value.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &more[3..];
            }
            None => {
                path.push(first);
                rest = more;
            }
        }
    }
    path
}

/// Applies a table.
pub(super) fn apply(fs: &Fs, table: &[TableEntry], times: Times) -> Result<(), MkfsError> {
    table.iter().try_for_each(|entry| {
        apply_entry(fs, entry, times).map_err(|error| match error {
            Failure::Missing => MkfsError::Options(format!("device table: {} is not there", shown(&entry.path))),
            Failure::Kind => MkfsError::Options(format!(
                "device table: {} is there already, and is something else",
                shown(&entry.path)
            )),
            Failure::Fs(error) => error.into(),
        })
    })
}

enum Failure {
    Missing,
    Kind,
    Fs(FsError),
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::Fs(error)
    }
}

fn shown(path: &[Vec<u8>]) -> String {
    format!("/{}", path.join(&b'/').escape_ascii())
}

fn apply_entry(fs: &Fs, entry: &TableEntry, times: Times) -> Result<(), Failure> {
    let mut dir = fs.root(TreeId::FS)?;
    let Some((last, parents)) = entry.path.split_last() else {
        return match entry.what {
            What::Recursive => recursively(fs, entry, dir),
            _ => Ok(set(fs, &dir, entry)?),
        };
    };
    for name in parents {
        dir = fs.lookup(&dir, name)?.ok_or(Failure::Missing)?;
    }
    let make = |name: &[u8], kind: NewKind<'_>, mode: u32| -> Result<InodeRef, Failure> {
        let before = fs.attr(&dir);
        let new = NewInode::new(kind, entry.mode.unwrap_or(mode)).plain(true).times(Some(times));
        let made = fs.create(&dir, name, &new)?;
        fs.set_attr(
            &dir,
            &SetAttr::default().all_times(Times {
                atime: before.atime,
                mtime: before.mtime,
                ctime: before.ctime,
                otime: before.otime,
            }),
        )?;
        Ok(made)
    };
    let there = |name: &[u8], kind: FileKind| -> Result<Option<InodeRef>, Failure> {
        let found = fs.lookup(&dir, name)?;
        if found.as_ref().is_some_and(|inode| fs.attr(inode).kind != kind) {
            return Err(Failure::Kind);
        }
        Ok(found)
    };
    match entry.what {
        What::File => set(fs, &there(last, FileKind::File)?.ok_or(Failure::Missing)?, entry)?,
        What::Recursive => return recursively(fs, entry, there(last, FileKind::Dir)?.ok_or(Failure::Missing)?),
        What::Dir => {
            let inode = there(last, FileKind::Dir)?;
            set(fs, &inode.map_or_else(|| make(last, NewKind::Dir, 0o755), Ok)?, entry)?;
        }
        What::Fifo => {
            let inode = there(last, FileKind::Fifo)?;
            set(fs, &inode.map_or_else(|| make(last, NewKind::Fifo, 0o644), Ok)?, entry)?;
        }
        What::Char { major } | What::Block { major } => {
            let (start, count) = entry.several.unwrap_or((0, 1));
            for nth in 0..count {
                let name = match entry.several {
                    Some(_) => [last, (start + nth).to_string().as_bytes()].concat(),
                    None => last.clone(),
                };
                if fs.lookup(&dir, &name)?.is_some() {
                    return Err(Failure::Kind);
                }
                let rdev = Rdev { major, minor: entry.minor + nth * entry.step };
                let kind = match entry.what {
                    What::Block { .. } => NewKind::BlockDevice(rdev),
                    _ => NewKind::CharDevice(rdev),
                };
                set(fs, &make(&name, kind, 0o644)?, entry)?;
            }
        }
    }
    Ok(())
}

/// Sets owner, group and mode; times stay.
fn set(fs: &Fs, inode: &InodeRef, entry: &TableEntry) -> Result<(), FsError> {
    let attr = fs.attr(inode);
    let times = Times { atime: attr.atime, mtime: attr.mtime, ctime: attr.ctime, otime: attr.otime };
    let mode = entry.mode.filter(|_| entry.what != What::Recursive || attr.kind != FileKind::Symlink);
    fs.set_attr(inode, &SetAttr::default().all_times(times).uid(entry.uid).gid(entry.gid).mode(mode)).map(drop)
}

/// Sets those of a directory and of everything below it.
fn recursively(fs: &Fs, entry: &TableEntry, top: InodeRef) -> Result<(), Failure> {
    let mut dirs = vec![top];
    while let Some(dir) = dirs.pop() {
        set(fs, &dir, entry)?;
        let mut after = 0;
        loop {
            let listed = fs.readdir_plus(&dir, after, LISTED)?;
            let Some((last, _)) = listed.last() else { break };
            after = last.index;
            for (_, inode) in listed {
                match inode {
                    Some(inode) if fs.attr(&inode).kind == FileKind::Dir => dirs.push(inode),
                    Some(inode) => set(fs, &inode, entry)?,
                    None => {}
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the fields mean what they mean to other image builders; wrong lines are refused by number. Method: lines as
    /// Buildroot and genext2fs document them, and one wrong line at a time.
    #[test]
    fn lines_are_parsed() {
        let text = b"# comment\n\n/dev d 755 0 0 - - - - -\n/dev/tty c 666 0 5 4 0 0 1 6\n/a\\040b f - 33\n/srv/u r - 1000 1000 - - - - -\n";
        let table = parse_table(text).unwrap();
        assert_eq!(table.len(), 4);
        assert_eq!(
            (table[0].what, table[0].mode, table[0].uid, table[0].several),
            (What::Dir, Some(0o755), Some(0), None)
        );
        assert_eq!(
            (table[1].what, table[1].minor, table[1].several, table[1].step),
            (What::Char { major: 4 }, 0, Some((0, 6)), 1)
        );
        assert_eq!(
            (table[2].path.as_slice(), table[2].mode, table[2].uid, table[2].gid),
            (&[b"a b".to_vec()][..], None, Some(33), None)
        );
        assert_eq!(table[3].what, What::Recursive);
        for wrong in [
            &b"/a"[..],
            b"/a x 644 0 0",
            b"/a f 9 0 0",
            b"/a f 644 root 0",
            b"/../a f 644 0 0",
            b"/ f 644 0 0",
            b"/a c 644 0 0",
            b"/a c 644 0 0 1 0 0 1 99999",
            b"/a c 644 0 0 1 4294967295 0 1 2",
            b"/a f 1 2 3 4 5 6 7 8 9",
        ] {
            let error = parse_table(&[b"\n", wrong].concat()).unwrap_err().to_string();
            assert!(error.starts_with("device table, line 2: "), "{error}");
        }
    }
}
