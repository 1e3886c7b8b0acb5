//! Subvolumes: what each reaches, alone and with others.

use std::collections::{BTreeMap, HashMap};

use oleo::layers::format::TreeId;
use serde::Serialize;

use super::notes::Notes;
use super::shares::{SUBVOLS_MAX, Shares, SubvolSet};
use super::tree::Roots;
use crate::name_text;

/// Sets that are listed, those with most bytes first.
const SETS_MAX: usize = 256;
/// Subvolumes in the matrix, those that reach most first.
const MATRIX_MAX: usize = 64;
/// Subvolumes that are listed.
const LISTED_MAX: usize = 4096;

/// A subvolume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Subvol {
    /// Its number.
    pub id: u64,
    /// Its path from the top level; empty for that, `None` if it is deleted or damaged.
    pub path: Option<String>,
    /// The subvolume that it is in.
    pub parent: Option<u64>,
    /// The subvolume that it is a snapshot of, if that is still there.
    pub snapshot_of: Option<u64>,
    /// Changes are refused.
    pub read_only: bool,
    /// It is deleted, but its space is not free yet.
    pub deleted: bool,
    /// The transaction that made it.
    pub made: u64,
    /// When: seconds since 1970.
    pub made_at: i64,
    /// Bytes that it reaches; `None`: it was not looked at by itself.
    pub reached: Option<u64>,
    /// Of these, bytes that no other reaches.
    pub alone: Option<u64>,
    /// Bytes of data in what it reaches alone.
    pub alone_data: Option<u64>,
}

/// Bytes that exactly these subvolumes reach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Set {
    /// Their numbers; 0 stands for all that were not looked at by themselves.
    pub subvols: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
}

/// Who shares what.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sharing {
    /// The subvolumes, by number.
    pub subvols: Vec<Subvol>,
    /// What exactly these reach, most bytes first.
    pub sets: Vec<Set>,
    /// Bytes of sets that are not listed.
    pub other_sets: u64,
    /// The subvolumes of the matrix, by number: those that reach most.
    pub matrix_of: Vec<u64>,
    /// For each two of them, the bytes that both reach; rows one behind the other.
    pub matrix: Vec<u64>,
}

impl Sharing {
    pub(super) fn of_roots(roots: &Roots, notes: &mut Notes) -> Sharing {
        let mut by_uuid: HashMap<[u8; 16], u64> = HashMap::new();
        for (id, root) in roots.subvols.iter().filter(|(_, root)| root.uuid != [0; 16]) {
            by_uuid.entry(root.uuid).or_insert(id.0);
        }
        let subvols: Vec<Subvol> = roots
            .subvols
            .iter()
            .take(LISTED_MAX)
            .map(|(id, root)| Subvol {
                id: id.0,
                path: roots.path(*id).filter(|_| !root.deleted).map(|path| name_text(&path)),
                parent: root.place.as_ref().map(|place| place.0.0),
                snapshot_of: by_uuid.get(&root.parent_uuid).copied().filter(|source| *source != id.0),
                read_only: root.read_only,
                deleted: root.deleted,
                made: root.made.0,
                made_at: root.made.1,
                reached: None,
                alone: None,
                alone_data: None,
            })
            .collect();
        let count = roots.subvols.len();
        if count > SUBVOLS_MAX {
            notes.push(format!(
                "{} of {count} subvolumes are looked at as one: only {SUBVOLS_MAX} are by themselves",
                count - SUBVOLS_MAX
            ));
        }
        if count > LISTED_MAX {
            notes.push(format!("{} subvolumes are not listed", count - LISTED_MAX));
        }
        Sharing { subvols, ..Sharing::default() }
    }

    /// The subvolumes that are looked at by themselves, by number; their places are the bits of sets.
    pub(super) fn tracked(&self) -> Vec<TreeId> {
        self.subvols.iter().take(SUBVOLS_MAX).map(|subvol| TreeId(subvol.id)).collect()
    }

    pub(super) fn fill(&mut self, shares: &Shares) {
        let mut bytes: BTreeMap<SubvolSet, (u64, u64)> =
            shares.blocks.iter().map(|(set, bytes)| (*set, (*bytes, 0))).collect();
        for extent in shares.extents() {
            let sum = bytes.entry(extent.set).or_default();
            let len = extent.len.saturating_mul(shares.one_in());
            *sum = (sum.0.saturating_add(len), sum.1.saturating_add(len));
        }
        let count = self.subvols.len().min(SUBVOLS_MAX);
        let mut reached = vec![0u64; count];
        let mut alone = vec![(0u64, 0u64); count];
        for (set, (all, data)) in &bytes {
            let one = set.count() == 1;
            for place in set.places().filter(|place| *place < count) {
                reached[place] = reached[place].saturating_add(*all);
                if one {
                    alone[place] = (*all, *data);
                }
            }
        }
        for (place, subvol) in self.subvols.iter_mut().take(count).enumerate() {
            subvol.reached = Some(reached[place]);
            (subvol.alone, subvol.alone_data) = (Some(alone[place].0), Some(alone[place].1));
        }
        let mut largest: Vec<usize> = (0..count).collect();
        largest.sort_by_key(|place| (std::cmp::Reverse(reached[*place]), *place));
        largest.truncate(MATRIX_MAX);
        largest.sort_unstable();
        let n = largest.len();
        let mut matrix = vec![0u64; n * n];
        for (set, (all, _)) in &bytes {
            let in_set: Vec<usize> = set.places().filter_map(|place| largest.binary_search(&place).ok()).collect();
            for &row in &in_set {
                for &column in &in_set {
                    let sum = &mut matrix[row * n + column];
                    *sum = sum.saturating_add(*all);
                }
            }
        }
        let id = |place: usize| self.subvols.get(place).filter(|_| place < SUBVOLS_MAX).map_or(0, |subvol| subvol.id);
        self.matrix_of = largest.iter().map(|place| id(*place)).collect();
        self.matrix = matrix;
        let mut sets: Vec<Set> = bytes
            .iter()
            .filter(|(set, _)| set.count() > 0)
            .map(|(set, (all, _))| Set { subvols: set.places().map(id).collect(), bytes: *all })
            .collect();
        let total: u64 = bytes.values().fold(0, |sum, (all, _)| sum.saturating_add(*all));
        sets.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.subvols.cmp(&b.subvols)));
        sets.truncate(SETS_MAX);
        self.other_sets = total.saturating_sub(sets.iter().fold(0, |sum, set| sum.saturating_add(set.bytes)));
        self.sets = sets;
    }

    /// The subvolume of a number.
    pub fn subvol(&self, id: u64) -> Option<&Subvol> {
        self.subvols.binary_search_by_key(&id, |subvol| subvol.id).ok().map(|at| &self.subvols[at])
    }
}
