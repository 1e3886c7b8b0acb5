//! How much memory a mount may use for caches, depending on the machine's memory, or on that of the control group.
//!
//! Tree blocks: a sixteenth, and not more than the volume has, since blocks leave the cache when they are freed. Inodes that the kernel knows are held here, too ([`nodes`](crate::nodes)): an eighth. Both
//! are bounded, and both can be set (`cache=`, `nodes=`), however many files there are: the file system's own cache of inodes
//! holds at most as many again as the kernel knows, until a commit sweeps it, or until the kernel has forgotten half of
//! those that it knew.
//!
//! Measured on an x86-64 with 64 MiB of tree blocks cached: 1 001 000 inodes, looked at one time with `find -ls`, took
//! 660 MB less those 64 MiB and the 25 MB of the empty mount: about 600 bytes for a clean inode that the kernel knows.

use std::fs;
use std::path::{Path, PathBuf};

use oleo_device::mountinfo::{Mount, mounts_of};

/// Default bounds of the bytes of tree blocks: the trees of some hundred thousand files, and what a file server can
/// spare that is not alone on its machine.
const CACHE_BYTES: (u64, u64) = (64 << 20, 4 << 30);
/// Nodes at least and at most.
const NODES: (u64, u64) = (64 << 10, 64 << 20);
/// Bytes that a node takes, with its inode.
const NODE_LEN: u64 = 1024;
/// The memory assumed if the system does not report it.
const MEMORY_LEN: u64 = 4 << 30;

/// Bytes of tree blocks to keep.
pub(crate) fn cache_bytes() -> u64 {
    (memory() / 16).clamp(CACHE_BYTES.0, CACHE_BYTES.1)
}

/// The number of nodes above which the kernel is asked to forget some.
pub(crate) fn nodes_max() -> u64 {
    (memory() / 8 / NODE_LEN).clamp(NODES.0, NODES.1)
}

/// Bytes of memory available to this process: the machine's, or the least that a control group allows which it is in.
fn memory() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text)).unwrap_or(MEMORY_LEN);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = mounts_of("self").unwrap_or_default();
    group_limit(&groups, &mounts).map_or(machine, |group| group.min(machine))
}

/// The least limit of memory, in bytes, of the control groups in a `/proc/PID/cgroup` and of those above them, of both versions (cgroups(7)).
fn group_limit(groups: &str, mounts: &[Mount]) -> Option<u64> {
    let limits = mounts.iter().flat_map(|mount| {
        let files: &[&str] = match mount.kind.as_str() {
            "cgroup2" => &["memory.max", "memory.high"],
            "cgroup" => &["memory.limit_in_bytes"],
            _ => &[],
        };
        let is_of = |controllers: &str| match mount.kind.as_str() {
            "cgroup2" => controllers.is_empty(),
            _ => controllers.split(',').any(|name| name == "memory"),
        };
        let lines = groups.lines().filter(|_| !files.is_empty());
        let group = lines.filter_map(|line| line.split_once(':')?.1.split_once(':')).find(|(of, _)| is_of(of));
        let group = Path::new(group.map_or("/", |(_, path)| path));
        // A mount in a container begins at the container's group.
        let below = group.strip_prefix(&mount.root).or_else(|_| group.strip_prefix("/")).unwrap_or(group);
        let dir = mount.at.join(below);
        let dirs: Vec<PathBuf> =
            dir.ancestors().take_while(|dir| dir.starts_with(&mount.at)).map(Path::to_owned).collect();
        // A group without a limit has a word, or a number of more bytes than any machine has.
        let limit = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        dirs.into_iter().flat_map(move |dir| files.iter().filter_map(move |file| limit(dir.join(file))))
    });
    limits.min()
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: limits of groups of both versions count, and those of groups above; mounts of other controllers do not. Method: a directory
    /// for each mount.
    #[test]
    fn groups_of_both_versions_and_their_parents() {
        let dir = tempfile::tempdir().unwrap();
        let mount = |kind: &str, at: &str, root: &str| Mount {
            id: "1".into(),
            device: "0:1".into(),
            root: root.into(),
            at: dir.path().join(at),
            source: kind.into(),
            read_only: false,
            user: None,
            kind: kind.into(),
        };
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let groups = "4:cpu,memory:/a/b\n3:cpuset:/\n0::/c/d\n";
        let (v1, v2) = (mount("cgroup", "v1", "/"), mount("cgroup2", "v2", "/"));
        put("v1/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        put("v1/memory.limit_in_bytes", "9223372036854771712\n");
        put("v2/c/d/memory.max", "max\n");
        assert!(group_limit(groups, &[v1.clone(), v2.clone()]).is_none_or(|limit| limit > 1 << 60));
        put("v1/a/memory.limit_in_bytes", "3000000\n");
        assert_eq!(group_limit(groups, &[v1.clone(), v2.clone()]), Some(3_000_000), "a parent, version 1");
        put("v2/c/d/memory.high", "2000000\n");
        assert_eq!(group_limit(groups, &[v1.clone(), v2.clone()]), Some(2_000_000), "its own, version 2");
        put("v2/c/memory.max", "1000000\n");
        assert_eq!(group_limit(groups, &[v1.clone(), v2]), Some(1_000_000), "a parent, version 2");
        // The mount of a container has its group at its top.
        put("here/memory.limit_in_bytes", "500000\n");
        assert_eq!(group_limit(groups, &[v1.clone(), mount("cgroup", "here", "/a/b")]), Some(500_000));
        // A group that cannot be seen: limits at the top of the mount count.
        assert_eq!(group_limit("4:memory:/away/x", &[mount("cgroup", "here", "/other")]), Some(500_000));
        put("other/memory.limit_in_bytes", "1\n");
        assert_eq!(group_limit(groups, &[v1, mount("tmpfs", "other", "/")]), Some(3_000_000));
    }

    /// Goal: the system's numbers are parsed, and the defaults are within their bounds.
    #[test]
    fn by_the_machine() {
        assert_eq!(total("MemTotal:       16000000 kB\nMemFree: 1 kB\n"), Some(16_384_000_000));
        assert_eq!(total("nonsense"), None);
        assert!((CACHE_BYTES.0..=CACHE_BYTES.1).contains(&cache_bytes()));
        assert!((NODES.0..=NODES.1).contains(&nodes_max()));
    }
}
