//! The same history of subvolumes and quota groups by the kernel and by us: after each step the tables are equal.
//!
//! Data is written in whole MiB, and there is less than one MiB of tree blocks, whose number differs between the two:
//! so the MiB of a group's numbers are its data, and must be the same.

use std::path::Path;

use oleo_format::TreeId;
use oleo_fs::data::CloneRange;
use oleo_fs::{Fs, NewInode, NewKind, NewSubvol, SnapshotOptions};
use oleo_jobs::{QgroupChange, Recount, qgroup_change, quota, quota_enable, quota_enable_simple, quota_rescan};
use oleo_sim::budget::budget;
use oleo_sim::oracle::{Mounted, Oracle, ShownQgroup, ShownQgroups, oracle, run};
use oleo_sim::rng::Rng;
use oleo_txn::{QgroupId, QgroupLimit};

use crate::common::{kernel_counts, open, said};

const MIB: u64 = 1 << 20;

/// One step. Subvolumes are named by number, 0 is the top level.
#[derive(Clone, Debug)]
enum Step {
    Enable {
        simple: bool,
    },
    Rescan,
    Subvol {
        new: u64,
        groups: Vec<QgroupId>,
    },
    Snapshot {
        of: u64,
        new: u64,
        groups: Vec<QgroupId>,
    },
    Delete {
        subvol: u64,
    },
    /// Replaces the file's contents: what counts of a partly overwritten extent depends on where it begins and ends.
    Write {
        subvol: u64,
        file: u64,
        mib: u64,
    },
    Clone {
        from: (u64, u64),
        to: (u64, u64),
    },
    Unlink {
        subvol: u64,
        file: u64,
    },
    Change(QgroupChange),
}

fn name(subvol: u64) -> String {
    if subvol == 0 { String::new() } else { format!("s{subvol}") }
}

fn content(mib: u64) -> Vec<u8> {
    (0..mib * MIB).map(|i| ((i * 31) >> 5) as u8).collect()
}

/// Does it by the kernel; whether it was let.
fn by_kernel(mounted: &Mounted, step: &Step) -> anyhow::Result<bool> {
    let top = mounted.path();
    let dir = |subvol: u64| top.join(name(subvol));
    let file = |(subvol, file): (u64, u64)| dir(subvol).join(format!("f{file}"));
    let at = top.display().to_string();
    let btrfs = |args: &[&str]| run("btrfs", args.iter().map(|arg| (*arg).to_owned())).is_ok();
    let inherit = |groups: &[QgroupId]| -> Vec<String> {
        groups.iter().flat_map(|group| ["-i".to_owned(), group.to_string()]).collect()
    };
    let made = |words: &[&str], groups: &[QgroupId], paths: &[&Path]| {
        let mut args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        args.extend(inherit(groups));
        args.extend(paths.iter().map(|path| path.display().to_string()));
        run("btrfs", args).is_ok()
    };
    Ok(match step {
        Step::Enable { simple: true } => mounted.enable_simple_quota().is_ok(),
        Step::Enable { simple: false } => btrfs(&["quota", "enable", &at]),
        Step::Rescan => btrfs(&["quota", "rescan", "-w", &at]),
        Step::Subvol { new, groups } => made(&["-q", "subvolume", "create"], groups, &[&dir(*new)]),
        Step::Snapshot { of, new, groups } => made(&["-q", "subvolume", "snapshot"], groups, &[&dir(*of), &dir(*new)]),
        Step::Delete { subvol } => {
            let done = btrfs(&["-q", "subvolume", "delete", "-c", &dir(*subvol).display().to_string()]);
            done && btrfs(&["subvolume", "sync", &at])
        }
        Step::Write { subvol, file: number, mib } => {
            let _ = std::fs::remove_file(file((*subvol, *number)));
            mounted.sync()?;
            std::fs::write(file((*subvol, *number)), content(*mib)).is_ok()
        }
        Step::Clone { from, to } => {
            let (from, to) = (file(*from), file(*to));
            from != to && run("cp", ["--reflink=always".as_ref(), from.as_os_str(), to.as_os_str()]).is_ok()
        }
        Step::Unlink { subvol, file: number } => std::fs::remove_file(file((*subvol, *number))).is_ok(),
        Step::Change(change) => match change {
            QgroupChange::Create(id) => btrfs(&["qgroup", "create", &id.to_string(), &at]),
            QgroupChange::Destroy(id) => btrfs(&["qgroup", "destroy", &id.to_string(), &at]),
            QgroupChange::Assign(a, b) => btrfs(&["qgroup", "assign", &a.to_string(), &b.to_string(), &at]),
            QgroupChange::Remove(a, b) => btrfs(&["qgroup", "remove", &a.to_string(), &b.to_string(), &at]),
            QgroupChange::Limit(id, limit) => {
                let max = limit.max_rfer.map_or("none".to_owned(), |max| max.to_string());
                btrfs(&["qgroup", "limit", &max, &id.to_string(), &at])
            }
        },
    })
}

