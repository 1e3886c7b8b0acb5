//! Superblocks, blocks and items as text in the style of `btrfs inspect-internal`, and as JSON ([`json`]).
//!
//! Everything here takes checked bytes and still trusts nothing: an item that cannot be parsed is shown as its error.
//! Times are in UTC. Names are escaped as newer versions do ([`octal`]).

mod items;
pub mod json;
mod supers;

use std::fmt::{self, Display};

use crate::flags::{BlockGroupFlags, HeaderFlags};
use crate::layout::{NodeRules, node_capacity};
use crate::node::CheckedNode;
use crate::structs::Timespec;
use crate::{ItemType, Key, TreeId};

pub use items::item;
pub use supers::super_block;

/// A value that is shown by a function.
struct Shown<F>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> Display for Shown<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0(f)
    }
}

/// A fixed object's name, if the number has one.
fn fixed_name(objectid: u64) -> Option<&'static str> {
    Some(match TreeId(objectid) {
        TreeId::ROOT => "ROOT_TREE",
        TreeId::EXTENT => "EXTENT_TREE",
        TreeId::CHUNK => "CHUNK_TREE",
        TreeId::DEV => "DEV_TREE",
        TreeId::FS => "FS_TREE",
        TreeId::ROOT_DIR => "ROOT_TREE_DIR",
        TreeId::CSUM => "CSUM_TREE",
        TreeId::QUOTA => "QUOTA_TREE",
        TreeId::UUID => "UUID_TREE",
        TreeId::FREE_SPACE => "FREE_SPACE_TREE",
        TreeId::BLOCK_GROUP => "BLOCK_GROUP_TREE",
        TreeId::RAID_STRIPE => "RAID_STRIPE_TREE",
        TreeId::REMAP => "REMAP_TREE",
        TreeId::TREE_LOG => "TREE_LOG",
        TreeId::TREE_LOG_FIXUP => "TREE_LOG_FIXUP",
        TreeId::TREE_RELOC => "TREE_RELOC",
        TreeId::DATA_RELOC => "DATA_RELOC_TREE",
        TreeId(Key::BALANCE) => "BALANCE",
        TreeId(Key::ORPHAN) => "ORPHAN",
        TreeId(Key::EXTENT_CSUM) => "EXTENT_CSUM",
        TreeId(Key::FREE_SPACE) => "FREE_SPACE",
        TreeId(Key::FREE_INO) => "FREE_INO",
        TreeId(Key::MULTIPLE) => "MULTIPLE",
        _ => return None,
    })
}

/// A tree by its name, or its number.
pub fn tree_name(tree: TreeId) -> String {
    fixed_name(tree.0).map_or_else(|| tree.to_string(), str::to_owned)
}

/// The words before the key in the first line of a tree: `extent tree`, `file tree` …
pub fn tree_title(tree: TreeId) -> &'static str {
    match tree {
        TreeId::ROOT => "root tree",
        TreeId::EXTENT => "extent tree",
        TreeId::CHUNK => "chunk tree",
        TreeId::DEV => "device tree",
        TreeId::FS => "fs tree",
        TreeId::ROOT_DIR => "directory tree",
        TreeId::CSUM => "checksum tree",
        TreeId::QUOTA => "quota tree",
        TreeId::UUID => "uuid tree",
        TreeId::FREE_SPACE => "free space tree",
        TreeId::BLOCK_GROUP => "block group tree",
        TreeId::RAID_STRIPE => "raid stripe tree",
        TreeId::REMAP => "remap tree",
        TreeId::TREE_LOG | TreeId::TREE_LOG_FIXUP => "log tree",
        TreeId::TREE_RELOC => "reloc tree",
        TreeId::DATA_RELOC => "data reloc tree",
        _ => "file tree",
    }
}

/// The name of an item type.
pub fn type_name(item_type: ItemType) -> String {
    match item_type {
        ItemType::UUID_SUBVOL => "UUID_KEY_SUBVOL".to_owned(),
        ItemType::UUID_RECEIVED_SUBVOL => "UUID_KEY_RECEIVED_SUBVOL".to_owned(),
        t => t.name().map_or_else(|| format!("UNKNOWN.{}", t.0), str::to_owned),
    }
}

/// A quota group as level and number.
fn qgroup(id: u64) -> String {
    format!("{}/{}", id >> 48, id & ((1 << 48) - 1))
}

/// A key as `(object type offset)`.
pub fn key(key: &Key) -> String {
    let object = match key.item_type {
        ItemType::QGROUP_RELATION => qgroup(key.objectid),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => format!("{:#018x}", key.objectid),
        ItemType::DEV_EXTENT | ItemType::QGROUP_STATUS => key.objectid.to_string(),
        ItemType::DEV_ITEM if key.objectid == Key::DEV_ITEMS => "DEV_ITEMS".to_owned(),
        ItemType::CHUNK_ITEM if key.objectid == Key::FIRST_CHUNK_TREE => "FIRST_CHUNK_TREE".to_owned(),
        ItemType::PERSISTENT_ITEM if key.objectid == Key::DEV_STATS => "DEV_STATS".to_owned(),
        _ => tree_name(TreeId(key.objectid)),
    };
    let offset = match key.item_type {
        ItemType::QGROUP_RELATION | ItemType::QGROUP_INFO | ItemType::QGROUP_LIMIT => qgroup(key.offset),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => format!("{:#018x}", key.offset),
        ItemType::ROOT_ITEM if key.objectid == TreeId::TREE_RELOC.0 => tree_name(TreeId(key.offset)),
        _ => key.offset.to_string(),
    };
    format!("({object} {} {offset})", type_name(key.item_type))
}

