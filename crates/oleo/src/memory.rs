//! How much memory caches may use, depending on the machine's memory.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Default bounds of the bytes of tree blocks: the trees of a hundred thousand files, and the names of a million files in one
/// directory, which new ones are compared with in the order of their hashes (0021: with 64 MiB a million creates took a quarter longer).
const CACHE_BYTES: (u64, u64) = (64 << 20, 256 << 20);
/// The memory assumed if the system does not report it.
const MEMORY_LEN: u64 = 4 << 30;

/// Bytes of tree blocks that a program keeps of an image unless told otherwise: 1/32 of [`memory`], 64 MiB at least and 256 MiB at most.
/// They are taken as blocks are read, and a volume with less has less.
pub fn cache_bytes() -> usize {
    usize::try_from((memory() / 32).clamp(CACHE_BYTES.0, CACHE_BYTES.1)).unwrap_or(usize::MAX)
}

/// Bytes of memory available to this process when it asked first: the machine's, or its control group's if that is less; 4 GiB if the
/// system does not say.
pub fn memory() -> u64 {
    static MEMORY: OnceLock<u64> = OnceLock::new();
    *MEMORY.get_or_init(ask)
}

fn ask() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text)).unwrap_or(MEMORY_LEN);
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        let max = Path::new("/sys/fs/cgroup").join(path).join("memory.max");
        fs::read_to_string(max).ok()?.trim().parse().ok()
    });
    group.map_or(machine, |group: u64| group.min(machine))
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the system's numbers are parsed, and the default is within its bounds.
    #[test]
    fn by_the_machine() {
        assert_eq!(total("MemTotal:       16000000 kB\nMemFree: 1 kB\n"), Some(16_384_000_000));
        assert_eq!(total("nonsense"), None);
        assert!((CACHE_BYTES.0..=CACHE_BYTES.1).contains(&(cache_bytes() as u64)));
    }
}