/// The same by us.
fn by_us(fs: &Fs, step: &Step) -> anyhow::Result<bool> {
    let top = fs.root(TreeId::FS)?;
    let tree = |subvol: u64| -> anyhow::Result<TreeId> {
        let found = fs.subvol_list()?.into_iter().find(|info| info.path == name(subvol).as_bytes());
        Ok(found.ok_or_else(|| anyhow::anyhow!("no subvolume {subvol}"))?.id)
    };
    let find = |(subvol, file): (u64, u64)| -> anyhow::Result<_> {
        Ok(fs.lookup(&fs.root(tree(subvol)?)?, format!("f{file}").as_bytes())?)
    };
    let make = |(subvol, file): (u64, u64)| -> anyhow::Result<_> {
        let root = fs.root(tree(subvol)?)?;
        match find((subvol, file))? {
            Some(file) => Ok(file),
            None => Ok(fs.create(&root, format!("f{file}").as_bytes(), &NewInode::new(NewKind::File, 0o644))?),
        }
    };
    Ok(match step {
        Step::Enable { simple: true } => quota_enable_simple(fs).is_ok(),
        Step::Enable { simple: false } => quota_enable(fs).is_ok(),
        Step::Rescan => quota_rescan(fs, &|| true).is_ok(),
        Step::Subvol { new, groups } => {
            let new_subvol = NewSubvol::default().groups(groups.clone());
            fs.subvol_create(&top, name(*new).as_bytes(), &new_subvol).is_ok()
        }
        Step::Snapshot { of, new, groups } => {
            let options = SnapshotOptions::default().groups(groups.clone());
            fs.snapshot(tree(*of)?, &top, name(*new).as_bytes(), options).is_ok()
        }
        Step::Delete { subvol } => {
            fs.subvol_delete(tree(*subvol)?)?;
            while fs.clean(1000)? {}
            true
        }
        Step::Write { subvol, file, mib } => {
            let root = fs.root(tree(*subvol)?)?;
            let _ = fs.unlink(&root, format!("f{file}").as_bytes());
            fs.sync()?;
            fs.write(&make((*subvol, *file))?, 0, &content(*mib)).is_ok()
        }
        Step::Clone { from, to } => {
            let Some(from) = find(*from)?.filter(|_| from != to) else { return Ok(false) };
            let to = make(*to)?;
            fs.truncate(&to, 0)?;
            let size = fs.attr(&from).size;
            size == 0 || fs.clone_range(&from, &to, &CloneRange { from: 0, len: size, to: 0 }).is_ok()
        }
        Step::Unlink { subvol, file } => {
            let root = fs.root(tree(*subvol)?)?;
            fs.unlink(&root, format!("f{file}").as_bytes()).is_ok()
        }
        Step::Change(change) => qgroup_change(fs, *change, Recount::Now).is_ok(),
    })
}

/// What can be compared: whole MiB.
fn rounded(groups: ShownQgroups) -> ShownQgroups {
    let round = |group: ShownQgroup| ShownQgroup { rfer: group.rfer / MIB, excl: group.excl / MIB, ..group };
    groups.into_iter().map(|(id, group)| (id, round(group))).collect()
}

fn ours(fs: &Fs) -> Option<ShownQgroups> {
    let groups = quota(fs)?.groups.into_iter().map(|(id, group)| {
        let parents = group.parents.into_iter().map(|parent| parent.0).collect();
        let (max_rfer, max_excl) = (group.limit.max_rfer, group.limit.max_excl);
        (id.0, ShownQgroup { rfer: group.rfer, excl: group.excl, max_rfer, max_excl, parents })
    });
    Some(groups.collect())
}

/// Makes up steps, and tracks what exists.
struct Maker {
    rng: Rng,
    subvols: Vec<u64>,
    made: u64,
    simple: bool,
}

impl Maker {
    fn some(&mut self) -> u64 {
        *self.rng.pick(&self.subvols).unwrap_or(&0)
    }

    fn group(&mut self) -> QgroupId {
        match self.rng.below(5) {
            // Numbers are given out in turn, to both alike.
            0..=1 => match self.some() {
                0 => QgroupId::of(TreeId::FS),
                subvol => QgroupId(255 + subvol),
            },
            2..=3 => QgroupId::new(1, self.rng.below(2)),
            _ => QgroupId::new(2, 0),
        }
    }

