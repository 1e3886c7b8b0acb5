//! Which groups a balance moves: the filters of btrfs, one set for each type of group.
//!
//! A group is moved if all filters accept it. [`Filters::takes`] checks one group by itself; the caller that goes
//! through the groups counts them for `limit` ([`Filters::limit`]).
//!
//! btrfs-balance(8) defines the filters. One thing it does not mention, which the tests compare with the kernel: a
//! share of a group is rounded down to whole bytes, so a full group is below no `usage`, not even 100.

use std::fmt;
use std::str::FromStr;

use oleo_format::DevId;
use oleo_space::GroupInfo;
use oleo_volume::{ChunkMap, Profile};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number at most, or a least and a greatest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// At most this.
    Max(u64),
    /// From the first to the second.
    Range(u32, u32),
}

impl Bound {
    /// The least.
    pub fn min(self) -> u64 {
        match self {
            Bound::Max(_) => 0,
            Bound::Range(min, _) => min.into(),
        }
    }

    /// The greatest.
    pub fn max(self) -> u64 {
        match self {
            Bound::Max(max) => max,
            Bound::Range(_, max) => max.into(),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Max(max) => write!(f, "{max}"),
            Bound::Range(min, max) => write!(f, "{min}..{max}"),
        }
    }
}

/// Bytes from `start` up to `end`, which is not among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The first.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
}

impl Span {
    /// Whether it has a byte in common with those from `at` on.
    fn meets(self, at: u64, len: u64) -> bool {
        at < self.end && at.saturating_add(len) > self.start
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// The filters for one type of group. None of them: every group.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Filters {
    /// Only groups of one of these profiles.
    #[serde(serialize_with = "names", deserialize_with = "from_names", skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Vec<Profile>>,
    /// Only groups of which such a part is used, in percent; the greatest is not among them, but 0 means empty ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Bound>,
    /// Only groups that have a stripe on this device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devid: Option<DevId>,
    /// Only groups with a stripe in this range of the device of `devid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drange: Option<Span>,
    /// Only groups in this range of logical addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrange: Option<Span>,
    /// At most this many groups; if fewer than the minimum match, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bound>,
    /// Only groups with this many stripes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripes: Option<(u32, u32)>,
    /// Groups that are moved get this profile.
    #[serde(serialize_with = "name", deserialize_with = "from_name", skip_serializing_if = "Option::is_none")]
    pub convert: Option<Profile>,
    /// Groups that have it already are left alone.
    #[serde(skip_serializing_if = "is_false")]
    pub soft: bool,
}

oleo_format::setters!(Filters {
    profiles: Option<Vec<Profile>>,
    usage: Option<Bound>,
    devid: Option<DevId>,
    drange: Option<Span>,
    vrange: Option<Span>,
    limit: Option<Bound>,
    stripes: Option<(u32, u32)>,
    convert: Option<Profile>,
    soft: bool,
});

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::ref_option, reason = "serde asks for a reference")]
fn name<S: Serializer>(profile: &Option<Profile>, s: S) -> Result<S::Ok, S::Error> {
    profile.map(Profile::name).serialize(s)
}

#[allow(clippy::ref_option, reason = "serde asks for a reference")]
fn names<S: Serializer>(profiles: &Option<Vec<Profile>>, s: S) -> Result<S::Ok, S::Error> {
    profiles.as_ref().map(|all| all.iter().map(|p| p.name()).collect::<Vec<_>>()).serialize(s)
}

fn from_name<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Profile>, D::Error> {
    let name = Option::<String>::deserialize(d)?;
    name.map(|name| name.parse().map_err(serde::de::Error::custom)).transpose()
}

fn from_names<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<Profile>>, D::Error> {
    let names = Option::<Vec<String>>::deserialize(d)?;
    let parse = |name: String| name.parse().map_err(serde::de::Error::custom);
    names.map(|names| names.into_iter().map(parse).collect()).transpose()
}

/// That part of a group's bytes, in percent.
fn part(len: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(len) * u128::from(percent.min(100)) / 100).unwrap_or(len)
}

