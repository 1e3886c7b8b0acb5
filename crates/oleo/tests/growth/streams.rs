//! Streams, restoring, archives.

use std::io::Cursor;

use anyhow::Result;
use oleo::mkfs::{BuildOptions, Source};
use oleo::receive::Receive;
use oleo::restore::{RestoreOptions, restore_to_dir, restore_to_tar};
use oleo::send::SendOptions;
use oleo::{Image, SnapshotOptions, TreeId};

use crate::count::{measure, volume};
use crate::data::{STRIDE, scatter};
use crate::names::{files, name, subdir};
use crate::{Case, case};

pub const CASES: &[Case] = &[
    case("send and receive n files", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        files(&image, &root, n)?;
        whole(&image)
    }),
    case("send and receive n extents", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        scatter(&image, &make(&image, &root, "file")?, n)?;
        whole(&image)
    }),
    case("send and receive a file of n names", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        let file = make(&image, &root, "file")?;
        (0..n).try_for_each(|at| image.fs().link(&file, &root, &name(at)))?;
        whole(&image)
    }),
    case("send and receive n levels of directories", |n| {
        let image = volume()?;
        (0..n).try_fold(subvol(&image)?, |dir, _| subdir(&image, &dir, b"d"))?;
        whole(&image)
    })
    // Paths have 4096 bytes at most.
    .from(64)
    .known(&["bytes"], PATHS),
    case("send and receive n attributes", |n| {
        let image = volume()?;
        let file = make(&image, &subvol(&image)?, "file")?;
        (0..n).try_for_each(|at| {
            image.fs().xattr_set(&file, format!("user.{at}").as_bytes(), b"x", oleo::fs::XattrMode::Any)
        })?;
        whole(&image)
    }),
    case("send and receive n clones of an extent", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        let source = make(&image, &root, "source")?;
        image.fs().write(&source, 0, &[5; 4096])?;
        for at in 0..n {
            let target = make(&image, &root, &format!("clone{at}"))?;
            image.fs().clone_range(&source, &target, &oleo::fs::CloneRange { from: 0, len: 0, to: 0 })?;
        }
        whole(&image)
    }),
    case("send what changed: n files that are new", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        changed(&image, |image| files(image, &root, n))
    }),
    case("send what changed: n files that went", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        files(&image, &root, n)?;
        changed(&image, |image| Ok((0..n).try_for_each(|at| image.fs().unlink(&root, &name(at)))?))
    }),
    case("send what changed: n files renamed", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        files(&image, &root, n)?;
        changed(&image, |image| {
            // Each takes the name that the next one had.
            image.fs().rename(&root, &name(0), &root, b"aside", oleo::fs::RenameMode::Replace)?;
            (1..n).try_for_each(|at| {
                image.fs().rename(&root, &name(at), &root, &name(at - 1), oleo::fs::RenameMode::Replace)
            })?;
            Ok(image.fs().rename(&root, b"aside", &root, &name(n - 1), oleo::fs::RenameMode::Replace)?)
        })
    }),
    case("send what changed: n levels of directories the other way round", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        let mut dirs = vec![root.clone()];
        for at in 0..n {
            dirs.push(subdir(&image, &dirs[at as usize], &name(at))?);
        }
        changed(&image, |image| {
            // From the lowest on each goes below the one that was below it.
            for at in (0..n as usize).rev() {
                let fs = image.fs();
                fs.rename(&dirs[at], &name(at as u64), &root, &name(at as u64 + n), oleo::fs::RenameMode::Replace)?;
            }
            for at in 0..n as usize - 1 {
                let fs = image.fs();
                let below = &dirs[at + 2];
                fs.rename(&root, &name(at as u64 + n), below, b"x", oleo::fs::RenameMode::Replace)?;
            }
            Ok(())
        })
    })
    .from(16)
    .known(&["items", "locks", "pieces", "bytes"], PATHS),
    case("send what changed: n names of a file", |n| {
        let image = volume()?;
        let root = subvol(&image)?;
        let file = make(&image, &root, "file")?;
        (0..n).try_for_each(|at| image.fs().link(&file, &root, &name(at)))?;
        changed(&image, |image| {
            (0..n).try_for_each(|at| {
                image.fs().unlink(&root, &name(at))?;
                image.fs().link(&file, &root, &name(at + n))
            })?;
            Ok(())
        })
    }),
    case("send what changed: n extents", |n| {
        let image = volume()?;
        let file = make(&image, &subvol(&image)?, "file")?;
        scatter(&image, &file, n)?;
        changed(&image, |image| scatter(image, &file, n))
    }),
    case("send what changed: n extents that went", |n| {
        let image = volume()?;
        let file = make(&image, &subvol(&image)?, "file")?;
        scatter(&image, &file, n)?;
        changed(&image, |image| Ok(image.fs().punch_hole(&file, 0, n * STRIDE)?))
    }),
    case("send with n clone sources", |n| {
        let image = crate::volumes::with_subvol(20)?;
        crate::volumes::snapshots(&image, n)?;
        let sources: Vec<TreeId> =
            (0..n).map(|at| Ok(image.subvol(format!("s{at}").as_str())?.tree())).collect::<Result<_>>()?;
        let last = image.snapshot("v", "last", &SnapshotOptions::default().read_only(true))?;
        image.sync()?;
        measure(|| {
            let options = SendOptions::default().clone_sources(sources.clone());
            Ok(image.send(&[last], &options, &mut Vec::new())?)
        })
    })
    .from(16),
    case("restore n files", |n| {
        let image = volume()?;
        files(&image, &image.top()?, n)?;
        restored(&image)
    })
    .from(32),
    case("restore n levels of directories", |n| {
        let image = volume()?;
        crate::names::deep(&image, n)?;
        restored(&image)
    })
    .from(16),
    case("archive and read back n files", |n| {
        let image = volume()?;
        files(&image, &image.top()?, n)?;
        archived(&image)
    }),
    case("archive and read back n extents", |n| {
        let (image, _) = crate::data::scattered(n)?;
        archived(&image)
    }),
    case("archive and read back n names of a file", |n| {
        let image = volume()?;
        let (top, file) = (image.top()?, crate::data::file(&image, "file")?);
        (0..n).try_for_each(|at| image.fs().link(&file, &top, &name(at)))?;
        archived(&image)
    }),
    case("archive and read back n levels of directories", |n| {
        let image = volume()?;
        crate::names::deep(&image, n)?;
        archived(&image)
    })
    .from(16)
    .known(&["pieces", "bytes"], "each entry of an archive has its whole path"),
];

