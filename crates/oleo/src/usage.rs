//! Space usage of a volume and of files.

use std::collections::BTreeMap;

use oleo_format::{BlockGroupFlags, ByteLen};
use oleo_fs::data::ExtentKind;
use oleo_fs::{Descent, FileKind, InodeRef};
use oleo_volume::{ChunkWant, Outlook, Profile};

use crate::{Image, Result};

/// Space of all block groups of one type and profile.
#[derive(Clone, Debug)]
pub struct GroupUsage {
    /// Type and profile.
    pub flags: BlockGroupFlags,
    /// Bytes that the groups have.
    pub total: ByteLen,
    /// Bytes that are taken.
    pub used: ByteLen,
}

impl GroupUsage {
    /// What the groups are for, as users of btrfs know it.
    pub fn type_name(&self) -> &'static str {
        let flags = self.flags;
        if flags.is_mixed() {
            "Data+Metadata"
        } else if flags.contains(BlockGroupFlags::DATA) {
            "Data"
        } else if flags.contains(BlockGroupFlags::SYSTEM) {
            "System"
        } else if flags.contains(BlockGroupFlags::METADATA_REMAP) {
            "Remap tree"
        } else {
            "Metadata"
        }
    }
}

/// So many chunks are placed to see how much fits: some hundred microseconds. With more to come, what the last ones leave is less than a
/// hundredth of the space.
const CHUNKS_PLACED: u64 = 256;

/// What a file, or everything below a directory, takes on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct FileUsage {
    /// Bytes of extents, as often as they are referred to.
    pub total: u64,
    /// Of these, bytes that nothing else refers to.
    pub exclusive: u64,
    /// Bytes on disk that are referred to from more than one place, each counted once.
    pub set_shared: u64,
}

/// How full a volume is, counted in what files can have: copies and parity taken off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceSummary {
    /// All bytes of the devices.
    pub total: ByteLen,
    /// Bytes that nothing uses and block groups can have, those for metadata included. Of unequal devices, space that has no other
    /// device for its copies is not among them.
    pub free: ByteLen,
    /// Bytes that files can still have: free and unreserved in data block groups, and what further data block groups could add.
    pub available: ByteLen,
}

impl Image {
    /// How full the volume is.
    pub fn space_summary(&self) -> SpaceSummary {
        let (mut data_used, mut other_raw, mut data) = (0, 0, BlockGroupFlags::DATA);
        let devices = self.volume().devices();
        let count = devices.iter().filter(|d| !d.missing).count() as u64;
        for group in self.df() {
            if group.flags.contains(BlockGroupFlags::DATA) {
                data_used += group.used.0;
                data = group.flags;
            } else {
                let (net, raw) = net_of_raw(group.flags, count);
                other_raw += scaled(group.used.0, raw, net);
            }
        }
        let total_raw: u64 = devices.iter().map(|d| d.total.0).sum();
        let (net, raw) = net_of_raw(data, count);
        let total = scaled(total_raw, net, raw);
        let engine = self.fs().engine();
        let fits = self.fits(data);
        let available = engine.data_free() + fits;
        let unallocated: u64 = devices.iter().map(|d| d.total.0.saturating_sub(d.used.0)).sum();
        let stranded = scaled(unallocated, net, raw).saturating_sub(fits.0);
        let free = total.saturating_sub(data_used + scaled(other_raw, net, raw) + stranded);
        SpaceSummary { total: ByteLen(total), free: ByteLen(free), available: available.min(ByteLen(free)) }
    }

    /// Bytes that new block groups of these flags can have in all. If there are not too many to come, each is placed; otherwise what the last
    /// ones leave between them counts, too.
    pub(crate) fn fits(&self, flags: BlockGroupFlags) -> ByteLen {
        let all = self.volume().unallocated(flags);
        let ask = ChunkWant::new(flags);
        match self.volume().propose_chunk(&ask) {
            Ok(plan) if plan.map.len.0 >= all.0 / CHUNKS_PLACED => {
                let (chunks_max, none) = (2 * CHUNKS_PLACED as u32, ByteLen(0));
                let outlook = Outlook { flags, taken: None, first: None, chunks_max, len_min: none, lost: none };
                self.volume().outlook(&outlook).min(all)
            }
            _ => all,
        }
    }

