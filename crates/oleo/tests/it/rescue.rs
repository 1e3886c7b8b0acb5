//! Reading what is damaged, where that is asked for.

use std::sync::Arc;

use anyhow::{Result, ensure};
use oleo::device::MemDevice;
use oleo::mkfs::MkfsOptions;
use oleo::{Device, Image, OpenOptions};

fn device() -> Result<Arc<dyn Device>> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(256 << 20));
    oleo::mkfs::make(std::slice::from_ref(&device), &MkfsOptions::default())?;
    Ok(device)
}

fn write(device: &Arc<dyn Device>, name: &str) -> Result<()> {
    let image = Image::from_devices(vec![device.clone()], &OpenOptions::writing())?;
    image.write(name, name.as_bytes())?;
    image.close()?;
    Ok(())
}

/// The first superblock.
fn super_of(device: &Arc<dyn Device>) -> Result<oleo_format::SuperBlock> {
    let mut bytes = vec![0; oleo_format::SUPER_LEN];
    device.read_at(oleo_format::SUPER_OFFSETS[0], &mut bytes)?;
    Ok(oleo_format::SuperBlock::read(&bytes)?)
}

/// Overwrites every copy of a tree block.
fn ruin(device: &Arc<dyn Device>, at: oleo::format::Logical) -> Result<()> {
    let image = Image::from_devices(vec![device.clone()], &OpenOptions::default())?;
    let chunk = image.volume().chunk_of(at)?;
    for stripe in 0..chunk.stripes.len() {
        let physical = chunk.stripes[stripe].offset.0 + (at.0 - chunk.start.0);
        device.write_at(physical, &[0xa5; 4096])?;
    }
    Ok(())
}

/// Goal: with `use_backup_root`, a volume whose newest tree of roots is lost opens as of an earlier transaction, and without
/// it does not open; never for writing.
/// Method: two commits, the newest root block overwritten in all copies.
#[test]
fn an_earlier_transaction_stands_in() -> Result<()> {
    let device = device()?;
    write(&device, "early")?;
    write(&device, "late")?;
    let root = Image::from_devices(vec![device.clone()], &OpenOptions::default())?.volume().super_block().root();
    ruin(&device, root)?;
    let open = |options| Image::from_devices(vec![device.clone()], &options);
    ensure!(open(OpenOptions::default()).is_err(), "the newest roots are gone");
    ensure!(open(OpenOptions::writing().use_backup_root(true)).is_err(), "only for reading");
    let image = open(OpenOptions::default().use_backup_root(true))?;
    ensure!(image.read("early")? == b"early");
    Ok(())
}

/// Goal: data whose checksum does not match is read when asked to, and refused otherwise.
/// Method: a file's one extent is changed on the device.
#[test]
fn data_against_its_checksum() -> Result<()> {
    let device = device()?;
    let content = vec![7u8; 64 << 10];
    {
        let image = Image::from_devices(vec![device.clone()], &OpenOptions::writing())?;
        image.write("file", &content)?;
        image.close()?;
    }
    let at = {
        let image = Image::from_devices(vec![device.clone()], &OpenOptions::default())?;
        let file = image.find("file")?;
        let extents = image.fs().extents(&file, 0, u64::MAX)?;
        let at = extents[0].disk.ok_or_else(|| anyhow::anyhow!("it has an address"))?;
        let chunk = image.volume().chunk_of(at)?;
        chunk.stripes[0].offset.0 + (at.0 - chunk.start.0)
    };
    device.write_at(at, &[8u8; 4096])?;
    ensure!(Image::from_devices(vec![device.clone()], &OpenOptions::default())?.read("file").is_err());
    let mut options = OpenOptions::default();
    options.fs.data.ignore_csums = true;
    let read = Image::from_devices(vec![device], &options)?.read("file")?;
    ensure!(read[..4096] == [8; 4096] && read[4096..] == content[4096..]);
    Ok(())
}

