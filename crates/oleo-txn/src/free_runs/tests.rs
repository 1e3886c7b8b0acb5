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
