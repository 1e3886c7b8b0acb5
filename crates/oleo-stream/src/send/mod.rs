//! Send: makes a stream from a read-only subvolume and from what the receiver has already.
//!
//! Normal path ([`send`]): (1) choose parent and clone sources (`choose`); (2) a first walk over the difference of
//! parent and subvolume finds all changes of names and directories, and sends them (`names`): from then on every path
//! is that of the subvolume; (3) a second walk sends inodes in rising order (`inodes`) with their contents
//! (`contents`), which are cloned if the receiver has them (`index`, `sources`); (4) directories come last. Data is
//! read and encoded on all cores, behind the walk, and written in order (`pipe`).
//!
//! The stream depends on the trees alone: the same subvolumes give the same bytes, whatever the number of threads.
//!
//! A walk skips what both trees share, so the cost of an incremental send is that of the changes. Memory: names that
//! changed, directories that are new, the index of what can be cloned (bounded), batches under way (bounded). Nothing
//! on disk is changed, and no lock is held: trees of read-only subvolumes are values. Their space is not reused while
//! the engine's reader is held.
//!
//! Not here: applying streams (`receive`), opening images, choosing subvolumes by path.

mod choose;
mod contents;
mod error;
mod index;
mod inodes;
mod names;
mod paths;
mod pipe;
mod segments;
mod sources;
mod verity;
mod walk;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use oleo_format::stream::{Command, VERSION_MAX};
use oleo_format::{Ino, ItemType, Key, TreeId};
use oleo_fs::{Fs, SubvolInfo, errno};
use oleo_txn::Engine;
use uuid::Uuid;

pub use error::SendError;

use contents::{Contents, Form};
use index::Index;
use inodes::Inodes;
use pipe::{Counts, Pipe};
use sources::{Source, Sources};
use walk::Sides;

/// Bytes of one range in the index of what can be cloned, with all around it.
const INDEX_RANGE_BYTES: usize = 96;

/// Called now and then with how far it is; it may stop the send.
pub type Hook<'o> = dyn Fn(&Progress) -> ControlFlow<()> + Sync + 'o;

/// What to send, and how.
#[derive(Clone)]
#[non_exhaustive]
pub struct SendOptions<'o> {
    /// The receiver has this one; the stream turns a snapshot of it into the subvolume.
    pub parent: Option<TreeId>,
    /// The receiver has these too; what they share is cloned. If no parent is given, the best of them becomes it.
    pub clone_sources: Vec<TreeId>,
    /// The transaction to name as that of its last change, in place of its own: that of the original, for one that was received and
    /// is to be known as it.
    pub ctransid: Option<u64>,
    /// Version of the stream, 1 to 3.
    pub version: u32,
    /// Compressed extents are sent as they are stored; from version 2 on.
    pub compressed: bool,
    /// No contents, only which ranges changed.
    pub no_data: bool,
    /// Of several subvolumes, one header in front and one END behind all.
    pub one_end: bool,
    /// Bytes of memory, about: an eighth for data that is under way, the rest for the index of what can be cloned.
    pub memory_bytes: usize,
    /// Threads that read and encode; 0: as many as there are cores.
    pub threads: usize,
    /// Called now and then; it may stop the send.
    pub progress: Option<&'o Hook<'o>>,
}

impl Default for SendOptions<'_> {
    fn default() -> Self {
        SendOptions {
            parent: None,
            clone_sources: Vec::new(),
            ctransid: None,
            version: 1,
            compressed: false,
            no_data: false,
            one_end: false,
            memory_bytes: 256 << 20,
            threads: 0,
            progress: None,
        }
    }
}

oleo_format::setters!(SendOptions<'o> {
    parent: Option<TreeId>,
    clone_sources: Vec<TreeId>,
    ctransid: Option<u64>,
    version: u32,
    compressed: bool,
    no_data: bool,
    one_end: bool,
    memory_bytes: usize,
    threads: usize,
    progress: Option<&'o Hook<'o>>,
});

/// How far a send is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Inodes processed.
    pub inodes: u64,
    /// The current inode. The number rises; directories come again at the end.
    pub at_inode: u64,
    /// The last one of the subvolume.
    pub last_inode: u64,
    /// Bytes of the stream that were written.
    pub bytes: u64,
}

/// What was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Commands in it.
    pub commands: u64,
    /// Bytes of contents in it.
    pub data_bytes: u64,
    /// Commands that clone.
    pub clones: u64,
    /// Bytes of contents that are cloned.
    pub cloned_bytes: u64,
    /// Bytes in extents that were compared and that the receiver has in the same place.
    pub same_bytes: u64,
    /// How often the references of an extent were looked up in the extent tree.
    pub lookups: u64,
}

