//! An open file system, by the name of its image or device.

use std::path::Path;
use std::sync::Arc;

use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{ByteLen, Generation, Ino, ROOT_BACKUPS, SuperFlags, TreeId};
use oleo_fs::{Attr, DirEntryInfo, FileKind, Follow, Fs, FsError, InodeRef, NewInode, NewKind, SnapshotOptions, errno};
use oleo_jobs::{Balancer, Members, Replacer, Scrubber};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions as VolumeOptions, Volume};
use uuid::Uuid;

use crate::device::Place;
use crate::device::open::open_place;
use crate::error::AtPlace;
use crate::error::ErrorKind;
use crate::notices::{self, OnNotice};
use crate::{Access, Error, File, ImagePath, OpenOptions, Result, SubvolRef, log};

/// Blocks that one step of cleaning takes apart.
const CLEAN_BLOCKS: usize = 1024;

/// An open file system. Share it by reference (or in an `Arc`) between as many threads as you like.
///
/// Changes are in memory until [`Image::sync`] or [`Image::close`], unless [`Image::start_background`] commits them; dropping an image without either loses what was
/// done since the last commit, never what was committed.
pub struct Image {
    fs: Fs,
    on_notice: OnNotice,
    balancer: Arc<Balancer>,
    members: Members,
    scrubber: Arc<Scrubber>,
    replacer: Arc<Replacer>,
    write: bool,
}

