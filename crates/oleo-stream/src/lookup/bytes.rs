//! An index as bytes.
//!
//! `OLEOSTRX`, version 1 (4 bytes); the store has checksums. Then numbers, seven bits a byte, the low ones first, the
//! last byte below 128; and byte strings, their length before them:
//!
//! version of the stream; uuid 16; 0, or 1 and the parent's uuid 16; count of uuids, each 16; count of nodes; nodes.
//!
//! A node: origin (0 new, place, length, type; 1 path in the parent); count of operations; operations; count of entries, in the order
//! of their names; entries (name, number of the node + 1, or 0: gone).
//! An operation: kind, place in the stream, length of a command, and what [`Change`] has, in its order.

use std::collections::BTreeMap;

use oleo_format::Corruption;
use oleo_format::stream::VERSION_MAX;
use uuid::Uuid;

use super::model::{
    Change, ENTRY_BYTES, Entry, FileType, Model, NODE_BYTES, Node, OP_BYTES, OP_LEN_MAX, Op, Origin, Source,
};
use super::{LookupError, wrong};

const MAGIC: [u8; 8] = *b"OLEOSTRX";
const VERSION: u32 = 1;

fn number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

impl Model {
    /// Its bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        number(&mut out, self.version.into());
        out.extend_from_slice(self.uuid.as_bytes());
        number(&mut out, self.parent.is_some().into());
        out.extend(self.parent.iter().flat_map(|uuid| *uuid.as_bytes()));
        number(&mut out, self.uuids.len() as u64);
        out.extend(self.uuids.iter().flat_map(|uuid| *uuid.as_bytes()));
        number(&mut out, self.nodes.len() as u64);
        self.nodes.iter().for_each(|node| encode_node(&mut out, node));
        out
    }

    /// Reads it. It may be anything. The memory that it takes, about, is subtracted from `bytes_max`; more is refused.
    pub(super) fn decode(bytes: &[u8], bytes_max: &mut usize) -> Result<Model, LookupError> {
        let mut from = Reader { rest: bytes, memory: *bytes_max, is_too_much: false };
        match Model::read(&mut from) {
            Ok(model) => {
                *bytes_max = from.memory;
                Ok(model)
            }
            Err(_) if from.is_too_much => {
                Err(LookupError::Unsupported("the index is about more files than there is memory for".into()))
            }
            Err(e) => Err(e.into()),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Model, Corruption> {
        let magic = from.take(8)?;
        if magic != MAGIC {
            return Err(wrong("magic", format!("{magic:02x?}"), "OLEOSTRX"));
        }
        let version = from.take(4)?;
        if version != VERSION.to_le_bytes() {
            return Err(wrong("version", format!("{version:02x?}"), VERSION));
        }
        let version = from.number_below(u64::from(VERSION_MAX) + 1, "version of the stream")? as u32;
        let uuid = from.uuid()?;
        let parent = match from.number_below(2, "parent")? {
            0 => None,
            _ => Some(from.uuid()?),
        };
        let count = from.count(16)?;
        from.spend(count, 16)?;
        let uuids = (0..count).map(|_| from.uuid()).collect::<Result<Vec<_>, _>>()?;
        let count = from.count(4)?;
        from.spend(count, NODE_BYTES)?;
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            nodes.push(decode_node(from, count as u64, uuids.len() as u64)?);
        }
        if !from.rest.is_empty() {
            return Err(wrong("bytes behind its nodes", from.rest.len(), 0));
        }
        let model = Model { version, uuid, parent, uuids, nodes };
        model.check()?;
        Ok(model)
    }

    /// What is more than the form of single nodes: there is a root, it comes from where the stream does, and no directory is in two places.
    fn check(&self) -> Result<(), Corruption> {
        let root = self.nodes.first().ok_or_else(|| wrong("nodes", 0, "1 or more"))?;
        let from_parent = matches!(root.origin, Origin::Parent(_));
        if from_parent != self.parent.is_some() {
            return Err(wrong("origin of the root", from_parent, self.parent.is_some()));
        }
        let has_parent = |node: &Node| matches!(node.origin, Origin::New { .. }) || self.parent.is_some();
        if !self.nodes.iter().all(has_parent) {
            return Err(wrong("origin of a node", "a parent", "none, as the stream"));
        }
        let mut named = vec![false; self.nodes.len()];
        named[0] = true;
        for entry in self.nodes.iter().flat_map(|node| node.entries.values()) {
            let Entry::Node(id) = entry else { continue };
            let again = std::mem::replace(&mut named[*id as usize], true);
            if again && (*id == 0 || !self.nodes[*id as usize].entries.is_empty()) {
                return Err(wrong("places of a directory", 2, 1));
            }
        }
        Ok(())
    }
}

