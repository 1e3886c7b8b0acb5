//! The contents of files: extents, references to extents, bytes in memory.

use anyhow::{Result, ensure};
use oleo::fs::{CloneRange, InodeRef, KeepSize, NewInode, NewKind};
use oleo::{Image, TreeId};

use crate::count::{measure, volume};
use crate::{Case, case};

pub const CASES: &[Case] = &[
    case("write n extents and commit", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        measure(|| {
            scatter(&image, &file, n)?;
            Ok(image.sync()?)
        })
    }),
    case("fsync of n new extents", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        image.sync()?;
        scatter(&image, &file, n)?;
        measure(|| Ok(image.fs().fsync(&file)?))
    }),
    case("fsync after one hole over n extents", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            image.fs().punch_hole(&file, 0, n * STRIDE)?;
            Ok(image.fs().fsync(&file)?)
        })
    }),
    case("fsync after truncation of n extents", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            image.fs().truncate(&file, 1)?;
            Ok(image.fs().fsync(&file)?)
        })
    }),
    case("truncation of n extents to nothing, and commit", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            image.fs().truncate(&file, 0)?;
            Ok(image.sync()?)
        })
    }),
    case("truncation by one extent, n times", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            (0..n).rev().try_for_each(|at| image.fs().truncate(&file, at * STRIDE))?;
            Ok(image.sync()?)
        })
    }),
    case("n holes, rising", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            (0..n).try_for_each(|at| image.fs().punch_hole(&file, at * STRIDE, SECTOR))?;
            Ok(image.sync()?)
        })
    }),
    case("n holes anywhere, and fsync", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            shuffled(n).try_for_each(|at| image.fs().punch_hole(&file, at * STRIDE, SECTOR))?;
            Ok(image.fs().fsync(&file)?)
        })
    }),
    case("n holes, each with an fsync", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            (0..n).try_for_each(|at| {
                image.fs().punch_hole(&file, at * STRIDE, SECTOR)?;
                Ok(image.fs().fsync(&file)?)
            })
        })
    }),
    case("n reads of what was one hole over n extents", |n| {
        let (image, file) = scattered(n)?;
        image.fs().punch_hole(&file, SECTOR, (n - 2) * STRIDE)?;
        measure(|| read_each(&image, &file, n))
    }),
    case("n writes into one hole over n extents", |n| {
        let (image, file) = scattered(n)?;
        image.fs().punch_hole(&file, SECTOR, (n - 2) * STRIDE)?;
        measure(|| {
            write_each(&image, &file, n)?;
            Ok(image.fs().fsync(&file)?)
        })
    }),
    case("n appends to a file that was truncated by n extents", |n| {
        let (image, file) = scattered(n)?;
        image.fs().truncate(&file, SECTOR)?;
        measure(|| {
            for at in 1..n {
                image.fs().write(&file, at * SECTOR, &[1; SECTOR as usize])?;
                image.fs().flush(&file)?;
            }
            Ok(())
        })
    }),
    case("n extents overwritten at once, then read one by one", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            image.fs().write(&file, 0, &vec![3; (n * STRIDE) as usize])?;
            image.fs().flush(&file)?;
            read_each(&image, &file, n)?;
            Ok(image.fs().fsync(&file)?)
        })
    }),
    case("n extents overwritten one by one", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            write_each(&image, &file, n)?;
            Ok(image.sync()?)
        })
    }),
    case("n writes, each with an fsync", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            shuffled(n).try_for_each(|at| {
                image.fs().write(&file, at * STRIDE, &[2; SECTOR as usize])?;
                Ok(image.fs().fsync(&file)?)
            })
        })
    }),
    case("n appends, each with an fsync", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        image.sync()?;
        measure(|| {
            (0..n).try_for_each(|at| {
                image.fs().write(&file, at * 1000, &[2; 1000])?;
                Ok(image.fs().fsync(&file)?)
            })
        })
    }),
    case("writes to n places, with a look at the attributes after each", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            (0..n).try_for_each(|at| {
                image.fs().write(&file, at * STRIDE, &[2; SECTOR as usize])?;
                let _ = image.fs().attr(&file);
                Ok(())
            })
        })
    }),
    case("n bytes written apart, read before they are flushed", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        measure(|| {
            shuffled(n).try_for_each(|at| image.fs().write(&file, at * STRIDE, b"x"))?;
            read_each(&image, &file, n)
        })
    }),
    case("list n extents", |n| {
        let (image, file) = scattered(n)?;
        write_each(&image, &file, n)?;
        measure(|| {
            ensure!(image.fs().extents(&file, 0, u64::MAX)?.len() as u64 >= n);
            Ok(())
        })
    }),
    case("list n extents with as many runs of bytes in memory", |n| {
        let (image, file) = scattered(n)?;
        (0..n).try_for_each(|at| image.fs().write(&file, at * STRIDE, b"x"))?;
        measure(|| {
            ensure!(image.fs().extents(&file, 0, u64::MAX)?.len() as u64 >= n);
            Ok(())
        })
    }),
    case("look for n pieces of data and holes", |n| {
        let (image, file) = scattered(n)?;
        measure(|| pieces(&image, &file))
    }),
    case("look for n pieces of data in memory", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        (0..n).try_for_each(|at| image.fs().write(&file, at * STRIDE, b"x"))?;
        measure(|| pieces(&image, &file))
    }),
    case("look for data behind one hole over n extents, n times", |n| {
        let (image, file) = scattered(n)?;
        image.fs().punch_hole(&file, SECTOR, (n - 2) * STRIDE)?;
        measure(|| {
            (0..n).try_for_each(|at| {
                image.fs().seek_data(&file, at * STRIDE)?;
                image.fs().seek_hole(&file, at * STRIDE)?;
                Ok(())
            })
        })
    }),
    case("preallocate n gaps", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            image.fs().preallocate(&file, 0, n * STRIDE, KeepSize::No)?;
            Ok(image.sync()?)
        })
    }),
    case("write n pieces of preallocated space", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        image.fs().preallocate(&file, 0, n * STRIDE, KeepSize::No)?;
        image.sync()?;
        measure(|| {
            write_each(&image, &file, n)?;
            Ok(image.sync()?)
        })
    }),
    case("preallocate n pieces one by one", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        measure(|| {
            (0..n).try_for_each(|at| image.fs().preallocate(&file, at * STRIDE, SECTOR, KeepSize::No))?;
            Ok(image.sync()?)
        })
    }),
    case("zero n extents", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            image.fs().zero_range(&file, 0, n * STRIDE, KeepSize::No)?;
            Ok(image.fs().fsync(&file)?)
        })
    }),
    case("clone a file of n extents", |n| {
        let (image, source) = scattered(n)?;
        let target = file(&image, "target")?;
        measure(|| {
            image.fs().clone_range(&source, &target, &CloneRange { from: 0, len: 0, to: 0 })?;
            Ok(image.sync()?)
        })
    }),
    case("clone over a file of n extents, and fsync", |n| {
        let (image, source) = scattered(n)?;
        let target = file(&image, "target")?;
        scatter(&image, &target, n)?;
        image.sync()?;
        measure(|| {
            image.fs().clone_range(&source, &target, &CloneRange { from: 0, len: 0, to: 0 })?;
            Ok(image.fs().fsync(&target)?)
        })
    }),
    case("n clones of one extent in one file", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        image.fs().write(&file, 0, &[5; SECTOR as usize])?;
        image.fs().flush(&file)?;
        measure(|| {
            clone_each(&image, &file, n)?;
            Ok(image.sync()?)
        })
    }),
    case("n clones of one extent in n files", |n| {
        let image = volume()?;
        let source = file(&image, "source")?;
        image.fs().write(&source, 0, &[5; SECTOR as usize])?;
        measure(|| {
            clones(&image, &source, n)?;
            Ok(image.sync()?)
        })
    }),
    case("delete n files that share an extent", |n| {
        let image = volume()?;
        let source = file(&image, "source")?;
        image.fs().write(&source, 0, &[5; SECTOR as usize])?;
        clones(&image, &source, n)?;
        image.sync()?;
        measure(|| {
            let top = image.top()?;
            (0..n).try_for_each(|at| image.fs().unlink(&top, format!("clone{at}").as_bytes()))?;
            image.clean()?;
            Ok(image.sync()?)
        })
    }),
    case("delete a file that has one extent n times", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        image.fs().write(&file, 0, &[5; SECTOR as usize])?;
        clone_each(&image, &file, n)?;
        image.sync()?;
        drop(file);
        measure(|| delete(&image, "file"))
    }),
    case("list one extent n times in a file", |n| {
        let image = volume()?;
        let file = file(&image, "file")?;
        image.fs().write(&file, 0, &[5; SECTOR as usize])?;
        clone_each(&image, &file, n)?;
        image.sync()?;
        measure(|| Ok(image.fs().extents(&file, 0, u64::MAX)?))
    }),
    case("delete a file of n extents", |n| {
        let (image, file) = scattered(n)?;
        drop(file);
        measure(|| delete(&image, "file"))
    }),
    case("defragment n extents", |n| {
        let (image, file) = scattered(n)?;
        measure(|| {
            oleo_jobs::defragment(image.fs(), &file, &Default::default(), &mut |_, _| {})?;
            Ok(image.sync()?)
        })
    }),
    case("fsync of n files with one change each", |n| {
        let image = volume()?;
        let files = (0..n).map(|at| file(&image, &format!("file{at}"))).collect::<Result<Vec<_>>>()?;
        image.sync()?;
        measure(|| {
            files.iter().try_for_each(|file| {
                image.fs().write(file, 0, &[2; SECTOR as usize])?;
                Ok(image.fs().fsync(file)?)
            })
        })
    }),
    case("commit of n files with one extent each", |n| {
        let image = volume()?;
        measure(|| {
            for at in 0..n {
                let file = file(&image, &format!("file{at}"))?;
                image.fs().write(&file, 0, &[2; SECTOR as usize])?;
            }
            Ok(image.sync()?)
        })
    }),
    case("trim a volume with n free places", |n| {
        let (image, file) = scattered(n)?;
        (0..n).step_by(2).try_for_each(|at| image.fs().punch_hole(&file, at * STRIDE, SECTOR))?;
        image.sync()?;
        measure(|| Ok(oleo_jobs::trim(image.fs(), &Default::default())?))
    }),
];

