//! Paths through a chain of streams.
//!
//! A path of a snapshot is walked in its stream's model. Where that has no entry for a name, and the directory comes from the parent,
//! the walk goes on in the parent's model, with the directory's path there. So a path leads to the last stream that mentions it; from there the inode
//! is followed back by its path in each parent, to the stream that made it.
//!
//! With one name at all times, what was met on the way is all that the streams have of the inode. With several, a stream may mention it by
//! another one; then all names are followed forward again from where it was made.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::OnceLock;

use oleo_format::Corruption;
use uuid::Uuid;

use super::model::{Entry, FileType, Model, NodeId, Op, Origin, join, names};
use super::scan::Scanned;
use super::{LookupError, Steps, shown, wrong};

/// Names of one inode that are followed.
const NAMES_MAX: usize = 1 << 16;
/// Bytes of all its paths together.
const NAMES_BYTES_MAX: usize = 64 << 20;
/// The longest path that is followed, bytes: longer than systems take.
pub(super) const PATH_LEN_MAX: usize = 64 << 10;
/// Subvolumes that are looked at together: snapshots of every day of two years, and as many that are sent whole.
const SCANNED_MAX: usize = 1024;

/// Directories and names in them.
type Names = Vec<(NodeId, Box<[u8]>)>;

/// A stream of a chain, for [`Chain::new`].
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// The snapshot's UUID.
    pub uuid: Uuid,
    /// Which link of the chain it is built on; an earlier one.
    pub parent: Option<usize>,
    /// Its index.
    pub index: &'a [u8],
}

pub(super) struct Part {
    pub model: Model,
    pub parent: Option<usize>,
    /// Nodes of inodes of the parent, by their path there.
    by_origin: HashMap<Box<[u8]>, NodeId>,
    /// How many names each node has.
    links: Vec<u32>,
    /// The names of each node, and the directories they are in; made when an inode with several names is met.
    places: OnceLock<HashMap<NodeId, Names>>,
}

/// The indexes of a snapshot and of all it is built on.
pub struct Chain {
    pub(super) parts: Vec<Part>,
    /// The links of each snapshot, in their order.
    by_uuid: HashMap<Uuid, Vec<usize>>,
}

/// What streams have of an inode: nodes, from the oldest to the newest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Inode {
    pub nodes: Vec<(usize, NodeId)>,
    /// Whether it has had several names.
    pub linked: bool,
}

/// What is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What it is.
    pub kind: FileType,
    /// How long it is, if it is a file; bytes.
    pub size: u64,
    pub(super) inode: Inode,
}

