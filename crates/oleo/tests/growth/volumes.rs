//! Subvolumes, snapshots, quota, devices; opening, checking, scrubbing, balancing.

use anyhow::{Result, ensure};
use oleo::balance::{BalanceArgs, Filters};
use oleo::fs::{InodeRef, NewSubvol};
use oleo::mkfs::{MkfsOptions, Profile};
use oleo::quota::{QgroupChange, QgroupId, Recount};
use oleo::scrub::ScrubWant;
use oleo::{Image, SnapshotOptions, TreeId};

use crate::count::{check, measure, open, volume, volume_of, volume_on};
use crate::data::{clones, file, scatter};
use crate::names::{deep, dir, files, name};
use crate::{Case, case};

pub const CASES: &[Case] = &[
    case("make n snapshots", |n| {
        let image = with_subvol(20)?;
        measure(|| {
            snapshots(&image, n)?;
            Ok(image.sync()?)
        })
    })
    .from(16),
    case("make n snapshots with quota", |n| {
        let image = with_subvol(20)?;
        image.quota_enable()?;
        measure(|| {
            snapshots(&image, n)?;
            Ok(image.sync()?)
        })
    })
    .from(16),
    case("delete n snapshots", |n| {
        let image = with_subvol(20)?;
        snapshots(&image, n)?;
        image.sync()?;
        measure(|| delete_subvols(&image))
    })
    .from(16),
    case("delete n snapshots with quota", |n| {
        let image = with_subvol(20)?;
        image.quota_enable()?;
        snapshots(&image, n)?;
        image.sync()?;
        measure(|| delete_subvols(&image))
    })
    .from(16),
    case("delete n snapshots that differ", |n| {
        let image = with_subvol(200)?;
        differing(&image, n)?;
        measure(|| delete_subvols(&image))
    })
    .from(16),
    case("change a file that n snapshots share", |n| {
        let image = with_subvol(20)?;
        snapshots(&image, n)?;
        image.sync()?;
        measure(|| touch(&image, 0))
    })
    .from(16),
    case("change a file that n snapshots share, with quota", |n| {
        let image = with_subvol(20)?;
        image.quota_enable()?;
        snapshots(&image, n)?;
        image.sync()?;
        measure(|| touch(&image, 0))
    })
    .from(64),
    case("change n files that a snapshot shares, with quota", |n| {
        let image = with_subvol(n)?;
        image.quota_enable()?;
        snapshots(&image, 1)?;
        image.sync()?;
        measure(|| {
            let root = image.subvol("v")?;
            for at in 0..n {
                let file = image.fs().lookup(&root, &name(at))?.expect("it was made");
                image.fs().write(&file, 0, &[8; 4096])?;
            }
            Ok(image.sync()?)
        })
    }),
    case("make n subvolumes", |n| {
        let image = volume()?;
        measure(|| subvols(&image, n))
    })
    .from(16),
    case("make and delete n subvolumes in n subvolumes", |n| {
        let image = volume()?;
        measure(|| {
            let ids = nested(&image, n)?;
            ids.into_iter().rev().try_for_each(|id| image.fs().subvol_delete(id))?;
            image.clean()?;
            Ok(image.sync()?)
        })
    })
    .from(16),
    case("list n subvolumes in one another", |n| {
        let image = volume()?;
        nested(&image, n)?;
        measure(|| Ok(image.fs().subvol_list()?))
    })
    .from(16),
    case("list n subvolumes", |n| {
        let image = volume()?;
        subvols(&image, n)?;
        measure(|| {
            let list = image.fs().subvol_list()?;
            ensure!(list.len() as u64 > n);
            for subvol in &list {
                ensure!(
                    image.fs().find_uuid(subvol.uuid, oleo_fs::UuidKind::Own)?.contains(&subvol.id)
                        || subvol.id == TreeId::FS
                );
            }
            Ok(())
        })
    })
    .from(16),
    case("the sizes of n snapshots without quota", |n| {
        let image = with_subvol(50)?;
        differing(&image, n)?;
        measure(|| Ok(image.subvol_sizes()?))
    })
    .from(16),
    case("count quota of n snapshots", |n| {
        let image = with_subvol(50)?;
        differing(&image, n)?;
        measure(|| Ok(image.quota_enable()?))
    })
    .from(16),
    case("count quota of n extents", |n| {
        let (image, _) = crate::data::scattered(n)?;
        measure(|| Ok(image.quota_enable()?))
    }),
    case("count quota of n references to an extent", |n| {
        let image = volume()?;
        let source = file(&image, "source")?;
        image.fs().write(&source, 0, &[5; 4096])?;
        clones(&image, &source, n)?;
        image.sync()?;
        measure(|| Ok(image.quota_enable()?))
    }),
    case("make n quota groups in one", |n| {
        let image = volume()?;
        image.quota_enable()?;
        measure(|| groups(&image, n))
    })
    .from(16),
    case("write in a subvolume that is in n quota groups", |n| {
        let image = with_subvol(20)?;
        image.quota_enable()?;
        let own = QgroupId::of(image.subvol("v")?.tree());
        for at in 0..n {
            let group = QgroupId::new(1, at + 1);
            image.qgroup_change(QgroupChange::Create(group), Recount::Later)?;
            image.qgroup_change(QgroupChange::Assign(own, group), Recount::Later)?;
        }
        image.quota_rescan()?;
        measure(|| touch(&image, 1))
    })
    .from(16),
    case("open a volume with n subvolumes", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        subvols(&image, n)?;
        image.close()?;
        measure(|| Ok(open(&memory)?.close()?))
    })
    .from(16),
    case("open and check a volume of n extents", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        scatter(&image, &file(&image, "file")?, n)?;
        image.close()?;
        measure(|| {
            open(&memory)?.close()?;
            check(&memory, true)
        })
    }),
    case("check a volume of n names", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        files(&image, &dir(&image, "dir")?, n)?;
        image.close()?;
        measure(|| check(&memory, false))
    }),
    case("check a volume with a file of n names", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        let (dir, file) = (dir(&image, "dir")?, file(&image, "file")?);
        (0..n).try_for_each(|at| image.fs().link(&file, &dir, &name(at)))?;
        drop((dir, file));
        image.close()?;
        measure(|| check(&memory, false))
    }),
    case("check a volume of n levels of directories", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        deep(&image, n)?;
        image.close()?;
        measure(|| check(&memory, false))
    }),
    case("check a volume of n references to an extent", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        let source = file(&image, "source")?;
        image.fs().write(&source, 0, &[5; 4096])?;
        clones(&image, &source, n)?;
        drop(source);
        image.close()?;
        measure(|| check(&memory, true))
    }),
    case("check a volume of n snapshots that differ", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        fill_subvol(&image, 50)?;
        differing(&image, n)?;
        image.close()?;
        measure(|| check(&memory, false))
    })
    .from(16),
    case("check a volume of n subvolumes with quota", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        fill_subvol(&image, 20)?;
        differing(&image, n)?;
        image.quota_enable()?;
        image.close()?;
        measure(|| check(&memory, false))
    })
    .from(16),
    case("scrub n extents", |n| {
        let (image, _) = crate::data::scattered(n)?;
        measure(|| Ok(image.scrub(ScrubWant::new())?))
    })
    .from(1024)
    .known(
        &["bytes"],
        "each thread that takes part has a megabyte, and how many do depends on the load of the machine",
    ),
    case("balance n extents", |n| {
        let (image, _) = crate::data::scattered(n)?;
        measure(|| balance(&image))
    }),
    case("balance n references to an extent", |n| {
        let image = volume()?;
        let source = file(&image, "source")?;
        image.fs().write(&source, 0, &[5; 4096])?;
        clones(&image, &source, n)?;
        image.sync()?;
        measure(|| balance(&image))
    }),
    case("balance n snapshots that differ", |n| {
        let image = with_subvol(50)?;
        differing(&image, n)?;
        measure(|| balance(&image))
    })
    .from(16),
    case("make and open a volume on n devices", |n| {
        measure(|| {
            let (image, memory) = volume_on(n as usize, &MkfsOptions::default())?;
            image.close()?;
            Ok(open(&memory)?.close()?)
        })
    })
    .from(4),
    case("commit on n devices", |n| {
        let (image, _) = volume_on(n as usize, &MkfsOptions::default().data(Some(Profile::Raid0)))?;
        let file = file(&image, "file")?;
        let commit = |byte: u8| -> Result<()> {
            image.fs().write(&file, 0, &vec![byte; 1 << 20])?;
            image.sync()?;
            Ok(())
        };
        // The first commits may make block groups.
        (0..3).try_for_each(commit)?;
        measure(|| commit(3))
    })
    .from(6)
    .known(&["items"], "up to 24 devices the chunk tree has their items in one leaf, beyond that in several"),
    case("check and scrub n devices", |n| {
        let mkfs = MkfsOptions::default().data(Some(Profile::Raid0));
        let (image, memory) = volume_on(n as usize, &mkfs)?;
        image.fs().write(&file(&image, "file")?, 0, &vec![3; 1 << 20])?;
        image.sync()?;
        measure(|| {
            image.scrub(ScrubWant::new())?;
            check(&memory, true)
        })
    })
    .from(4),
    case("take n block groups, open and check them, and free them", |n| {
        let (image, memory) = volume_of(1, &MkfsOptions::default(), 1 << 40)?;
        let full = file(&image, "full")?;
        measure(|| {
            image.fs().preallocate(&full, 0, n << 30, oleo::fs::KeepSize::No)?;
            image.sync()?;
            check(&memory, false)?;
            image.fs().truncate(&full, 0)?;
            image.sync()?;
            Ok(image.reclaim(50)?)
        })
    })
    .from(16),
];