impl Image {
    /// Opens the file system in an image file, on a block device, or on what else a name means
    /// ([`Place`]).
    ///
    /// # Errors
    /// It is no btrfs, needs features or devices that are not there, or someone else uses it.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Image> {
        let path = path.as_ref();
        open_devices(path, options)
            .and_then(|devices| Image::from_devices(devices, options))
            .map_err(|error| error.of_image(path))
    }

    /// Opens the file system on devices that are open already, in any order.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn from_devices(devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Result<Image> {
        Image::from_devices_sized(devices, options, None)
    }

    /// The same, with a bound on the bytes of new chunks.
    pub(crate) fn from_devices_sized(
        devices: Vec<Arc<dyn Device>>,
        options: &OpenOptions,
        chunk_len_max: Option<u64>,
    ) -> Result<Image> {
        if options.access == Access::Write && !options.writes() {
            return Err(Error::refused(errno::EOPNOTSUPP, "images are only read here"));
        }
        if options.writes() && options.no_log_replay {
            return Err(Error::Request("only for reading can a volume be opened without its log".into()));
        }
        let mut newest = Image::from_devices_at(devices.clone(), options, chunk_len_max, None);
        if options.use_backup_root {
            newest = newest.and_then(|image| image.top().map(|_| image));
        }
        let Err(broken) = newest else { return newest };
        if !options.use_backup_root || options.writes() {
            return Err(broken);
        }
        let whole = |image: &Image| image.top().is_ok();
        let earlier = (0..ROOT_BACKUPS)
            .filter_map(|nth| Image::from_devices_at(devices.clone(), options, chunk_len_max, Some(nth)).ok())
            .find(whole);
        earlier.ok_or(broken)
    }

    fn from_devices_at(
        devices: Vec<Arc<dyn Device>>,
        options: &OpenOptions,
        chunk_len_max: Option<u64>,
        backup: Option<usize>,
    ) -> Result<Image> {
        let volume_options = VolumeOptions {
            write: options.writes(),
            degraded: options.degraded,
            backup,
            super_copy: None,
            ignore_block_csums: options.ignore_block_csums,
        };
        let mut volume = Arc::new(match options.sprout {
            Some(fsid) => Volume::sprout(devices.clone(), fsid)?,
            None => Volume::open(devices.clone(), &volume_options)?,
        });
        let has_log = volume.super_block().log_root.get() != 0;
        // The log goes on from the newest roots, no others.
        if has_log && !options.writes() && !options.no_log_replay && backup.is_none() {
            drop(volume);
            volume = Arc::new(Volume::open(log::applied(&devices, options)?, &volume_options)?);
        }
        if options.writes() && options.wipe_stripe_records && volume.has_parity() {
            volume.take_record_places()?;
        }
        // Where space costs money, nobody should have to ask for it to be given back.
        let wants_discard = devices.iter().any(|device| device.limits().wants_discard);
        let engine_options = EngineOptions {
            read_only: !options.writes(),
            cache_bytes: options.cache_bytes,
            chunk_len_max: chunk_len_max.map(ByteLen),
            ignore_bad_trees: options.ignore_bad_trees,
            discard: options.discard || wants_discard,
            make_free_space_tree: !options.keep_space_cache,
            ..EngineOptions::default()
        };
        let engine = Engine::open(volume, &engine_options).map_err(|error| {
            let error = Error::from(error);
            if has_log && options.writes() { Error::Log(Box::new(error)) } else { error }
        })?;
        let fs_options = options.fs.clone().read_only(!options.writes());
        let fs = Fs::open(engine, &fs_options)?;
        if options.writes() {
            log::replay(&fs)?;
            fs.engine().recover_relocation()?;
            // Who is not there has to be seen to be behind, before anything is done that it lacks.
            if fs.engine().volume().owes_commit() {
                fs.commit()?;
            }
        }
        notices::of_opened(fs.engine(), &options.on_notice);
        let balancer = match Balancer::new(&fs) {
            Err(_) if !options.writes() => Balancer::idle(&fs),
            other => other?,
        };
        let balancer = Arc::new(balancer);
        let members = Members::new(&fs, balancer.clone());
        let scrubber = Arc::new(Scrubber::new(&fs));
        let replacer = match Replacer::new(&fs, balancer.clone(), scrubber.clone()) {
            Err(_) if !options.writes() => Replacer::idle(&fs, balancer.clone(), scrubber.clone()),
            other => other?,
        };
        if options.writes() {
            replacer.begin_anew()?;
        }
        let (on_notice, replacer) = (options.on_notice.clone(), Arc::new(replacer));
        Ok(Image { fs, on_notice, balancer, members, replacer, scrubber, write: options.writes() })
    }

    /// The full interface to files and names.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// The balance of this volume.
    pub fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    /// What makes devices come and go.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The scrub of this volume.
    pub fn scrubber(&self) -> &Scrubber {
        &self.scrubber
    }

    pub(crate) fn scrubber_shared(&self) -> Arc<Scrubber> {
        self.scrubber.clone()
    }

    /// The replacement of a device.
    pub fn replacer(&self) -> &Arc<Replacer> {
        &self.replacer
    }

    pub(crate) fn balancer_shared(&self) -> Arc<Balancer> {
        self.balancer.clone()
    }

    pub(crate) fn on_notice(&self) -> &OnNotice {
        &self.on_notice
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.write
    }

    /// The volume below: devices, chunks, superblock.
    pub fn volume(&self) -> &Arc<Volume> {
        self.fs.engine().volume()
    }

    /// The root directory of the top level.
    ///
    /// # Errors
    /// The image is damaged.
    pub fn top(&self) -> Result<InodeRef> {
        Ok(self.fs.root(TreeId::FS)?)
    }

    /// The root directory of a subvolume. Text and bytes are its path from the top level, a [`TreeId`] is its ID;
    /// a [`Location`](crate::control::Location) begins at any inode.
    ///
    /// # Errors
    /// There is no such subvolume, or the path leads to something else.
    pub fn subvol(&self, which: impl Into<SubvolRef>) -> Result<InodeRef> {
        let which = which.into();
        let at = match &which {
            SubvolRef::Id(id) => return self.fs.root(*id).at(|| which.to_string()),
            SubvolRef::At(at) => at,
        };
        let start = self.fs.subvol(at.tree).and_then(|subvol| self.fs.inode(&subvol, at.ino));
        let inode =
            start.and_then(|start| self.fs.resolve(&start, &at.path.0, Follow::Yes)).at(|| which.to_string())?;
        if inode.ino() != Ino::ROOT_DIR || inode.is_empty_subvol_dir() {
            return Err(Error::refused(oleo_fs::errno::EINVAL, format!("{which} is not a subvolume")));
        }
        Ok(inode)
    }

    /// What is at a path from the top level.
    ///
    /// # Errors
    /// There is nothing.
    pub fn find(&self, path: impl ImagePath) -> Result<InodeRef> {
        self.resolve(&self.top()?, path)
    }

    /// What is at a path, from a start directory; a slash at its front means the root of that directory's subvolume.
    ///
    /// # Errors
    /// There is nothing.
    pub fn resolve(&self, start: &InodeRef, path: impl ImagePath) -> Result<InodeRef> {
        let path = path.path_bytes();
        self.fs.resolve(start, path, Follow::Yes).at(|| path.escape_ascii().to_string())
    }

    /// The directory that a path's last name is in, and that name.
    ///
    /// # Errors
    /// The directory is not there, or the path has no last name.
    pub fn find_parent<'p, P>(&self, start: &InodeRef, path: &'p P) -> Result<(InodeRef, &'p [u8])>
    where
        P: ImagePath + ?Sized,
    {
        let path = path.path_bytes();
        let trimmed = path.trim_ascii_end_slashes();
        let cut = trimmed.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        let (parent, name) = trimmed.split_at(cut);
        if name.is_empty() || name == b"." || name == b".." {
            return Err(Error::Request(format!("{} does not end in a name", path.escape_ascii())));
        }
        let parent = self.fs.resolve(start, parent, Follow::Yes).at(|| path.escape_ascii().to_string())?;
        Ok((parent, name))
    }

    /// What is known of the file at a path.
    ///
    /// # Errors
    /// There is nothing.
    pub fn attr(&self, path: impl ImagePath) -> Result<Attr> {
        Ok(self.fs.attr(&self.find(path)?))
    }

    /// Opens the regular file at a path.
    ///
    /// # Errors
    /// There is nothing, or something else.
    pub fn open_file(&self, path: impl ImagePath) -> Result<File> {
        self.open_file_at(&self.top()?, path)
    }

    /// The same from a start directory.
    ///
    /// # Errors
    /// As [`Image::open_file`].
    pub fn open_file_at(&self, start: &InodeRef, path: impl ImagePath) -> Result<File> {
        let path = path.path_bytes();
        let inode = self.resolve(start, path)?;
        match self.fs.attr(&inode).kind {
            FileKind::File => Ok(File::new(self.fs.clone(), inode)),
            FileKind::Dir => Err(Error::from(FsError::IsDir).at(path.escape_ascii())),
            _ => Err(Error::refused(oleo_fs::errno::EINVAL, format!("{} is not a regular file", path.escape_ascii()))),
        }
    }

    /// Makes an empty regular file at a path where there is nothing yet.
    ///
    /// # Errors
    /// Its directory is not there, or its name is taken.
    pub fn create_file(&self, path: impl ImagePath) -> Result<File> {
        let path = path.path_bytes();
        let (dir, name) = self.find_parent(&self.top()?, path)?;
        let inode = self.fs.create(&dir, name, &NewInode::new(NewKind::File, 0o644));
        Ok(File::new(self.fs.clone(), inode.at(|| path.escape_ascii().to_string())?))
    }

    /// The contents of a regular file.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub fn read(&self, path: impl ImagePath) -> Result<Vec<u8>> {
        self.open_file(path)?.read_to_end()
    }

    /// Makes a regular file with these contents, or replaces those of one that is there.
    ///
    /// # Errors
    /// Its directory is not there, or there is no room.
    pub fn write(&self, path: impl ImagePath, data: &[u8]) -> Result<()> {
        let path = path.path_bytes();
        let file = match self.open_file(path) {
            Err(Error::At { source, .. }) if matches!(*source, Error::Fs(FsError::NotFound)) => {
                self.create_file(path)?
            }
            other => other?,
        };
        file.set_len(0)?;
        file.write_at(data, 0)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Its parent is not there, or its name is taken.
    pub fn create_dir(&self, path: impl ImagePath) -> Result<InodeRef> {
        self.create_dir_at(&self.top()?, path)
    }

    /// The same from a start directory.
    ///
    /// # Errors
    /// As [`Image::create_dir`].
    pub fn create_dir_at(&self, start: &InodeRef, path: impl ImagePath) -> Result<InodeRef> {
        let path = path.path_bytes();
        let (dir, name) = self.find_parent(start, path)?;
        self.fs.create(&dir, name, &NewInode::new(NewKind::Dir, 0o755)).at(|| path.escape_ascii().to_string())
    }

    /// Makes a directory and its missing parents; one that is there already is fine.
    ///
    /// # Errors
    /// Something that is no directory stands in the way.
    pub fn create_dirs(&self, start: &InodeRef, path: impl ImagePath) -> Result<InodeRef> {
        let path = path.path_bytes();
        let mut at = if path.starts_with(b"/") { self.fs.root(start.tree())? } else { start.clone() };
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            at = match self.fs.resolve(&at, name, Follow::Yes) {
                Ok(inode) => inode,
                Err(FsError::NotFound) => self.create_dir_at(&at, name)?,
                Err(error) => return Err(Error::from(error).at(path.escape_ascii())),
            };
        }
        if self.fs.attr(&at).kind != FileKind::Dir {
            return Err(Error::from(FsError::NotDir).at(path.escape_ascii()));
        }
        Ok(at)
    }

    /// All paths of an inode from the top level, without a leading slash.
    ///
    /// # Errors
    /// The inode is gone, or the image is damaged.
    pub fn paths(&self, inode: &InodeRef) -> Result<Vec<Vec<u8>>> {
        Ok(self.fs().paths(inode)?)
    }

    /// All entries of a directory, in the order of their creation.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn list(&self, path: impl ImagePath) -> Result<Vec<DirEntryInfo>> {
        self.list_dir(&self.find(path)?)
    }

    /// All entries of an open directory, in the order of their creation.
    ///
    /// # Errors
    /// It is no directory, or the image is damaged.
    pub fn list_dir(&self, dir: &InodeRef) -> Result<Vec<DirEntryInfo>> {
        /// Entries read at a time.
        const BATCH: usize = 4096;
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(0, |entry: &DirEntryInfo| entry.index);
            let batch = self.fs.readdir(dir, after, BATCH)?;
            if batch.is_empty() {
                return Ok(all);
            }
            all.extend(batch);
        }
    }

    /// Makes an empty subvolume at a path.
    ///
    /// # Errors
    /// Its directory is not there, or its name is taken.
    pub fn create_subvol(&self, path: impl ImagePath) -> Result<TreeId> {
        let path = path.path_bytes();
        let (dir, name) = self.find_parent(&self.top()?, path)?;
        let new = oleo_fs::NewSubvol::default();
        self.fs.subvol_create(&dir, name, &new).at(|| path.escape_ascii().to_string())
    }

    /// Makes a snapshot of a subvolume, at a path.
    ///
    /// # Errors
    /// There is no such subvolume, or the new name is taken.
    pub fn snapshot(
        &self,
        source: impl Into<SubvolRef>,
        path: impl ImagePath,
        options: &SnapshotOptions,
    ) -> Result<TreeId> {
        let path = path.path_bytes();
        let source = self.subvol(source)?.tree();
        let (dir, name) = self.find_parent(&self.top()?, path)?;
        self.fs.snapshot(source, &dir, name, options.clone()).at(|| path.escape_ascii().to_string())
    }

    /// Makes everything done so far durable.
    ///
    /// # Errors
    /// A device failed; the image is as it was at the last commit.
    pub fn sync(&self) -> Result<Generation> {
        Ok(self.fs.sync()?)
    }

    /// Takes apart what was deleted, so that its space is free for others. [`Image::start_background`] has that done as it comes.
    ///
    /// # Errors
    /// A device failed, or the image is damaged.
    pub fn clean(&self) -> Result<()> {
        while self.fs.clean(CLEAN_BLOCKS)? {}
        Ok(())
    }

    /// Ends the work: everything done is durable afterwards. The image itself is given up when the last [`File`] of
    /// it is gone too.
    ///
    /// # Errors
    /// As [`Image::sync`].
    pub fn close(self) -> Result<()> {
        let synced = if self.write { self.sync().map(drop) } else { Ok(()) };
        notices::of_lost(self.volume(), &self.on_notice);
        synced?;
        self.release()
    }

    /// Says to the devices that whoever has them open is done, so that others find free what is on an object store. Call it after
    /// [`Image::sync`], where the image is not given up in that moment; [`Image::close`] does it by itself.
    ///
    /// # Errors
    /// A device failed.
    pub fn release(&self) -> Result<()> {
        Ok(self.fs.engine().volume().release()?)
    }
}

