//! The operations on file data that [`Fs`] offers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use oleo_format::TreeId;
use oleo_txn::{Claim, TxnError};

use crate::attributes::rules;
use crate::data::install::{self, Install};
use crate::data::{
    CloneRange, DataRun, Dedupe, ExtentInfo, FILE_LEN_MAX, KeepSize, Policy, Prepared, WriteBy, query, read, share,
    write,
};
use crate::object::Items;
use crate::{FileKind, Fs, FsError, InodeRef};

/// Whether an installation counts as a change of the content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamp {
    /// Change times become the present time.
    Now,
    /// Times stay as they are: for callers that set them anyway.
    Keep,
}

/// How often room in quota is looked for before a write is refused.
const QUOTA_TRIES: u32 = 4;
/// How long in between.
const QUOTA_WAIT: std::time::Duration = std::time::Duration::from_millis(5);

impl Fs {
    /// Reads from `at` on and returns how many bytes there were: fewer than asked for at the end of the file only.
    pub fn read(&self, file: &InodeRef, at: u64, out: &mut [u8]) -> Result<usize, FsError> {
        read::read(file, at, out)
    }

    /// Writes `data` at `at`. The bytes are buffered; they reach the disk with [`Fs::flush`] and [`Fs::sync`], or earlier
    /// if too much is buffered. If the file's flags say so ([`InodeFlags::SYNC`](oleo_format::InodeFlags)), this and what else
    /// changes its content returns when it is durable.
    pub fn write(&self, file: &InodeRef, at: u64, data: &[u8]) -> Result<(), FsError> {
        self.write_by(file, at, data, WriteBy::Caller)
    }

    /// From now on, until the inode is forgotten, changes of the content leave its times alone: a cache in front of this file system sets
    /// them with [`set_attr`](Fs::set_attr), as they were when it was changed there.
    pub fn leave_times(&self, file: &InodeRef) {
        file.data.times_left.store(true, Ordering::Relaxed);
    }

    /// The same as `write` for bytes that somebody has cached.
    pub fn write_by(&self, file: &InodeRef, at: u64, data: &[u8], by: WriteBy) -> Result<(), FsError> {
        self.write_buffered(file, at, data, by)?;
        self.keep_content(file)
    }

    fn write_buffered(&self, file: &InodeRef, at: u64, data: &[u8], by: WriteBy) -> Result<(), FsError> {
        for _ in 1..QUOTA_TRIES {
            match write::write(file, at, data, by) {
                Err(FsError::Txn(TxnError::QuotaExceeded(_))) => {}
                other => return other,
            }
            // Files without names that nobody holds any more still count until they are erased, and on a mount the kernel reports
            // only after a moment that nobody does.
            std::thread::sleep(QUOTA_WAIT);
            // One that cannot be erased is reported by the next sync or cleaner step.
            let _ = self.core().evict_all();
        }
        write::write(file, at, data, by)
    }

    /// Writes out what is buffered of a file, which then is part of the next commit.
    pub fn flush(&self, file: &InodeRef) -> Result<(), FsError> {
        file.flush()
    }

    /// Makes a file `size` bytes long.
    pub fn truncate(&self, file: &InodeRef, size: u64) -> Result<(), FsError> {
        file.truncate(size)?;
        self.keep_content(file)
    }

    /// Takes space for a range, which reads as zeros where nothing was written.
    pub fn preallocate(&self, file: &InodeRef, at: u64, len: u64, keep: KeepSize) -> Result<(), FsError> {
        self.core().twice_for_quota(|| file.preallocate(at, len, keep))?;
        self.keep_content(file)
    }

    /// Makes a range a hole; at unaligned edges the bytes become zeros. The size stays.
    pub fn punch_hole(&self, file: &InodeRef, at: u64, len: u64) -> Result<(), FsError> {
        file.punch_hole(at, len)?;
        self.keep_content(file)
    }

    /// Turns a range into zeros that have space.
    pub fn zero_range(&self, file: &InodeRef, at: u64, len: u64, keep: KeepSize) -> Result<(), FsError> {
        self.core().twice_for_quota(|| file.zero_range(at, len, keep))?;
        self.keep_content(file)
    }

    /// Makes a range of `dst` share the bytes of a range of `src`, over whatever was there. Both are in this file system, in any
    /// subvolumes.
    pub fn clone_range(&self, src: &InodeRef, dst: &InodeRef, range: &CloneRange) -> Result<(), FsError> {
        self.core().throttle_dirty_inodes()?;
        self.core().twice_for_quota(|| share::clone_range(src, dst, range))?;
        self.keep_content(dst)
    }

