//! The results of `btrfs check` and `btrfs scrub` as one type: clean, or the lines that report errors.

use std::fmt;

/// An oracle's finding about one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Every line that reports something wrong; empty when all is well.
    pub findings: Vec<String>,
}

/// Lines of `btrfs check` that only report progress or sum up.
const CHECK_NOISE: [&str; 9] = [
    // The kernel's old free-space cache, if Oleo wrote last, which does not maintain it.
    "cache and super generation don't match, space cache will be invalidated",
    "Opening filesystem to check...",
    "Checking filesystem on ",
    "UUID: ",
    "found ",
    "total ",
    "btree space waste bytes: ",
    "file data blocks allocated: ",
    " referenced ",
];

/// How far it is: `[3/7] checking free space tree`, and nothing else that begins with a bracket.
fn is_progress(line: &str) -> bool {
    let Some((place, rest)) = line.strip_prefix('[').and_then(|l| l.split_once("] ")) else { return false };
    let Some((step, steps)) = place.split_once('/') else { return false };
    let number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    number(step) && number(steps) && rest.starts_with("checking ")
}

/// mkfs.btrfs 6.2 makes its first trees in groups that it drops again, at the same addresses on every volume: 4 MiB
/// from 1 MiB on and 8 MiB from 5 MiB on for metadata and the system, 8 MiB from 13 MiB on for data. Their entries in
/// the free-space tree stay. `btrfs check` 6.19 reports each in these words; 6.2 itself reports nothing.
const KNOWN_OF_MKFS_6_2: [&str; 3] = [
    "Space key logical 1048576 length 4194304 has no corresponding block group",
    "Space key logical 5242880 length 8388608 has no corresponding block group",
    "Space key logical 13631488 length 8388608 has no corresponding block group",
];

/// Versions in between report no addresses: there can be as many as the above.
const KNOWN_OF_MKFS_6_2_UNPLACED: [&str; 2] = [
    "We have a space info key for a block group that doesn't exist",
    "free space info key for a block group that doesn't exist",
];

/// The last lines of `btrfs check` if it has found anything.
const SUMS_UP: [&str; 2] = ["error(s) found", "errors found in free space tree"];

impl Verdict {
    /// Reads the output of `btrfs check`.
    pub(super) fn from_check(success: bool, stdout: &str, stderr: &str) -> Verdict {
        let mut findings: Vec<String> = stderr
            .lines()
            .chain(stdout.lines())
            .filter(|l| !l.trim().is_empty() && !is_progress(l) && !CHECK_NOISE.iter().any(|n| l.starts_with(n)))
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

    /// The same without what `btrfs check` 6.2 says of data that it has rebuilt from parity, which it numbers as the second and third mirror: on one
    /// and the same volume, whose rows all fit their parity, it says something else each time. A scrub verifies parity.
    pub(super) fn but_for_rebuilt_mirrors(self) -> Verdict {
        let is_rebuilt = |line: &String| ["mirror 2 bytenr ", "mirror 3 bytenr "].iter().any(|m| line.starts_with(m));
        let sums_up = |line: &String| line.contains("errors found in csum tree") || line.contains(SUMS_UP[0]);
        if !self.findings.iter().any(is_rebuilt) {
            return self;
        }
        let mut left: Vec<String> = self.findings.into_iter().filter(|line| !is_rebuilt(line)).collect();
        if left.iter().all(sums_up) {
            left.clear();
        }
        Verdict { findings: left }
    }

    /// The same without what mkfs.btrfs 6.2 is known to leave behind, each once: for images that it has made, never for
    /// ours. If anything else was found, the line that sums up stays, too.
    pub fn but_for_mkfs_6_2(self) -> Verdict {
        let mut placed = KNOWN_OF_MKFS_6_2.to_vec();
        let mut unplaced = KNOWN_OF_MKFS_6_2.len();
        let (mut left, mut sums) = (Vec::new(), Vec::new());
        let found = self.findings.len();
        for line in self.findings {
            if let Some(known) = placed.iter().position(|known| line == *known) {
                placed.swap_remove(known);
            } else if unplaced > 0 && KNOWN_OF_MKFS_6_2_UNPLACED.iter().any(|known| line.contains(known)) {
                unplaced -= 1;
            } else if SUMS_UP.iter().any(|end| line.contains(end)) {
                sums.push(line);
            } else {
                left.push(line);
            }
        }
        let forgiven = left.len() + sums.len() < found;
        if !left.is_empty() || !forgiven {
            left.append(&mut sums);
        }
        Verdict { findings: left }
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
