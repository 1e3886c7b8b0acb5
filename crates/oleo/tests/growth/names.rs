//! Names: entries, links, attributes, levels of directories.

use anyhow::{Result, ensure};
use oleo::fs::{Depth, Follow, InodeRef, NewInode, NewKind, RenameMode, XattrMode};
use oleo::mkfs::MkfsOptions;
use oleo::{Image, TreeId};

use crate::count::{Cost, after_crash, measure, open, volume, volume_on};
use crate::{Case, case};

pub const CASES: &[Case] = &[
    case("create n names and commit", |n| {
        let image = volume()?;
        let dir = dir(&image, "dir")?;
        measure(|| {
            files(&image, &dir, n)?;
            Ok(image.sync()?)
        })
    }),
    case("look n names up", |n| {
        let (image, dir) = filled(n)?;
        measure(|| {
            (0..n).try_for_each(|at| {
                ensure!(image.fs().lookup(&dir, &name(at))?.is_some());
                ensure!(image.fs().lookup(&dir, format!("not {at}").as_bytes())?.is_none());
                Ok(())
            })
        })
    }),
    case("list n names", |n| {
        let (image, dir) = filled(n)?;
        measure(|| list(&image, &dir))
    }),
    case("list n names that are not committed", |n| {
        let image = volume()?;
        let dir = dir(&image, "dir")?;
        files(&image, &dir, n)?;
        measure(|| list(&image, &dir))
    }),
    case("unlink n names, the first of the list each time", |n| {
        let (image, dir) = filled(n)?;
        measure(|| {
            while let Some(first) = image.fs().readdir(&dir, 0, 1)?.first() {
                image.fs().unlink(&dir, &first.name)?;
            }
            Ok(image.sync()?)
        })
    }),
    case("unlink n names from the last to the first, and list after each", |n| {
        let (image, dir) = filled(n)?;
        measure(|| {
            for at in (1..n).rev() {
                image.fs().unlink(&dir, &name(at))?;
                ensure!(image.fs().readdir(&dir, at + 1, 1)?.is_empty());
            }
            Ok(())
        })
    }),
    case("remove a tree of n files", |n| {
        let (image, dir) = filled(n)?;
        drop(dir);
        measure(|| {
            image.remove(&image.top()?, "dir", Depth::Tree)?;
            image.clean()?;
            Ok(image.sync()?)
        })
    }),
    case("remove a tree of n directories", |n| {
        let image = volume()?;
        let dir = dir(&image, "dir")?;
        (0..n).try_for_each(|at| subdir(&image, &dir, &name(at)).map(drop))?;
        image.sync()?;
        drop(dir);
        measure(|| {
            image.remove(&image.top()?, "dir", Depth::Tree)?;
            image.clean()?;
            Ok(image.sync()?)
        })
    }),
    case("copy a tree of n directories", |n| {
        let image = volume()?;
        let dir = dir(&image, "dir")?;
        (0..n).try_for_each(|at| subdir(&image, &dir, &name(at)).map(drop))?;
        image.sync()?;
        measure(|| {
            image.copy(&image.top()?, "dir", "copy", Depth::Tree, oleo::fs::Sharing::Reflink)?;
            Ok(image.sync()?)
        })
    }),
    case("try to remove a directory of which n names are gone, n times", |n| {
        let (image, dir) = filled(n + 1)?;
        (0..n).try_for_each(|at| image.fs().unlink(&dir, &name(at)))?;
        let top = image.top()?;
        measure(|| {
            ensure!((0..n).all(|_| image.fs().rmdir(&top, b"dir").is_err()));
            Ok(())
        })
    }),
    case("rename n names", |n| {
        let (image, dir) = filled(n)?;
        measure(|| {
            (0..n).try_for_each(|at| {
                let to = format!("new{at}");
                image.fs().rename(&dir, &name(at), &dir, to.as_bytes(), RenameMode::Replace)
            })?;
            Ok(image.sync()?)
        })
    }),
    case("rename n names over others, each with an fsync", |n| {
        let (image, dir) = filled(2 * n)?;
        measure(|| {
            (0..n).try_for_each(|at| {
                let file = image.fs().lookup(&dir, &name(at))?.expect("it was made");
                image.fs().rename(&dir, &name(at), &dir, &name(n + at), RenameMode::Replace)?;
                Ok(image.fs().fsync(&file)?)
            })
        })
    }),
    case("fsync of a directory with n new names", |n| {
        let image = volume()?;
        let dir = dir(&image, "dir")?;
        image.sync()?;
        files(&image, &dir, n)?;
        measure(|| Ok(image.fs().fsync(&dir)?))
    }),
    case("fsync of a directory after n names went", |n| {
        let (image, dir) = filled(n)?;
        (0..n).try_for_each(|at| image.fs().unlink(&dir, &name(at)))?;
        measure(|| Ok(image.fs().fsync(&dir)?))
    }),
    case("create n names, each with an fsync of file and directory", |n| {
        let image = volume()?;
        let dir = dir(&image, "dir")?;
        image.sync()?;
        measure(|| {
            (0..n).try_for_each(|at| {
                let file = image.fs().create(&dir, &name(at), &NewInode::new(NewKind::File, 0o600))?;
                image.fs().fsync(&file)?;
                Ok(image.fs().fsync(&dir)?)
            })
        })
    }),
    case("link n names in one directory", |n| {
        let image = volume()?;
        let (dir, file) = (dir(&image, "dir")?, crate::data::file(&image, "file")?);
        measure(|| {
            (0..n).try_for_each(|at| image.fs().link(&file, &dir, &name(at)))?;
            Ok(image.sync()?)
        })
    })
    .from(256),
    case("link n names in n directories", |n| {
        let (image, file, dirs) = in_directories(n)?;
        measure(|| {
            dirs.iter().try_for_each(|dir| image.fs().link(&file, dir, b"link"))?;
            Ok(image.sync()?)
        })
    }),
    case("unlink a file's n names in one directory", |n| {
        let (image, dir, _) = linked(n)?;
        measure(|| {
            (0..n).try_for_each(|at| image.fs().unlink(&dir, &name(at)))?;
            Ok(image.sync()?)
        })
    })
    .from(256),
    case("fsync of a file with n names of which one is new", |n| {
        let (image, dir, file) = linked(n)?;
        image.fs().link(&file, &dir, b"one more")?;
        measure(|| Ok(image.fs().fsync(&file)?))
    })
    .from(256),
    case("fsync of a file that lost all of its n names but one", |n| {
        let (image, dir, file) = linked(n)?;
        (0..n).try_for_each(|at| image.fs().unlink(&dir, &name(at)))?;
        measure(|| Ok(image.fs().fsync(&file)?))
    })
    .from(256),
    case("paths of a file with n names in n directories", |n| {
        let (image, file, dirs) = in_directories(n)?;
        dirs.iter().try_for_each(|dir| image.fs().link(&file, dir, b"link"))?;
        image.sync()?;
        measure(|| {
            ensure!(image.paths(&file)?.len() as u64 == n + 1);
            Ok(())
        })
    }),
    case("set n attributes", |n| {
        let image = volume()?;
        let file = crate::data::file(&image, "file")?;
        measure(|| {
            attributes(&image, &file, n)?;
            Ok(image.sync()?)
        })
    }),
    case("list and read n attributes", |n| {
        let image = volume()?;
        let file = crate::data::file(&image, "file")?;
        attributes(&image, &file, n)?;
        image.sync()?;
        measure(|| {
            ensure!(image.fs().xattr_list(&file)?.len() as u64 == n);
            ensure!(image.fs().xattrs(&file)?.len() as u64 == n);
            (0..n).try_for_each(|at| Ok(image.fs().xattr_get(&file, &attribute(at)).map(drop)?))
        })
    }),
    case("remove n attributes, and fsync", |n| {
        let image = volume()?;
        let file = crate::data::file(&image, "file")?;
        attributes(&image, &file, n)?;
        image.sync()?;
        measure(|| {
            (0..n).try_for_each(|at| image.fs().xattr_remove(&file, &attribute(at)))?;
            Ok(image.fs().fsync(&file)?)
        })
    }),
    case("set n attributes, each with an fsync of another file", |n| {
        let image = volume()?;
        let (file, other) = (crate::data::file(&image, "file")?, crate::data::file(&image, "other")?);
        image.sync()?;
        measure(|| {
            (0..n).try_for_each(|at| {
                image.fs().xattr_set(&file, &attribute(at), b"value", XattrMode::Any)?;
                image.fs().write(&other, 0, b"x")?;
                Ok(image.fs().fsync(&other)?)
            })
        })
    }),
    case("make n levels of directories and commit", |n| {
        let image = volume()?;
        measure(|| {
            deep(&image, n)?;
            Ok(image.sync()?)
        })
    }),
    case("go down n levels", |n| {
        let (image, path) = (volume()?, "d/".repeat(n as usize));
        deep(&image, n)?;
        image.sync()?;
        measure(|| Ok(image.fs().resolve(&image.top()?, path.as_bytes(), Follow::No)?))
    }),
    case("the path of what is n levels deep", |n| {
        let image = volume()?;
        let bottom = deep(&image, n)?;
        image.sync()?;
        measure(|| Ok(image.paths(&bottom)?))
    }),
    case("fsync n levels deep", |n| {
        let image = volume()?;
        image.sync()?;
        let bottom = deep(&image, n)?;
        measure(|| Ok(image.fs().fsync(&bottom)?))
    }),
    case("move a directory n levels down", |n| {
        let image = volume()?;
        let (moved, bottom) = (dir(&image, "moved")?, deep(&image, n)?);
        image.sync()?;
        measure(|| {
            image.fs().rename(&image.top()?, b"moved", &bottom, b"moved", RenameMode::Replace)?;
            Ok(image.fs().fsync(&moved)?)
        })
    }),
    case("remove n levels of directories", |n| {
        let image = volume()?;
        deep(&image, n)?;
        image.sync()?;
        measure(|| {
            image.remove(&image.top()?, "d", Depth::Tree)?;
            image.clean()?;
            Ok(image.sync()?)
        })
    }),
    case("copy n levels of directories", |n| {
        let image = volume()?;
        deep(&image, n)?;
        image.sync()?;
        measure(|| {
            image.copy(&image.top()?, "d", "copy", Depth::Tree, oleo::fs::Sharing::Reflink)?;
            Ok(image.sync()?)
        })
    }),
    case("replay a log of n names", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        let dir = dir(&image, "dir")?;
        image.sync()?;
        files(&image, &dir, n)?;
        image.fs().fsync(&dir)?;
        replayed(&memory)
    }),
    case("replay a log of n names that went", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        let dir = dir(&image, "dir")?;
        files(&image, &dir, n)?;
        image.sync()?;
        (0..n).try_for_each(|at| image.fs().unlink(&dir, &name(at)))?;
        image.fs().fsync(&dir)?;
        replayed(&memory)
    }),
    case("replay a log of n levels of directories", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        image.sync()?;
        let bottom = deep(&image, n)?;
        image.fs().fsync(&bottom)?;
        replayed(&memory)
    }),
    case("replay a log of n extents that replace others", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        let file = crate::data::file(&image, "file")?;
        crate::data::scatter(&image, &file, n)?;
        image.sync()?;
        crate::data::scatter(&image, &file, n)?;
        image.fs().fsync(&file)?;
        replayed(&memory)
    }),
    case("replay a log of one hole over n extents", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        let file = crate::data::file(&image, "file")?;
        crate::data::scatter(&image, &file, n)?;
        image.sync()?;
        image.fs().punch_hole(&file, 0, n * crate::data::STRIDE)?;
        image.fs().fsync(&file)?;
        replayed(&memory)
    }),
    case("open a volume with n files that are to be deleted", |n| {
        let (image, memory) = volume_on(1, &MkfsOptions::default())?;
        let dir = dir(&image, "dir")?;
        files(&image, &dir, n)?;
        let open_files = (0..n).map(|at| image.fs().lookup(&dir, &name(at))).collect::<Result<Vec<_>, _>>()?;
        (0..n).try_for_each(|at| image.fs().unlink(&dir, &name(at)))?;
        image.sync()?;
        let crashed = after_crash(&memory);
        drop(open_files);
        measure(|| {
            let image = open(&crashed)?;
            image.clean()?;
            Ok(image.close()?)
        })
    }),
];

