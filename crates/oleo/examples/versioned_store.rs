//! A store of keys and values with versions: eight threads write, a snapshot makes a version, and each version stays as it was.
//!
//! `cargo run --release -p oleo --example versioned_store`

use std::error::Error;
use std::sync::{Arc, Barrier};

use oleo::device::MemDevice;
use oleo::mkfs::MkfsOptions;
use oleo::{Device, Image, OpenOptions, SnapshotOptions};

const THREADS: usize = 8;
const VERSIONS: usize = 5;
const KEYS_EACH: usize = 20;

/// The store. Its present state is the subvolume `now`, the versions are read-only snapshots of it.
pub struct Store {
    image: Image,
}

impl Store {
    /// A store on devices that hold nothing yet.
    pub fn create(devices: Vec<Arc<dyn Device>>) -> oleo::Result<Store> {
        let image = Image::create_on(devices, &MkfsOptions::unique(), &OpenOptions::writing())?;
        image.create_subvol("now")?;
        image.create_dir("versions")?;
        Ok(Store { image })
    }

    /// Sets a value. Any number of threads may do so.
    pub fn put(&self, key: &str, value: &[u8]) -> oleo::Result<()> {
        self.image.write(format!("now/{key}"), value)
    }

    /// Makes a version of what is there now, and makes it durable. It costs the same however much there is.
    pub fn commit(&self, version: usize) -> oleo::Result<()> {
        let read_only = SnapshotOptions::default().read_only(true);
        self.image.snapshot("now", format!("versions/{version}"), &read_only)?;
        self.image.sync()?;
        Ok(())
    }

    /// A value as it was in a version.
    pub fn get(&self, version: usize, key: &str) -> oleo::Result<Vec<u8>> {
        self.image.read(format!("versions/{version}/{key}"))
    }
}

fn value(thread: usize, key: usize, version: usize) -> Vec<u8> {
    format!("thread {thread}, key {key}, version {version}\n").repeat(50).into_bytes()
}

/// Works on all of it with all threads; each writes between two versions, all of them read all versions in the end.
pub fn fill_and_verify(store: &Store) -> Result<usize, Box<dyn Error + Send + Sync>> {
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || -> Result<usize, Box<dyn Error + Send + Sync>> {
                    let mut result = Ok(());
                    for version in 0..VERSIONS {
                        for key in 0..KEYS_EACH {
                            let put = store.put(&format!("{thread}-{key}"), &value(thread, key, version));
                            result = result.and(put);
                        }
                        // All have written; one makes the version; all go on.
                        if barrier.wait().is_leader() {
                            result = result.and(store.commit(version));
                        }
                        barrier.wait();
                    }
                    result?;
                    for version in 0..VERSIONS {
                        for key in 0..KEYS_EACH {
                            let found = store.get(version, &format!("{thread}-{key}"))?;
                            if found != value(thread, key, version) {
                                return Err(format!("key {key} of version {version} has changed").into());
                            }
                        }
                    }
                    Ok(VERSIONS * KEYS_EACH)
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().expect("a worker does not panic")).sum()
    })
}

/// Runs the example; fails if what it shows is not so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let store = Store::create(vec![Arc::new(MemDevice::new(512 << 20))])?;
    let values = fill_and_verify(&store).map_err(|e| e.to_string())?;
    println!("{values} values in {VERSIONS} versions, each as it was written");
    store.image.close()?;
    Ok(())
}
