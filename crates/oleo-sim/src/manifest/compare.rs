//! Compares two manifests, and describes the differences in words.

use std::fmt::{Debug, Display};

use super::{Entry, HASHED_LEN, Kind, Manifest};

/// What may be different. All false: nothing may.
#[derive(Clone, Debug, Default)]
pub struct Ignore {
    /// Sizes of directories: every kind of file system has its own idea of them.
    pub dir_sizes: bool,
    /// Link counts of directories, which are always 1 on btrfs.
    pub dir_links: bool,
    /// mtimes of directories.
    pub dir_times: bool,
    /// mtimes of everything.
    pub times: bool,
    /// Everything about the top directory except its entries.
    pub top: bool,
    /// The places of data and holes.
    pub holes: bool,
    /// Which ranges share their bytes on disk.
    pub sharing: bool,
    /// Birth times.
    pub otime: bool,
    /// Extended attributes whose names start with one of these.
    pub xattr_prefixes: Vec<Vec<u8>>,
}

impl Ignore {
    /// For a tree that came from another kind of file system (a tmpfs, an ext4): directories' sizes and link counts
    /// mean nothing there, and properties and sharing are btrfs's own.
    pub fn from_elsewhere() -> Ignore {
        Ignore {
            dir_sizes: true,
            dir_links: true,
            sharing: true,
            otime: true,
            xattr_prefixes: vec![b"btrfs.".to_vec()],
            ..Ignore::default()
        }
    }
}

/// Describes the differences in words; the first manifest is the wanted one.
pub fn differences(want: &Manifest, have: &Manifest, ignore: &Ignore) -> Vec<String> {
    let mut out = Vec::new();
    for (path, a) in &want.entries {
        let name = if path.is_empty() { "(top)".to_owned() } else { path.escape_ascii().to_string() };
        match have.entries.get(path) {
            None => out.push(format!("{name}: missing ({:?})", a.kind)),
            Some(_) if path.is_empty() && ignore.top => {}
            Some(b) => Lines { name: &name, out: &mut out }.entry(a, b, ignore),
        }
    }
    for (path, b) in have.entries.iter().filter(|(p, _)| !want.entries.contains_key(*p)) {
        out.push(format!("{}: not expected ({:?})", path.escape_ascii(), b.kind));
    }
    out
}

struct Lines<'a> {
    name: &'a str,
    out: &'a mut Vec<String>,
}