pub fn name(at: u64) -> Vec<u8> {
    format!("{at:08x}").into_bytes()
}

fn attribute(at: u64) -> Vec<u8> {
    format!("user.{at}").into_bytes()
}

fn attributes(image: &Image, file: &InodeRef, n: u64) -> Result<()> {
    Ok((0..n).try_for_each(|at| image.fs().xattr_set(file, &attribute(at), b"value", XattrMode::Any))?)
}

pub fn dir(image: &Image, name: &str) -> Result<InodeRef> {
    subdir(image, &image.fs().root(TreeId::FS)?, name.as_bytes())
}

pub fn subdir(image: &Image, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
    Ok(image.fs().create(dir, name, &NewInode::new(NewKind::Dir, 0o700))?)
}

pub fn files(image: &Image, dir: &InodeRef, n: u64) -> Result<()> {
    let new = NewInode::new(NewKind::File, 0o600);
    Ok((0..n).try_for_each(|at| image.fs().create(dir, &name(at), &new).map(drop))?)
}

/// A volume with a directory of n files, committed.
fn filled(n: u64) -> Result<(Image, InodeRef)> {
    let image = volume()?;
    let dir = dir(&image, "dir")?;
    files(&image, &dir, n)?;
    image.sync()?;
    Ok((image, dir))
}

