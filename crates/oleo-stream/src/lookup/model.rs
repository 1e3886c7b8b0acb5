//! What a stream is about: inodes, their names, and where their commands are. And how that is gathered from commands.
//!
//! A model is a tree over that of the stream's parent. A directory has an entry for each name that the stream mentions: a node, or that
//! nothing is there any more. Names it has no entry for are those of the parent's directory, if it comes from there
//! ([`Origin::Parent`]), or not there, if the stream made it ([`Origin::New`]).

use std::collections::{BTreeMap, BTreeSet};

use oleo_format::Corruption;
use oleo_format::stream::{self, COMMAND_HEAD_LEN, COMMAND_LEN_MAX_V1, Command, CommandHead, HEADER_LEN};
use uuid::Uuid;

use crate::Limits;

/// What an index takes in memory for a node, and for each of its operations and entries, about, in bytes.
pub(super) const NODE_BYTES: usize = 160;
pub(super) const OP_BYTES: usize = 48;
pub(super) const ENTRY_BYTES: usize = 64;

/// Commands that set attributes are taken together up to so many bytes.
const ATTRS_LEN_MAX: u32 = 1 << 20;
/// No command is longer, nor are those of attributes together; bytes.
pub(super) const OP_LEN_MAX: u32 = 8 << 20;

/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// The number of a node. The root directory is 0.
pub(super) type NodeId = u32;

/// What something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileType {
    /// A file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device, a named pipe or a socket.
    Other,
}

/// Where an inode comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The stream makes it, with the command at this place, of this length; the root has none.
    New { at: u64, len: u32, kind: FileType },
    /// It is that of the parent, at this path.
    Parent(Box<[u8]>),
}

/// What contents are cloned from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// An inode of the same snapshot, as it is then.
    Here(NodeId),
    /// A path of another one, by the number of its UUID.
    Other(u32, Box<[u8]>),
}

/// What a command does to the contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Commands that write `each` bytes, `count` of them one after the other, in the file as in the stream.
    Write { at: u64, each: u32, count: u32 },
    /// A command that writes `len` bytes which are packed.
    Packed { at: u64, len: u64 },
    /// `len` bytes are those of something else.
    Clone { at: u64, len: u64, from: Source, source_at: u64 },
    /// Zeros; `grow`: the file becomes so long.
    Zeros { at: u64, len: u64, grow: bool },
    /// The size is this; what was beyond is gone.
    Truncate { size: u64 },
    /// Attributes are set, by commands up to the end of this operation.
    Attrs,
    /// Something that is not supported.
    Odd,
}

/// What commands do to an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Op {
    /// Where the first command begins.
    pub pos: u64,
    /// Bytes of each command; of [`Change::Attrs`], of all.
    pub len: u32,
    pub change: Change,
}

/// An entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Node(NodeId),
    /// There is nothing of this name any more.
    Gone,
}

/// An inode that the stream mentions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub origin: Origin,
    pub ops: Vec<Op>,
    pub entries: BTreeMap<Box<[u8]>, Entry>,
}

/// What a stream is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Model {
    /// The version of the stream.
    pub version: u32,
    /// The snapshot's UUID, and its parent's.
    pub uuid: Uuid,
    pub parent: Option<Uuid>,
    /// Those of other snapshots that it clones from.
    pub uuids: Vec<Uuid>,
    pub nodes: Vec<Node>,
}

impl Node {
    fn new(origin: Origin) -> Node {
        Node { origin, ops: Vec::new(), entries: BTreeMap::new() }
    }
}

/// The directory part of a path, and the name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (&[], path),
    }
}

/// The names of a path.
pub(super) fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|name| !name.is_empty())
}

/// A directory's path and a name, as one.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() {
        true => name.to_vec(),
        false => [dir, b"/", name].concat(),
    }
}

/// Why no index is made: the stream does what its own names do not allow.
pub(super) struct Odd;

/// Files end somewhere.
fn within(at: u64, len: u64) -> Result<(), Odd> {
    at.checked_add(len).filter(|end| *end <= i64::MAX as u64).map(drop).ok_or(Odd)
}

/// A model that grows.
pub(super) struct Growing {
    pub model: Model,
    /// What it takes in memory, about.
    pub bytes: usize,
    /// The path of the last command, and its node.
    last: Option<(Box<[u8]>, NodeId)>,
}