impl Lines<'_> {
    fn add(&mut self, what: &str, a: impl Display, b: impl Display) {
        self.out.push(format!("{}: {what} {a} | {b}", self.name));
    }

    fn same<T: PartialEq + Debug>(&mut self, what: &str, a: &T, b: &T) {
        if a != b {
            self.add(what, format!("{a:?}"), format!("{b:?}"));
        }
    }

    fn entry(&mut self, a: &Entry, b: &Entry, ignore: &Ignore) {
        self.same("type", &a.kind, &b.kind);
        if a.kind != b.kind {
            return;
        }
        let dir = a.kind == Kind::Dir;
        if a.mode != b.mode {
            self.add("mode", format!("{:o}", a.mode), format!("{:o}", b.mode));
        }
        self.same("owner", &(a.uid, a.gid), &(b.uid, b.gid));
        if !(dir && ignore.dir_sizes) {
            self.same("size", &a.size, &b.size);
        }
        if !(dir && ignore.dir_links) {
            self.same("links", &a.nlink, &b.nlink);
        }
        self.same("device number", &a.rdev, &b.rdev);
        if a.mtime != b.mtime && !ignore.times && !(dir && ignore.dir_times) {
            self.add("mtime", a.mtime, b.mtime);
        }
        if let (Some(a), Some(b)) = (&a.atime_ctime, &b.atime_ctime) {
            self.same("atime, ctime", a, b);
        }
        if let (Some(a), Some(b), false) = (&a.otime, &b.otime, ignore.otime) {
            self.same("otime", a, b);
        }
        if a.group != b.group {
            self.add("same inode as", a.group.escape_ascii(), b.group.escape_ascii());
        }
        if a.target != b.target {
            let show = |t: &Option<Vec<u8>>| t.as_ref().map(|t| t.escape_ascii().to_string()).unwrap_or_default();
            self.add("target", show(&a.target), show(&b.target));
        }
        self.xattrs(a, b, ignore);
        self.content(a, b);
        if let (Some(a), Some(b), false) = (&a.data_runs, &b.data_runs, ignore.holes) {
            self.same("data at", a, b);
        }
        if let (Some(a), Some(b), false) = (&a.shares, &b.shares, ignore.sharing) {
            self.shares(a, b);
        }
    }

    fn xattrs(&mut self, a: &Entry, b: &Entry, ignore: &Ignore) {
        let ignored = |name: &[u8]| ignore.xattr_prefixes.iter().any(|p| name.starts_with(p));
        for (name, value) in a.xattrs.iter().filter(|(n, _)| !ignored(n)) {
            let shown = name.escape_ascii();
            match b.xattrs.get(name) {
                None => self.out.push(format!("{}: xattr {shown} missing", self.name)),
                Some(other) if other != value => {
                    const SHOWN_MAX: usize = 40;
                    let cut = |v: &[u8]| format!("{} bytes {}", v.len(), v[..v.len().min(SHOWN_MAX)].escape_ascii());
                    self.add(&format!("xattr {shown}"), cut(value), cut(other));
                }
                Some(_) => {}
            }
        }
        for name in b.xattrs.keys().filter(|n| !a.xattrs.contains_key(*n) && !ignored(n)) {
            self.out.push(format!("{}: xattr {} not expected", self.name, name.escape_ascii()));
        }
    }

    fn content(&mut self, a: &Entry, b: &Entry) {
        let (Some(x), Some(y)) = (&a.content, &b.content) else { return };
        if x == y {
            return;
        }
        let wrong: Vec<usize> = (0..x.len().max(y.len())).filter(|&i| x.get(i) != y.get(i)).collect();
        let first = wrong.first().map_or(0, |i| i * HASHED_LEN);
        self.out.push(format!(
            "{}: content differs in {} of {} parts of 64 KiB, first in the one at {first}",
            self.name,
            wrong.len(),
            x.len()
        ));
    }

    fn shares(&mut self, a: &[super::Share], b: &[super::Share]) {
        if a == b || self.lies_in_a_block(a, b) || self.lies_in_a_block(b, a) {
            return;
        }
        let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or_else(|| a.len().min(b.len()));
        let show = |s: Option<&super::Share>| match s {
            None => "nothing more".to_owned(),
            Some(s) => format!(
                "{}+{}{} as in {} at {}",
                s.at,
                s.len,
                if s.unwritten { " unwritten" } else { "" },
                s.seen.0.escape_ascii(),
                s.seen.1
            ),
        };
        self.add(&format!("extent {at} of {}", a.len()), show(a.get(at)), show(b.get(at)));
    }

    /// Whether the bytes of a short file lie in a tree block on one side and in a block of their own on the other. Either is right:
    /// it depends on when they were written back.
    fn lies_in_a_block(&self, inline: &[super::Share], own: &[super::Share]) -> bool {
        const BLOCK: u64 = 4096;
        let [one] = own else { return false };
        let (path, at) = &one.seen;
        let is_own = *at == one.at && path.escape_ascii().to_string() == self.name;
        inline.is_empty() && one.at == 0 && one.len <= BLOCK && !one.unwritten && is_own
    }
}

#[cfg(test)]
mod tests {
    use super::super::Share;
    use super::Lines;

    /// Goal: a short file may lie in a tree block or in a block of its own, but not in a block of another file.
    #[test]
    fn short_files() {
        let lies = |path: &str, at, len, unwritten| Share { at, len, seen: (path.into(), at), unwritten };
        let differences = |share| {
            let mut out = Vec::new();
            Lines { name: "a", out: &mut out }.shares(&[], &[share]);
            out.len()
        };
        assert_eq!(differences(lies("a", 0, 4096, false)), 0);
        assert_eq!(differences(lies("b", 0, 4096, false)), 1);
        assert_eq!(differences(lies("a", 0, 4096, true)), 1);
        assert_eq!(differences(lies("a", 0, 8192, false)), 1);
        assert_eq!(differences(lies("a", 4096, 4096, false)), 1);
    }
}
