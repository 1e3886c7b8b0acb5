//! Damaged images and failing devices.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use oleo_device::{DeviceError, Op};
use oleo_format::{DiskItem, HEADER_LEN, SUPER_OFFSETS};
use oleo_sim::rng::Rng;

use super::*;

/// Goal: no bytes of superblock or chunk tree, however wrong, make opening, reading or carving panic. Method: seeded
/// changes of one to three fields of a sound image, checksums corrected, then everything that the volume offers is
/// called. Only that it returns matters.
#[test]
fn lies_are_answered() {
    let samples: Vec<_> = [(Profile::Single, 1), (Profile::Raid10, 4), (Profile::Raid6, 4)]
        .map(|(profile, count)| {
            let sample = Sample::new(profile, count);
            let system = sample.open(&[], READ).expect("sound").0.chunk_of(sample.root.logical).expect("chunk");
            (sample, system)
        })
        .into();
    let mut rng = Rng::new(2026);
    let mut opened = 0;
    for round in 0..600 {
        let (sample, system) = &samples[round % samples.len()];
        let devices: Vec<Arc<MemDevice>> = sample.devices.iter().map(|d| Arc::new(d.copy())).collect();
        let mut sb = read_super(&*devices[0]).expect("sound");
        let mut block = vec![0; NODESIZE as usize];
        sample.devices[system.stripes[0].devid.0 as usize - 1]
            .read_at(system.stripes[0].offset.0, &mut block)
            .expect("read");
        for _ in 0..rng.between(1, 3) {
            let value = match rng.below(4) {
                0 => rng.next_u64(),
                1 => u64::MAX - rng.below(1 << 20),
                2 => rng.below(1 << 20),
                _ => 1 << rng.below(64),
            };
            let bytes = value.to_le_bytes();
            let width = [1, 2, 4, 8][rng.below(4) as usize];
            let target = match rng.one_in(3) {
                true => {
                    let sb_bytes = zerocopy::IntoBytes::as_mut_bytes(&mut sb);
                    // The fields before the label, or the array of chunks.
                    let at = if rng.one_in(2) { 48 + rng.below(0xd0) } else { 0x32b + rng.below(300) };
                    &mut sb_bytes[at as usize..]
                }
                false => {
                    // The data of an item is at the end of the leaf; sometimes the table in front.
                    let at = if rng.one_in(8) {
                        HEADER_LEN as u64 + rng.below(5 * size_of::<DiskItem>() as u64)
                    } else {
                        u64::from(NODESIZE) - 8 - rng.below(700)
                    };
                    &mut block[at as usize..]
                }
            };
            target[..width].copy_from_slice(&bytes[..width]);
        }
        seal(&mut block, oleo_format::CsumType::Crc32c);
        for s in &system.stripes {
            devices[s.devid.0 as usize - 1].write_at(s.offset.0, &block).expect("write");
        }
        for d in &devices {
            let own = read_super(&**d).expect("sound").dev_item;
            let sb = SuperBlock { dev_item: if d.name() == "disk1" { sb.dev_item } else { own }, ..sb };
            for at in &SUPER_OFFSETS[..2] {
                d.write_at(*at, &sb.to_bytes(*at)).expect("write");
            }
        }
        let opts = [READ, WRITE, DEGRADED][rng.below(3) as usize];
        let devices = devices.into_iter().map(|d| d as Arc<dyn Device>).collect();
        let Ok(volume) = Volume::open(devices, &opts) else { continue };
        opened += 1;
        for chunk in volume.chunks() {
            let mut buf = vec![0; 3 * STRIPE_LEN as usize];
            for at in [chunk.start, Logical(chunk.end().0 - chunk.len.0.min(2 * STRIPE_LEN))] {
                let _ = volume.read_data(at, &mut buf, None);
                let _ = volume.read_block(&NodeExpect::at(at));
                let _ = volume.write(&[(at, &buf)]);
                let _ = volume.discard(at, ByteLen(STRIPE_LEN));
            }
            chunk.super_ranges();
            chunk.logical_of(0, u64::MAX);
        }
        for profile in Profile::ALL {
            let flags = BlockGroupFlags::DATA | profile.bits();
            volume.unallocated(flags);
            if let Ok(plan) = volume.propose_chunk(&ChunkWant::new(flags)) {
                volume.add_chunk(&plan);
            }
        }
        volume.devices();
    }
    assert!(opened > 40, "only {opened} images were still opened");
}