fn kind_number(kind: FileType) -> u64 {
    match kind {
        FileType::File => 0,
        FileType::Dir => 1,
        FileType::Symlink => 2,
        FileType::Other => 3,
    }
}

fn encode_node(out: &mut Vec<u8>, node: &Node) {
    match &node.origin {
        Origin::New { at, len, kind } => {
            [0, *at, u64::from(*len), kind_number(*kind)].iter().for_each(|n| number(out, *n));
        }
        Origin::Parent(path) => {
            number(out, 1);
            string(out, path);
        }
    }
    number(out, node.ops.len() as u64);
    for Op { pos, len, change } in &node.ops {
        let kind = match change {
            Change::Write { .. } => 0,
            Change::Packed { .. } => 1,
            Change::Clone { from: Source::Here(_), .. } => 2,
            Change::Clone { from: Source::Other(..), .. } => 3,
            Change::Zeros { .. } => 4,
            Change::Truncate { .. } => 5,
            Change::Attrs => 6,
            Change::Odd => 7,
        };
        let mut numbers = |list: &[u64]| list.iter().for_each(|n| number(out, *n));
        numbers(&[kind, *pos, u64::from(*len)]);
        match change {
            Change::Write { at, each, count } => numbers(&[*at, u64::from(*each), u64::from(*count)]),
            Change::Packed { at, len } => numbers(&[*at, *len]),
            Change::Clone { at, len, from: Source::Here(id), source_at } => {
                numbers(&[*at, *len, u64::from(*id), *source_at]);
            }
            Change::Clone { at, len, from: Source::Other(uuid, path), source_at } => {
                numbers(&[*at, *len, u64::from(*uuid), *source_at]);
                string(out, path);
            }
            Change::Zeros { at, len, grow } => numbers(&[*at, *len, u64::from(*grow)]),
            Change::Truncate { size } => numbers(&[*size]),
            Change::Attrs | Change::Odd => {}
        }
    }
    number(out, node.entries.len() as u64);
    for (name, entry) in &node.entries {
        string(out, name);
        number(out, if let Entry::Node(id) = entry { u64::from(*id) + 1 } else { 0 });
    }
}

fn decode_node(from: &mut Reader<'_>, nodes: u64, uuids: u64) -> Result<Node, Corruption> {
    let origin = match from.number_below(2, "origin")? {
        0 => Origin::New { at: from.number()?, len: from.command_len()?, kind: from.kind()? },
        _ => Origin::Parent(from.path()?),
    };
    let count = from.count(3)?;
    from.spend(count, OP_BYTES)?;
    let mut ops = Vec::with_capacity(count);
    let mut last = 0;
    for _ in 0..count {
        let op = decode_op(from, nodes, uuids)?;
        if op.pos < last {
            return Err(wrong("place of an operation", op.pos, format!("{last} or more")));
        }
        last = op.pos;
        ops.push(op);
    }
    let count = from.count(2)?;
    from.spend(count, ENTRY_BYTES)?;
    let mut entries = BTreeMap::new();
    let mut before: Option<&[u8]> = None;
    for _ in 0..count {
        let name = from.string()?;
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            return Err(wrong("name", name.escape_ascii(), "one that can be"));
        }
        if before.is_some_and(|before| before >= name) {
            return Err(wrong("name", name.escape_ascii(), "behind the one before"));
        }
        before = Some(name);
        from.spend(1, name.len())?;
        let entry = match from.number_below(nodes + 1, "node of an entry")? {
            0 => Entry::Gone,
            id => Entry::Node((id - 1) as u32),
        };
        entries.insert(name.into(), entry);
    }
    Ok(Node { origin, ops, entries })
}

