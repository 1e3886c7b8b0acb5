//! Collects findings: from any thread, a bounded number of each kind.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::finding::{Finding, Kind};

/// Collects findings from all threads.
pub(crate) struct Findings {
    kept_max: usize,
    inner: Mutex<BTreeMap<Kind, (u64, Vec<Finding>)>>,
}

impl Findings {
    pub fn new(kept_max: usize) -> Findings {
        Findings { kept_max, inner: Mutex::new(BTreeMap::new()) }
    }

    /// Counts a finding, and keeps it while there are few of its kind.
    pub fn report(&self, finding: Finding) {
        let mut inner = self.inner.lock();
        let (count, kept) = inner.entry(finding.kind).or_default();
        if kept.contains(&finding) {
            return;
        }
        *count += 1;
        if kept.len() < self.kept_max {
            kept.push(finding);
        }
    }

    /// Returns the findings by kind and place, and for each kind how many were counted but not kept.
    pub fn finish(self) -> (Vec<Finding>, BTreeMap<Kind, u64>) {
        let (mut all, mut left_out) = (Vec::new(), BTreeMap::new());
        for (kind, (count, mut kept)) in self.inner.into_inner() {
            if count > kept.len() as u64 {
                left_out.insert(kind, count - kept.len() as u64);
            }
            kept.sort_by(|a, b| {
                let place = |f: &Finding| (f.at.block, f.at.tree, f.at.key, f.at.device);
                place(a).cmp(&place(b)).then_with(|| (&a.have, &a.want).cmp(&(&b.have, &b.want)))
            });
            all.append(&mut kept);
        }
        (all, left_out)
    }
}