pub const SECTOR: u64 = 4096;
/// From one extent to the next.
pub const STRIDE: u64 = 2 * SECTOR;

pub fn file(image: &Image, name: &str) -> Result<InodeRef> {
    let new = NewInode::new(NewKind::File, 0o600);
    Ok(image.fs().create(&image.fs().root(TreeId::FS)?, name.as_bytes(), &new)?)
}

/// Writes n extents with gaps between them.
pub fn scatter(image: &Image, file: &InodeRef, n: u64) -> Result<()> {
    (0..n).try_for_each(|at| image.fs().write(file, at * STRIDE, &[at as u8 | 1; SECTOR as usize]))?;
    Ok(image.fs().flush(file)?)
}

/// A volume with one file of n extents, committed.
pub fn scattered(n: u64) -> Result<(Image, InodeRef)> {
    let image = volume()?;
    let file = file(&image, "file")?;
    scatter(&image, &file, n)?;
    image.sync()?;
    Ok((image, file))
}

/// The numbers below n in another order.
pub fn shuffled(n: u64) -> impl Iterator<Item = u64> {
    // The sizes are powers of two times an odd number below this prime.
    (0..n).map(move |at| at * 7919 % n)
}

fn read_each(image: &Image, file: &InodeRef, n: u64) -> Result<()> {
    let mut bytes = [0; SECTOR as usize];
    shuffled(n).try_for_each(|at| image.fs().read(file, at * STRIDE, &mut bytes).map(drop))?;
    Ok(())
}

