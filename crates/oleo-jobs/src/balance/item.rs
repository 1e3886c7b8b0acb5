//! The balance item: the request of a balance under way, kept in the root tree until it has ended. The kernel can
//! resume what Oleo writes there, and vice versa.
//!
//! The progress of a balance has no field of its own. But groups are moved from the highest address down and new ones
//! are placed above all others, so what is left is a range of addresses, which is a filter
//! ([`BalanceArgs::left_below`]): a resumed balance moves no group twice. Groups already moved are subtracted from
//! `limit`.
//!
//! A balance that the kernel began has no such range. When it is resumed, groups that have the profile to be converted to
//! are done; all others are moved as if it had just begun.

use oleo_format::{BalanceArgsFlags, BalanceFlags, BalanceItem, BlockGroupFlags, DevId, DiskBalanceArgs, Logical};
use oleo_volume::Profile;
use serde::{Deserialize, Serialize};
use zerocopy::{FromZeros, IntoBytes};

use super::filters::{Bound, Filters, Span};

/// The request of a balance.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BalanceArgs {
    /// Groups of data.
    pub data: Option<Filters>,
    /// Groups of metadata.
    pub metadata: Option<Filters>,
    /// Groups of the chunk tree.
    pub system: Option<Filters>,
    /// Less redundancy is wanted.
    #[serde(default)]
    pub force: bool,
}

oleo_format::setters!(BalanceArgs {
    data: Option<Filters>,
    metadata: Option<Filters>,
    system: Option<Filters>,
    force: bool,
});

/// The three types of groups, as the fields of [`BalanceArgs`] have them.
pub(super) const TYPES: [BlockGroupFlags; 3] =
    [BlockGroupFlags::DATA, BlockGroupFlags::METADATA, BlockGroupFlags::SYSTEM];

/// Which of [`TYPES`] a group is of; one of mixed content counts as data.
pub(super) fn type_of(flags: BlockGroupFlags) -> usize {
    TYPES.iter().position(|bit| flags.contains(*bit)).unwrap_or(0)
}

impl BalanceArgs {
    /// Everything.
    pub fn full() -> BalanceArgs {
        let all = || Some(Filters::default());
        BalanceArgs { data: all(), metadata: all(), system: all(), force: false }
    }

    /// The filters in the order of [`TYPES`].
    pub(super) fn each(&self) -> [Option<&Filters>; 3] {
        [self.data.as_ref(), self.metadata.as_ref(), self.system.as_ref()]
    }

    fn each_mut(&mut self) -> [&mut Option<Filters>; 3] {
        [&mut self.data, &mut self.metadata, &mut self.system]
    }

    /// Changes the request to that of a resumed balance: of groups that are converted, those that have the target
    /// profile are done.
    pub(super) fn resumed(&mut self) {
        for filters in self.each_mut().into_iter().flatten() {
            filters.soft |= filters.convert.is_some();
        }
    }

    /// What is left of the request when all groups from an address on are done; `done` counts them by type.
    pub(super) fn left_below(&self, at: Logical, done: &[u64; 3]) -> BalanceArgs {
        let mut left = self.clone();
        for (filters, done) in left.each_mut().into_iter().zip(done) {
            let Some(filters) = filters else { continue };
            let span = filters.vrange.unwrap_or(Span { start: 0, end: u64::MAX });
            // A range of nothing is none that could be written; it takes no group either way.
            let end = span.end.min(at.0).max(span.start + 1);
            filters.vrange = Some(Span { end, ..span });
            filters.limit = filters.limit.map(|bound| match bound {
                Bound::Max(max) => Bound::Max(max.saturating_sub(*done)),
                Bound::Range(min, max) if *done == 0 => Bound::Range(min, max),
                Bound::Range(_, max) => {
                    Bound::Range(0, u32::try_from(u64::from(max).saturating_sub(*done)).unwrap_or(0))
                }
            });
        }
        left
    }

    /// The item as it is on disk.
    pub fn to_item(&self) -> BalanceItem {
        let of = |filters: &Option<Filters>| filters.as_ref().map_or_else(DiskBalanceArgs::new_zeroed, to_disk);
        let mut flags = BalanceFlags::empty();
        flags.set(BalanceFlags::DATA, self.data.is_some());
        flags.set(BalanceFlags::METADATA, self.metadata.is_some());
        flags.set(BalanceFlags::SYSTEM, self.system.is_some());
        flags.set(BalanceFlags::FORCE, self.force);
        let (data, meta, sys) = (of(&self.data), of(&self.metadata), of(&self.system));
        BalanceItem { flags: flags.bits().into(), data, meta, sys, unused: Default::default() }
    }