impl Chain {
    /// Of these streams, each behind what it is built on. The last one is the snapshot that is looked at. All together take
    /// `bytes_max` of memory at most, about.
    ///
    /// # Errors
    /// An index is damaged, or is that of another stream, or they take more memory.
    pub fn new(links: &[Link<'_>], mut bytes_max: usize) -> Result<Chain, LookupError> {
        let mut parts = Vec::with_capacity(links.len());
        for (number, link) in links.iter().enumerate() {
            let model = Model::decode(link.index, &mut bytes_max).map_err(|e| match e {
                LookupError::Corrupt(e) => e.within(link.uuid).into(),
                other => other,
            })?;
            if model.uuid != link.uuid {
                return Err(wrong("uuid", model.uuid, link.uuid).into());
            }
            let parent = link.parent.and_then(|parent| links.get(parent));
            if model.parent != parent.map(|parent| parent.uuid) || link.parent.is_some_and(|parent| parent >= number) {
                return Err(
                    wrong("parent", format!("{:?}", model.parent), format!("{:?}", parent.map(|p| p.uuid))).into()
                );
            }
            parts.push(Part::new(model, link.parent));
        }
        Chain::of(parts)
    }

    /// Of all subvolumes of some inputs, which are named by numbers. Returns the number of the input of each link, too.
    ///
    /// # Errors
    /// A subvolume is built on one that is not among them, or there are too many.
    pub fn of_scanned(found: Vec<(usize, Scanned)>) -> Result<(Chain, Vec<usize>), LookupError> {
        if found.len() > SCANNED_MAX {
            return Err(LookupError::Unsupported(format!("more than {SCANNED_MAX} subvolumes in the streams")));
        }
        let (mut parts, mut inputs) = (Vec::new(), Vec::new());
        let mut there: HashMap<Uuid, usize> = HashMap::new();
        let mut waiting: HashMap<Uuid, Vec<(usize, Model)>> = HashMap::new();
        let mut ready = VecDeque::new();
        for (input, Scanned { model }) in found {
            match model.parent {
                None => ready.push_back((input, model)),
                Some(uuid) => waiting.entry(uuid).or_default().push((input, model)),
            }
        }
        while let Some((input, model)) = ready.pop_front() {
            let parent = model.parent.and_then(|uuid| there.get(&uuid).copied());
            there.insert(model.uuid, parts.len());
            ready.extend(waiting.remove(&model.uuid).into_iter().flatten());
            parts.push(Part::new(model, parent));
            inputs.push(input);
        }
        match waiting.keys().min() {
            Some(uuid) => Err(LookupError::NotFound(format!("the stream of {uuid}, which another is built on,"))),
            None => Ok((Chain::of(parts)?, inputs)),
        }
    }

    fn of(parts: Vec<Part>) -> Result<Chain, LookupError> {
        if parts.is_empty() {
            return Err(wrong("streams", 0, "1 or more").into());
        }
        let mut by_uuid: HashMap<Uuid, Vec<usize>> = HashMap::new();
        for (number, part) in parts.iter().enumerate() {
            by_uuid.entry(part.model.uuid).or_default().push(number);
        }
        Ok(Chain { parts, by_uuid })
    }

    /// How many snapshots there are; the last one is that which is looked at.
    pub fn links(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn last(&self) -> usize {
        self.parts.len() - 1
    }

    /// The link and node that a path of a snapshot leads to, if there is something.
    pub(super) fn locate(&self, mut link: usize, path: &[u8]) -> Option<(usize, NodeId)> {
        let mut path = path.to_vec();
        'link: loop {
            let part = &self.parts[link];
            let mut at = 0;
            let mut rest = names(&path);
            while let Some(name) = rest.next() {
                let node = &part.model.nodes[at as usize];
                match (node.entries.get(name), &node.origin, part.parent) {
                    (Some(Entry::Node(id)), ..) => at = *id,
                    (None, Origin::Parent(before), Some(parent)) => {
                        let mut next = join(before, name);
                        for name in rest {
                            next.push(b'/');
                            next.extend_from_slice(name);
                        }
                        (link, path) = (parent, next);
                        continue 'link;
                    }
                    _ => return None,
                }
            }
            return Some((link, at));
        }
    }

    /// An inode that a node is of, as it is in the snapshot of `link`.
    pub(super) fn inode(&self, link: usize, node: (usize, NodeId), steps: &mut Steps) -> Result<Inode, LookupError> {
        let mut nodes = vec![node];
        let mut at = node;
        while let Origin::Parent(path) = &self.parts[at.0].model.nodes[at.1 as usize].origin {
            let missing = || wrong("origin of a node", shown(path), "a path of the parent");
            // Each parent is an earlier link.
            let parent = self.parts[at.0].parent.ok_or_else(missing)?;
            at = self.locate(parent, path).ok_or_else(missing)?;
            steps.take(1)?;
            nodes.push(at);
        }
        nodes.reverse();
        let linked = nodes.iter().any(|(link, id)| self.parts[*link].links[*id as usize] > 1);
        if !linked {
            return Ok(Inode { nodes, linked });
        }
        let (first, id) = nodes[0];
        let mut later = Vec::new();
        let mut on = link;
        while on > first {
            later.push(on);
            let Some(parent) = self.parts[on].parent else { break };
            on = parent;
        }
        let mut nodes = vec![(first, id)];
        let mut paths = self.parts[first].paths(id)?;
        for link in later.into_iter().rev() {
            let part = &self.parts[link];
            let (mut ids, mut next) = (BTreeSet::new(), BTreeSet::new());
            steps.take(paths.len() as u64)?;
            for path in &paths {
                match part.by_origin.get(path.as_slice()) {
                    Some(id) => drop(ids.insert(*id)),
                    None => next.extend(part.forwarded(path)?),
                }
            }
            for id in ids {
                nodes.push((link, id));
                next.extend(part.paths(id)?);
            }
            if next.len() > NAMES_MAX {
                return Err(too_many_names());
            }
            paths = next;
        }
        Ok(Inode { nodes, linked })
    }

    /// What is at a path of the snapshot of a link.
    pub(super) fn at(&self, link: usize, path: &[u8], steps: &mut Steps) -> Result<Option<Inode>, LookupError> {
        self.locate(link, path).map(|node| self.inode(link, node, steps)).transpose()
    }

    pub(super) fn found(&self, inode: Inode) -> Found {
        let (link, id) = inode.nodes[0];
        let kind = match self.parts[link].model.nodes[id as usize].origin {
            Origin::New { kind, .. } => kind,
            // Not followed to its end only if it is the root.
            Origin::Parent(_) => FileType::Dir,
        };
        let size = if kind == FileType::File { self.size(&inode) } else { 0 };
        Found { kind, size, inode }
    }

    /// What is at a path of the snapshot.
    ///
    /// # Errors
    /// There is nothing, or an index is damaged.
    pub fn find(&self, path: &[u8]) -> Result<Found, LookupError> {
        let inode =
            self.at(self.last(), path, &mut Steps::default())?.ok_or_else(|| LookupError::NotFound(shown(path)))?;
        Ok(self.found(inode))
    }

    /// The names in a directory of the snapshot.
    ///
    /// # Errors
    /// There is none, or an index is damaged.
    pub fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, LookupError> {
        if self.find(path)?.kind != FileType::Dir {
            return Err(LookupError::Type(shown(path), "directory"));
        }
        let mut seen: BTreeMap<&[u8], bool> = BTreeMap::new();
        let mut at = self.locate(self.last(), path);
        while let Some((link, id)) = at {
            let part = &self.parts[link];
            let node = &part.model.nodes[id as usize];
            for (name, entry) in &node.entries {
                seen.entry(name).or_insert(matches!(entry, Entry::Node(_)));
            }
            at = match (&node.origin, part.parent) {
                (Origin::Parent(before), Some(parent)) => self.locate(parent, before),
                _ => None,
            };
        }
        Ok(seen.into_iter().filter(|(_, there)| *there).map(|(name, _)| name.to_vec()).collect())
    }

    /// What streams do to an inode, in their order.
    pub(super) fn ops<'c>(&'c self, inode: &Inode) -> Vec<(usize, &'c Op)> {
        let of = |(link, id): &(usize, NodeId)| {
            let link = *link;
            self.parts[link].model.nodes[*id as usize].ops.iter().map(move |op| (link, op))
        };
        let mut ops: Vec<(usize, &Op)> = inode.nodes.iter().flat_map(of).collect();
        // Nodes of the same stream are the same inode under different names.
        ops.sort_by_key(|(link, op)| (*link, op.pos));
        ops
    }

