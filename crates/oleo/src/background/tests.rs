//! What the background threads do by themselves, and what stopping them leaves undone.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use oleo_device::{Device, DeviceError, MemDevice, Op};
use oleo_fs::FsError;
use oleo_mkfs::MkfsOptions;

use super::*;
use crate::OpenOptions;

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

const LEN: u64 = 256 << 20;
/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn volume() -> crate::Result<(Arc<MemDevice>, Image)> {
    let device = Arc::new(MemDevice::new(LEN));
    let image = Image::create_on(vec![device.clone()], &MkfsOptions::unique(), &OpenOptions::writing())?;
    Ok((device, image))
}

/// What a reader finds on the device as it is now; nobody may write meanwhile.
fn on_disk(device: &MemDevice, path: &str) -> crate::Result<Vec<u8>> {
    Image::from_devices(vec![Arc::new(device.copy())], &OpenOptions::default())?.read(path)
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Goal: what was written is durable after the interval with no call of sync; before it, and by stopping alone, it is not.
/// Method: read a copy of the device, as a crash would leave it: once with a short interval, once with a long one.
#[test]
fn the_timer_commits() -> Result {
    let (device, image) = volume()?;
    let background = image.start_background(BackgroundOptions::default().commit_interval(Duration::from_millis(100)));
    image.write("file", b"contents")?;
    wait_for("nothing is committed", || !image.fs().has_changes());
    background.stop()?;
    assert_eq!(on_disk(&device, "file")?, b"contents");

    let background = image.start_background(BackgroundOptions::default().commit_interval(PATIENCE * 60));
    image.write("other", b"not yet")?;
    std::thread::sleep(LOOK_UP * 2);
    background.stop()?;
    assert!(image.fs().has_changes());
    assert!(on_disk(&device, "other").is_err(), "stopping commits nothing");
    image.sync()?;
    assert_eq!(on_disk(&device, "other")?, b"not yet");
    Ok(())
}

/// Goal: threads that have nothing to do end when they are asked to, not when they would have looked up. Method: the shortest of several
/// stops, each a moment after the start.
#[test]
fn stopping_takes_no_time() -> Result {
    let (_device, image) = volume()?;
    let mut shortest = PATIENCE;
    for _ in 0..5 {
        let background = image.start_background(BackgroundOptions::default());
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        background.stop()?;
        shortest = shortest.min(begun.elapsed());
    }
    assert!(shortest < LOOK_UP / 4, "{shortest:?}");
    Ok(())
}

/// Goal: a deleted subvolume and a deleted file are taken apart with no call of clean, and their space is free again.
#[test]
fn the_cleaner_frees() -> Result {
    let (device, image) = volume()?;
    let used = |image: &Image| image.df().iter().map(|group| group.used.0).sum::<u64>();
    image.sync()?;
    let empty = used(&image);
    let id = image.create_subvol("subvolume")?;
    for n in 0..50 {
        image.write(format!("subvolume/{n}"), &vec![n; 100_000])?;
    }
    image.sync()?;
    assert!(used(&image) > empty + 5_000_000);
    image.fs().subvol_delete(id)?;
    image.sync()?;
    assert!(used(&image) > empty + 5_000_000, "nobody has cleaned yet");

    let background = image.start_background(BackgroundOptions::default().commit_interval(Duration::from_millis(100)));
    wait_for("the space is not free", || used(&image) < empty + 1_000_000 && !image.fs().has_changes());
    background.stop()?;
    drop(image);
    let again = Image::from_devices(vec![device], &OpenOptions::writing())?;
    assert!(matches!(again.fs().subvol_info(id), Err(FsError::NotFound)));
    Ok(())
}

/// A device in memory whose writes fail from some moment on.
struct Failing {
    inner: MemDevice,
    fails: AtomicBool,
}

impl Device for Failing {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> std::result::Result<(), DeviceError> {
        if self.fails.load(Ordering::Relaxed) {
            let source = Arc::new(io::Error::from_raw_os_error(oleo_fs::errno::EIO));
            return Err(DeviceError::Io {
                name: self.name().into(),
                op: Op::Write,
                offset,
                len: buf.len() as u64,
                source,
            });
        }
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> std::result::Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> std::result::Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> std::result::Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn name(&self) -> String {
        self.inner.name()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// Goal: whoever asked is called with an error, and stopping returns the first one; without errors it returns none.
#[test]
fn errors_are_reported() -> Result {
    let device = Arc::new(Failing { inner: MemDevice::new(LEN), fails: AtomicBool::new(false) });
    let image = Image::create_on(vec![device.clone()], &MkfsOptions::unique(), &OpenOptions::writing())?;
    let reported = Arc::new(Mutex::new(Vec::new()));
    let options = {
        let reported = reported.clone();
        BackgroundOptions::default()
            .commit_interval(Duration::from_millis(100))
            .on_error(move |error| reported.lock().unwrap().push(error.to_string()))
    };
    image.start_background(options.clone()).stop()?;
    assert!(reported.lock().unwrap().is_empty());

    let background = image.start_background(options);
    device.fails.store(true, Ordering::Relaxed);
    image.write("file", b"contents")?;
    wait_for("no error is reported", || reported.lock().unwrap().iter().any(|text| text.contains("read-only")));
    let first = background.stop().unwrap_err();
    assert!(reported.lock().unwrap().contains(&first.to_string()));
    assert!(matches!(first, BackgroundError::Failed { .. }), "{first}");
    Ok(())
}

/// Goal: a thread that panics makes the volume read-only and says so.
#[test]
fn a_panic_ends_all_changes() -> Result {
    let (_, image) = volume()?;
    let (alive, ended) = bounded(0);
    let (first_in, first) = bounded(1);
    let on_notice = image.on_notice().clone();
    let worker = Worker { fs: image.fs().clone(), ended, on_error: None, on_notice, first: first_in };
    let mut threads = Vec::new();
    worker.start(&mut threads, BackgroundTask::Clean, |_| panic!("here"));
    let (fs, balancer, scrubber) = (image.fs().clone(), image.balancer_shared(), image.scrubber_shared());
    let replacer = image.replacer().clone();
    let background = Background { fs, balancer, scrubber, replacer, alive: Some(alive), threads, first };
    assert!(matches!(background.stop(), Err(BackgroundError::ReadOnly { .. })));
    assert!(image.write("file", b"contents").is_err());
    Ok(())
}

/// Goal: a balance that is asked for is run by one thread, here or in the background, and whoever asked gets its end.
#[test]
fn a_balance_is_waited_for() -> Result {
    let (_, image) = volume()?;
    image.write("file", &vec![7; 20_000_000])?;
    image.sync()?;
    let background = image.start_background(BackgroundOptions::default());
    for _ in 0..5 {
        assert_eq!(image.balance(crate::balance::BalanceArgs::full())?, BalanceEnd::Done);
        assert_eq!(image.balance_status().state, BalanceState::Idle);
    }
    background.stop()?;
    assert_eq!(image.read("file")?, vec![7; 20_000_000]);
    Ok(())
}

/// Goal: an image that only reads has a thread for scrubs alone, which heal nothing, and dropping the guard is enough to end those of another.
#[test]
fn dropping_ends() -> Result {
    let (device, image) = volume()?;
    drop(image.start_background(BackgroundOptions::default()));
    image.close()?;
    let image = Image::from_devices(vec![device.clone()], &OpenOptions::default())?;
    let background = image.start_background(BackgroundOptions::default());
    assert_eq!(background.threads.len(), 1);
    let number = image.scrubber().start(crate::scrub::ScrubWant::new().repair(false))?;
    assert_eq!(image.scrubber().wait_end(number).end, Some(ScrubEnd::Done));
    let refused = image.scrubber().start(crate::scrub::ScrubWant::new()).unwrap_err();
    assert_eq!(refused.errno(), oleo_fs::errno::EROFS);
    background.stop()?;
    drop(image);
    assert_eq!(Arc::strong_count(&device), 1, "nobody has the device any more");
    Ok(())
}