/// Names of set bits joined by `|`, and the remaining bits as a number; `none` without any.
fn bits(names: impl Iterator<Item = &'static str>, rest: u64) -> String {
    let mut all: Vec<String> = names.map(str::to_owned).collect();
    if rest != 0 {
        all.push(format!("{rest:#x}"));
    }
    if all.is_empty() { "none".to_owned() } else { all.join("|") }
}

/// [`bits`] of a bitflags value.
macro_rules! flag_names {
    ($flags:expr) => {{
        let flags = $flags;
        let named = flags.iter_names().fold(0u64, |all, (_, f)| all | u64::from(f.bits()));
        $crate::print::bits(flags.iter_names().map(|(name, _)| name), u64::from(flags.bits()) & !named)
    }};
}
use flag_names;

/// The type of a chunk or block group: `DATA|single`, `METADATA|RAID1`.
pub fn group_type(flags: BlockGroupFlags) -> String {
    let shown = flag_names!(flags);
    if flags.profile().is_empty() && !flags.is_empty() { format!("{shown}|single") } else { shown }
}

/// Printable text: bytes that are not UTF-8 and characters that are not printable are escaped.
pub fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(s) if !s.chars().any(char::is_control) => s.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// A name as btrfs writes it: spaces and backslashes behind a backslash, control characters by their letters or as
/// three octal digits, as all bytes that are not ASCII. The result is one word, and harmless to a terminal.
pub fn octal(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        let letter = match byte {
            0x07 => 'a',
            0x08 => 'b',
            b'\t' => 't',
            b'\n' => 'n',
            0x0b => 'v',
            0x0c => 'f',
            b'\r' => 'r',
            0x1b => 'e',
            b' ' => ' ',
            b'\\' => '\\',
            0x21..=0x7e => {
                out.push(char::from(byte));
                continue;
            }
            _ => {
                out.push_str(&format!("\\{byte:03o}"));
                continue;
            }
        };
        out.extend(['\\', letter]);
    }
    out
}

/// A time as seconds, nanoseconds and, in brackets, date and time of day in UTC.
pub fn time(t: &Timespec) -> String {
    format!("{}.{} ({})", t.seconds(), t.nsec, date(t.seconds()))
}

/// The date and time of day of a number of seconds since 1970, in UTC.
pub fn date(seconds: i64) -> String {
    const DAY_SECONDS: i64 = 86_400;
    let (days, rest) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
    let (year, month, day) = calendar(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Year, month and day of a number of days since 1970, which must be one that seconds in 64 bits can have.
pub fn calendar(days: i64) -> (i64, i64, i64) {
    /// Days in 400 years, after which the calendar repeats.
    const ERA_DAYS: i64 = 146_097;
    // Years begin in March here, so that the leap day is the last of its year. Day 0 is the first of March of the year 0.
    let day = days + 719_468;
    let (era, of_era) = (day.div_euclid(ERA_DAYS), day.rem_euclid(ERA_DAYS));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day_of_month)
}

/// A block: its head, then items or children, a line or more each.
pub fn block<'a>(node: &'a CheckedNode, rules: &'a NodeRules) -> impl Display + 'a {
    Shown(move |f: &mut fmt::Formatter<'_>| {
        let h = node.header();
        let kind = if node.is_leaf() { "leaf" } else { "node" };
        let (level, free) = if node.is_leaf() {
            (String::new(), node.free_bytes())
        } else {
            (format!("level {} ", h.level), node_capacity(rules.nodesize).saturating_sub(node.len()))
        };
        let owner = tree_name(node.owner());
        writeln!(
            f,
            "{kind} {} {level}items {} free space {free} generation {} owner {owner}",
            h.bytenr,
            node.len(),
            h.generation
        )?;
        let flags = HeaderFlags::from_bits_retain(h.flags.get() & !(0xff << 56));
        let revision = h.flags.get() >> 56;
        writeln!(
            f,
            "{kind} {} flags {:#x}({}) backref revision {revision}",
            h.bytenr,
            flags.bits(),
            flag_names!(flags)
        )?;
        writeln!(f, "fs uuid {}", uuid::Uuid::from_bytes(h.fsid))?;
        writeln!(f, "chunk uuid {}", uuid::Uuid::from_bytes(h.chunk_tree_uuid))?;
        if !node.is_leaf() {
            return (0..node.len())
                .map(|slot| node.child(slot))
                .try_for_each(|c| writeln!(f, "\tkey {} block {} gen {}", key(&c.key), c.logical, c.generation));
        }
        for (slot, entry) in node.items().iter().enumerate() {
            let k = node.key(slot);
            writeln!(f, "\titem {slot} key {} itemoff {} itemsize {}", key(&k), entry.offset, entry.size)?;
            for line in item(&k, node.item(slot), rules) {
                writeln!(f, "\t\t{line}")?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::{date, octal};

    /// Goal: names look as btrfs writes them (the examples are of btrfs-progs 6.19).
    #[test]
    fn names_are_escaped() {
        let all: Vec<u8> = (1..=0x30).chain([0x5c, 0x7e, 0x7f, 0x80, 0xc3, 0xff]).collect();
        assert_eq!(
            octal(&all),
            "\\001\\002\\003\\004\\005\\006\\a\\b\\t\\n\\v\\f\\r\\016\\017\\020\\021\\022\\023\\024\\025\\026\\027\\030\\031\\032\\e\\034\\035\\036\\037\\ \
             !\"#$%&'()*+,-./0\\\\~\\177\\200\\303\\377"
        );
    }

    #[test]
    fn dates_of_any_number_of_seconds() {
        for (seconds, want) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_296_356, "2026-11-21 21:25:56"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(date(seconds), want);
        }
        // No number may overflow.
        date(i64::MIN);
        date(i64::MAX);
    }
}