trait TrimSlashes {
    fn trim_ascii_end_slashes(&self) -> &[u8];
}

impl TrimSlashes for [u8] {
    fn trim_ascii_end_slashes(&self) -> &[u8] {
        let end = self.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        &self[..end]
    }
}

/// Opens all devices that the options name.
pub(crate) fn open_devices(path: &Path, options: &OpenOptions) -> Result<Vec<Arc<dyn Device>>> {
    let mut places = options.places.clone();
    // Others may have what one of them has.
    places.mirrored(!options.devices.is_empty() || !options.scan.is_empty());
    // Nothing is written to a seed, so that it can be read for several volumes at a time. A volume is not of one device if it has one.
    let reads_seeds = options.writes() && !(options.devices.is_empty() && options.scan.is_empty());
    let open = |place: &Place, offset: u64, claimed: bool| {
        let how = FileOptions::default()
            .write(options.writes() && options.sprout.is_none() && !(reads_seeds && is_seed(place, offset)))
            .offset(offset)
            .read_in_use(options.access == Access::ReadOnlyInUse)
            .claimed(claimed);
        open_place(place, &how, &places)
    };
    let mut known = Vec::new();
    let mut once = |place: &Place, offset: u64, claimed: bool| -> Result<Option<Arc<dyn Device>>> {
        let id = place.identity()?;
        if known.contains(&id) {
            return Ok(None);
        }
        known.push(id);
        open(place, offset, claimed).map(Some)
    };
    // With degraded, one that is away or damaged may be missing, if another is there.
    let mut left_out = None;
    let mut left = |error: Error| match may_be_missing(&error, options) {
        true => Ok(_ = left_out.get_or_insert(error)),
        false => Err(error),
    };
    let mut devices = Vec::new();
    match once(&Place::parse(path)?, options.offset, options.claimed) {
        Ok(device) => devices.extend(device),
        Err(error) => left(error)?,
    }
    let mut others = options.devices.clone();
    if let Some(first) = devices.first().filter(|_| !options.scan.is_empty()) {
        let fsid: Uuid = oleo_volume::read_super(first.as_ref())?.fsid();
        for dir in &options.scan {
            others.extend(Volume::scan(dir, fsid)?);
        }
    }
    for other in others {
        match once(&Place::parse(&other)?, 0, false) {
            Ok(device) => devices.extend(device),
            Err(error) => left(error.of_image(&other))?,
        }
    }
    match left_out {
        Some(error) if devices.is_empty() => Err(error),
        _ => Ok(devices),
    }
}

/// Whether a file or block device is of a seed, which other volumes are made of.
fn is_seed(place: &Place, offset: u64) -> bool {
    if !place.is_file() {
        return false;
    }
    // A device that cannot be read fails where it is opened.
    let device = FileDevice::open(&place.absolute(), &FileOptions::default().offset(offset).read_in_use(true)).ok();
    let sb = device.and_then(|device| oleo_volume::read_super(&device).ok());
    sb.is_some_and(|sb| sb.flags().contains(SuperFlags::SEEDING))
}

/// Whether a device that cannot be opened may count as missing: if that is wanted, where it fails, is damaged, or is not there.
fn may_be_missing(error: &Error, options: &OpenOptions) -> bool {
    let fails = matches!(error.kind(), ErrorKind::Device | ErrorKind::Corruption);
    options.degraded && (fails || error.errno() == errno::ENOENT)
}