impl Growing {
    pub fn new(version: u32, uuid: Uuid, parent: Option<Uuid>) -> Growing {
        let origin = if parent.is_some() {
            Origin::Parent(Box::default())
        } else {
            Origin::New { at: 0, len: 0, kind: FileType::Dir }
        };
        let model = Model { version, uuid, parent, uuids: Vec::new(), nodes: vec![Node::new(origin)] };
        Growing { model, bytes: NODE_BYTES, last: None }
    }

    fn node(&mut self, id: NodeId) -> &mut Node {
        &mut self.model.nodes[id as usize]
    }

    fn add(&mut self, origin: Origin) -> Result<NodeId, Odd> {
        let id = NodeId::try_from(self.model.nodes.len()).map_err(|_| Odd)?;
        self.bytes += NODE_BYTES + if let Origin::Parent(path) = &origin { path.len() } else { 0 };
        self.model.nodes.push(Node::new(origin));
        Ok(id)
    }

    fn enter(&mut self, dir: NodeId, name: &[u8], entry: Entry) -> Option<Entry> {
        self.bytes += ENTRY_BYTES + name.len();
        self.node(dir).entries.insert(name.into(), entry)
    }

    /// What a directory has under a name; something of the parent becomes a node.
    fn child(&mut self, dir: NodeId, name: &[u8]) -> Result<NodeId, Odd> {
        let node = self.node(dir);
        match (node.entries.get(name), &node.origin) {
            (Some(Entry::Node(id)), _) => Ok(*id),
            (None, Origin::Parent(path)) => {
                let path = join(path, name).into_boxed_slice();
                let id = self.add(Origin::Parent(path))?;
                self.enter(dir, name, Entry::Node(id));
                Ok(id)
            }
            (Some(Entry::Gone), _) | (None, Origin::New { .. }) => Err(Odd),
        }
    }

    fn find(&mut self, path: &[u8]) -> Result<NodeId, Odd> {
        if let Some((known, id)) = &self.last
            && **known == *path
        {
            return Ok(*id);
        }
        let mut at = 0;
        for name in names(path) {
            at = self.child(at, name)?;
        }
        self.last = Some((path.into(), at));
        Ok(at)
    }