fn decode_op(from: &mut Reader<'_>, nodes: u64, uuids: u64) -> Result<Op, Corruption> {
    let kind = from.number_below(8, "kind of an operation")?;
    let (pos, len) = (from.number()?, from.command_len()?);
    let range = |from: &mut Reader<'_>| -> Result<(u64, u64), Corruption> {
        let (at, len) = (from.number()?, from.number()?);
        match at.checked_add(len) {
            Some(end) if end <= i64::MAX as u64 => Ok((at, len)),
            _ => Err(wrong("end of a range", at, "below 2^63")),
        }
    };
    let change = match kind {
        0 => {
            let at = from.number()?;
            let (each, count) = (from.number_u32("length of a write")?, from.number_u32("count of writes")?);
            let whole = u64::from(each) * u64::from(count);
            let fits = at.checked_add(whole).is_some_and(|end| end <= i64::MAX as u64);
            if !fits || count == 0 || pos.checked_add(u64::from(len) * u64::from(count)).is_none() {
                return Err(wrong("end of writes", at, "below 2^63"));
            }
            Change::Write { at, each, count }
        }
        1 => {
            let (at, len) = range(from)?;
            Change::Packed { at, len }
        }
        2 | 3 => {
            let (at, len) = range(from)?;
            let number = from.number_below(if kind == 2 { nodes } else { uuids }, "source of a clone")? as u32;
            let source_at = from.number()?;
            if source_at.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
                return Err(wrong("end of a clone's source", source_at, "below 2^63"));
            }
            let from = if kind == 2 { Source::Here(number) } else { Source::Other(number, from.path()?) };
            Change::Clone { at, len, from, source_at }
        }
        4 => {
            let (at, len) = range(from)?;
            Change::Zeros { at, len, grow: from.number_below(2, "growth")? == 1 }
        }
        5 => {
            let size = from.number()?;
            if size > i64::MAX as u64 {
                return Err(wrong("size", size, "below 2^63"));
            }
            Change::Truncate { size }
        }
        6 => Change::Attrs,
        _ => Change::Odd,
    };
    Ok(Op { pos, len, change })
}

struct Reader<'b> {
    rest: &'b [u8],
    /// Bytes of memory that are left.
    memory: usize,
    is_too_much: bool,
}

impl<'b> Reader<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], Corruption> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or_else(|| wrong("length", self.rest.len(), len))?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes memory for `count` of `each` bytes.
    fn spend(&mut self, count: usize, each: usize) -> Result<(), Corruption> {
        let rest = count.checked_mul(each).and_then(|bytes| self.memory.checked_sub(bytes));
        self.is_too_much |= rest.is_none();
        self.memory = rest.ok_or_else(|| wrong("memory", count, self.memory))?;
        Ok(())
    }

    fn number(&mut self) -> Result<u64, Corruption> {
        let mut out = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let part = u64::from(byte & 0x7f);
            if (part << shift) >> shift != part {
                break;
            }
            out |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(out);
            }
        }
        Err(wrong("number", "more than 64 bits", "64 bits"))
    }

    fn number_below(&mut self, bound: u64, what: &'static str) -> Result<u64, Corruption> {
        match self.number()? {
            n if n < bound => Ok(n),
            n => Err(wrong(what, n, format!("less than {bound}"))),
        }
    }

    fn number_u32(&mut self, what: &'static str) -> Result<u32, Corruption> {
        Ok(self.number_below(1 << 32, what)? as u32)
    }

    fn command_len(&mut self) -> Result<u32, Corruption> {
        Ok(self.number_below(u64::from(OP_LEN_MAX) + 1, "length of a command")? as u32)
    }

    fn kind(&mut self) -> Result<FileType, Corruption> {
        Ok(match self.number_below(4, "type")? {
            0 => FileType::File,
            1 => FileType::Dir,
            2 => FileType::Symlink,
            _ => FileType::Other,
        })
    }

    /// How many there are of what takes at least `least` bytes each.
    fn count(&mut self, least: u64) -> Result<usize, Corruption> {
        let most = self.rest.len() as u64 / least;
        Ok(self.number_below(most + 1, "count")? as usize)
    }

    fn string(&mut self) -> Result<&'b [u8], Corruption> {
        let len = self.count(1)?;
        self.take(len)
    }

    /// A path, whose names can be.
    fn path(&mut self) -> Result<Box<[u8]>, Corruption> {
        let path = self.string()?;
        self.spend(1, path.len())?;
        let odd = |name: &[u8]| name.is_empty() || name == b"." || name == b".." || name.contains(&0);
        if !path.is_empty() && path.split(|b| *b == b'/').any(odd) {
            return Err(wrong("path", path.escape_ascii(), "one that can be"));
        }
        Ok(path.into())
    }

    fn uuid(&mut self) -> Result<Uuid, Corruption> {
        let bytes = self.take(16)?;
        Ok(Uuid::from_slice(bytes).unwrap_or_default())
    }
}
