//! How the cost of operations grows with what they are about.
//!
//! One program with one test, because it counts what all threads do and allocate. Each case of the modules prepares something of
//! size N and measures one operation, at N, 4N and 16N. Costs are counts, not times: items of trees and of changes in memory that are looked
//! at, locks that are taken, pieces and bytes of memory that are asked for, requests to devices and their bytes. From N to 4N and from 4N to
//! 16N each of them may grow like N log N and a little more ([`RATIO_MAX`]); fixed costs cancel out.
//!
//! `GROWTH=<part of a name>` measures only some cases, `GROWTH_SHOW=1` prints all counts, and processor time, which has no limit. Costs that are not
//! counted, looks through lists in memory above all, show in that at larger sizes: `GROWTH_SCALE=8` makes all so many times larger.

#![allow(unsafe_code, reason = "an allocator has no safe form; it only counts and passes on")]

mod count;
mod data;
mod names;
mod streams;
mod volumes;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::count::{COSTS, Cost};

/// The limit of a cost's growth from the second size to the third, as a multiple of its growth from the first to the second. Sizes are N, 4N and 16N: a
/// cost of N makes 4, one of N² makes 16. One of N log N makes 5; where trees of one leaf become trees of three levels, it makes up to 7.7.
const RATIO_MAX: f64 = 8.0;
/// Growth of less than this for each additional file, extent or other object is none: hash tables and pools that grow in jumps.
/// Processor time is shown only.
const FLOORS: [f64; COSTS.len()] = [2.0, 2.0, 0.5, 256.0, 0.5, 512.0, f64::INFINITY];

/// One operation in one dimension.
pub struct Case {
    /// The operation, and what there are many of.
    pub name: &'static str,
    /// The smallest size.
    pub least: u64,
    /// Prepares, and measures with [`count::measure`].
    pub run: fn(u64) -> Result<Cost>,
    /// Which costs may grow faster, and why.
    pub known: (&'static [&'static str], &'static str),
}

/// A case of the usual size.
pub const fn case(name: &'static str, run: fn(u64) -> Result<Cost>) -> Case {
    Case { name, least: 128, run, known: (&[], "") }
}

impl Case {
    /// Of another size.
    pub const fn from(self, least: u64) -> Case {
        Case { least, ..self }
    }

    /// Some costs grow faster, for a reason.
    pub const fn known(self, costs: &'static [&'static str], why: &'static str) -> Case {
        Case { known: (costs, why), ..self }
    }

    /// Which costs grow too fast, and how.
    fn measure(&self, show: bool, scale: u64) -> Result<Vec<String>> {
        let sizes = [1, 4, 16].map(|times| times * scale * self.least);
        let costs = sizes.map(|n| (self.run)(n).with_context(|| format!("{} at {n}", self.name)));
        let [small, middle, large] = costs;
        let (small, middle, large) = (small?, middle?, large?);
        let mut found = Vec::new();
        for (at, name) in COSTS.into_iter().enumerate() {
            let [first, second, third] = [small[at], middle[at], large[at]].map(|count| count as f64);
            let added = (third - second) / (sizes[2] - sizes[1]) as f64;
            // What jumps may have jumped between the first two: it counts as if it had been even.
            let least = if FLOORS[at].is_finite() { FLOORS[at] } else { 0.1 };
            let before = (second - first).max(least * (sizes[1] - sizes[0]) as f64);
            let ratio = (third - second) / before;
            let line = format!("{name}: {first} {second} {third}: {added:.1} more for each, ratio {ratio:.1}");
            if show {
                println!("    {line}");
            }
            if added > FLOORS[at] && ratio > RATIO_MAX && !self.known.0.contains(&name) {
                found.push(line);
            }
        }
        Ok(found)
    }
}

/// Goal: no operation of the library costs more than N log N in anything that a volume may have many of: extents, names, links, snapshots,
/// subvolumes, levels of directories, references, devices. Method: see the top of this file.
#[test]
fn costs_grow_like_what_they_are_about() -> Result<()> {
    if oleo_format::work::steps().is_none() {
        println!("skipped: release builds do not count");
        return Ok(());
    }
    let (only, show) = (std::env::var("GROWTH").unwrap_or_default(), std::env::var_os("GROWTH_SHOW").is_some());
    let scale: u64 = std::env::var("GROWTH_SCALE").map_or(Ok(1), |n| n.parse())?;
    let mut wrong = BTreeMap::new();
    for case in data::CASES.iter().chain(names::CASES).chain(volumes::CASES).chain(streams::CASES) {
        if !case.name.contains(&only) {
            continue;
        }
        if show {
            println!("{}:", case.name);
        }
        let begin = std::time::Instant::now();
        let found = case.measure(show, scale).unwrap_or_else(|error| vec![format!("{error:#}")]);
        println!(
            "{}: {} ({} ms)",
            case.name,
            if found.is_empty() { "ok" } else { "too fast" },
            begin.elapsed().as_millis()
        );
        if !case.known.0.is_empty() {
            println!("    but for {}: {}", case.known.0.join(", "), case.known.1);
        }
        if !found.is_empty() {
            wrong.insert(case.name, found.join("; "));
        }
    }
    let list: Vec<String> = wrong.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    ensure!(list.is_empty(), "{} cases:\n{}", list.len(), list.join("\n"));
    Ok(())
}
