//! Fault injection: "no space" on demand, so that a test can make each request fail.
//!
//! 1. A test chooses with `Space::fail_requests` which kinds of requests are meant, how many of them succeed, and how many
//!    after those fail with [`Refusal::NoSpace`].
//! 2. Requests of these kinds are counted, and `Space::requests_counted` returns their number: a first run without
//!    failures shows how many runs it takes to make each request fail once.
//!
//! An injected failure is returned before anything is changed. While none is injected a request costs one read of a byte
//! that nobody writes.
//!
//! Locks: none.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::{Kind, Refusal};

/// Which requests are refused. Nothing by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultSpec {
    /// Promises: `Space::reserve` and `Reservation::grow`.
    pub promises: bool,
    /// Addresses of data: `Space::alloc`, `Space::alloc_from`.
    pub extents: bool,
    /// Addresses of tree blocks: `Space::alloc_blocks`, `Space::alloc_blocks_from`. A commit that meets this fails.
    pub blocks: bool,
    /// Requests of these sorts that are let through first.
    pub after: u64,
    /// Requests that are refused then; `u64::MAX` for all of them, until the next `Space::fail_requests`.
    pub count: u64,
}

/// A sort of request; a bit each.
#[derive(Clone, Copy)]
pub(crate) enum RequestKind {
    Promise = 1,
    Extent = 2,
    Blocks = 4,
}

/// What fails now.
#[derive(Default)]
pub(crate) struct FaultInjector {
    sorts: AtomicU8,
    counted: AtomicU64,
    after: AtomicU64,
    count: AtomicU64,
}

impl FaultInjector {
    /// Refuses the requests that `spec` says from now on, and counts from zero.
    pub(crate) fn set(&self, spec: FaultSpec) {
        self.sorts.store(0, SeqCst);
        self.counted.store(0, SeqCst);
        self.after.store(spec.after, SeqCst);
        self.count.store(spec.count, SeqCst);
        let bit = |on: bool, kind_of_request: RequestKind| if on { kind_of_request as u8 } else { 0 };
        let sorts = bit(spec.promises, RequestKind::Promise) | bit(spec.extents, RequestKind::Extent);
        self.sorts.store(sorts | bit(spec.blocks, RequestKind::Blocks), SeqCst);
    }

    /// How many requests of these sorts there were since.
    pub(crate) fn counted(&self) -> u64 {
        self.counted.load(SeqCst)
    }

    /// Refuses a request if it is to be refused.
    pub(crate) fn check(&self, kind_of_request: RequestKind, kind: Kind) -> Result<(), Refusal> {
        if self.sorts.load(Relaxed) & kind_of_request as u8 == 0 {
            return Ok(());
        }
        let before = self.counted.fetch_add(1, SeqCst);
        match before.checked_sub(self.after.load(SeqCst)) {
            Some(past) if past < self.count.load(SeqCst) => Err(Refusal::NoSpace(kind)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use oleo_format::{BlockGroupFlags, ByteLen};

    use super::*;
    use crate::testing::{MIB, SECTOR, space_of};
    use crate::{Goal, Want};

    type Call<'a> = &'a dyn Fn() -> Result<(), Refusal>;

    /// Goal: exactly the requests that were named are refused, and a refusal changes nothing.
    /// Method: a mixed space; each sort in turn, the third and fourth request of four more; the totals before and after.
    #[test]
    fn exactly_the_named_requests_are_refused() {
        let space = space_of(1, 16 * MIB, BlockGroupFlags::DATA | BlockGroupFlags::METADATA);
        let hold = space.reserve(Kind::Data, ByteLen(MIB)).unwrap();
        let len = ByteLen(SECTOR);
        let want = Want { kind: Kind::Data, len, min_len: len, align: len, goal: Goal::Stream(1) };
        let asks: [(FaultSpec, [Call; 2]); 3] = [
            (
                FaultSpec { promises: true, ..FaultSpec::default() },
                [&|| space.reserve(Kind::Data, len).map(drop), &|| {
                    let hold = space.reserve(Kind::Data, ByteLen(0))?;
                    hold.grow(len)
                }],
            ),
            (
                FaultSpec { extents: true, ..FaultSpec::default() },
                [&|| space.alloc(&want).map(drop), &|| space.alloc_from(&hold, &want).map(drop)],
            ),
            (
                FaultSpec { blocks: true, ..FaultSpec::default() },
                [&|| space.alloc_blocks(Kind::Metadata, 0, &mut Vec::new()), &|| {
                    space.alloc_blocks_from(&hold, 0, &mut Vec::new())
                }],
            ),
        ];
        for (chosen, (spec, _)) in asks.iter().enumerate() {
            space.fail_requests(FaultSpec { after: 2, count: 2, ..*spec });
            for (sort, (_, calls)) in asks.iter().enumerate() {
                for turn in 0..6 {
                    let (counted, before) = (space.requests_counted(), space.totals(Kind::Data));
                    let refused = matches!(calls[turn % 2](), Err(Refusal::NoSpace(_)));
                    let due = sort == chosen && (counted..space.requests_counted()).any(|nth| (2..4).contains(&nth));
                    assert_eq!(refused, due, "{spec:?} {sort} {turn}");
                    assert!(!refused || before == space.totals(Kind::Data), "{spec:?} {sort} {turn}");
                }
            }
        }
        space.fail_requests(FaultSpec::default());
        assert!(space.reserve(Kind::Data, len).is_ok());
        assert_eq!(space.requests_counted(), 0);
    }
}
