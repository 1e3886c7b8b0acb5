//! Facts about a process from `/proc/PID/status` and `/proc/PID/ns` (proc(5), namespaces(7)).

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;

/// `CAP_LINUX_IMMUTABLE` of linux/capability.h.
pub const CAP_LINUX_IMMUTABLE: u32 = 9;
/// `CAP_SYS_ADMIN` of linux/capability.h.
pub const CAP_SYS_ADMIN: u32 = 21;
/// The umask that is assumed if a process does not show its own.
const UMASK: u32 = 0o022;

/// A process, or a thread, as it was when it was asked about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// Real, effective, saved and file system user; empty if there is no such process.
    pub uids: Vec<u32>,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files do not get.
    pub umask: u32,
    /// The effective capabilities, a bit each.
    pub effective: u64,
    /// Its user namespace; `None` if this process may not know it.
    pub user_ns: Option<PathBuf>,
}

impl Process {
    /// A process by its number, or "self".
    pub fn of(pid: impl Display) -> Process {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let user_ns = fs::read_link(format!("/proc/{pid}/ns/user")).ok();
        Process { user_ns, ..Process::parse(&status) }
    }

    fn parse(status: &str) -> Process {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let numbers = |name| field(name).split_whitespace().filter_map(|id| id.parse().ok()).collect();
        Process {
            uids: numbers("Uid:"),
            groups: numbers("Groups:"),
            umask: u32::from_str_radix(field("Umask:").trim(), 8).unwrap_or(UMASK),
            effective: u64::from_str_radix(field("CapEff:").trim(), 16).unwrap_or(0),
            user_ns: None,
        }
    }

    /// Whether it is in this process's own user namespace.
    pub fn is_at_home(&self) -> bool {
        self.user_ns.is_some() && self.user_ns == fs::read_link("/proc/self/ns/user").ok()
    }

    /// Whether it may here what a capability allows: it has it, and not only in a user namespace of its own.
    pub fn can(&self, capability: u32) -> bool {
        self.effective >> capability & 1 == 1 && self.is_at_home()
    }
}

/// The permission bits that files made by this process do not get.
pub fn umask() -> u32 {
    Process::of("self").umask
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a process may do is read right. Method: a status as the kernel writes it, and one that is none.
    #[test]
    fn status_is_understood() {
        let status = "Name:\tx\nUmask:\t0077\nUid:\t1000\t0\t1000\t5\nGroups:\t4 24 27 \nCapPrm:\t0\nCapEff:\t0000000000200200\n";
        let found = Process::parse(status);
        assert_eq!(
            (&found.uids[..], &found.groups[..], found.umask),
            (&[1000, 0, 1000, 5][..], &[4, 24, 27][..], 0o077)
        );
        let has = |cap: u32| found.effective >> cap & 1 == 1;
        assert!(has(CAP_SYS_ADMIN) && has(CAP_LINUX_IMMUTABLE) && !has(10));
        assert!(!found.can(CAP_SYS_ADMIN), "nobody knows in which namespace");
        let nobody = Process::parse("");
        assert_eq!((nobody.uids, nobody.umask, nobody.effective), (vec![], UMASK, 0));
    }

    /// Goal: this process is in its own namespace. Method: it asks about itself, and about a number that no process
    /// has.
    #[test]
    fn this_process() {
        let own = Process::of("self");
        assert!(own.is_at_home() && own.uids.contains(&rustix::process::geteuid().as_raw()));
        assert!(!Process::of(u32::MAX).is_at_home());
    }
}
