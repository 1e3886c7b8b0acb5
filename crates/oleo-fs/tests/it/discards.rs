//! Mounts with `-o discard`: what is told to the devices, and who waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oleo_device::{Device, DeviceError, MemDevice};
use oleo_format::{BlockGroupFlags, ItemType, Key, TreeId};
use oleo_fs::{Fs, FsOptions, NewInode, NewKind};
use oleo_mkfs::{MkfsOptions, make};
use oleo_tree::Change;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};
use parking_lot::{Condvar, Mutex};

const MIB: u64 = 1 << 20;
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A device that says how much was discarded, and takes its time for it where it is told to.
struct Slow {
    inner: MemDevice,
    discarded: AtomicU64,
    /// Discards wait while this is so.
    waits: Mutex<bool>,
    changed: Condvar,
}

impl Slow {
    fn set_waits(&self, waits: bool) {
        *self.waits.lock() = waits;
        self.changed.notify_all();
    }
}

impl Device for Slow {
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
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.discarded.fetch_add(len, Ordering::SeqCst);
        let mut waits = self.waits.lock();
        while *waits {
            self.changed.wait(&mut waits);
        }
        // What is given out again meanwhile would be gone.
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn name(&self) -> String {
        "slow".into()
    }
    fn read_only(&self) -> bool {
        false
    }
}

fn new_volume() -> Result<Arc<Slow>> {
    let device = Arc::new(Slow {
        inner: MemDevice::new(256 * MIB),
        discarded: AtomicU64::new(0),
        waits: Mutex::new(false),
        changed: Condvar::new(),
    });
    make(&[device.clone() as Arc<dyn Device>], &MkfsOptions::default())?;
    device.discarded.store(0, Ordering::SeqCst);
    Ok(device)
}

fn open(device: &Arc<Slow>) -> Result<Fs> {
    let devices = vec![device.clone() as Arc<dyn Device>];
    let volume = Volume::open(devices, &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions { discard: true, ..EngineOptions::default() })?;
    Ok(Fs::open(engine, &FsOptions::default())?)
}

fn put(fs: &Fs, name: &str, with: u8) -> Result<()> {
    let top = fs.root(TreeId::FS)?;
    let file = fs.create(&top, name.as_bytes(), &NewInode::new(NewKind::File, 0o644))?;
    Ok(fs.write(&file, 0, &vec![with; MIB as usize])?)
}

fn read(fs: &Fs, name: &str) -> Result<Vec<u8>> {
    let file = fs.lookup(&fs.root(TreeId::FS)?, name.as_bytes())?.context("no such file")?;
    let mut data = vec![0; 2 * MIB as usize];
    let len = fs.read(&file, 0, &mut data)?;
    data.truncate(len);
    Ok(data)
}

/// Goal: a device that takes long to forget holds up nobody, and what it is told to forget is not given out before it has.
/// Method: a file is deleted while discards wait; beside the commit that does this, others write and commit, among them one that
/// takes all the room there is; then discards go on, and everything is where it should be.
#[test]
fn others_go_on_beside_discards() -> Result<()> {
    let device = new_volume()?;
    let fs = open(&device)?;
    put(&fs, "old", 1)?;
    fs.sync()?;
    device.discarded.store(0, Ordering::SeqCst);
    fs.unlink(&fs.root(TreeId::FS)?, b"old")?;
    device.set_waits(true);
    std::thread::scope(|scope| -> Result<()> {
        let first = scope.spawn(|| fs.sync());
        let begun = Instant::now();
        while device.discarded.load(Ordering::SeqCst) == 0 && begun.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        let discarding = device.discarded.load(Ordering::SeqCst) > 0;
        let durable = fs.engine().durable();
        let beside = scope.spawn(|| -> Result<()> {
            put(&fs, "new", 2)?;
            Ok(fs.sync().map(drop)?)
        });
        let begun = Instant::now();
        while fs.engine().durable() == durable && begun.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        let went_on = fs.engine().durable() > durable;
        device.set_waits(false);
        first.join().expect("no panic")?;
        beside.join().expect("no panic")?;
        ensure!(discarding, "nothing was discarded");
        ensure!(went_on, "another commit waited for the discards of the first");
        Ok(())
    })?;
    ensure!(device.discarded.load(Ordering::SeqCst) >= MIB, "all of the file is discarded");
    drop(fs);
    ensure!(read(&open(&device)?, "new")? == vec![2; MIB as usize]);
    Ok(())
}

/// Goal: where something is used that the extent tree does not have, nothing is discarded. Method: one file's extent is taken out of
/// the tree; then another file is deleted, and the same without the damage.
#[test]
fn nothing_is_discarded_beside_what_is_not_recorded() -> Result<()> {
    for damaged in [false, true] {
        let device = new_volume()?;
        let fs = open(&device)?;
        put(&fs, "keep", 1)?;
        put(&fs, "drop", 2)?;
        fs.sync()?;
        if damaged {
            let engine = fs.engine();
            let groups = engine.space().groups();
            let data = groups.iter().find(|group| group.flags.contains(BlockGroupFlags::DATA)).context("no data")?;
            let root = engine.root(TreeId::EXTENT)?.context("no extent tree")?;
            let mut cursor = engine.blocks().cursor(&root);
            ensure!(cursor.seek(&Key::new(data.start.0, ItemType(0), 0))?);
            while cursor.key().is_some_and(|key| key.item_type != ItemType::EXTENT_ITEM) {
                cursor.next()?;
            }
            let key = cursor.key().context("no extent")?;
            engine.stage(|staged| staged.put(TreeId::EXTENT, &[Change::delete(key)]))?;
            fs.sync()?;
        }
        drop(fs);
        let fs = open(&device)?;
        device.discarded.store(0, Ordering::SeqCst);
        fs.unlink(&fs.root(TreeId::FS)?, b"drop")?;
        fs.sync()?;
        fs.sync()?;
        drop(fs);
        // Tree blocks are in a group that agrees.
        let discarded = device.discarded.load(Ordering::SeqCst);
        ensure!((discarded < MIB) == damaged, "{discarded} bytes are discarded, damaged: {damaged}");
        // No checksum misses it.
        ensure!(read(&open(&device)?, "keep")? == vec![1; MIB as usize]);
    }
    Ok(())
}
