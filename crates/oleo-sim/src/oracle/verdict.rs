//! What `btrfs check` and `btrfs scrub` said, as one type: clean, or the lines that say what is wrong.

use std::fmt;

/// A judge's finding about one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Every line that reports something wrong; empty when all is well.
    pub findings: Vec<String>,
}

/// Lines of `btrfs check` that say only how far it is or sum up.
const CHECK_NOISE: [&str; 11] = [
    // The old free-space cache of the kernel, where we wrote last and do not keep it up.
    "cache and super generation don't match, space cache will be invalidated",
    // It looks at all block devices, also at those that other tests are just taking away.
    "ERROR: cannot scan /dev/",
    "Opening filesystem to check...",
    "Checking filesystem on ",
    "UUID: ",
    "found ",
    "total ",
    "btree space waste bytes: ",
    "file data blocks allocated: ",
    " referenced ",
    "[",
];

/// Debian's mkfs.btrfs 6.2 leaves two entries in the free-space tree for block groups that it has dropped again; newer
/// versions of `btrfs check` report them in these words.
const KNOWN_OF_MKFS_6_2: [&str; 2] = [
    "We have a space info key for a block group that doesn't exist",
    "free space info key for a block group that doesn't exist",
];

impl Verdict {
    /// Reads the output of `btrfs check`.
    pub(super) fn from_check(success: bool, stdout: &str, stderr: &str) -> Verdict {
        let mut findings: Vec<String> = stderr
            .lines()
            .chain(stdout.lines())
            .filter(|l| !l.trim().is_empty() && !CHECK_NOISE.iter().any(|n| l.starts_with(n)))
            .map(str::to_owned)
            .collect();
        findings.extend(
            stdout.lines().filter(|l| l.starts_with("found ") && !l.contains("no error found")).map(str::to_owned),
        );
        if !success && findings.is_empty() {
            findings.push("it failed and said nothing".into());
        }
        Verdict { findings }
    }

    /// Reads the output of `btrfs scrub start -B -R`.
    pub(super) fn from_scrub(success: bool, stdout: &str, stderr: &str) -> Verdict {
        let mut findings: Vec<String> =
            stderr.lines().filter(|l| !l.starts_with("Starting scrub")).map(str::to_owned).collect();
        for line in stdout.lines() {
            let Some((name, value)) = line.trim().split_once(": ") else { continue };
            if name.ends_with("_errors") && value.trim() != "0" {
                findings.push(line.trim().to_owned());
            }
            if name == "Status" && value.trim() != "finished" {
                findings.push(line.trim().to_owned());
            }
        }
        if !success && findings.is_empty() {
            findings.push("it failed and said nothing".into());
        }
        Verdict { findings }
    }

    /// Nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// The same without what mkfs.btrfs 6.2 is known to leave behind: for images that it has made, never for ours.
    pub fn but_for_mkfs_6_2(mut self) -> Verdict {
        let known = |l: &String| KNOWN_OF_MKFS_6_2.iter().any(|k| l.contains(k));
        if self.findings.iter().any(known) {
            self.findings.retain(|l| {
                !known(l) && !l.contains("error(s) found") && !l.contains("errors found in free space tree")
            });
        }
        self
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LINES_MAX: usize = 60;
        if self.is_clean() {
            return f.write_str("clean");
        }
        for line in self.findings.iter().take(LINES_MAX) {
            write!(f, "\n  {line}")?;
        }
        if self.findings.len() > LINES_MAX {
            write!(f, "\n  … and {} more lines", self.findings.len() - LINES_MAX)?;
        }
        Ok(())
    }
}