    /// The directory that a path is in, and the name.
    fn place<'p>(&mut self, path: &'p [u8]) -> Result<(NodeId, &'p [u8]), Odd> {
        let (dir, name) = split(path);
        if name.is_empty() {
            return Err(Odd);
        }
        let mut at = 0;
        for name in names(dir) {
            at = self.child(at, name)?;
        }
        Ok((at, name))
    }

    fn make(&mut self, path: &[u8], origin: Origin) -> Result<(), Odd> {
        let (dir, name) = self.place(path)?;
        let id = self.add(origin)?;
        self.enter(dir, name, Entry::Node(id));
        Ok(())
    }

    /// Takes a name away; returns what it was of.
    fn remove(&mut self, path: &[u8]) -> Result<NodeId, Odd> {
        let (dir, name) = self.place(path)?;
        let id = self.child(dir, name)?;
        let inherits = matches!(self.node(dir).origin, Origin::Parent(_));
        match inherits {
            true => drop(self.enter(dir, name, Entry::Gone)),
            false => drop(self.node(dir).entries.remove(name)),
        }
        self.last = None;
        Ok(id)
    }

    fn op(&mut self, path: &[u8], op: Op) -> Result<(), Odd> {
        let id = self.find(path)?;
        let ops = &mut self.node(id).ops;
        if let Some(last) = ops.last_mut()
            && last.takes(&op)
        {
            return Ok(());
        }
        ops.push(op);
        self.bytes += OP_BYTES;
        Ok(())
    }

    pub fn command(&mut self, command: &Command<'_>, at: u64, len: u32) -> Result<(), Odd> {
        let op = |change| Op { pos: at, len, change };
        match *command {
            Command::MkFile { path, .. }
            | Command::MkDir { path, .. }
            | Command::MkNod { path, .. }
            | Command::MkFifo { path, .. }
            | Command::MkSock { path, .. }
            | Command::Symlink { path, .. } => {
                let kind = match command {
                    Command::MkFile { .. } => FileType::File,
                    Command::MkDir { .. } => FileType::Dir,
                    Command::Symlink { .. } => FileType::Symlink,
                    _ => FileType::Other,
                };
                self.last = None;
                self.make(path, Origin::New { at, len, kind })
            }
            Command::Rename { path, to } => {
                let below = to.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"));
                if below {
                    return Err(Odd);
                }
                self.place(to)?;
                let id = self.remove(path)?;
                let (dir, name) = self.place(to)?;
                self.enter(dir, name, Entry::Node(id));
                Ok(())
            }
            Command::Link { path, target } => {
                let id = self.find(target)?;
                let (dir, name) = self.place(path)?;
                self.enter(dir, name, Entry::Node(id));
                self.last = None;
                Ok(())
            }
            Command::Unlink { path } | Command::RmDir { path } => self.remove(path).map(drop),
            Command::Write { path, offset, data } => {
                let each = u32::try_from(data.len()).map_err(|_| Odd)?;
                within(offset, each.into())?;
                self.op(path, op(Change::Write { at: offset, each, count: 1 }))
            }
            Command::EncodedWrite { path, offset, unencoded_file_len: len, .. } => {
                within(offset, len)?;
                self.op(path, op(Change::Packed { at: offset, len }))
            }
            Command::Clone { path, offset, len, clone_uuid, clone_path, clone_offset, .. } => {
                within(offset, len)?;
                within(clone_offset, len)?;
                let from = if clone_uuid == self.model.uuid {
                    Source::Here(self.find(clone_path)?)
                } else {
                    let known = self.model.uuids.iter().position(|uuid| *uuid == clone_uuid);
                    let number = known.unwrap_or_else(|| {
                        self.model.uuids.push(clone_uuid);
                        self.model.uuids.len() - 1
                    });
                    self.bytes += clone_path.len();
                    Source::Other(number as u32, clone_path.into())
                };
                self.op(path, op(Change::Clone { at: offset, len, from, source_at: clone_offset }))
            }
            Command::Truncate { path, size } => {
                within(size, 0)?;
                self.op(path, op(Change::Truncate { size }))
            }
            Command::Fallocate { path, mode, offset, len } => {
                within(offset, len)?;
                let grow = mode & KEEP_SIZE == 0;
                let change = match mode & !KEEP_SIZE {
                    0 if grow => Change::Zeros { at: offset.saturating_add(len), len: 0, grow },
                    0 => return Ok(()),
                    PUNCH_HOLE | ZERO_RANGE => Change::Zeros { at: offset, len, grow },
                    _ => Change::Odd,
                };
                self.op(path, op(change))
            }
            Command::SetXattr { path, .. }
            | Command::RemoveXattr { path, .. }
            | Command::Chmod { path, .. }
            | Command::Chown { path, .. }
            | Command::Utimes { path, .. }
            | Command::FileAttr { path, .. }
            | Command::EnableVerity { path, .. } => self.op(path, op(Change::Attrs)),
            Command::UpdateExtent { path, .. } => self.op(path, op(Change::Odd)),
            Command::Subvol { .. } | Command::Snapshot { .. } | Command::End => Err(Odd),
        }
    }
}

impl Op {
    /// Where the next command begins.
    pub fn end(&self) -> u64 {
        let count = if let Change::Write { count, .. } = self.change { count } else { 1 };
        self.pos.saturating_add(u64::from(self.len) * u64::from(count))
    }

    /// Takes in an operation that goes on where this one ends.
    fn takes(&mut self, next: &Op) -> bool {
        let follows = self.end() == next.pos;
        match (&mut self.change, &next.change) {
            (Change::Write { at, each, count }, Change::Write { at: next_at, each: next_each, .. }) => {
                let grown = *at + u64::from(*each) * u64::from(*count);
                let fits =
                    follows && each == next_each && self.len == next.len && grown == *next_at && *count < u32::MAX;
                *count += u32::from(fits);
                fits
            }
            (Change::Attrs, Change::Attrs) if follows && self.len + next.len <= ATTRS_LEN_MAX => {
                self.len += next.len;
                true
            }
            _ => false,
        }
    }
}

/// What an indexer has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Indexed {
    /// The index; none if it became too large, or the stream does what cannot be looked up.
    pub index: Option<Vec<u8>>,
    /// UUIDs of other snapshots that the stream clones from.
    pub clone_sources: BTreeSet<Uuid>,
    /// Whether it was one whole stream of one subvolume.
    pub complete: bool,
}

/// Makes the index of a stream from its bytes, as they come.
pub struct Indexer {
    bytes_max: usize,
    limits: Limits,
    /// The beginning of a command whose rest has not come.
    begun: Vec<u8>,
    position: u64,
    version: Option<u32>,
    uuid: Option<Uuid>,
    growing: Option<Growing>,
    clone_sources: BTreeSet<Uuid>,
    ended: bool,
    /// Whether it is no stream of one subvolume.
    failed: bool,
}

