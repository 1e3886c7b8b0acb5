//! The kernel's quota groups, as `btrfs` shows them, and requests that `btrfs` does not offer.

use std::collections::BTreeMap;
use std::fs::File;

use anyhow::{Context, Result};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::{Mounted, run};

/// `BTRFS_IOC_QUOTA_CTL` (UAPI header): a command, and a status that comes back.
const QUOTA_CTL: Opcode = opcode::read_write::<[u64; 2]>(0x94, 40);
/// `BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA` (UAPI header). Tools before 6.7 do not offer it.
const ENABLE_SIMPLE: u64 = 4;

/// A quota group as it is shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShownQgroup {
    /// Referenced bytes.
    pub rfer: u64,
    /// Exclusive bytes.
    pub excl: u64,
    /// Referenced bytes at most.
    pub max_rfer: Option<u64>,
    /// Exclusive bytes at most.
    pub max_excl: Option<u64>,
    /// The groups that it is in, by number.
    pub parents: Vec<u64>,
}

/// Quota groups by number: the level in the upper 16 bits.
pub type ShownQgroups = BTreeMap<u64, ShownQgroup>;

fn number(text: &str) -> Option<u64> {
    let (level, number) = text.split_once('/')?;
    Some(level.parse::<u64>().ok()? << 48 | number.parse::<u64>().ok()?)
}

fn read(table: &str) -> Result<ShownQgroups> {
    let mut groups = ShownQgroups::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(id) = words.first().and_then(|word| number(word)) else { continue };
        let [_, rfer, excl, max_rfer, max_excl, parents, ..] = words[..] else {
            anyhow::bail!("what is {line:?}?");
        };
        let limit = |word: &str| if word == "none" { Ok(None) } else { word.parse().map(Some) };
        groups.insert(
            id,
            ShownQgroup {
                rfer: rfer.parse()?,
                excl: excl.parse()?,
                max_rfer: limit(max_rfer)?,
                max_excl: limit(max_excl)?,
                parents: parents.split(',').filter_map(number).collect(),
            },
        );
    }
    anyhow::ensure!(!groups.is_empty(), "no groups in {table:?}");
    Ok(groups)
}

impl Mounted {
    /// Commits, and shows the groups.
    pub fn qgroups(&self) -> Result<ShownQgroups> {
        self.sync()?;
        let at = self.path().as_os_str();
        let args = ["qgroup".as_ref(), "show".as_ref(), "-pre".as_ref(), "--raw".as_ref(), at];
        read(&run("btrfs", args)?)
    }

    /// Turns simple quotas on.
    #[allow(unsafe_code, reason = "an ioctl has no safe form")]
    pub fn enable_simple_quota(&self) -> Result<()> {
        let mut args = [ENABLE_SIMPLE, 0];
        let file = File::open(self.path())?;
        // SAFETY: the request's number tells the size of `args`, which is written to, and any bytes are a value of it.
        let updater = unsafe { Updater::<QUOTA_CTL, [u64; 2]>::new(&mut args) };
        // SAFETY: the file is on btrfs (this is its mount), which knows the request by that number.
        unsafe { ioctl(&file, updater) }.context("cannot turn simple quotas on")?;
        self.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a table of `btrfs qgroup show -pre --raw` is read. Method: one of version 6.2.
    #[test]
    fn tables_of_qgroup_show_are_parsed() {
        let groups = read(
            "Qgroupid    Referenced    Exclusive Max referenced  Max exclusive Parent   Path \n\
             --------    ----------    --------- --------------  ------------- ------   ---- \n\
             0/5               4096         4096           none           none -        <toplevel>\n\
             0/256           123456         4096         500000           none 1/0,1/1  a b\n",
        )
        .unwrap();
        let parents = vec![1 << 48, 1 << 48 | 1];
        let a = ShownQgroup { rfer: 123456, excl: 4096, max_rfer: Some(500000), max_excl: None, parents };
        assert_eq!((groups.len(), &groups[&256]), (2, &a));
        assert!(read("quota is off\n").is_err());
        assert_eq!(QUOTA_CTL, 0xc010_9428);
    }
}
