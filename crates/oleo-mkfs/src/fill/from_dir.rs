//! Filling from a directory of the host.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use oleo_fs::data::Policy;
use oleo_fs::{Fs, InodeRef, Rdev};

use super::install::{Installer, Ready};
use super::walk::{Body, Entry, Event, LinkId, Walk, WalkOptions, walk, walk_one};
use super::{FillOptions, Report, SubvolSpec};
use crate::MkfsError;
use crate::fill::entry::HostFile;

/// Copies everything in a directory of the host into the directory `into`, with the directory's own attributes, and
/// commits.
///
/// # Errors
/// The source cannot be read, the file system has no room, or a device fails; what was committed before stays.
pub fn fill_from_dir(fs: &Fs, into: &InodeRef, top: &Path, options: &FillOptions) -> Result<Report, MkfsError> {
    options.check()?;
    let absolute =
        std::path::absolute(top).map_err(|cause| MkfsError::Source { what: "find", path: top.to_owned(), cause })?;
    let mut specs: HashMap<PathBuf, &SubvolSpec> = HashMap::new();
    for spec in &options.subvols {
        let path: PathBuf = absolute.join(&spec.path).components().collect();
        let is_dir = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        if !is_dir || !path.starts_with(&absolute) || path == absolute {
            let name = spec.path.display();
            return Err(MkfsError::Options(format!(
                "there is no directory {name} below the top to make a subvolume of"
            )));
        }
        specs.insert(path, spec);
    }
    let policy = Installer::policy(fs, options.compress)?;
    let walk_options = walk_options(options, &policy, specs.keys().cloned().collect());
    let walk = walk(&absolute, &walk_options, move |piece| Ok(Ready::of(piece, &policy)))?;
    Filler::new(fs, options, specs, into.clone()).run(&walk)
}

/// Copies one file of the host, which is not a directory, into the directory `into` under `name`, and commits.
///
/// # Errors
/// As [`fill_from_dir`].
pub fn fill_one(
    fs: &Fs,
    into: &InodeRef,
    name: &[u8],
    source: &Path,
    options: &FillOptions,
) -> Result<Report, MkfsError> {
    let policy = Installer::policy(fs, options.compress)?;
    let walk_options = walk_options(options, &policy, HashSet::new());
    let walk = walk_one(source, &walk_options, move |piece| Ok(Ready::of(piece, &policy)))?;
    let mut filler = Filler::new(fs, options, HashMap::new(), into.clone());
    filler.rename = Some(name.to_vec());
    filler.run(&walk)
}

fn walk_options(options: &FillOptions, policy: &Policy, boundaries: HashSet<PathBuf>) -> WalkOptions {
    WalkOptions {
        threads: options.thread_count(),
        bytes_ahead_max: options.bytes_ahead_max,
        skip: options.skip.iter().map(|&(device, inode)| HostFile { device, inode }).collect(),
        boundaries,
        align: u64::from(policy.sectorsize),
    }
}

struct Filler<'a> {
    installer: Installer<'a>,
    specs: HashMap<PathBuf, &'a SubvolSpec>,
    /// Directories whose entries are still to come.
    dirs: HashMap<u64, InodeRef>,
    /// Files with several names.
    links: HashMap<LinkId, InodeRef>,
    current: Option<InodeRef>,
    /// It is the top.
    is_top: bool,
    /// Set: there is one file only, it gets this name, and the directory it goes into stays as it is.
    rename: Option<Vec<u8>>,
}

impl<'a> Filler<'a> {
    fn new(
        fs: &'a Fs,
        options: &'a FillOptions,
        specs: HashMap<PathBuf, &'a SubvolSpec>,
        into: InodeRef,
    ) -> Filler<'a> {
        Filler {
            installer: Installer::new(fs, options),
            specs,
            dirs: HashMap::from([(0, into)]),
            links: HashMap::new(),
            current: None,
            is_top: false,
            rename: None,
        }
    }

    fn run(mut self, walk: &Walk<Ready>) -> Result<Report, MkfsError> {
        for event in &walk.events {
            self.event(event?)?;
        }
        self.installer.finish()
    }

    fn event(&mut self, event: Event<Ready>) -> Result<(), MkfsError> {
        match event {
            Event::Enter { dir } => {
                self.is_top = dir == 0;
                self.current = self.dirs.remove(&dir);
            }
            Event::Leave { meta } => {
                if let Some(dir) = self.current.take().filter(|_| self.rename.is_none()) {
                    if self.is_top {
                        self.installer.top_meta(&dir, meta)?;
                    } else {
                        self.installer.dir_meta(&dir, meta)?;
                    }
                }
            }
            Event::More(piece) => self.installer.data(piece.take()?)?,
            Event::Entry(entry) => {
                let Some(dir) = self.current.clone() else { return Ok(()) };
                self.entry(&dir, entry)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, dir: &InodeRef, entry: Entry<Ready>) -> Result<(), MkfsError> {
        let Entry { name, meta, body, links, path } = entry;
        let name = self.rename.clone().unwrap_or(name);
        let inode = match body {
            Body::Dir(number) => {
                let inode = match self.specs.get(&path) {
                    Some(spec) => self.installer.subvol(dir, &name, spec)?,
                    None => self.installer.dir(dir, &name, &meta)?,
                };
                self.dirs.insert(number, inode.clone());
                inode
            }
            Body::File { size, first } => {
                let inode = self.installer.file(dir, &name, &meta, size, Some(&path))?;
                if let Some(piece) = first {
                    self.installer.data(piece.take()?)?;
                }
                inode
            }
            Body::Link(id) => match self.links.get(&id) {
                Some(file) => return self.installer.link(&file.clone(), dir, &name, &meta),
                None => return Err(MkfsError::Options(format!("{}: a link without its file", path.display()))),
            },
            Body::Symlink(target) => self.installer.symlink(dir, &name, &target, &meta)?,
            Body::Node { major, minor } => self.installer.node(dir, &name, Rdev { major, minor }, &meta)?,
        };
        if let Some(id) = links {
            self.links.insert(id, inode);
        }
        Ok(())
    }
}