/// A subvolume `v` of files with one extent each.
fn fill_subvol(image: &Image, count: u64) -> Result<()> {
    image.create_subvol("v")?;
    let root = image.subvol("v")?;
    files(image, &root, count)?;
    for at in 0..count {
        let file = image.fs().lookup(&root, &name(at))?.expect("it was made");
        image.fs().write(&file, 0, &[7; 4096])?;
    }
    image.sync()?;
    Ok(())
}

pub fn with_subvol(count: u64) -> Result<Image> {
    let image = volume()?;
    fill_subvol(&image, count)?;
    Ok(image)
}

/// Writes to one file of `v`, and commits.
fn touch(image: &Image, at: u64) -> Result<()> {
    let file = image.fs().lookup(&image.subvol("v")?, &name(at))?.expect("it was made");
    image.fs().write(&file, 0, &[at as u8; 4096])?;
    image.sync()?;
    Ok(())
}

pub fn snapshots(image: &Image, n: u64) -> Result<()> {
    (0..n).try_for_each(|at| {
        image.snapshot("v", format!("s{at}"), &SnapshotOptions::default().read_only(true))?;
        Ok(())
    })
}

/// Snapshots with a change before each.
pub fn differing(image: &Image, n: u64) -> Result<()> {
    for at in 0..n {
        touch(image, at % 20)?;
        image.snapshot("v", format!("s{at}"), &SnapshotOptions::default().read_only(true))?;
    }
    image.sync()?;
    Ok(())
}

