//! A directory with every kind of file that a file system can hold, the same for the same seed.
//!
//! [`make`] fills a directory of any host file system with POSIX attributes (a tmpfs, a kernel btrfs): empty, inline,
//! sector-sized and large files, holes and preallocation, hard links up to extended references, symlinks, special files,
//! odd modes and owners, ACLs, capabilities, extended attributes of every namespace, names that are long, not UTF-8
//! or have equal hashes, deep and wide directories, times before 1970 and with nanoseconds.
//!
//! Without root, some things are left out: device nodes, other owners, trusted and security attributes. File systems
//! that the kernel has made and aged are in [`aged`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps};

use crate::manifest::set_xattr;
use crate::rng::Rng;

pub mod aged;
mod collide;
pub use collide::colliding_names;

/// What goes into a specimen.
#[derive(Clone, Debug)]
pub struct Options {
    /// Everything random follows from it.
    pub seed: u64,
    /// The longest value of an extended attribute, bytes: a value must fit into one tree block with its name.
    pub xattr_len_max: usize,
    /// Names of 250 bytes for one inode in one directory; about `nodesize / 265` fit before extended references begin.
    pub hard_links: usize,
    /// Entries in the wide directory.
    pub wide: usize,
    /// Length of the largest file, bytes.
    pub large_len: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 1, xattr_len_max: 3000, hard_links: 90, wide: 1500, large_len: 9 << 20 }
    }
}

struct Maker<'a> {
    top: &'a Path,
    options: &'a Options,
    rng: Rng,
    root: bool,
    /// Nanoseconds after [`FIRST_TIME`]; every inode gets its own time.
    tick: i64,
}

/// 2001-09-09 01:46:40 UTC.
const FIRST_TIME: i64 = 1_000_000_000;

/// Fills an existing directory.
pub fn make(top: &Path, options: &Options) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    let mut maker = Maker { top, options, rng: Rng::new(options.seed), root, tick: 0 };
    maker.sizes().context("files of all sizes")?;
    maker.sparse().context("sparse files")?;
    maker.links().context("links")?;
    maker.special().context("special files")?;
    maker.modes().context("modes and owners")?;
    maker.xattrs().context("extended attributes")?;
    maker.names().context("names")?;
    maker.deep_and_wide().context("deep and wide directories")?;
    maker.odd_times().context("times")?;
    maker.times_of_dirs(top)
}