impl Filters {
    /// Whether a group in that chunk is to be moved, regardless of `limit`.
    pub fn takes(&self, group: &GroupInfo, chunk: &ChunkMap) -> bool {
        let (used, len) = (group.used.0, group.len.0);
        let fits_usage = |bound: Bound| {
            let below = if bound.max() == 0 { 1 } else { part(len, bound.max()) };
            (part(len, bound.min())..below).contains(&used)
        };
        let on_device = |devid: DevId| chunk.stripes.iter().any(|s| s.devid == devid);
        let in_device = |span: Span| {
            let mut stripes = chunk.stripes.iter().filter(|s| self.devid.is_none_or(|devid| s.devid == devid));
            stripes.any(|s| span.meets(s.offset.0, chunk.stripe_bytes().0))
        };
        self.profiles.as_ref().is_none_or(|all| all.contains(&chunk.profile))
            && self.usage.is_none_or(fits_usage)
            && self.devid.is_none_or(on_device)
            && self.drange.is_none_or(in_device)
            && self.vrange.is_none_or(|span| span.meets(chunk.start.0, len))
            && self
                .stripes
                .is_none_or(|(min, max)| (u64::from(min)..=max.into()).contains(&(chunk.stripes.len() as u64)))
            && !(self.soft && self.convert == Some(chunk.profile))
    }

    fn set(&mut self, filter: &str, value: Option<&str>) -> Result<(), String> {
        if filter == "soft" {
            self.soft = true;
            return value.map_or(Ok(()), |_| Err("soft takes no value".to_owned()));
        }
        let value = value.filter(|v| !v.is_empty()).ok_or_else(|| format!("the filter {filter} needs a value"));
        match filter {
            "profiles" => self.profiles = Some(value?.split('|').map(profile).collect::<Result<_, _>>()?),
            "usage" => self.usage = Some(usage(value?)?),
            "devid" => {
                let devid = number(value?)?;
                self.devid = Some(DevId(devid)).filter(|d| d.0 > 0);
                self.devid.ok_or("there is no device 0")?;
            }
            "drange" => self.drange = Some(span(value?)?),
            "vrange" => self.vrange = Some(span(value?)?),
            "limit" => self.limit = Some(bound(value?, u32::MAX)?),
            "stripes" => {
                self.stripes = match bound(value?, u32::MAX)? {
                    Bound::Range(min, max) => Some((min, max)),
                    Bound::Max(exactly) => Some((narrow(exactly)?, narrow(exactly)?)),
                };
            }
            "convert" => self.convert = Some(profile(value?)?),
            _ => {
                let known = "profiles, usage, devid, drange, vrange, limit, stripes, convert, soft";
                return Err(format!("there is no filter {filter}; choose from {known}"));
            }
        }
        Ok(())
    }
}

fn profile(name: &str) -> Result<Profile, String> {
    name.parse().map_err(|e: oleo_volume::UnknownProfile| e.to_string())
}

fn number(text: &str) -> Result<u64, String> {
    let digits = Some(text).filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|t| t.parse().ok()).ok_or_else(|| format!("{text} is not a number"))
}

fn narrow(number: u64) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| format!("{number} is too large"))
}

/// Parses `N`, `A..B`, `A..` or `..B`; a missing end is `max`.
fn bound(text: &str, max: u32) -> Result<Bound, String> {
    let Some((from, to)) = text.split_once("..") else { return number(text).map(Bound::Max) };
    let from = if from.is_empty() { 0 } else { narrow(number(from)?)? };
    let to = if to.is_empty() { max } else { narrow(number(to)?)? };
    if from > to || text == ".." { Err(format!("{text} is no range")) } else { Ok(Bound::Range(from, to)) }
}

fn usage(text: &str) -> Result<Bound, String> {
    let bound = bound(text, 100)?;
    if bound.max() > 100 { Err(format!("{text} is not a percentage")) } else { Ok(bound) }
}

fn span(text: &str) -> Result<Span, String> {
    let wrong = || format!("{text} is not a range (such as 0..1048576)");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let start = if from.is_empty() { 0 } else { number(from)? };
    let end = if to.is_empty() { u64::MAX } else { number(to)? };
    if start < end && text != ".." { Ok(Span { start, end }) } else { Err(wrong()) }
}

