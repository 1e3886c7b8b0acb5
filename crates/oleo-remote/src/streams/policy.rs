//! Which snapshots are kept: the newest ones, and the newest of each of the last days, weeks, months and years that have some.
//!
//! Days begin at midnight UTC, weeks with Monday. Each series is counted by itself: the snapshots of one subvolume.

use std::collections::HashMap;

use oleo_format::print::calendar;
use uuid::Uuid;

use super::list::StreamEntry;

/// How many are kept of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Policy {
    /// The newest ones.
    pub last: usize,
    /// Days.
    pub daily: usize,
    /// Weeks.
    pub weekly: usize,
    /// Months.
    pub monthly: usize,
    /// Years.
    pub yearly: usize,
}

/// Why a stream is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// It is one of the newest.
    Last,
    /// It is the newest of a day.
    Daily,
    /// It is the newest of a week.
    Weekly,
    /// It is the newest of a month.
    Monthly,
    /// It is the newest of a year.
    Yearly,
    /// One that is kept is built on it: of which snapshot.
    NeededBy(String),
    /// An upload under way is built on it: of which snapshot.
    NeededByUpload(String),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::Last => f.write_str("last"),
            Reason::Daily => f.write_str("daily"),
            Reason::Weekly => f.write_str("weekly"),
            Reason::Monthly => f.write_str("monthly"),
            Reason::Yearly => f.write_str("yearly"),
            Reason::NeededBy(name) => write!(f, "needed by {name}"),
            Reason::NeededByUpload(name) => write!(f, "needed by the upload of {name}"),
        }
    }
}

/// In which day, week, month or year a moment is, by number.
type Period = fn(i64) -> i64;

impl Policy {
    /// Whether it keeps nothing.
    pub fn is_empty(&self) -> bool {
        *self == Policy::default()
    }

    /// Why each stream is kept by itself, in the order of the list; none: it is not.
    pub fn keep(&self, streams: &[StreamEntry]) -> Vec<Vec<Reason>> {
        let mut out = vec![Vec::new(); streams.len()];
        let mut by_series: HashMap<Uuid, Vec<usize>> = HashMap::new();
        for (at, stream) in streams.iter().enumerate() {
            by_series.entry(stream.series).or_default().push(at);
        }
        for mut series in by_series.into_values() {
            series.sort_by_key(|at| std::cmp::Reverse((streams[*at].taken, streams[*at].number)));
            // A snapshot that is there twice, whole and built on another, counts once.
            let mut seen = std::collections::HashSet::new();
            series.retain(|at| seen.insert((streams[*at].uuid, streams[*at].ctransid)));
            series.iter().take(self.last).for_each(|at| out[*at].push(Reason::Last));
            let kinds: [(usize, Reason, Period); 4] = [
                (self.daily, Reason::Daily, day),
                (self.weekly, Reason::Weekly, |taken| (day(taken) + 3).div_euclid(7)),
                (self.monthly, Reason::Monthly, |taken| month(day(taken))),
                (self.yearly, Reason::Yearly, |taken| month(day(taken)).div_euclid(12)),
            ];
            for (most, reason, of) in kinds {
                let mut last = None;
                let mut count = 0;
                for at in &series {
                    let this = Some(of(streams[*at].taken));
                    if count < most && this != last {
                        (last, count) = (this, count + 1);
                        out[*at].push(reason.clone());
                    }
                }
            }
        }
        out
    }
}

fn day(taken: i64) -> i64 {
    taken.div_euclid(86_400)
}

/// Months since the year 0, of a day since 1970.
fn month(day: i64) -> i64 {
    let (year, month, _) = calendar(day);
    year * 12 + month - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams taken on these days since 1970, at noon.
    fn taken(days: &[i64]) -> Vec<StreamEntry> {
        let of = |(number, day): (usize, &i64)| StreamEntry {
            id: Uuid::from_u128(number as u128 + 1),
            number: number as u64 + 1,
            name: format!("day{day}"),
            uuid: Uuid::from_u128(number as u128 + 1000),
            ctransid: 1,
            series: Uuid::nil(),
            incremental: false,
            needs: vec![],
            taken: day * 86_400 + 43_200,
            stored: 0,
            by: String::new(),
            bytes: 0,
            stored_bytes: 0,
            index_bytes: 0,
            manifest_len: 64,
            manifest_xxh: 0,
        };
        days.iter().enumerate().map(of).collect()
    }

    fn kept(policy: Policy, streams: &[StreamEntry]) -> Vec<String> {
        let keep = policy.keep(streams);
        streams.iter().zip(keep).filter(|(_, why)| !why.is_empty()).map(|(stream, _)| stream.name.clone()).collect()
    }

    /// Goal: months and years begin where calendars have it. Method: borders, leap years among them.
    #[test]
    fn calendar() {
        for (day, want) in [(0, 1970 * 12), (30, 1970 * 12), (31, 1970 * 12 + 1), (-1, 1969 * 12 + 11)] {
            assert_eq!(month(day), want, "{day}");
        }
        // 29 February 2000, 1 March 2000, 31 December 2000, 1 January 2001.
        assert_eq!([11_016, 11_017, 11_322, 11_323].map(month), [24_001, 24_002, 24_011, 24_012]);
    }

    /// Goal: each kind keeps the newest of as many as it is told, days without any do not count, series do not take from one another.
    #[test]
    fn kinds() {
        let mut streams = taken(&[0, 1, 1, 3, 10, 31, 40, 400]);
        let policy = |last, daily, weekly, monthly, yearly| Policy { last, daily, weekly, monthly, yearly };
        assert_eq!(kept(policy(2, 0, 0, 0, 0), &streams), ["day40", "day400"]);
        assert_eq!(kept(policy(0, 3, 0, 0, 0), &streams), ["day31", "day40", "day400"]);
        assert_eq!(kept(policy(0, 7, 0, 0, 0), &streams).len(), 7, "of day 1 only the newer");
        // Day 3 is a Sunday, of the same week as days 0 and 1.
        assert_eq!(kept(policy(0, 0, 9, 0, 0), &streams), ["day3", "day10", "day31", "day40", "day400"]);
        assert_eq!(kept(policy(0, 0, 0, 3, 0), &streams), ["day10", "day40", "day400"]);
        assert_eq!(kept(policy(0, 0, 0, 0, 9), &streams), ["day40", "day400"]);
        streams[7].series = Uuid::max();
        assert_eq!(kept(policy(1, 0, 0, 0, 0), &streams), ["day40", "day400"]);
        streams[6].uuid = streams[5].uuid;
        assert_eq!(kept(policy(2, 0, 0, 0, 0), &streams), ["day10", "day40", "day400"], "the same twice counts once");
        assert!(Policy::default().is_empty() && kept(Policy::default(), &streams).is_empty());
    }
}
