//! The delta against an ordered map.

use super::*;

/// A base, and whether it passes over what it may.
struct Below(BTreeMap<Slot, Vec<u8>>, bool);

impl Base for Below {
    fn get(&self, slot: Slot) -> Result<Option<Value>, FsError> {
        Ok(self.0.get(&slot).map(|v| Value::Owned(v.clone().into())))
    }
    fn see(&self, slot: Slot, seen: &mut Seen<'_>) -> Result<(), FsError> {
        seen(self.0.get(&slot).map(|v| &**v));
        Ok(())
    }
    fn walk(
        &self,
        t: ItemType,
        from: u64,
        to_incl: u64,
        direction: Direction,
        visit: &mut BaseVisit<'_>,
    ) -> Result<(), FsError> {
        let mut found: Vec<_> = self.0.range((t, from)..=(t, to_incl)).collect();
        if direction == Direction::Down {
            found.reverse();
        }
        let mut next = None;
        for (slot, bytes) in found {
            if self.1 && next.is_some_and(|next| direction.compare(slot.1, next) == Ordering::Less) {
                continue;
            }
            match visit(slot.1, bytes) {
                ControlFlow::Continue(past) => next = past,
                ControlFlow::Break(()) => break,
            }
        }
        Ok(())
    }
    fn slots(&self, visit: &mut dyn FnMut(Slot) -> ControlFlow<()>) -> Result<(), FsError> {
        for slot in self.0.keys() {
            if visit(*slot).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

/// Goal: reading through open, frozen and base equals one map in which every change was made in place.
/// Method: random puts and deletes spread over the three layers, mirrored in a map; every read compared, both ways,
/// with random bounds and limits, for maps on both sides of the switch from vector to tree; with and without ranges that are
/// known to be empty.
#[test]
fn three_layers_read_as_one() {
    for round in 0..300u64 {
        let mut seed = round + 1;
        let width = [6, 40, 200][round as usize % 3];
        let types = [ItemType::DIR_ITEM, ItemType::DIR_INDEX, ItemType::EXTENT_DATA];
        let (mut base, mut model) = (BTreeMap::new(), BTreeMap::new());
        let (mut frozen, mut open) = (ItemMap::default(), ItemMap::default());
        for step in 0..width * 3 {
            let slot = (types[random(&mut seed) as usize % 3], random(&mut seed) % width);
            let fate = (!random(&mut seed).is_multiple_of(3)).then(|| ItemBytes::from(vec![step as u8; 3]));
            match &fate {
                Some(bytes) => model.insert(slot, bytes.to_vec()),
                None => model.remove(&slot),
            };
            match step / width {
                0 => match fate {
                    Some(bytes) => drop(base.insert(slot, bytes.to_vec())),
                    None => drop(base.remove(&slot)),
                },
                1 => frozen.set(slot, fate),
                _ => open.set(slot, fate),
            }
        }
        // Some of the ranges between live items, in part.
        let mut empty = Ranges::default();
        let mut start = 0;
        let live = model.keys().filter(|slot| slot.0 == ItemType::EXTENT_DATA).map(|slot| slot.1);
        for end in live.chain([width + 3]) {
            let (from, to) = (start + random(&mut seed) % 2, end - random(&mut seed) % 2 * u64::from(end > start));
            if from < to && !random(&mut seed).is_multiple_of(4) {
                empty.add(from, to);
            }
            start = end + 1;
        }
        let below = Below(base, round % 2 == 0);
        let empty = (!round.is_multiple_of(5)).then_some((ItemType::EXTENT_DATA, &empty));
        let layers = Layers { open: &open, frozen: Some(&frozen), base: Some(&below), empty };
        let extents = model.keys().filter(|slot| slot.0 == ItemType::EXTENT_DATA).count();
        let all: Vec<Slot> = model.keys().copied().collect();
        assert_eq!(layers.slots(ItemType::EXTENT_DATA, extents).unwrap(), Some(all), "seed {round}");
        if extents > 0 {
            assert_eq!(layers.slots(ItemType::EXTENT_DATA, extents - 1).unwrap(), None, "seed {round}");
        }
        for _ in 0..60 {
            let t = types[random(&mut seed) as usize % 3];
            let (from, to) = (random(&mut seed) % width, random(&mut seed) % (width + 3));
            let got = layers.get((t, from)).unwrap().map(|v| v.to_vec());
            assert_eq!(got, model.get(&(t, from)).cloned(), "seed {round}");
            let mut seen = Vec::new();
            layers.see((t, from), &mut |item| seen.push(item.map(<[u8]>::to_vec))).unwrap();
            assert_eq!(seen, [got], "seed {round}");
            let limit = random(&mut seed) as usize % 9 + 1;
            for direction in [Direction::Up, Direction::Down] {
                let mut want: Vec<_> = if from <= to {
                    model.range((t, from)..=(t, to)).map(|(s, v)| (s.1, v.clone())).collect()
                } else {
                    Vec::new()
                };
                if direction == Direction::Down {
                    want.reverse();
                }
                want.truncate(limit);
                let mut have = Vec::new();
                layers
                    .walk(t, from, to, direction, &mut |offset, bytes| {
                        have.push((offset, bytes.to_vec()));
                        if have.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                    .unwrap();
                assert_eq!(have, want, "seed {round}");
            }
        }
    }
}

/// Goal: reading an item that is in a delta, and handing it to a commit, copies no bytes.
/// Method: put one item under two slots, as a directory entry is; every reader must have the very bytes that were put.
#[test]
fn items_are_shared() {
    let bytes: ItemBytes = vec![7; 40].into();
    let mut open = ItemMap::default();
    for t in [ItemType::DIR_ITEM, ItemType::DIR_INDEX] {
        open.set((t, 1), Some(bytes.clone()));
    }
    let layers = Layers { open: &open, frozen: None, base: None, empty: None };
    for t in [ItemType::DIR_ITEM, ItemType::DIR_INDEX] {
        let Some(Value::Owned(read)) = layers.get((t, 1)).unwrap() else { panic!("the item is in the delta") };
        assert!(std::ptr::eq(&*read, &*bytes), "a copy was made");
    }
}

/// Goal: a look-up behind a million deleted items costs what one behind a few does. Method: a base and tombstones for all of its items but the
/// first, with one note that there is nothing; count what the base is asked for, in both directions, with a change in the middle as well.
#[test]
fn what_is_empty_is_not_walked_over() {
    const ITEMS: u64 = 10_000;
    let slot = |at| (ItemType::EXTENT_DATA, at);
    let mut open = ItemMap::default();
    let mut empty = Ranges::default();
    (1..ITEMS).for_each(|at| open.set(slot(at), None));
    empty.add(1, ITEMS);
    open.set(slot(5000), Some(vec![1].into()));
    empty.remove(5000);
    struct Counted(Below, std::cell::Cell<usize>);
    impl Base for Counted {
        fn get(&self, slot: Slot) -> Result<Option<Value>, FsError> {
            self.0.get(slot)
        }
        fn see(&self, slot: Slot, seen: &mut Seen<'_>) -> Result<(), FsError> {
            self.0.see(slot, seen)
        }
        fn walk(
            &self,
            t: ItemType,
            from: u64,
            to_incl: u64,
            direction: Direction,
            visit: &mut BaseVisit<'_>,
        ) -> Result<(), FsError> {
            self.0.walk(t, from, to_incl, direction, &mut |offset, bytes| {
                self.1.set(self.1.get() + 1);
                visit(offset, bytes)
            })
        }
        fn slots(&self, _: &mut dyn FnMut(Slot) -> ControlFlow<()>) -> Result<(), FsError> {
            Ok(())
        }
    }
    let below = Counted(Below((0..ITEMS).map(|at| (slot(at), vec![0])).collect(), true), Default::default());
    let layers = Layers { open: &open, frozen: None, base: Some(&below), empty: Some((ItemType::EXTENT_DATA, &empty)) };
    for (direction, want) in [(Direction::Up, [0, 5000]), (Direction::Down, [5000, 0])] {
        let mut found = Vec::new();
        let mut visit = |at, _: &[u8]| {
            found.push(at);
            ControlFlow::Continue(())
        };
        layers.walk(ItemType::EXTENT_DATA, 0, u64::MAX, direction, &mut visit).unwrap();
        assert_eq!(found, want);
    }
    assert!(below.1.get() < 20, "{} items", below.1.get());
}