    /// The link of a snapshot that something in a stream is cloned from.
    pub(super) fn source(&self, link: usize, uuid: u32) -> Result<usize, Corruption> {
        let part = &self.parts[link];
        let uuid = part.model.uuids[uuid as usize];
        let is_it = |link: &usize| self.parts[*link].model.uuid == uuid;
        let before = || {
            let links = self.by_uuid.get(&uuid)?;
            links[..links.partition_point(|known| *known < link)].last().copied()
        };
        let found = part.parent.filter(is_it).or_else(before);
        found.ok_or_else(|| wrong("source of a clone", uuid, "a stream of the chain"))
    }
}

impl Part {
    fn new(model: Model, parent: Option<usize>) -> Part {
        let mut links = vec![0u32; model.nodes.len()];
        for entry in model.nodes.iter().flat_map(|node| node.entries.values()) {
            if let Entry::Node(id) = entry {
                links[*id as usize] += 1;
            }
        }
        let origin = |(id, node): (usize, &super::model::Node)| match &node.origin {
            Origin::Parent(path) => Some((path.clone(), id as NodeId)),
            Origin::New { .. } => None,
        };
        let by_origin = model.nodes.iter().enumerate().filter_map(origin).collect();
        Part { model, parent, by_origin, links, places: OnceLock::new() }
    }