    /// Parses an item from disk or from a program.
    ///
    /// # Errors
    /// In words: it has filters that are unknown here.
    pub fn from_item(item: &BalanceItem) -> Result<BalanceArgs, String> {
        let flags = BalanceFlags::from_bits_retain(item.flags.get());
        let known = BalanceFlags::DATA
            | BalanceFlags::METADATA
            | BalanceFlags::SYSTEM
            | BalanceFlags::FORCE
            | BalanceFlags::RESUME;
        if !known.contains(flags) {
            return Err(format!("the balance has unknown flags {:#x}", (flags - known).bits()));
        }
        let of = |bit, args: &DiskBalanceArgs| flags.contains(bit).then(|| from_disk(args)).transpose();
        Ok(BalanceArgs {
            data: of(BalanceFlags::DATA, &item.data)?,
            metadata: of(BalanceFlags::METADATA, &item.meta)?,
            system: of(BalanceFlags::SYSTEM, &item.sys)?,
            force: flags.contains(BalanceFlags::FORCE),
        })
    }
}

/// The bit of a profile in fields in which `single` has one, too.
fn bit_of(profile: Profile) -> BlockGroupFlags {
    if profile == Profile::Single { BlockGroupFlags::AVAIL_SINGLE } else { profile.bits() }
}

fn pack(bound: Bound) -> u64 {
    match bound {
        Bound::Max(max) => max,
        Bound::Range(min, max) => u64::from(min) | u64::from(max) << 32,
    }
}

fn unpack(value: u64) -> Bound {
    Bound::Range(value as u32, (value >> 32) as u32)
}

fn to_disk(filters: &Filters) -> DiskBalanceArgs {
    let mut args = DiskBalanceArgs::new_zeroed();
    let mut flags = BalanceArgsFlags::empty();
    if let Some(profiles) = &filters.profiles {
        flags |= BalanceArgsFlags::PROFILES;
        let bits = profiles.iter().fold(BlockGroupFlags::empty(), |all, p| all | bit_of(*p));
        args.profiles = bits.bits().into();
    }
    if let Some(bound) = filters.usage {
        flags |= if matches!(bound, Bound::Max(_)) { BalanceArgsFlags::USAGE } else { BalanceArgsFlags::USAGE_RANGE };
        args.usage = pack(bound).into();
    }
    if let Some(devid) = filters.devid {
        flags |= BalanceArgsFlags::DEVID;
        args.devid = devid.0.into();
    }
    if let Some(span) = filters.drange {
        flags |= BalanceArgsFlags::DRANGE;
        (args.pstart, args.pend) = (span.start.into(), span.end.into());
    }
    if let Some(span) = filters.vrange {
        flags |= BalanceArgsFlags::VRANGE;
        (args.vstart, args.vend) = (span.start.into(), span.end.into());
    }
    if let Some(bound) = filters.limit {
        flags |= if matches!(bound, Bound::Max(_)) { BalanceArgsFlags::LIMIT } else { BalanceArgsFlags::LIMIT_RANGE };
        args.limit = pack(bound).into();
    }
    if let Some((min, max)) = filters.stripes {
        flags |= BalanceArgsFlags::STRIPES_RANGE;
        (args.stripes_min, args.stripes_max) = (min.into(), max.into());
    }
    if let Some(profile) = filters.convert {
        flags |= BalanceArgsFlags::CONVERT;
        args.target = bit_of(profile).bits().into();
    }
    flags.set(BalanceArgsFlags::SOFT, filters.soft);
    args.flags = flags.bits().into();
    args
}

