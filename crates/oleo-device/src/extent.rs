//! What a device prefers, and what it knows of its bytes.

/// What a device prefers. Requests of any offset and length work in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Reads and writes at multiples of this cost no reading back, in bytes; a power of two.
    pub block_len: u32,
    /// A good length of one request, in bytes; a power of two.
    pub preferred_len: u32,
    /// How many requests are worth being under way together.
    pub depth: u32,
    /// It wants to be told what is free, because space costs: mounts discard without being asked.
    pub wants_discard: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { block_len: 1, preferred_len: 4096, depth: 1, wants_discard: false }
    }
}

oleo_format::setters!(Limits { block_len: u32, preferred_len: u32, depth: u32, wants_discard: bool });

/// What is known of a run of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// They may be anything.
    Data,
    /// They read as zeros and take space.
    Zeros,
    /// They read as zeros and take none: a write to them may find no space.
    Hole,
}

/// A run of bytes, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes, never zero.
    pub len: u64,
    /// What is known of them.
    pub kind: ExtentKind,
}

/// How zeros may be written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Zeroing {
    /// The space stays taken: later writes to it do not fail for want of space.
    pub keep_allocated: bool,
    /// Only if that is quicker than to write them.
    pub only_fast: bool,
}

/// Appends a run to others, to the last one if it is of the same kind. Empty ones are left out.
pub(crate) fn push_extent(extents: &mut Vec<Extent>, len: u64, kind: ExtentKind) {
    match extents.last_mut() {
        Some(last) if last.kind == kind => last.len += len,
        _ if len > 0 => extents.push(Extent { len, kind }),
        _ => {}
    }
}