impl FromStr for Filters {
    type Err = String;

    /// What users of btrfs write behind `-d`, `-m` and `-s`: filters separated by commas; nothing is every group.
    fn from_str(text: &str) -> Result<Filters, String> {
        let mut filters = Filters::default();
        for filter in text.split(',').filter(|f| !f.is_empty()) {
            match filter.split_once('=') {
                Some((name, value)) => filters.set(name, Some(value))?,
                None => filters.set(filter, None)?,
            }
        }
        if filters.soft && filters.convert.is_none() {
            return Err("soft goes with convert only".to_owned());
        }
        // The kernel, which may have to resume it, does not look at a range without its device.
        if filters.drange.is_some() && filters.devid.is_none() {
            return Err("drange goes with devid only".to_owned());
        }
        Ok(filters)
    }
}

impl fmt::Display for Filters {
    /// Writes the filters as users write them; nothing if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Vec::new();
        if let Some(profiles) = &self.profiles {
            all.push(format!("profiles={}", profiles.iter().map(|p| p.name()).collect::<Vec<_>>().join("|")));
        }
        let mut push = |name: &str, value: Option<String>| all.extend(value.map(|value| format!("{name}={value}")));
        push("usage", self.usage.map(|b| b.to_string()));
        push("devid", self.devid.map(|d| d.0.to_string()));
        push("drange", self.drange.map(|s| s.to_string()));
        push("vrange", self.vrange.map(|s| s.to_string()));
        push("limit", self.limit.map(|b| b.to_string()));
        push("stripes", self.stripes.map(|(min, max)| format!("{min}..{max}")));
        push("convert", self.convert.map(|p| p.to_string()));
        all.extend(self.soft.then(|| "soft".to_owned()));
        f.write_str(&all.join(","))
    }
}

#[cfg(test)]
mod tests {
    use oleo_format::{BlockGroupFlags, ByteLen, Logical, Physical};
    use oleo_volume::{Hints, StripeAt};
    use uuid::Uuid;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A group of 100 MiB at 1 GiB, with stripes at 10 MiB of device 1, at 20 MiB of device 2 and so on.
    fn group(profile: Profile, stripes: u64, used: u64) -> (GroupInfo, ChunkMap) {
        let (start, flags) = (Logical(1 << 30), BlockGroupFlags::DATA | profile.bits());
        let len = ByteLen(100 * MIB);
        let at = |n| StripeAt { devid: DevId(n), dev_uuid: Uuid::nil(), offset: Physical(n * 10 * MIB) };
        let stripes = (1..=stripes).map(at).collect();
        let hints = Hints::new(profile, 4096);
        let chunk = ChunkMap { start, len, flags, profile, stripes, hints };
        let (used, excluded) = (ByteLen(used), ByteLen(0));
        (
            GroupInfo { start, len, flags, used, excluded, free_extents: None, read_only: false, row_len: ByteLen(0) },
            chunk,
        )
    }

    fn takes(filters: &str, group: &(GroupInfo, ChunkMap)) -> bool {
        filters.parse::<Filters>().unwrap().takes(&group.0, &group.1)
    }

    /// Goal: usage has the meaning of the manual at its edges: the minimum is included, the maximum is not, 0 means
    /// empty, and a full group is never below anything.
    #[test]
    fn usage_excludes_its_maximum() {
        let of = |used| group(Profile::Single, 1, used);
        let (empty, sector, half, full) = (of(0), of(4096), of(50 * MIB), of(100 * MIB));
        let table = [
            ("usage=0", [true, false, false, false]),
            ("usage=1", [true, true, false, false]),
            ("usage=50", [true, true, false, false]),
            ("usage=51", [true, true, true, false]),
            ("usage=100", [true, true, true, false]),
            ("usage=..50", [true, true, false, false]),
            ("usage=50..", [false, false, true, false]),
            ("usage=1..50", [false, false, false, false]),
            ("usage=0..0", [true, false, false, false]),
            ("usage=50..51", [false, false, true, false]),
            ("", [true, true, true, true]),
        ];
        for (filters, want) in table {
            assert_eq!([&empty, &sector, &half, &full].map(|g| takes(filters, g)), want, "{filters}");
        }
    }