fn from_disk(args: &DiskBalanceArgs) -> Result<Filters, String> {
    let flags = BalanceArgsFlags::from_bits_retain(args.flags.get());
    let known = BalanceArgsFlags::from_bits_retain((BalanceArgsFlags::USAGE_RANGE.bits() << 1) - 1);
    if !known.contains(flags) {
        return Err(format!("the balance has unknown filters {:#x}", (flags - known).bits()));
    }
    let has = |flag| flags.contains(flag);
    let either = |max, range, value: u64| match (has(max), has(range)) {
        (true, _) => Some(Bound::Max(value)),
        (_, true) => Some(unpack(value)),
        _ => None,
    };
    let span = |flag, start: u64, end: u64| has(flag).then_some(Span { start, end });
    let profiles = |bits: u64| -> Result<Vec<Profile>, String> {
        let all: Vec<Profile> = Profile::ALL.into_iter().filter(|p| bits & bit_of(*p).bits() != 0).collect();
        let named = all.iter().fold(0, |sum, p| sum | bit_of(*p).bits());
        if named == bits { Ok(all) } else { Err(format!("the balance names unknown profiles {:#x}", bits & !named)) }
    };
    let target = || match profiles(args.target.get())?.as_slice() {
        // Programs may express single by no bit.
        [] => Ok(Profile::Single),
        [one] => Ok(*one),
        several => Err(format!("the balance converts to {} profiles, not to one", several.len())),
    };
    use BalanceArgsFlags as F;
    Ok(Filters {
        profiles: has(F::PROFILES).then(|| profiles(args.profiles.get())).transpose()?,
        usage: either(F::USAGE, F::USAGE_RANGE, args.usage.get()),
        devid: has(F::DEVID).then(|| DevId(args.devid.get())),
        drange: span(F::DRANGE, args.pstart.get(), args.pend.get()),
        vrange: span(F::VRANGE, args.vstart.get(), args.vend.get()),
        limit: either(F::LIMIT, F::LIMIT_RANGE, args.limit.get()),
        stripes: has(F::STRIPES_RANGE).then(|| (args.stripes_min.get(), args.stripes_max.get())),
        convert: has(F::CONVERT).then(target).transpose()?,
        soft: has(F::SOFT),
    })
}

/// The bytes of the item.
pub(super) fn bytes(args: &BalanceArgs) -> Vec<u8> {
    args.to_item().as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(data: &str, metadata: &str) -> BalanceArgs {
        let parse = |text: &str| Some(text.parse().unwrap());
        BalanceArgs { data: parse(data), metadata: parse(metadata), system: None, force: true }
    }

    /// Goal: every filter is read back as it was written, single value or range. Method: sets that use all of them.
    #[test]
    fn there_and_back() {
        let all =
            "profiles=single|raid1c4,usage=5,devid=3,drange=1..2,vrange=3..4,limit=6,stripes=7..8,convert=single,soft";
        for args in [args(all, "usage=2..9,limit=3..4,convert=raid1c3"), args("", "profiles=dup"), BalanceArgs::full()]
        {
            assert_eq!(BalanceArgs::from_item(&args.to_item()), Ok(args));
        }
    }

    /// Goal: fields have the offsets of the UAPI header. Method: a few by their bytes.
    #[test]
    fn bytes_on_disk() {
        let item = args("usage=2..9,limit=3,convert=single", "convert=raid1").to_item();
        assert_eq!(item.flags.get(), 1 << 0 | 1 << 2 | 1 << 3);
        let data = item.data.as_bytes();
        assert_eq!(data[8..16], [2, 0, 0, 0, 9, 0, 0, 0], "usage");
        assert_eq!(data[56..64], (1u64 << 48).to_le_bytes(), "target");
        assert_eq!(data[64..72], (1u64 << 10 | 1 << 5 | 1 << 8).to_le_bytes(), "flags");
        assert_eq!(data[72..80], 3u64.to_le_bytes(), "limit");
        assert_eq!(item.meta.as_bytes()[56..64], (1u64 << 4).to_le_bytes());
    }

    /// Goal: unknown filters are refused, not ignored.
    #[test]
    fn unknown_filters_are_refused() {
        let item = BalanceArgs::full().to_item();
        let with = |change: fn(&mut BalanceItem)| {
            let mut item = item;
            change(&mut item);
            BalanceArgs::from_item(&item).unwrap_err()
        };
        assert!(with(|i| i.flags = (i.flags.get() | 1 << 20).into()).contains("0x100000"));
        assert!(with(|i| i.data.flags = (1u64 << 11).into()).contains("0x800"));
        assert!(
            with(|i| (i.meta.flags, i.meta.target) = ((1u64 << 8).into(), (3u64 << 3).into())).contains("2 profiles")
        );
        assert!(with(|i| (i.meta.flags, i.meta.profiles) = (1u64.into(), (1u64 << 30).into())).contains("0x40000000"));
    }

    /// Goal: what is left is the request, below the address, less what was done; later calls only reduce it.
    #[test]
    fn what_is_left_only_gets_less() {
        let whole = args("limit=5,vrange=100..1000", "limit=2..5");
        let left = whole.left_below(Logical(500), &[2, 0, 0]);
        assert_eq!(left, args("limit=3,vrange=100..500", "limit=2..5,vrange=0..500"));
        let later = left.left_below(Logical(300), &[1, 3, 0]);
        assert_eq!(later, args("limit=2,vrange=100..300", "limit=0..2,vrange=0..300"));
        let nothing = later.left_below(Logical(50), &[9, 9, 0]);
        assert_eq!(nothing.data.unwrap().limit, Some(Bound::Max(0)));
        assert_eq!(nothing.metadata.unwrap().vrange, Some(Span { start: 0, end: 50 }));
    }
}