    fn groups(&mut self) -> Vec<QgroupId> {
        if self.rng.one_in(3) { vec![QgroupId::new(1, self.rng.below(2))] } else { Vec::new() }
    }

    fn file(&mut self) -> (u64, u64) {
        (self.some(), self.rng.below(3))
    }

    fn step(&mut self) -> Step {
        match self.rng.below(20) {
            0..=4 => {
                let (subvol, file) = self.file();
                Step::Write { subvol, file, mib: self.rng.below(4) + 1 }
            }
            5..=6 => Step::Clone { from: self.file(), to: self.file() },
            7 => {
                let (subvol, file) = self.file();
                Step::Unlink { subvol, file }
            }
            8..=9 => Step::Subvol { new: self.made + 1, groups: self.groups() },
            10..=11 => Step::Snapshot { of: self.some(), new: self.made + 1, groups: self.groups() },
            12 if self.subvols.len() > 3 => Step::Delete { subvol: self.subvols[1] },
            13 => Step::Rescan,
            14..=15 => Step::Change(QgroupChange::Assign(self.group(), self.group())),
            16 => Step::Change(QgroupChange::Remove(self.group(), self.group())),
            17 => {
                // Higher than all that is written: near its limits the kernel refuses what there is room for.
                let max_rfer = Some((self.rng.below(40) + 200) * MIB);
                let limit = QgroupLimit { max_rfer: max_rfer.filter(|_| !self.rng.one_in(4)), max_excl: None };
                Step::Change(QgroupChange::Limit(self.group(), limit))
            }
            18 => Step::Change(QgroupChange::Create(self.group())),
            _ => Step::Change(QgroupChange::Destroy(self.group())),
        }
    }

    fn done(&mut self, step: &Step) {
        match step {
            Step::Subvol { new, .. } | Step::Snapshot { new, .. } => {
                self.made = *new;
                self.subvols.push(*new);
            }
            Step::Delete { subvol } => self.subvols.retain(|there| there != subvol),
            Step::Enable { simple } => self.simple = *simple,
            _ => {}
        }
    }
}

fn play(oracle: Oracle, seed: u64, simple: bool) -> anyhow::Result<()> {
    let scratch = oracle.scratch()?;
    let [theirs, mine] = ["theirs", "mine"].map(|name| scratch.image(name, 1 << 30));
    let (theirs, mine) = (theirs?, mine?);
    for image in [&theirs, &mine] {
        oracle.mkfs(&["-n", "4096"], &[image])?;
    }
    let mounted = oracle.mount(&[&theirs], "commit=1")?;
    let fs = open(&mine)?;
    let mut maker = Maker { rng: Rng::new(seed), subvols: vec![0], made: 0, simple };
    let mut steps = vec![Step::Enable { simple }, Step::Change(QgroupChange::Create(QgroupId::new(1, 0)))];
    let (mut reported, mut let_through) = (Vec::new(), 0);
    for _ in 0..70 {
        let step = if steps.is_empty() { maker.step() } else { steps.remove(0) };
        reported.push(step.clone());
        let what = format!("seed {seed}, after {:#?}", &reported[reported.len().saturating_sub(4)..]);
        let (a, b) = (by_kernel(&mounted, &step)?, by_us(&fs, &step)?);
        assert_eq!(a, b, "{what}: by the kernel | by us");
        if a {
            let_through += 1;
            maker.done(&step);
        }
        fs.sync()?;
        if !simple {
            // Some steps leave the kernel's numbers wrong until it rescans.
            by_kernel(&mounted, &Step::Rescan)?;
        }
        assert_eq!(
            rounded(mounted.qgroups()?),
            rounded(ours(&fs).expect("quota is on")),
            "{what}: the kernel's | ours"
        );
    }
    assert!(let_through > 20, "only {let_through} steps were let through");
    let numbers = said(&fs);
    drop(fs);
    mounted.unmount()?;
    if !simple {
        let (before, after) = kernel_counts(oracle, &mine, "in the end")?;
        assert_eq!(
            (&numbers, &before),
            (&after, &after),
            "seed {seed}: ours, and as the kernel reads them | its rescan"
        );
        oracle.must_be_sound(&[&mine], &format!("seed {seed}"))?;
    }
    Ok(())
}

/// Goal: what users do to groups has the same effects by the kernel and by us: the same is refused, and after each step groups, their
/// relations and limits, and what data they count are equal. Method: the same random history on both.
#[test]
fn full_quotas_do_as_the_kernels() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    budget().seeds(1, 2, 3).try_for_each(|seed| play(oracle, seed, false))
}

/// Goal: the same with simple quotas.
#[test]
fn simple_quotas_do_as_the_kernels() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    budget().seeds(101, 2, 3).try_for_each(|seed| play(oracle, seed, true))
}
