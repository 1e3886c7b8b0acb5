//! Filling from a tar archive.
//!
//! The attributes of directories are set when the archive ends, since every entry in them changes their times. A parent
//! that the archive does not contain is created with mode 755 and belongs to root. If a path occurs twice, the later
//! entry counts, as with tar; two directories are merged.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use oleo_fs::{Fs, InodeRef, Rdev};

use super::entry::Meta;
use super::install::{Installer, Ready};
use super::tar::{Event, Member, MemberBody, read_tar, shown};
use super::{FillOptions, Report, SubvolSpec};
use crate::MkfsError;

/// Extracts a tar archive, plain or compressed with gzip or zstd, into the directory `into`, and commits.
///
/// # Errors
/// The archive is damaged, the file system has no room, or a device fails; what was committed before stays.
pub fn fill_from_tar(
    fs: &Fs,
    into: &InodeRef,
    stream: Box<dyn Read + Send>,
    options: &FillOptions,
) -> Result<Report, MkfsError> {
    options.check()?;
    let policy = Installer::policy(fs, options.compress)?;
    let read =
        read_tar(stream, options.thread_count(), options.bytes_ahead_max, move |piece| Ok(Ready::of(piece, &policy)))?;
    let mut specs: HashMap<Path, &SubvolSpec> = HashMap::new();
    for spec in &options.subvols {
        let names = spec.path.components().filter_map(|part| match part {
            std::path::Component::Normal(name) => Some(name.as_encoded_bytes().to_vec()),
            _ => None,
        });
        specs.insert(names.collect(), spec);
    }
    let mut filler = Filler {
        fs,
        installer: Installer::new(fs, options),
        specs,
        dirs: HashMap::from([(Vec::new(), into.clone())]),
        dir_metas: BTreeMap::new(),
    };
    for event in &read.events {
        match event? {
            Event::Member(member) => filler.member(member)?,
            Event::More(piece) => filler.installer.data(piece.take()?)?,
            Event::Warning(text) => filler.installer.warn(text),
        }
    }
    filler.finish()
}

/// Names from the top.
type Path = Vec<Vec<u8>>;

struct Filler<'a> {
    fs: &'a Fs,
    installer: Installer<'a>,
    specs: HashMap<Path, &'a SubvolSpec>,
    /// Directories made or met so far.
    dirs: HashMap<Path, InodeRef>,
    /// Their attributes, as far as the archive has had them.
    dir_metas: BTreeMap<Path, Meta>,
}

impl Filler<'_> {
    fn member(&mut self, member: Member<Ready>) -> Result<(), MkfsError> {
        let Member { mut path, meta, body } = member;
        if let MemberBody::Dir = body {
            self.dir(&path)?;
            self.dir_metas.insert(path, meta);
            return Ok(());
        }
        let whole = path.clone();
        let Some(name) = path.pop() else { return Ok(()) };
        let dir = self.dir(&path)?;
        if let MemberBody::HardLink(target) = &body {
            // A link to itself must not take its file away.
            if *target == whole {
                return Ok(());
            }
        }
        self.remove(&dir, &name, &whole)?;
        match body {
            MemberBody::Dir => {}
            MemberBody::File { size, first } => {
                self.installer.file(&dir, &name, &meta, size, None)?;
                if let Some(piece) = first {
                    self.installer.data(piece.take()?)?;
                }
            }
            MemberBody::HardLink(target) => {
                let file = self.find(&target)?;
                let Some(file) = file.filter(|file| file.tree() == dir.tree()) else {
                    let text = format!(
                        "{}: its link target {} is not there",
                        shown(&whole).display(),
                        shown(&target).display()
                    );
                    return Err(MkfsError::Tar { at: 0, what: text });
                };
                self.installer.link(&file, &dir, &name, &meta)?;
            }
            MemberBody::Symlink(target) => {
                self.installer.symlink(&dir, &name, &target, &meta)?;
            }
            MemberBody::Node { major, minor } => {
                self.installer.node(&dir, &name, Rdev { major, minor }, &meta)?;
            }
        }
        Ok(())
    }

    /// Takes away what an earlier entry of the same path has left.
    fn remove(&mut self, dir: &InodeRef, name: &[u8], path: &Path) -> Result<(), MkfsError> {
        if self.fs.lookup(dir, name)?.is_none() {
            return Ok(());
        }
        self.installer.settle()?;
        if self.dirs.remove(path).is_some() {
            self.dir_metas.remove(path);
            self.fs.rmdir(dir, name)?;
        } else {
            self.fs.unlink(dir, name)?;
        }
        Ok(())
    }

    fn find(&mut self, path: &Path) -> Result<Option<InodeRef>, MkfsError> {
        let Some((name, parent)) = path.split_last() else { return Ok(None) };
        match self.dirs.get(parent) {
            Some(dir) => Ok(self.fs.lookup(&dir.clone(), name)?),
            None => Ok(None),
        }
    }

    /// Returns the directory of this path; it and its parents are created if they are missing.
    fn dir(&mut self, path: &[Vec<u8>]) -> Result<InodeRef, MkfsError> {
        if let Some(dir) = self.dirs.get(path) {
            return Ok(dir.clone());
        }
        let known = (0..path.len()).rev().find_map(|len| self.dirs.get(&path[..len]).map(|dir| (len, dir.clone())));
        let Some((known_len, mut dir)) = known else {
            return Err(MkfsError::Tar { at: 0, what: "an archive without a top".into() });
        };
        for len in known_len + 1..=path.len() {
            let (here, name) = (&path[..len], &path[len - 1]);
            // The path is taken by something that is not a directory: the later entry counts.
            self.remove(&dir, name, &here.to_vec())?;
            dir = match self.specs.get(here) {
                Some(spec) => self.installer.subvol(&dir, name, spec)?,
                None => self.installer.dir(&dir, name, &Meta { mode: 0o755, ..Meta::default() })?,
            };
            self.dirs.insert(here.to_vec(), dir.clone());
        }
        Ok(dir)
    }

    fn finish(mut self) -> Result<Report, MkfsError> {
        for (path, spec) in &self.specs {
            if !self.dirs.contains_key(path) {
                let name = spec.path.display();
                return Err(MkfsError::Options(format!("the archive has no directory {name} to make a subvolume of")));
            }
        }
        for (path, meta) in std::mem::take(&mut self.dir_metas) {
            if let Some(dir) = self.dirs.get(&path) {
                let dir = dir.clone();
                if path.is_empty() {
                    self.installer.top_meta(&dir, meta)?;
                } else {
                    self.installer.dir_meta(&dir, &meta)?;
                }
            }
        }
        self.installer.finish()
    }
}
