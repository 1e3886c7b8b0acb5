//! A volume on two disks in memory: files, a snapshot, space, and one of the disks lost.
//!
//! `cargo run --release -p oleo --example in_memory`

use std::error::Error;
use std::sync::Arc;

use oleo::device::MemDevice;
use oleo::mkfs::{MkfsOptions, Profile};
use oleo::{Device, Image, OpenOptions, SnapshotOptions};

/// Runs the example; fails if what it shows is not so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let disks: Vec<Arc<MemDevice>> = (0..2).map(|_| Arc::new(MemDevice::new(512 << 20))).collect();
    let devices = || disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect::<Vec<_>>();
    let mkfs = MkfsOptions::unique().data(Some(Profile::Raid1)).metadata(Some(Profile::Raid1));
    let image = Image::create_on(devices(), &mkfs, &OpenOptions::writing())?;
    image.create_subvol("work")?;
    image.write("work/notes", b"first thoughts")?;
    image.snapshot("work", "work-before", &SnapshotOptions::default().read_only(true))?;
    image.write("work/notes", b"second thoughts")?;
    image.close()?;
    let resident: u64 = disks.iter().map(|d| d.resident_bytes()).sum();
    println!("{} KiB of memory for two disks of 512 MiB", resident >> 10);

    // Either disk alone has everything.
    for disk in &disks {
        let one: Vec<Arc<dyn Device>> = vec![disk.clone()];
        let image = Image::from_devices(one, &OpenOptions::default().degraded(true))?;
        let (before, now) = (image.read("work-before/notes")?, image.read("work/notes")?);
        if (before.as_slice(), now.as_slice()) != (&b"first thoughts"[..], &b"second thoughts"[..]) {
            return Err("a disk has not all of it".into());
        }
    }
    println!("each of the disks has both versions");
    Ok(())
}