/// A volume with a file of n names in one directory and one elsewhere, committed.
fn linked(n: u64) -> Result<(Image, InodeRef, InodeRef)> {
    let image = volume()?;
    let (dir, file) = (dir(&image, "dir")?, crate::data::file(&image, "file")?);
    (0..n).try_for_each(|at| image.fs().link(&file, &dir, &name(at)))?;
    image.sync()?;
    Ok((image, dir, file))
}

/// A volume with a file and n directories.
fn in_directories(n: u64) -> Result<(Image, InodeRef, Vec<InodeRef>)> {
    let image = volume()?;
    let file = crate::data::file(&image, "file")?;
    let dirs = (0..n).map(|at| dir(&image, &format!("dir{at}"))).collect::<Result<Vec<_>>>()?;
    image.sync()?;
    Ok((image, file, dirs))
}

fn list(image: &Image, dir: &InodeRef) -> Result<()> {
    let mut after = 0;
    while let Some((last, _)) = image.fs().readdir_plus(dir, after, 50)?.last() {
        after = last.index;
    }
    Ok(())
}

/// Directories in directories; returns the lowest.
pub fn deep(image: &Image, n: u64) -> Result<InodeRef> {
    (0..n).try_fold(image.fs().root(TreeId::FS)?, |dir, _| subdir(image, &dir, b"d"))
}

/// What opening a volume after a crash costs.
fn replayed(memory: &[std::sync::Arc<crate::count::Memory>]) -> Result<Cost> {
    let crashed = after_crash(memory);
    ensure!(open_log(&crashed)?, "there is a log");
    let cost = measure(|| Ok(open(&crashed)?.close()?))?;
    crate::count::check(&crashed, false)?;
    Ok(cost)
}

fn open_log(memory: &[std::sync::Arc<crate::count::Memory>]) -> Result<bool> {
    let devices = memory.iter().map(|memory| memory.clone() as std::sync::Arc<dyn oleo::Device>).collect();
    let options = oleo_volume::OpenOptions {
        write: false,
        degraded: false,
        backup: None,
        super_copy: None,
        ignore_block_csums: false,
    };
    Ok(oleo_volume::Volume::open(devices, &options)?.super_block().log_root.get() != 0)
}