/// Goal: what a commit frees is told to the device, when asked for, and only that.
/// Method: a file is written, removed and committed on a device in memory that forgets what it is told to; the place of the
/// file's bytes then reads as zeros, and without the option it does not.
#[test]
fn what_is_freed_is_discarded() -> Result<()> {
    for discard in [true, false] {
        let device = device()?;
        let image = Image::from_devices(vec![device.clone()], &OpenOptions::writing().discard(discard))?;
        image.write("kept", &[5; 64 << 10])?;
        image.write("gone", &[6; 64 << 10])?;
        image.sync()?;
        let place = |name: &str| -> Result<u64> {
            let extents = image.fs().extents(&image.find(name)?, 0, u64::MAX)?;
            let at = extents[0].disk.ok_or_else(|| anyhow::anyhow!("it has an address"))?;
            let chunk = image.volume().chunk_of(at)?;
            Ok(chunk.stripes[0].offset.0 + (at.0 - chunk.start.0))
        };
        let (kept, gone) = (place("kept")?, place("gone")?);
        image.remove(&image.top()?, b"gone", oleo::fs::Depth::One)?;
        image.sync()?;
        image.sync()?;
        let mut bytes = [0; 4096];
        device.read_at(gone, &mut bytes)?;
        ensure!((bytes == [0; 4096]) == discard, "discard={discard}");
        device.read_at(kept, &mut bytes)?;
        ensure!(bytes == [5; 4096]);
    }
    Ok(())
}

/// Goal: new files are without checksums, or without copy on write, where the whole volume is to be.
/// Method: the flags of a new file and of a new directory.
#[test]
fn flags_of_new_files() -> Result<()> {
    use oleo_format::InodeFlags;
    let both = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
    for wanted in [InodeFlags::NODATASUM, both] {
        let mut options = OpenOptions::writing();
        options.fs.data.new_file_flags = wanted;
        let image = Image::from_devices(vec![device()?], &options)?;
        image.write("file", &[1; 9000])?;
        image.create_dir("dir")?;
        ensure!(image.attr("file")?.flags & both == wanted);
        ensure!((image.attr("dir")?.flags & both).is_empty());
        image.sync()?;
        ensure!(image.read("file")? == [1; 9000]);
    }
    Ok(())
}

/// Goal: what was synced before a crash is seen by whoever opens the volume: for reading without a write to the device, for
/// writing for good; without the log where that is asked for, which is for reading only; and a log that cannot be read is an
/// error that says what to do, and says it of itself.
/// Method: a file is written and synced, and the image dropped without a commit; then opened in all ways.
#[test]
fn a_log_is_replayed() -> Result<()> {
    let device = device()?;
    write(&device, "committed")?;
    let crashed = Image::from_devices(vec![device.clone()], &OpenOptions::writing())?;
    crashed.write("synced", b"bytes")?;
    crashed.fs().fsync(&crashed.find("synced")?)?;
    drop(crashed);
    let log_root = super_of(&device)?.log_root.get();
    ensure!(log_root != 0, "the sync left a log");
    let bytes = || -> Result<Vec<u8>> {
        let mut all = vec![0; 64 << 20];
        device.read_at(0, &mut all)?;
        Ok(all)
    };
    let before = bytes()?;
    let open = |options| Image::from_devices(vec![device.clone()], &options);
    ensure!(open(OpenOptions::default())?.read("synced")? == b"bytes");
    let without = OpenOptions::default().no_log_replay(true);
    ensure!(open(without.clone())?.read("synced").is_err());
    ensure!(open(without.clone().access(oleo::Access::Write)).is_err(), "only for reading");
    // One that is larger than may be applied in memory.
    let Err(error) = open(OpenOptions::default().log_bytes_max(20_000)) else { anyhow::bail!("the log is too large") };
    ensure!(error.to_string().contains("only 20000 may be applied"), "{error}");
    ensure!(error.hint() == Some(oleo::Hint::SkipOrDropLog));
    ensure!(bytes()? == before, "reading wrote to the device");

    let good = open(without.clone())?;
    let chunk = good.volume().chunk_of(oleo::format::Logical(log_root))?;
    let places: Vec<u64> = chunk.stripes.iter().map(|s| s.offset.0 + (log_root - chunk.start.0)).collect();
    drop(good);
    let mut old = [0; 16];
    device.read_at(places[0], &mut old)?;
    places.iter().try_for_each(|at| device.write_at(*at, &[0xa5; 16]))?;
    for options in [OpenOptions::default(), OpenOptions::writing()] {
        let Err(error) = open(options) else { anyhow::bail!("the log cannot be read") };
        ensure!(error.to_string().contains("log"), "{error}");
        ensure!(error.hint() == Some(oleo::Hint::SkipOrDropLog));
    }
    ensure!(open(without)?.read("committed")? == b"committed");
    places.iter().try_for_each(|at| device.write_at(*at, &old))?;

    let image = open(OpenOptions::writing())?;
    ensure!(image.read("synced")? == b"bytes");
    drop(image);
    ensure!(super_of(&device)?.log_root.get() == 0, "replaying is a commit");
    ensure!(open(OpenOptions::default())?.read("synced")? == b"bytes");
    Ok(())
}