    /// Space by type and profile, in the order of the flags.
    pub fn df(&self) -> Vec<GroupUsage> {
        let mut sums: BTreeMap<u64, GroupUsage> = BTreeMap::new();
        for group in self.fs().engine().space().groups() {
            let zero = GroupUsage { flags: group.flags, total: ByteLen(0), used: ByteLen(0) };
            let sum = sums.entry(group.flags.bits()).or_insert(zero);
            sum.total += group.len;
            sum.used += group.used;
        }
        sums.into_values().collect()
    }

    /// The space that a file, or everything below a directory, takes; calls `each` with the same for each direct entry.
    ///
    /// # Errors
    /// The image is damaged.
    pub fn du(&self, inode: &InodeRef, mut each: impl FnMut(&[u8], FileUsage)) -> Result<FileUsage> {
        let mut whole = Sum::default();
        if self.fs().attr(inode).kind != FileKind::Dir {
            whole.file(self, inode)?;
            return Ok(whole.usage());
        }
        let mut descent = Descent::new(inode);
        for entry in self.list_dir(inode)? {
            let Some(child) = self.fs().open_entry(inode, &entry)? else { continue };
            let mut part = Sum::default();
            if self.fs().attr(&child).kind != FileKind::Dir || descent.enters(self.fs(), inode, &entry.name, &child) {
                part.below(self, child, &mut descent)?;
            }
            each(&entry.name, part.usage());
            whole.add(part);
        }
        Ok(whole.usage())
    }
}

/// How many bytes of data there are to how many on devices, for a profile on so many devices.
fn net_of_raw(flags: BlockGroupFlags, devices: u64) -> (u64, u64) {
    let Some(profile) = Profile::of(flags) else { return (1, 1) };
    let shape = profile.shape();
    if !profile.has_parity() {
        return (1, u64::from(shape.copies.max(1)));
    }
    let stripes = devices.max(u64::from(shape.devices_min));
    (profile.data_stripes(stripes), stripes)
}

fn scaled(bytes: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(by) / u128::from(of)).unwrap_or(u64::MAX)
}

#[derive(Default)]
struct Sum {
    total: u64,
    exclusive: u64,
    /// Shared runs on disk, from start to end; they do not overlap.
    shared: BTreeMap<u64, u64>,
}

impl Sum {
    fn below(&mut self, image: &Image, start: InodeRef, descent: &mut Descent) -> Result<()> {
        let mut left = vec![start];
        while let Some(inode) = left.pop() {
            match image.fs().attr(&inode).kind {
                FileKind::Dir => {
                    for entry in image.list_dir(&inode)? {
                        let Some(found) = image.fs().open_entry(&inode, &entry)? else { continue };
                        if image.fs().attr(&found).kind != FileKind::Dir
                            || descent.enters(image.fs(), &inode, &entry.name, &found)
                        {
                            left.push(found);
                        }
                    }
                }
                FileKind::File => self.file(image, &inode)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, image: &Image, inode: &InodeRef) -> Result<()> {
        for extent in image.fs().extents(inode, 0, u64::MAX)? {
            self.total += extent.len;
            match (extent.kind, extent.shared, extent.disk) {
                (ExtentKind::Data | ExtentKind::Unwritten, true, Some(disk)) => self.share(disk.0, disk.0 + extent.len),
                _ => self.exclusive += extent.len,
            }
        }
        Ok(())
    }

    fn share(&mut self, mut start: u64, mut end: u64) {
        while let Some((&s, &e)) = self.shared.range(..=end).next_back().filter(|&(_, &e)| e >= start) {
            self.shared.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.shared.insert(start, end);
    }

    fn add(&mut self, other: Sum) {
        self.total += other.total;
        self.exclusive += other.exclusive;
        for (start, end) in other.shared {
            self.share(start, end);
        }
    }

    fn usage(&self) -> FileUsage {
        let set_shared = self.shared.iter().map(|(start, end)| end - start).sum();
        FileUsage { total: self.total, exclusive: self.exclusive, set_shared }
    }
}
