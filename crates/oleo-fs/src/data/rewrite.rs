//! Writing a range of a file anew, unchanged: for defragmentation and compression.
//!
//! Normal path, the `flush` lock held: (1) what is dirty is written out; (2) the range is read from the map; (3) it is
//! prepared and installed like data that was just written, in as few extents as free space allows. Nobody else changes
//! the map meanwhile; what is written to the buffer meanwhile stays dirty on top of it. Size and times stay.

use std::ops::ControlFlow;
use std::sync::Arc;

use oleo_format::InodeFlags;
use oleo_txn::Claim;

use crate::attributes::rules;
use crate::data::install::{self, Install};
use crate::data::items::MapOf;
use crate::data::map::{self, Extent};
use crate::data::{Compress, Prepared, Whole, read};
use crate::object::{Inode, Items};
use crate::{FileKind, Fs, FsError, InodeRef};

impl Fs {
    /// Writes a range of a file anew, compressed as asked for or else as the file's policy says; returns how many bytes.
    /// A range with holes, preallocated space or inline bytes in it is left as it is.
    pub fn rewrite(&self, file: &InodeRef, at: u64, len: u64, compress: Option<Compress>) -> Result<u64, FsError> {
        self.changeable(file)?;
        rewrite(file, at, len, compress)
    }
}

fn rewrite(inode: &Arc<Inode>, at: u64, len: u64, compress: Option<Compress>) -> Result<u64, FsError> {
    let engine = inode.core().engine();
    let sector = u64::from(engine.sectorsize());
    let _flush = inode.settle()?;
    let (policy, start, end) = {
        let guard = inode.read();
        guard.alive()?;
        if guard.fields().kind() != FileKind::File {
            return Err(FsError::Invalid("not a regular file"));
        }
        rules::held(guard.fields())?;
        let size = guard.fields().size;
        let start = at / sector * sector;
        let end = at.saturating_add(len).checked_next_multiple_of(sector).unwrap_or(u64::MAX).min(size);
        if start >= end || !is_all_data(&MapOf { items: &guard, sector }, start, end)? {
            return Ok(0);
        }
        let mut policy = inode.core().policy(guard.fields(), &guard)?;
        let flags = InodeFlags::from_bits_retain(guard.fields().flags);
        if !flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
            policy.compress = compress.or(policy.compress);
        }
        (policy, start, end)
    };
    let promise = inode.core().reserve_in(inode.tree(), (end - start).next_multiple_of(sector))?;
    let mut data = vec![0; (end - start) as usize];
    read::read_mapped(inode, start, &mut data)?;
    let prepared = engine.compute(|| Prepared::new(data, start, Whole::Part, &policy));
    install::install(&[Install {
        inode,
        prepared: &prepared,
        time: None,
        exact_size: None,
        promise: Some(&promise),
        from_writeback: true,
        claim: Claim::Ordinary,
    }])?;
    Ok(end - start)
}

/// Whether a range has bytes on disk from end to end.
fn is_all_data(items: &impl map::ExtentMap, start: u64, end: u64) -> Result<bool, FsError> {
    let mut reached = start;
    map::walk(items, start, end, |_, range, extent| {
        let on_disk = matches!(extent, Extent::Span(span) if !span.prealloc);
        if !on_disk || range.start > reached {
            return Ok(ControlFlow::Break(()));
        }
        reached = range.end;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(reached >= end)
}