impl Indexer {
    /// Of an index that may take so many bytes of memory, about.
    pub fn new(bytes_max: usize) -> Indexer {
        Indexer {
            bytes_max,
            limits: Limits::default(),
            begun: Vec::new(),
            position: 0,
            version: None,
            uuid: None,
            growing: None,
            clone_sources: BTreeSet::new(),
            ended: false,
            failed: false,
        }
    }

    /// The next bytes of the stream.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.failed {
            if self.begun.is_empty() {
                let used = match self.whole(bytes) {
                    Ok(Some(len)) => {
                        self.take(&bytes[..len]);
                        len
                    }
                    Ok(None) => {
                        self.begun.extend_from_slice(bytes);
                        bytes.len()
                    }
                    Err(Odd) => return self.failed = true,
                };
                bytes = &bytes[used..];
                continue;
            }
            // Only as much as is missing, so that what follows is not copied.
            let missing = match self.need(&self.begun) {
                Ok(need) => need - self.begun.len(),
                Err(Odd) => return self.failed = true,
            };
            let some = missing.min(bytes.len());
            self.begun.extend_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            if matches!(self.need(&self.begun), Ok(need) if need == self.begun.len()) {
                let whole = std::mem::take(&mut self.begun);
                self.take(&whole);
            }
        }
    }

    /// How long what begins so is at least; that is all of it if so much is there.
    fn need(&self, bytes: &[u8]) -> Result<usize, Odd> {
        let Some(version) = self.version else { return Ok(HEADER_LEN) };
        let Some(head) = bytes.first_chunk::<COMMAND_HEAD_LEN>() else { return Ok(COMMAND_HEAD_LEN) };
        let len = CommandHead::parse(head).len as usize + COMMAND_HEAD_LEN;
        let most = if version == 1 { COMMAND_LEN_MAX_V1 } else { self.limits.command_len_max };
        if len > most { Err(Odd) } else { Ok(len) }
    }

    /// The length of the header or command that these bytes begin with, if all of it is there.
    fn whole(&self, bytes: &[u8]) -> Result<Option<usize>, Odd> {
        let mut need = self.need(bytes)?;
        if bytes.len() >= need {
            need = self.need(&bytes[..need])?;
        }
        Ok((bytes.len() >= need).then_some(need))
    }

    fn take(&mut self, bytes: &[u8]) {
        let at = self.position;
        self.position += bytes.len() as u64;
        let Some(version) = self.version else {
            match bytes.first_chunk().map(stream::version) {
                Some(Ok(version)) if !self.ended => self.version = Some(version),
                _ => self.failed = true,
            }
            return;
        };
        if self.command(version, at, bytes).is_err() {
            self.failed = true;
        }
    }

    fn command(&mut self, version: u32, at: u64, bytes: &[u8]) -> Result<(), Odd> {
        let (head, attrs) = bytes.split_first_chunk::<COMMAND_HEAD_LEN>().ok_or(Odd)?;
        let decoded: Result<Command<'_>, Corruption> = Command::decode(version, CommandHead::parse(head).kind, attrs);
        let command = decoded.map_err(|_| Odd)?;
        if self.ended {
            return Err(Odd);
        }
        let begins = match command {
            Command::Subvol { uuid, .. } => Some((uuid, None)),
            Command::Snapshot { uuid, clone_uuid, .. } => Some((uuid, Some(clone_uuid))),
            _ => None,
        };
        match (begins, self.uuid) {
            (Some((uuid, parent)), None) => {
                self.uuid = Some(uuid);
                self.growing = Some(Growing::new(version, uuid, parent));
                return Ok(());
            }
            (Some(_), Some(_)) | (None, None) => return Err(Odd),
            (None, Some(_)) => {}
        }
        if matches!(command, Command::End) {
            self.ended = true;
            return Ok(());
        }
        if let Command::Clone { clone_uuid, .. } = command
            && Some(clone_uuid) != self.uuid
        {
            self.clone_sources.insert(clone_uuid);
        }
        if let Some(growing) = &mut self.growing {
            let done = growing.command(&command, at, bytes.len() as u32);
            // Without an index the stream is as good as ever.
            if done.is_err() || growing.bytes > self.bytes_max {
                self.growing = None;
            }
        }
        Ok(())
    }

    /// The index of all that came.
    pub fn finish(self) -> Indexed {
        let complete = self.ended && !self.failed && self.begun.is_empty();
        let index = self.growing.filter(|_| complete).map(|growing| growing.model.encode());
        Indexed { index, clone_sources: self.clone_sources, complete }
    }
}
