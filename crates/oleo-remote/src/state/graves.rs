//! Objects that nothing living names, until they are deleted.
//!
//! An object gets its grave with the checkpoint from which on no head names it, and that is final: nobody names it again. It
//! is deleted when no pin needs it any more ([`Graves::ripe`], [`Graves::deleted`]), and with the next checkpoint its grave
//! goes ([`Graves::drop_deleted`]), which raises the horizon: of heads before it something may be gone.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use crate::format::map::PAGE_GRAVES;
use crate::format::{Grave, ObjectId};

/// Most graves, about 100 MiB of memory; above it objects stay that nothing names.
const GRAVE_COUNT_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Tomb {
    grave: Grave,
    /// When this process knew that a head with it is published; none: it is not yet.
    known: Option<Duration>,
    deleted: bool,
}

/// See the module's text.
#[derive(Default, Debug)]
pub(crate) struct Graves {
    pages: BTreeMap<u32, Vec<Tomb>>,
    ids: HashSet<ObjectId>,
    /// Pages that differ from what is written.
    dirty: BTreeSet<u32>,
    /// The highest `died` of a grave that is not here any more.
    horizon: u64,
}

impl Graves {
    /// Whether an object has a grave.
    pub(crate) fn has(&self, id: ObjectId) -> bool {
        self.ids.contains(&id)
    }

    /// Whether there may be more.
    pub(crate) fn is_full(&self) -> bool {
        self.ids.len() >= GRAVE_COUNT_MAX
    }

    /// See the module's text.
    pub(crate) fn horizon(&self) -> u64 {
        self.horizon
    }

    /// What a head says of the horizon.
    pub(crate) fn restore_horizon(&mut self, horizon: u64) {
        self.horizon = horizon;
    }

    /// The graves of a page, which the newest head has.
    pub(crate) fn restore(&mut self, page: u32, graves: Vec<Grave>, now: Duration) {
        self.ids.extend(graves.iter().map(|grave| grave.id));
        let tombs = graves.into_iter().map(|grave| Tomb { grave, known: Some(now), deleted: false });
        self.pages.entry(page).or_default().extend(tombs);
    }

    /// One more, of the head that is published next, or, with a time, of one that is.
    pub(crate) fn add(&mut self, grave: Grave, known: Option<Duration>) {
        let last = self.pages.last_key_value();
        let page = last.map_or(0, |(page, tombs)| page + u32::from(tombs.len() >= PAGE_GRAVES as usize));
        self.pages.entry(page).or_default().push(Tomb { grave, known, deleted: false });
        self.dirty.insert(page);
        self.ids.insert(grave.id);
    }

    /// Those of objects that are the volume's own: others delete what is theirs.
    pub(crate) fn add_own(&mut self, graves: impl Iterator<Item = Grave>) {
        graves.filter(|grave| grave.id.origin == 0).for_each(|grave| self.add(grave, None));
    }

    /// All of them are in a published head.
    pub(crate) fn published(&mut self, now: Duration) {
        for tomb in self.pages.values_mut().flatten() {
            tomb.known.get_or_insert(now);
        }
    }

    /// Those that have been in a published head since some time, and are not known to be deleted.
    pub(crate) fn ripe(&self, before: Duration) -> Vec<Grave> {
        let ripe = |tomb: &&Tomb| !tomb.deleted && tomb.known.is_some_and(|known| known <= before);
        self.pages.values().flatten().filter(ripe).map(|tomb| tomb.grave).collect()
    }

    /// All that are not known to be deleted.
    pub(crate) fn all(&self) -> impl Iterator<Item = Grave> + '_ {
        self.pages.values().flatten().filter(|tomb| !tomb.deleted).map(|tomb| tomb.grave)
    }

    /// These objects are deleted.
    pub(crate) fn deleted(&mut self, ids: &HashSet<ObjectId>) {
        for tomb in self.pages.values_mut().flatten() {
            tomb.deleted |= ids.contains(&tomb.grave.id);
        }
    }

    /// Graves of what is deleted go.
    pub(crate) fn drop_deleted(&mut self) {
        for (page, tombs) in &mut self.pages {
            let before = tombs.len();
            let gone = tombs.iter().filter(|tomb| tomb.deleted).map(|tomb| tomb.grave.died);
            self.horizon = self.horizon.max(gone.max().unwrap_or(0));
            tombs.iter().filter(|tomb| tomb.deleted).for_each(|tomb| _ = self.ids.remove(&tomb.grave.id));
            tombs.retain(|tomb| !tomb.deleted);
            if tombs.len() < before {
                self.dirty.insert(*page);
            }
        }
    }

    /// Pages that a checkpoint must write.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.dirty)
    }

    /// The graves of a page.
    pub(crate) fn page(&self, number: u32) -> Vec<Grave> {
        self.pages.get(&number).into_iter().flatten().map(|tomb| tomb.grave).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a grave is ripe when it has been published for long enough, goes when its object is deleted, and its page is written
    /// again then; pages are filled to their bound.
    #[test]
    fn from_death_to_the_horizon() {
        let at = Duration::from_secs;
        let grave = |n: u64| Grave { id: ObjectId::segment(1, n), born: n, died: n + 5 };
        let mut graves = Graves::default();
        graves.restore(0, (0..3).map(grave).collect(), at(10));
        graves.add_own([grave(3), Grave { id: ObjectId { origin: 1, ..grave(4).id }, ..grave(4) }].into_iter());
        assert_eq!(graves.all().count(), 4, "what is another volume's is not buried here");
        assert_eq!(graves.ripe(at(9)), []);
        assert_eq!(graves.ripe(at(99)).len(), 3, "the fourth is in no head yet");
        graves.published(at(20));
        assert_eq!(graves.ripe(at(19)).len(), 3);
        assert_eq!(graves.ripe(at(20)).len(), 4);
        assert_eq!(graves.take_dirty(), BTreeSet::from([0]));
        graves.deleted(&HashSet::from([grave(1).id]));
        assert!(graves.take_dirty().is_empty() && graves.ripe(at(20)).len() == 3 && graves.has(grave(1).id));
        graves.drop_deleted();
        assert_eq!((graves.horizon(), graves.has(grave(1).id), graves.page(0).len()), (6, false, 3));
        assert_eq!(graves.take_dirty(), BTreeSet::from([0]));
        (10..10 + u64::from(PAGE_GRAVES)).for_each(|n| graves.add(grave(n), None));
        assert_eq!((graves.page(0).len(), graves.page(1).len()), (PAGE_GRAVES as usize, 3));
    }
}
