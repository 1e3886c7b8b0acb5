//! Filling from a tar archive.
//!
//! The attributes of directories are set when the archive ends, since every entry in them changes their times. A parent
//! that the archive does not contain is created with mode 755 and belongs to root. If a path occurs twice, the later
//! entry counts, as with tar; two directories are merged.
//!
//! Layers are archives on top of each other, as in images of containers (OCI). In them `.wh.NAME` removes NAME of the layers
//! below, and `.wh..wh..opq` everything that the layers below have in its directory, wherever in the archive it stands. So the
//! paths of the current layer are remembered.

use std::collections::{BTreeMap, HashMap, HashSet};
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
    fill(fs, into, vec![stream], options, None)
}

/// Extracts the layers of a container's image, from the lowest to the highest, into the directory `into`, and commits. Whiteouts
/// of a layer remove what the layers below have, and become no files.
///
/// # Errors
/// As [`fill_from_tar`].
pub fn fill_from_layers(
    fs: &Fs,
    into: &InodeRef,
    layers: Vec<Box<dyn Read + Send>>,
    options: &FillOptions,
) -> Result<Report, MkfsError> {
    fill(fs, into, layers, options, Some(HashSet::new()))
}

fn fill(
    fs: &Fs,
    into: &InodeRef,
    streams: Vec<Box<dyn Read + Send>>,
    options: &FillOptions,
    fresh: Option<HashSet<Path>>,
) -> Result<Report, MkfsError> {
    options.check()?;
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
        fresh,
    };
    for stream in streams {
        let policy = Installer::policy(fs, options.compress)?;
        let prepare = move |piece| Ok(Ready::of(piece, &policy));
        let read = read_tar(stream, options.thread_count(), options.bytes_ahead_max, prepare)?;
        for event in &read.events {
            match event? {
                Event::Member(member) => filler.member(member)?,
                Event::More(piece) => filler.installer.data(piece.take()?)?,
                Event::Warning(text) => filler.installer.warn(text),
            }
        }
        if let Some(fresh) = &mut filler.fresh {
            fresh.clear();
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
    /// The archives are layers: the paths of the current one, with their parents.
    fresh: Option<HashSet<Path>>,
}

/// Prefix of the name of a whiteout.
const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of everything that the layers below have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Entries of a directory that are listed in one go.
const LISTED: usize = 4096;

impl Filler<'_> {
    fn member(&mut self, member: Member<Ready>) -> Result<(), MkfsError> {
        let Member { mut path, meta, body } = member;
        if self.fresh.is_some() && self.whiteout(&path)? {
            return Ok(());
        }
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
        match self.fresh.is_some() {
            true => self.remove_all(whole.clone())?,
            false => self.remove(&dir, &name, &whole)?,
        }
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

    /// Enters the path of a layer's member, or, if it is a whiteout, does what it says.
    fn whiteout(&mut self, path: &Path) -> Result<bool, MkfsError> {
        let Some((name, parent)) = path.split_last() else { return Ok(false) };
        let Some(hidden) = name.strip_prefix(WHITEOUT) else {
            if let Some(fresh) = &mut self.fresh {
                for len in (1..=path.len()).rev() {
                    if !fresh.insert(path[..len].to_vec()) {
                        break;
                    }
                }
            }
            return Ok(false);
        };
        if name == OPAQUE {
            self.remove_older(parent.to_vec())?;
        } else if !hidden.is_empty() {
            let mut whole = parent.to_vec();
            whole.push(hidden.to_vec());
            match self.is_fresh(&whole) {
                true => self.remove_older(whole)?,
                false => self.remove_all(whole)?,
            }
        }
        Ok(true)
    }

    fn is_fresh(&self, path: &Path) -> bool {
        self.fresh.as_ref().is_some_and(|fresh| fresh.contains(path))
    }

    /// The paths of what is in a directory; none if it is no directory.
    fn children(&self, path: &Path) -> Result<Vec<Path>, MkfsError> {
        let (mut children, mut after) = (Vec::new(), 0);
        let Some(dir) = self.dirs.get(path) else { return Ok(children) };
        loop {
            let listed = self.fs.readdir(dir, after, LISTED)?;
            let Some(last) = listed.last() else { return Ok(children) };
            after = last.index;
            children.extend(listed.into_iter().map(|entry| [path.as_slice(), &[entry.name]].concat()));
        }
    }

    /// Takes away what the layers below have in a directory.
    fn remove_older(&mut self, dir: Path) -> Result<(), MkfsError> {
        let mut dirs = vec![dir];
        while let Some(dir) = dirs.pop() {
            for child in self.children(&dir)? {
                match self.is_fresh(&child) {
                    true => dirs.push(child),
                    false => self.remove_all(child)?,
                }
            }
        }
        Ok(())
    }

    /// Takes away what is there, with everything in it. A path may have as many names as its header has bytes, so there is no
    /// recursion.
    fn remove_all(&mut self, path: Path) -> Result<(), MkfsError> {
        let mut left = vec![path];
        while let Some(path) = left.last().cloned() {
            let children = self.children(&path)?;
            if children.is_empty() {
                if let Some((name, parent)) = path.split_last()
                    && let Some(dir) = self.dirs.get(parent).cloned()
                {
                    self.remove(&dir, name, &path)?;
                }
                left.pop();
            } else {
                left.extend(children);
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
                    self.installer.dir_meta(&dir, meta)?;
                }
            }
        }
        self.installer.finish()
    }
}
