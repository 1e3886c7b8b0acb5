//! The free space of a group against a plain array of bits.

use super::*;

const SECTOR: u64 = 4096;

struct Rng(u64);
impl Rng {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn runs_of(bits: &[bool], start: u64) -> Vec<(Logical, ByteLen)> {
    let mut out = Vec::new();
    let mut i = 0;
    while i < bits.len() {
        if bits[i] {
            let from = i;
            while i < bits.len() && bits[i] {
                i += 1;
            }
            out.push((Logical(start + from as u64 * SECTOR), ByteLen((i - from) as u64 * SECTOR)));
        } else {
            i += 1;
        }
    }
    out
}

/// Goal: whatever is taken and freed, runs and stored items say what a bit per sector says, in both forms.
/// Method: rounds of random flips applied as sorted changes; the changes go to a map as the tree would hold it; the group
/// is read back from that map.
#[test]
fn follows_a_bitmap_model_in_both_forms() {
    for seed in 1..6u64 {
        let mut rng = Rng(seed * 0x9e37_79b9);
        let (start, sectors) = (1 << 30, 3000 + seed as usize * 777);
        let mut bits = vec![true; sectors];
        let len = ByteLen(sectors as u64 * SECTOR);
        let mut group = FreeItems::new(Logical(start), len, SECTOR as u32, &runs_of(&bits, start));
        let mut tree: BTreeMap<Key, Box<[u8]>> = BTreeMap::new();
        let mut seen = [false; 2];
        for round in 0..60 {
            let mut space_changes = Vec::new();
            let mut i = rng.next(4) as usize;
            // Fragment hard in the first half, heal in the second, so that both forms are met.
            let heal = round >= 30;
            while i < sectors {
                let new_state = if bits[i] { FreeSpaceChange::Used } else { FreeSpaceChange::Free };
                let max = if heal && new_state == FreeSpaceChange::Free { 64 } else { 1 + rng.next(3) as usize };
                let mut end = i;
                while end < sectors && end - i < max && bits[end] == bits[i] {
                    end += 1;
                }
                if !(heal && new_state == FreeSpaceChange::Used) {
                    let (from, to) = (start + i as u64 * SECTOR, start + end as u64 * SECTOR);
                    space_changes.push((Piece { start: from, end: to }, new_state));
                    let now = new_state == FreeSpaceChange::Free;
                    bits[i..end].fill(now);
                }
                i = end + rng.next(if heal { 3 } else { 20 }) as usize;
            }
            group.apply(&space_changes).unwrap();
            for change in group.changes() {
                match change.op {
                    Op::Put(data) => drop(tree.insert(change.key, (*data).into())),
                    Op::Delete => assert!(tree.remove(&change.key).is_some(), "seed {seed}: deletes what is there"),
                }
            }
            assert_eq!(group.runs().collect::<Vec<_>>(), runs_of(&bits, start), "seed {seed} round {round}");
            let items = tree.iter().map(|(k, v)| (*k, v.clone())).collect();
            group = FreeItems::read(Logical(start), len, SECTOR as u32, items).unwrap();
            assert_eq!(group.runs().collect::<Vec<_>>(), runs_of(&bits, start), "seed {seed} round {round}, read");
            seen[usize::from(group.has_bitmaps())] = true;
        }
        assert_eq!(seen, [true, true], "seed {seed} meets both forms");
    }
}

/// Goal: a miscount is an error, not absorbed. Method: free what is free; take what is taken.
#[test]
fn refuses_what_cannot_be() {
    let free = [(Logical(0), ByteLen(8 * SECTOR))];
    let piece = Piece { start: 0, end: SECTOR };
    let mut group = FreeItems::new(Logical(0), ByteLen(16 * SECTOR), SECTOR as u32, &free);
    assert!(group.apply(&[(piece, FreeSpaceChange::Free)]).is_err());
    group.apply(&[(piece, FreeSpaceChange::Used)]).unwrap();
    assert!(group.apply(&[(piece, FreeSpaceChange::Used)]).is_err());
}

/// Goal: what the items around the pieces say is what the whole group says, in both forms and where they change; and the tree holds
/// it.
/// Method: rounds of random changes of a group in a real tree: item changes found in both ways are the same, and after they are applied
/// the group is read and compared with an array of bits.
#[test]
fn items_around_the_pieces() {
    let device: std::sync::Arc<dyn oleo_device::Device> = std::sync::Arc::new(oleo_device::MemDevice::new(1 << 30));
    oleo_mkfs::make(std::slice::from_ref(&device), &oleo_mkfs::MkfsOptions::default().seed([1; 32])).unwrap();
    let options = oleo_volume::OpenOptions { write: true, ..oleo_volume::OpenOptions::default() };
    let volume = oleo_volume::Volume::open(vec![device], &options).unwrap();
    let engine = crate::Engine::open(std::sync::Arc::new(volume), &crate::EngineOptions::default()).unwrap();
    let (inner, generation) = (&*engine.0, engine.generation());
    let tree = oleo_format::TreeId::FREE_SPACE;
    for seed in 1..5u64 {
        let mut rng = Rng(seed * 0x9e37_79b9);
        let (start, sectors) = (seed << 50, 5000 + seed as usize * 1777);
        let len = sectors as u64 * SECTOR;
        let group = GroupSpan { start, len, sectorsize: SECTOR as u32 };
        let mut bits = vec![true; sectors];
        // Neighbours in the tree, which nothing may touch.
        for at in [start - len, start, start + len] {
            let mut new = FreeItems::new(Logical(at), ByteLen(len), SECTOR as u32, &[(Logical(at), ByteLen(len))]);
            inner.apply(tree, &new.changes(), generation).unwrap();
        }
        let (mut seen, mut locally) = ([0; 2], 0);
        for round in 0..120 {
            // First few changes, then many, then everything is freed again.
            let (few, heal) = (round % 60 < 20, round % 60 >= 40);
            let mut pieces = Vec::new();
            let mut i = rng.next(40) as usize;
            while i < sectors {
                let becomes = if bits[i] { FreeSpaceChange::Used } else { FreeSpaceChange::Free };
                let max = if heal || rng.next(9) == 0 { 3000 } else { 1 + rng.next(3) as usize };
                let end = (i..sectors.min(i + max)).find(|s| bits[*s] != bits[i]).unwrap_or(sectors.min(i + max));
                if !heal || becomes == FreeSpaceChange::Free {
                    let piece = Piece { start: start + i as u64 * SECTOR, end: start + end as u64 * SECTOR };
                    pieces.push((piece, becomes));
                    bits[i..end].fill(becomes == FreeSpaceChange::Free);
                }
                let gap = match rng.next(3) {
                    0 => 2,
                    _ if heal => 3,
                    _ if few => 3000,
                    _ => 60,
                };
                i = end + rng.next(gap) as usize;
            }
            let root = inner.tree(tree).unwrap().root;
            let items = group_items(&inner.blocks, &root, Logical(start), ByteLen(len)).unwrap();
            let mut whole = FreeItems::read(Logical(start), ByteLen(len), SECTOR as u32, items).unwrap();
            whole.apply(&pieces).unwrap();
            let expected = whole.changes();
            let local = local::changes(&inner.blocks, &root, group, &pieces).unwrap();
            locally += usize::from(local.is_some());
            assert!(local.is_none_or(|local| local == expected), "seed {seed} round {round}: both ways");
            let changes = group_changes(&inner.blocks, &root, group, &pieces).unwrap();
            assert!(changes == expected, "seed {seed} round {round}: the changes");
            inner.apply(tree, &changes, generation).unwrap();
            seen[usize::from(whole.has_bitmaps())] += 1;
            assert_eq!(whole.runs().collect::<Vec<_>>(), runs_of(&bits, start), "seed {seed} round {round}");
        }
        assert!(seen.iter().all(|n| *n > 10) && locally > 60, "seed {seed}: {seen:?}, {locally} found locally");
    }
    let piece = |from: u64, to: u64| Piece { start: (1 << 50) + from * SECTOR, end: (1 << 50) + to * SECTOR };
    let root = inner.tree(tree).unwrap().root;
    let len = (5000 + 1777) * SECTOR;
    let group = GroupSpan { start: 1 << 50, len, sectorsize: SECTOR as u32 };
    for wrong in [FreeSpaceChange::Used, FreeSpaceChange::Free] {
        let all = [(piece(0, 6777), wrong)];
        assert!(group_changes(&inner.blocks, &root, group, &all).is_err(), "all of it is neither free nor used");
    }
}