    /// Makes a range of `dst` share a range of `src` if the bytes are equal.
    pub fn dedupe_range(&self, src: &InodeRef, dst: &InodeRef, range: &CloneRange) -> Result<Dedupe, FsError> {
        self.core().throttle_dirty_inodes()?;
        self.core().twice_for_quota(|| share::dedupe_range(src, dst, range))
    }

    /// Where the bytes of a range are: rising, holes left out.
    pub fn extents(&self, file: &InodeRef, at: u64, len: u64) -> Result<Vec<ExtentInfo>, FsError> {
        query::extents(file, at, len)
    }

    /// For tests: where the extents of a file are known to end, without asking the tree, and where they do.
    #[doc(hidden)]
    pub fn extents_end(&self, file: &InodeRef) -> Result<(Option<u64>, u64), FsError> {
        query::extents_end(file)
    }

    /// The first byte at or after `at` that may be other than zero; `None` when there is none.
    pub fn seek_data(&self, file: &InodeRef, at: u64) -> Result<Option<u64>, FsError> {
        query::seek_data(file, at)
    }

    /// The first byte at or after `at` that is in a hole, or the end of the file; `None` when `at` is behind that.
    pub fn seek_hole(&self, file: &InodeRef, at: u64) -> Result<Option<u64>, FsError> {
        query::seek_hole(file, at)
    }

    /// The first run of bytes at or after `at` that may be other than zero, and whether chunks have them; `None` if there is none.
    pub fn data_run(&self, file: &InodeRef, at: u64) -> Result<Option<DataRun>, FsError> {
        query::data_run(file, at)
    }

    /// How the data of a file is to be prepared.
    pub fn policy(&self, file: &InodeRef) -> Result<Policy, FsError> {
        let guard = file.read();
        self.core().policy(guard.fields(), &guard)
    }

    /// Writes the prepared bytes of many files in one batch, past their buffers. Space is taken in the order of `batch`, so
    /// equal batches give equal addresses, whatever threads prepared them. Each file grows to hold its bytes; bytes that
    /// end within a sector must end the file.
    pub fn install_many(&self, batch: &[(InodeRef, Prepared<'_>)], stamp: Stamp) -> Result<(), FsError> {
        let time = (stamp == Stamp::Now).then(|| self.core().now());
        let mut all = Vec::with_capacity(batch.len());
        for (file, prepared) in batch {
            self.changeable(file)?;
            check_installable(file, prepared)?;
            let (exact_size, promise, claim) = (None, None, Claim::Ordinary);
            all.push(Install { inode: file, prepared, time, exact_size, promise, from_writeback: false, claim });
        }
        // Asking for all of it first commits if that frees enough.
        let mut promises: BTreeMap<TreeId, u64> = BTreeMap::new();
        for (file, prepared) in batch {
            *promises.entry(file.tree()).or_default() += prepared.disk_len();
        }
        promises.retain(|_, len| *len > 0);
        let _promises =
            promises.into_iter().map(|(tree, len)| self.core().reserve_in(tree, len)).collect::<Result<Vec<_>, _>>()?;
        install::install(&all)
    }

    /// Writes a whole file in one step, past its buffer: the fast way to fill a new one.
    pub fn write_all(&self, file: &InodeRef, data: &[u8], stamp: Stamp) -> Result<(), FsError> {
        if file.read().fields().size > 0 || file.data.is_dirty() {
            self.truncate(file, 0)?;
        }
        let prepared = Prepared::new(data, 0, super::Whole::File, &self.policy(file)?);
        self.install_many(&[(file.clone(), prepared)], stamp)
    }
}

fn check_installable(file: &InodeRef, prepared: &Prepared<'_>) -> Result<(), FsError> {
    let sector = u64::from(file.core().engine().sectorsize());
    let end = prepared.at.checked_add(prepared.len).filter(|end| *end <= FILE_LEN_MAX).ok_or(FsError::FileTooBig)?;
    let _flush = file.lock_flush();
    let (kind, shown, size) = {
        let guard = file.read();
        rules::write(guard.fields(), prepared.at, file.data.shown(guard.fields()))?;
        (guard.fields().kind(), file.data.shown(guard.fields()), guard.fields().size)
    };
    if kind != FileKind::File {
        return Err(FsError::Invalid("not a regular file"));
    }
    if !end.is_multiple_of(sector) && end < shown {
        return Err(FsError::Invalid("prepared bytes end within a sector and within the file"));
    }
    if prepared.at > 0 && prepared.at >= size && size > 0 {
        file.flush_locked(super::flush::Inline::Refused)?;
        file.settle_tail(prepared.at + prepared.len, super::edges::Tail::Zero)?;
    }
    Ok(())
}