    /// Goal: groups are distinguished by profile; those that have the target are left alone only when soft.
    #[test]
    fn profiles_and_soft() {
        let (single, raid1) = (group(Profile::Single, 1, 0), group(Profile::Raid1, 2, 0));
        let table = [
            ("profiles=single", [true, false]),
            ("profiles=raid1|raid10", [false, true]),
            ("profiles=single|raid1", [true, true]),
            ("convert=raid1", [true, true]),
            ("convert=raid1,soft", [true, false]),
            ("convert=single,soft", [false, true]),
        ];
        for (filters, want) in table {
            assert_eq!([&single, &raid1].map(|g| takes(filters, g)), want, "{filters}");
        }
    }

    /// Goal: ranges match what they overlap, to the byte, on their device only; stripes are counted.
    #[test]
    fn ranges_match_what_they_overlap() {
        let pair = group(Profile::Raid1, 2, 0);
        let (at, end) = (1u64 << 30, (1u64 << 30) + 100 * MIB);
        // The second stripe lies at 20 MiB to 120 MiB of device 2.
        let inside = ["devid=2,drange=0..20971521", "devid=2,drange=125829119..", "devid=1,drange=..10485761"];
        let outside =
            ["devid=2,drange=0..20971520", "devid=2,drange=125829120..", "devid=1,drange=115343360..125829120"];
        for (filters, want) in inside.map(|f| (f, true)).into_iter().chain(outside.map(|f| (f, false))) {
            assert_eq!(takes(filters, &pair), want, "{filters}");
        }
        assert!(takes("devid=1", &pair) && takes("devid=2", &pair) && !takes("devid=3", &pair));
        assert!(takes(&format!("vrange={}..{}", end - 1, end), &pair));
        assert!(takes(&format!("vrange=..{}", at + 1), &pair));
        assert!(!takes(&format!("vrange=..{at}"), &pair) && !takes(&format!("vrange={end}.."), &pair));
        assert!(takes("stripes=2", &pair) && takes("stripes=1..2", &pair) && takes("stripes=2..", &pair));
        assert!(!takes("stripes=3..4", &pair) && !takes("stripes=1", &pair));
        assert!(takes("devid=1,stripes=2,profiles=raid1,usage=0", &pair), "all of them agree");
        assert!(!takes("devid=1,stripes=3,profiles=raid1,usage=0", &pair), "one does not");
        assert!(takes("limit=0", &pair), "which others count");
    }

    /// Goal: filters are parsed, and displayed as they were written, as JSON, too; invalid ones are refused. Method:
    /// what btrfs-progs 6.2 accepts and refuses.
    #[test]
    fn filters_are_parsed_and_displayed() {
        for text in [
            "",
            "profiles=single|raid1c3,usage=5,devid=1,drange=0..5,vrange=7..9,limit=3,stripes=1..4,convert=dup,soft",
            "usage=5..7,limit=2..4",
        ] {
            let filters: Filters = text.parse().unwrap();
            assert_eq!(filters.to_string(), text);
            let json = serde_json::to_string(&filters).unwrap();
            assert_eq!(serde_json::from_str::<Filters>(&json).unwrap(), filters, "{json}");
        }
        assert_eq!("usage=..5".parse::<Filters>().unwrap().usage, Some(Bound::Range(0, 5)));
        for nonsense in [
            "drange=1..2",
            "usage=101",
            "usage=5..3",
            "soft",
            "nonsense",
            "profiles=",
            "usage=",
            "usage=1K",
            "vrange=5",
            "vrange=5..5",
            "vrange=..",
            "convert=raid7",
            "devid=0",
            "limit=5..4",
            "limit=-1",
            "soft=1,convert=dup",
            "devid",
            "profiles=single|",
            "stripes=99999999999",
            "limit=..",
        ] {
            assert!(nonsense.parse::<Filters>().is_err(), "{nonsense}");
        }
    }
}