/// A device whose writes and flushes fail while a switch is on.
struct Broken {
    inner: Arc<MemDevice>,
    writes: AtomicBool,
    flushes: AtomicBool,
}

impl Broken {
    fn fail(&self, op: Op, when: &AtomicBool) -> Result<(), DeviceError> {
        match when.load(Ordering::Relaxed) {
            true => Err(DeviceError::Unsupported { name: "broken".into(), op }),
            false => Ok(()),
        }
    }
}

impl Device for Broken {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.fail(Op::Write, &self.writes)?;
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.fail(Op::Flush, &self.flushes)
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn set_len(&self, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn name(&self) -> String {
        "broken".into()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Goal: after one failed write or flush on one device that a chunk cannot do without nothing is written on any, least of all superblocks,
/// although the device has recovered; reading continues; the failure is counted.
#[test]
fn a_failure_stops_the_volume() {
    for flush in [false, true] {
        let sample = Sample::new(Profile::Raid0, 2);
        let broken = Arc::new(Broken {
            inner: sample.devices[1].clone(),
            writes: AtomicBool::new(false),
            flushes: AtomicBool::new(false),
        });
        let devices: Vec<Arc<dyn Device>> = vec![sample.devices[0].clone(), broken.clone()];
        let volume = Volume::open(devices, &WRITE).expect("open");
        let at = sample.data.start + ByteLen(8 * MIB);
        volume.write(&[(at, &[1; 128 << 10])]).expect("sound so far");
        let switch = if flush { &broken.flushes } else { &broken.writes };
        switch.store(true, Ordering::Relaxed);
        let failed = if flush { volume.flush() } else { volume.write(&[(at, &[2; 128 << 10])]) };
        assert!(matches!(failed, Err(VolumeError::Device(_))));
        switch.store(false, Ordering::Relaxed);
        let mut sb = volume.super_block();
        sb.generation = 6.into();
        for result in [volume.write_supers(&sb), volume.flush(), volume.write(&[(at, &[3; 4096])])] {
            assert!(matches!(result, Err(VolumeError::Poisoned { .. })), "{result:?}");
        }
        assert!(volume.read_only());
        sample.read_all(&volume).expect("reads go on");
        let counted = volume.error_counters()[1].1;
        assert_eq!((counted.write, counted.flush), if flush { (0, 1) } else { (1, 0) });
        assert_eq!(read_super(&*sample.devices[0]).expect("super").generation(), Generation(5));
    }
}

/// A device that counts what orders and what makes durable.
struct Ordered {
    inner: Arc<MemDevice>,
    barriers: AtomicU32,
    flushes: AtomicU32,
}

impl Device for Ordered {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn barrier(&self) -> Result<(), DeviceError> {
        self.barriers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn set_len(&self, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Goal: a commit and an fsync cost one flush where a device keeps an order by itself, and two where there are several devices, whose
/// orders say nothing of one another. Method: superblocks written on one device and on two that count.
#[test]
fn one_device_is_ordered_and_several_are_flushed() {
    for (profile, count) in [(Profile::Single, 1), (Profile::Raid1, 2)] {
        let sample = Sample::new(profile, count);
        let ordered = |inner: &Arc<MemDevice>| {
            Arc::new(Ordered { inner: inner.clone(), barriers: AtomicU32::new(0), flushes: AtomicU32::new(0) })
        };
        let devices: Vec<Arc<Ordered>> = sample.devices.iter().map(ordered).collect();
        let opened = devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect();
        let volume = Volume::open(opened, &WRITE).expect("open");
        let mut sb = volume.super_block();
        sb.generation = 6.into();
        volume.write_supers(&sb).expect("commit");
        volume.write_log_super(&sb).expect("fsync");
        for device in &devices {
            let counted = (device.barriers.load(Ordering::Relaxed), device.flushes.load(Ordering::Relaxed));
            assert_eq!(counted, if count == 1 { (2, 2) } else { (0, 4) });
        }
    }
}