/// Writes each extent anew, and flushes it by itself.
fn write_each(image: &Image, file: &InodeRef, n: u64) -> Result<()> {
    shuffled(n).try_for_each(|at| {
        image.fs().write(file, at * STRIDE, &[9; SECTOR as usize])?;
        Ok(image.fs().flush(file)?)
    })
}

/// Clones the first extent of a file behind itself.
fn clone_each(image: &Image, file: &InodeRef, n: u64) -> Result<()> {
    (1..n).try_for_each(|at| {
        image.fs().clone_range(file, file, &CloneRange { from: 0, len: SECTOR, to: at * SECTOR })?;
        Ok(())
    })
}

/// Clones a file n times.
pub fn clones(image: &Image, source: &InodeRef, n: u64) -> Result<()> {
    (0..n).try_for_each(|at| {
        let target = file(image, &format!("clone{at}"))?;
        Ok(image.fs().clone_range(source, &target, &CloneRange { from: 0, len: 0, to: 0 })?)
    })
}

fn delete(image: &Image, name: &str) -> Result<()> {
    image.fs().unlink(&image.top()?, name.as_bytes())?;
    image.clean()?;
    image.sync()?;
    Ok(())
}

/// Steps through a file by its data and holes.
fn pieces(image: &Image, file: &InodeRef) -> Result<u64> {
    let (mut at, mut count) = (0, 0);
    while let Some(data) = image.fs().seek_data(file, at)? {
        let Some(hole) = image.fs().seek_hole(file, data)? else { break };
        (at, count) = (hole, count + 1);
    }
    Ok(count)
}
