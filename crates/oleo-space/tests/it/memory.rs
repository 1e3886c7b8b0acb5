//! What a group costs that nobody looks into, measured in a process of its own, so that nothing else moves its memory.

use std::sync::Arc;

use oleo_format::{BlockGroupFlags, ByteLen, Logical};
use oleo_space::{FreeSource, GroupInfo, Kind, LoadError, Space};

const GROUPS: u64 = 400_000;
const GROUP_LEN: u64 = 1 << 30;
/// Tens of bytes.
const GROUP_BYTES_MAX: u64 = 99;

struct Nothing;

impl FreeSource for Nothing {
    fn load(&self, _: Logical) -> Result<Vec<(Logical, ByteLen)>, LoadError> {
        Ok(Vec::new())
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Goal: an idle group takes tens of bytes, all that there is of it included.
/// Method: what the process holds before and after so many groups, half full, are added as at mount.
#[test]
fn an_idle_group_takes_tens_of_bytes() {
    let space = Space::new(4096, 16384, Arc::new(Nothing));
    let info = |n: u64| GroupInfo {
        start: Logical((n + 1) * GROUP_LEN),
        len: ByteLen(GROUP_LEN),
        flags: BlockGroupFlags::DATA,
        used: ByteLen(GROUP_LEN / 2),
        excluded: ByteLen(0),
        free_extents: None,
        read_only: false,
        row_len: ByteLen(0),
    };
    let before = resident();
    for from in (0..GROUPS).step_by(1000) {
        let infos: Vec<GroupInfo> = (from..from + 1000).map(info).collect();
        space.add_groups(&infos).unwrap();
    }
    let bytes = (resident() - before) / GROUPS;
    println!("{bytes} bytes per group");
    assert_eq!(space.totals(Kind::Data).total.0, GROUPS * GROUP_LEN);
    // Far less than a group's fields, and it was not the groups that were measured.
    assert!(bytes > 40 && bytes <= GROUP_BYTES_MAX, "{bytes} bytes per group");
}
