//! Sorted ranges of addresses, start and end: joining, searching, subtracting.

/// Joins ranges that touch or overlap; the result rises and has as few ranges as possible.
pub(crate) fn joined(mut all: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    all.sort_unstable();
    all.dedup_by(|next, last| {
        let touches = next.0 <= last.1;
        if touches {
            last.1 = last.1.max(next.1);
        }
        touches
    });
    all
}

/// The ranges that overlap `start..end`; `runs` are sorted and disjoint.
pub(crate) fn overlapping(runs: &[(u64, u64)], start: u64, end: u64) -> &[(u64, u64)] {
    let first = runs.partition_point(|run| run.1 <= start);
    let rest = &runs[first..];
    &rest[..rest.partition_point(|run| run.0 < end)]
}

/// The parts of `runs` that are in none of `others`; both are sorted.
pub(crate) fn without(runs: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    let mut i = 0;
    for &(start, end) in runs {
        let mut at = start;
        while i < others.len() && others[i].1 <= at {
            i += 1;
        }
        let mut j = i;
        while j < others.len() && others[j].0 < end {
            if others[j].0 > at {
                left.push((at, others[j].0));
            }
            at = at.max(others[j].1);
            j += 1;
        }
        if at < end {
            left.push((at, end));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ranges join where they touch or overlap; what overlaps a range is found. Method: by hand.
    #[test]
    fn ranges_join_and_overlap() {
        let all = joined(vec![(5, 9), (0, 3), (3, 4), (6, 7), (20, 30)]);
        assert_eq!(all, [(0, 4), (5, 9), (20, 30)]);
        assert_eq!(overlapping(&all, 4, 5), []);
        assert_eq!(overlapping(&all, 3, 21), all);
        assert_eq!(overlapping(&all, 9, 20), []);
    }

    /// Goal: what is left of runs after others are taken away. Method: overlaps at either side, inside and none.
    #[test]
    fn runs_without_others() {
        assert_eq!(without(&[(0, 10)], &[(2, 4), (8, 12)]), [(0, 2), (4, 8)]);
        assert_eq!(without(&[(0, 4), (6, 9)], &[(3, 7)]), [(0, 3), (7, 9)]);
        assert_eq!(without(&[(0, 4)], &[]), [(0, 4)]);
        assert_eq!(without(&[(5, 6)], &[(0, 9)]), []);
        assert_eq!(without(&[(0, 3), (3, 6)], &[(0, 3)]), [(3, 6)]);
    }
}