impl Maker<'_> {
    fn dir(&mut self, name: &str) -> Result<PathBuf> {
        let path = self.top.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    fn set_time(&mut self, path: &Path) -> Result<()> {
        self.tick += 1_234_567_891;
        let time = Timespec { tv_sec: FIRST_TIME + self.tick / 1_000_000_000, tv_nsec: self.tick % 1_000_000_000 };
        set_times(path, time)
    }

    fn file(&mut self, path: &Path, data: &[u8]) -> Result<()> {
        fs::write(path, data)?;
        self.set_time(path)
    }

    fn sizes(&mut self) -> Result<()> {
        let dir = self.dir("sizes")?;
        for len in [0, 1, 3, 100, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 12288, 65536, 131_072, 131_073, 1 << 20] {
            let data = self.rng.bytes(len);
            self.file(&dir.join(format!("random-{len}")), &data)?;
            let data = self.rng.text(len);
            self.file(&dir.join(format!("text-{len}")), &data)?;
        }
        self.file(&dir.join("zeros"), &vec![0; 300_000])?;
        let large = usize::try_from(self.options.large_len)?;
        let mut data = self.rng.text(large);
        self.file(&dir.join("large-text"), &data)?;
        // Stretches that compress and stretches that do not.
        for at in (0..large).step_by(700_000) {
            let end = (at + 300_000).min(large);
            self.rng.fill(&mut data[at..end]);
        }
        self.file(&dir.join("large-mixed"), &data)
    }

    fn sparse(&mut self) -> Result<()> {
        let dir = self.dir("sparse")?;
        let mib = 1 << 20;
        type Parts<'a> = &'a [(u64, usize)];
        let cases: [(&str, u64, Parts<'_>); 7] = [
            ("only-hole", 5 * mib, &[]),
            ("hole-of-one-byte", 1, &[]),
            ("hole-at-start", 4 * mib, &[(4 * mib - 8192, 8192)]),
            ("hole-in-middle", 2 * mib, &[(0, 4096), (2 * mib - 4096, 4096)]),
            ("hole-at-end", 20 * mib + 17, &[(0, 10_000)]),
            ("not-aligned", 1_000_003, &[(5000, 3), (70_001, 9000), (999_000, 1003)]),
            ("every-other-block", 400 * 1024, &[]),
        ];
        for (name, size, parts) in cases {
            let path = dir.join(name);
            let file = File::create(&path)?;
            file.set_len(size)?;
            for &(at, len) in parts {
                file.write_all_at(&self.rng.bytes(len), at)?;
            }
            if name == "every-other-block" {
                for block in (0..100).step_by(2) {
                    file.write_all_at(&self.rng.bytes(4096), block * 4096)?;
                }
            }
            self.set_time(&path)?;
        }
        for (name, flags, at, len, written) in [
            ("prealloc", FallocateFlags::empty(), 0, 1_000_000, 100_000),
            ("prealloc-past-end", FallocateFlags::KEEP_SIZE, 0, 500_000, 50_000),
        ] {
            let path = dir.join(name);
            let file = File::create(&path)?;
            rustix::fs::fallocate(&file, flags, at, len)?;
            file.write_all_at(&self.rng.bytes(written), 0)?;
            self.set_time(&path)?;
        }
        Ok(())
    }

    fn links(&mut self) -> Result<()> {
        let dir = self.dir("links")?;
        self.file(&dir.join("two"), b"two names")?;
        let other = self.dir("links/other")?;
        fs::hard_link(dir.join("two"), other.join("the other name"))?;
        self.file(&dir.join("many"), b"many names")?;
        let many = self.dir("links/many-names")?;
        for i in 0..self.options.hard_links {
            fs::hard_link(dir.join("many"), many.join(format!("{i:0>250}")))?;
        }
        symlink("a", dir.join("sym-short"))?;
        symlink("../sizes/text-4096", dir.join("sym-relative"))?;
        symlink("/nowhere/at/all", dir.join("sym-dangling"))?;
        let long: String = (0..).map(|i: u32| format!("component-{i}/")).take(200).collect();
        symlink(&long[..2000], dir.join("sym-long"))?;
        symlink(OsStr::from_bytes(b"not \xff utf-8 \xfe"), dir.join("sym-bytes"))?;
        fs::hard_link(dir.join("sym-short"), dir.join("sym-short-again"))?;
        for name in ["sym-short", "sym-relative", "sym-dangling", "sym-long", "sym-bytes"] {
            self.set_time(&dir.join(name))?;
        }
        Ok(())
    }

    fn special(&mut self) -> Result<()> {
        let dir = self.dir("special")?;
        let mut nodes = vec![("fifo", FileType::Fifo, 0, 0), ("socket", FileType::Socket, 0, 0)];
        if self.root {
            nodes.extend([
                ("null", FileType::CharacterDevice, 1, 3),
                ("disk", FileType::BlockDevice, 8, 17),
                ("large-numbers", FileType::CharacterDevice, 4000, 0xf_ff01),
            ]);
        }
        for (name, kind, major, minor) in nodes {
            let path = dir.join(name);
            rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), rustix::fs::makedev(major, minor))?;
            self.set_time(&path)?;
        }
        Ok(())
    }

    fn modes(&mut self) -> Result<()> {
        let dir = self.dir("modes")?;
        for mode in [0o0, 0o400, 0o644, 0o777, 0o4755, 0o2755, 0o6711, 0o1644, 0o7777] {
            let path = dir.join(format!("{mode:04o}"));
            fs::write(&path, b"mode")?;
            if self.root {
                rustix::fs::chownat(CWD, &path, uid(1000 + mode), gid(70_000), AtFlags::empty())?;
            }
            // After the owner: changing that takes setuid away.
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            self.set_time(&path)?;
        }
        for (name, mode) in [("sticky", 0o1777), ("setgid", 0o2775), ("closed", 0o700)] {
            let path = self.dir(&format!("modes/{name}"))?;
            fs::write(path.join("inside"), b"")?;
            self.set_time(&path.join("inside"))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        if self.root {
            let path = dir.join("highest-ids");
            fs::write(&path, b"")?;
            rustix::fs::chownat(CWD, &path, uid(u32::MAX - 1), gid(u32::MAX - 1), AtFlags::empty())?;
            self.set_time(&path)?;
        }
        Ok(())
    }

    fn xattrs(&mut self) -> Result<()> {
        let dir = self.dir("xattrs")?;
        let path = dir.join("user");
        self.file(&path, b"with attributes")?;
        set_xattr(&path, b"user.empty", b"")?;
        set_xattr(&path, b"user.text", b"some text")?;
        let bytes = self.rng.bytes(700);
        set_xattr(&path, b"user.bytes", &bytes)?;
        set_xattr(&path, b"user.\xff\xfe not utf-8", b"value")?;

        let path = dir.join("large");
        self.file(&path, b"")?;
        let large = self.rng.bytes(self.options.xattr_len_max);
        set_xattr(&path, b"user.large", &large)?;

        let path = dir.join("many");
        fs::create_dir(&path)?;
        for i in 0..60 {
            let value = self.rng.bytes(i * 7);
            set_xattr(&path, format!("user.number-{i}").as_bytes(), &value)?;
        }

        let path = dir.join("equal-hashes");
        self.file(&path, b"")?;
        for set in colliding_names(self.options.seed, 2) {
            for name in set {
                set_xattr(&path, &[b"user.", &name[..]].concat(), &name)?;
            }
        }

        let path = dir.join("acl-file");
        self.file(&path, b"")?;
        set_xattr(&path, b"system.posix_acl_access", &acl(6))?;
        let path = dir.join("acl-dir");
        fs::create_dir(&path)?;
        set_xattr(&path, b"system.posix_acl_access", &acl(7))?;
        set_xattr(&path, b"system.posix_acl_default", &acl(5))?;

        if self.root {
            let path = dir.join("capable");
            self.file(&path, b"#!/bin/true\n")?;
            // VFS_CAP_REVISION_2 with the effective bit; cap_net_raw permitted.
            let mut cap = Vec::new();
            for word in [0x0200_0001_u32, 1 << 13, 0, 0, 0] {
                cap.extend_from_slice(&word.to_le_bytes());
            }
            set_xattr(&path, b"security.capability", &cap)?;
            self.file(&dir.join("trusted"), b"")?;
            set_xattr(&dir.join("trusted"), b"trusted.oleo", b"only root sees this")?;
            set_xattr(&dir.join("trusted"), b"security.oleo", b"no module owns this")?;
            symlink("x", dir.join("symlink"))?;
            set_xattr(&dir.join("symlink"), b"trusted.on-a-symlink", b"yes")?;
            self.set_time(&dir.join("symlink"))?;
        }
        Ok(())
    }

    fn names(&mut self) -> Result<()> {
        let dir = self.dir("names")?;
        let names: [&[u8]; 10] = [
            &[b'n'; 255],
            &[0xc3; 255],
            b"\xff\xfe\x01 bytes",
            b"new\nline",
            b" ",
            b"...",
            b"\\ backslash",
            "Ünï¢ödé — 名前".as_bytes(),
            b"-rf",
            b"*",
        ];
        for name in names {
            self.file(&dir.join(OsStr::from_bytes(name)), name)?;
        }
        let dir = self.dir("names/equal-hashes")?;
        for (i, set) in colliding_names(self.options.seed, 6).into_iter().enumerate() {
            for name in &set {
                if i == 0 {
                    fs::create_dir(dir.join(OsStr::from_bytes(name)))?;
                } else {
                    self.file(&dir.join(OsStr::from_bytes(name)), name)?;
                }
            }
        }
        Ok(())
    }

    fn deep_and_wide(&mut self) -> Result<()> {
        let mut path = self.dir("deep")?;
        for level in 0..150 {
            path.push(format!("level-{level}"));
            fs::create_dir(&path)?;
            if level % 10 == 0 {
                self.file(&path.join("here"), format!("{level}").as_bytes())?;
            }
        }
        let dir = self.dir("wide")?;
        for i in 0..self.options.wide {
            let len = usize::try_from(self.rng.length(5000))?;
            let data = if i % 3 == 0 { self.rng.text(len) } else { self.rng.bytes(len) };
            self.file(&dir.join(format!("entry number {i}")), &data)?;
        }
        Ok(())
    }

    fn odd_times(&mut self) -> Result<()> {
        let dir = self.dir("times")?;
        let times =
            [(-1, 999_999_999), (-2_000_000_000, 1), (0, 0), (1, 1), (4_294_967_296, 5), (9_000_000_000, 999_999_999)];
        for (tv_sec, tv_nsec) in times {
            let path = dir.join(format!("{tv_sec}.{tv_nsec:09}"));
            fs::write(&path, b"")?;
            set_times(&path, Timespec { tv_sec, tv_nsec })?;
        }
        Ok(())
    }

    /// Last of all, because making a file touches its directory; from the inside out.
    fn times_of_dirs(&mut self, dir: &Path) -> Result<()> {
        let mut all = vec![dir.to_owned()];
        let mut next = 0;
        while let Some(dir) = all.get(next).cloned() {
            next += 1;
            let mut below: Vec<PathBuf> = fs::read_dir(&dir)?
                .filter_map(|e| e.ok().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()))
                .collect();
            below.sort();
            all.append(&mut below);
        }
        all.iter().rev().try_for_each(|dir| self.set_time(dir))
    }
}

fn uid(raw: u32) -> Option<rustix::fs::Uid> {
    Some(rustix::fs::Uid::from_raw(raw))
}

fn gid(raw: u32) -> Option<rustix::fs::Gid> {
    Some(rustix::fs::Gid::from_raw(raw))
}

/// Sets mtime, and atime an hour before it.
pub(crate) fn set_times(path: &Path, mtime: Timespec) -> Result<()> {
    let last_access = Timespec { tv_sec: mtime.tv_sec - 3600, ..mtime };
    let times = Timestamps { last_access, last_modification: mtime };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// An ACL in the form of the `system.posix_acl_*` attributes (version 2, then tag, permissions, id per entry), with a
/// named user and a named group.
fn acl(perm: u16) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    const USER_OBJ: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP_OBJ: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    let entries = [
        (USER_OBJ, perm, NO_ID),
        (USER, 4, 1234),
        (GROUP_OBJ, 4, NO_ID),
        (GROUP, 5, 4321),
        (MASK, 7, NO_ID),
        (OTHER, 1, NO_ID),
    ];
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests;