/// Of directories in one another all paths together have as many parts as the square of their number.
const PATHS: &str = "each command of a stream has its whole path";

fn subvol(image: &Image) -> Result<oleo::fs::InodeRef> {
    image.create_subvol("v")?;
    Ok(image.subvol("v")?)
}

fn make(image: &Image, dir: &oleo::fs::InodeRef, name: &str) -> Result<oleo::fs::InodeRef> {
    Ok(image.fs().create(dir, name.as_bytes(), &oleo::fs::NewInode::new(oleo::fs::NewKind::File, 0o600))?)
}

fn snapshot(image: &Image, name: &str) -> Result<TreeId> {
    let id = image.snapshot("v", name, &SnapshotOptions::default().read_only(true))?;
    image.sync()?;
    Ok(id)
}

/// Returns the cost of sending a subvolume and receiving it in another volume.
fn whole(image: &Image) -> Result<crate::count::Cost> {
    let id = snapshot(image, "s")?;
    let other = volume()?;
    measure(|| {
        let mut stream = Vec::new();
        image.send(&[id], &SendOptions::default(), &mut stream)?;
        Ok(other.receive(Cursor::new(stream), &Receive::default())?)
    })
}

/// The same for what a change makes.
fn changed(image: &Image, change: impl FnOnce(&Image) -> Result<()>) -> Result<crate::count::Cost> {
    let before = snapshot(image, "before")?;
    change(image)?;
    let after = snapshot(image, "after")?;
    let other = volume()?;
    let mut stream = Vec::new();
    image.send(&[before], &SendOptions::default(), &mut stream)?;
    other.receive(Cursor::new(stream), &Receive::default())?;
    measure(|| {
        let mut stream = Vec::new();
        image.send(&[after], &SendOptions::default().parent(Some(before)), &mut stream)?;
        Ok(other.receive(Cursor::new(stream), &Receive::default())?)
    })
}

fn restored(image: &Image) -> Result<crate::count::Cost> {
    image.sync()?;
    let scratch = tempfile::tempdir()?;
    let to = scratch.path().join("restored");
    measure(|| Ok(restore_to_dir(image, &image.top()?, b"", &to, &RestoreOptions::default())?))
}

fn archived(image: &Image) -> Result<crate::count::Cost> {
    image.sync()?;
    let scratch = tempfile::tempdir()?;
    let disk = scratch.path().join("disk.img");
    measure(|| {
        let mut archive = Vec::new();
        restore_to_tar(image, &image.top()?, b"", &mut archive, &RestoreOptions::default())?;
        let source = Source::Tar(Box::new(Cursor::new(archive)));
        Ok(oleo::mkfs::build(&[&disk], BuildOptions::default().source(source).size(Some(1 << 30)))?)
    })
}