/// Writes a stream of subvolumes, in this order.
///
/// # Errors
/// A subvolume, parent or clone source does not exist or is not read-only; the version does not support a request; the
/// image is damaged; the stream cannot be written; or progress returned `Break`. What was written until then is the
/// beginning of a stream without its end.
pub fn send(
    fs: &Fs,
    subvols: &[TreeId],
    options: &SendOptions<'_>,
    out: &mut (dyn Write + Send),
) -> Result<Sent, SendError> {
    if !(1..=VERSION_MAX).contains(&options.version) {
        let text = format!("there is no stream of version {}; versions are 1 to {VERSION_MAX}", options.version);
        return Err(SendError::refused(errno::EINVAL, text));
    }
    if options.compressed && options.version < 2 {
        let text = "compressed data needs a stream of version 2 or higher";
        return Err(SendError::refused(errno::EINVAL, text));
    }
    if !fs.options().read_only {
        fs.sync()?;
    }
    let engine = fs.engine();
    let _reader = engine.reader();
    let jobs = choose::jobs(fs, subvols, options)?;
    let counts = Counts::default();
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let mut sent = Sent::default();
    pipe::run(engine, options.version, options.memory_bytes / 8, threads, &counts, out, |pipe| {
        let last = jobs.len().saturating_sub(1);
        for (number, job) in jobs.iter().enumerate() {
            if number == 0 || !options.one_end {
                pipe.header();
            }
            one(engine, job, options, pipe, &mut sent)?;
            if number == last || !options.one_end {
                pipe.command(&Command::End)?;
            }
        }
        Ok(())
    })?;
    sent.bytes = counts.bytes.load(Ordering::Relaxed);
    sent.commands = counts.commands.load(Ordering::Relaxed);
    sent.data_bytes = counts.data_bytes.load(Ordering::Relaxed);
    sent.same_bytes += counts.same_bytes.load(Ordering::Relaxed);
    Ok(sent)
}

/// A subvolume to send.
struct Job {
    subvol: SubvolInfo,
    parent: Option<SubvolInfo>,
    /// Without the parent.
    clone_sources: Vec<SubvolInfo>,
}

/// What receivers know a subvolume by: that which it was itself received from, if it was.
fn known_by(info: &SubvolInfo) -> Uuid {
    if info.received_uuid.is_nil() { info.uuid } else { info.received_uuid }
}

fn source<'e>(engine: &'e Engine, info: &SubvolInfo) -> Result<Source<'e>, SendError> {
    let root = engine.root(info.id)?.ok_or(oleo_fs::FsError::NotFound)?;
    Ok(Source::new(engine.blocks(), root, known_by(info), info.ctransid))
}

fn one(
    engine: &Engine,
    job: &Job,
    options: &SendOptions<'_>,
    pipe: &mut Pipe<'_>,
    sent: &mut Sent,
) -> Result<(), SendError> {
    let mut list = vec![source(engine, &job.subvol)?];
    for info in job.parent.iter().chain(&job.clone_sources) {
        list.push(source(engine, info)?);
    }
    let sides = Sides {
        blocks: engine.blocks(),
        old: job.parent.is_some().then(|| list[1].root.clone()),
        new: list[0].root.clone(),
    };
    let name = job.subvol.place.as_ref().map_or(Vec::new(), |place| place.name.clone());
    let (uuid, ctransid) = (known_by(&job.subvol), options.ctransid.unwrap_or(job.subvol.ctransid));
    match &job.parent {
        None => pipe.command(&Command::Subvol { path: &name, uuid, ctransid })?,
        Some(parent) => pipe.command(&Command::Snapshot {
            path: &name,
            uuid,
            ctransid,
            clone_uuid: known_by(parent),
            clone_ctransid: parent.ctransid,
        })?,
    }
    let plan = names::collect(&sides)?;
    let left = plan.run(&sides, &mut list[0].paths, options.version, &mut |command| pipe.command(command))?;
    let ranges_max = options.memory_bytes / 8 * 7 / INDEX_RANGE_BYTES;
    let mut index = Index::new(ranges_max, u64::from(engine.sectorsize()));
    let mut sources = Sources::new(engine, list);
    let whole = job.parent.is_none();
    if whole && !options.no_data {
        sources.enter_all(&mut index)?;
    }
    let form = Form { version: options.version, compressed: options.compressed, no_data: options.no_data };
    let mut contents = Contents::new(engine, pipe, sources, index, form);
    contents.ask = !whole;
    let last = Key::new(Ino::LAST.0, ItemType(u8::MAX), u64::MAX);
    let mut cursor = engine.blocks().cursor(&sides.new);
    cursor.seek_back(&last)?;
    let last_inode = cursor.key().map_or(0, |key| key.objectid);
    let hook = options.progress.map(|hook| (hook, last_inode));
    let mut inodes = Inodes::new(&mut contents, &sides, hook);
    walk::walk(&sides, &mut inodes)?;
    let touched = left.top_touched.then_some(Ino::ROOT_DIR.0);
    inodes.directories(&left.bare, touched.as_slice())?;
    sent.clones += contents.saved.clones;
    sent.cloned_bytes += contents.saved.cloned;
    sent.same_bytes += contents.saved.same;
    sent.lookups += contents.sources.lookups;
    Ok(())
}