fn subvols(image: &Image, n: u64) -> Result<()> {
    (0..n).try_for_each(|at| image.create_subvol(format!("v{at}")).map(drop))?;
    image.sync()?;
    Ok(())
}

/// Subvolumes in one another.
fn nested(image: &Image, n: u64) -> Result<Vec<TreeId>> {
    let mut dir: InodeRef = image.top()?;
    let mut ids = Vec::new();
    for _ in 0..n {
        let id = image.fs().subvol_create(&dir, b"v", &NewSubvol::default())?;
        dir = image.fs().root(id)?;
        ids.push(id);
    }
    Ok(ids)
}

/// All but the top level, the last first.
fn delete_subvols(image: &Image) -> Result<()> {
    let mut ids: Vec<TreeId> = image.fs().subvol_list()?.iter().map(|subvol| subvol.id).collect();
    ids.sort_unstable_by(|a, b| b.cmp(a));
    ids.into_iter().filter(|id| *id != TreeId::FS).try_for_each(|id| image.fs().subvol_delete(id))?;
    image.clean()?;
    image.sync()?;
    Ok(())
}

fn groups(image: &Image, n: u64) -> Result<()> {
    let all = QgroupId::new(2, 1);
    image.qgroup_change(QgroupChange::Create(all), Recount::Later)?;
    for at in 0..n {
        let group = QgroupId::new(1, at + 1);
        image.qgroup_change(QgroupChange::Create(group), Recount::Later)?;
        image.qgroup_change(QgroupChange::Assign(group, all), Recount::Later)?;
    }
    Ok(())
}

fn balance(image: &Image) -> Result<()> {
    let all = || Some(Filters::default());
    image.balance(BalanceArgs::default().data(all()).metadata(all()))?;
    Ok(())
}