    fn places(&self, id: NodeId) -> &[(NodeId, Box<[u8]>)] {
        let places = self.places.get_or_init(|| {
            let mut places: HashMap<NodeId, Names> = HashMap::new();
            for (dir, node) in self.model.nodes.iter().enumerate() {
                for (name, entry) in &node.entries {
                    if let Entry::Node(id) = entry {
                        places.entry(*id).or_default().push((dir as NodeId, name.clone()));
                    }
                }
            }
            places
        });
        places.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The path of a directory; none if it is not there any more.
    fn dir_path(&self, mut id: NodeId) -> Result<Option<Vec<u8>>, LookupError> {
        let (mut names, mut len) = (Vec::new(), 0);
        while id != 0 {
            let Some((dir, name)) = self.places(id).first() else { return Ok(None) };
            names.push(&**name);
            len += name.len() + 1;
            id = *dir;
            if names.len() > self.model.nodes.len() {
                return Err(wrong("directories", "a circle", "a tree").into());
            }
            if len > PATH_LEN_MAX {
                return Err(LookupError::Unsupported(format!("a path is longer than {PATH_LEN_MAX} bytes")));
            }
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }

    /// All paths of a node.
    fn paths(&self, id: NodeId) -> Result<BTreeSet<Vec<u8>>, LookupError> {
        if id == 0 {
            return Ok([Vec::new()].into());
        }
        let places = self.places(id);
        if places.len() > NAMES_MAX {
            return Err(too_many_names());
        }
        let (mut out, mut bytes) = (BTreeSet::new(), 0);
        for (dir, name) in places {
            let path = self.dir_path(*dir)?.map(|path| join(&path, name));
            bytes += path.as_ref().map_or(0, Vec::len);
            out.extend(path);
            if bytes > NAMES_BYTES_MAX {
                return Err(too_many_names());
            }
        }
        Ok(out)
    }

    /// Where something of the parent is in this snapshot which this stream does not mention.
    fn forwarded(&self, path: &[u8]) -> Result<Option<Vec<u8>>, LookupError> {
        let mut cut = path.len();
        let (dir, rest) = loop {
            cut = path[..cut].iter().rposition(|b| *b == b'/').unwrap_or(0);
            if let Some(id) = self.by_origin.get(&path[..cut]) {
                break (*id, &path[cut..]);
            }
            if cut == 0 {
                return Err(wrong("origin of the root", "none", "the parent's").into());
            }
        };
        // Under that name is something else now, or nothing.
        let first = names(rest).next().unwrap_or_default();
        if self.model.nodes[dir as usize].entries.contains_key(first) {
            return Ok(None);
        }
        Ok(self.dir_path(dir)?.map(|path| names(rest).fold(path, |path, name| join(&path, name))))
    }
}

fn too_many_names() -> LookupError {
    LookupError::Unsupported(format!("a file has more than {NAMES_MAX} names, or they are too long"))
}
