//! A file system on a volume: made, filled, left in several ways, checked and read, through the library.

use std::sync::Arc;

use oleo::check::{CheckOptions, Kind};
use oleo::mkfs::MkfsOptions;
use oleo::{Image, OpenOptions};
use oleo_device::Device;
use oleo_remote::store::{FileStore, MemoryStore, Store};
use oleo_remote::{RemoteDevice, StoreOptions, SystemHost, create};
use oleo_sim::rng::Rng;
use oleo_volume::Volume;

const LEN: u64 = 1 << 30;

fn options() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.take_over = true;
    options.bounds.segment_aim = 1 << 20;
    options.bounds.replay_count_max = 4;
    options.bounds.dirty_bytes_max = 8 << 20;
    options.bounds.cache_bytes_max = 1 << 20;
    options
}

fn writable(store: &dyn Fn() -> Arc<dyn Store>) -> Arc<dyn Device> {
    Arc::new(RemoteDevice::open_writable(store(), &options()).expect("open"))
}

fn check(dev: Arc<dyn Device>) {
    let how = oleo_volume::OpenOptions {
        write: false,
        degraded: false,
        backup: None,
        super_copy: None,
        ignore_block_csums: false,
    };
    let volume = Volume::open(vec![dev], &how).expect("a volume");
    let report = oleo::check::volume(&volume, &CheckOptions::default()).expect("checked");
    // Copies of the superblock are written after a commit's last flush, and a writer that is overtaken loses them.
    let other = report.findings.iter().find(|finding| finding.kind != Kind::SuperStale);
    assert!(other.is_none(), "{:?}", report.findings);
}

/// Bytes of a file at most.
const LEN_MAX: u64 = 2 << 20;

/// Goal: a file system on a store is a file system: sound and whole after it was closed, and after its writer was lost at any
/// time, with all that was synced; readers see it meanwhile.
/// Method: rounds of files that are written, synced and removed; each round ends otherwise, and begins with a check.
fn rounds(store: &dyn Fn() -> Arc<dyn Store>, len_max: u64) {
    create(store(), LEN, false, &options()).expect("create");
    let image =
        Image::create_on(vec![writable(store)], &MkfsOptions::default(), &OpenOptions::default()).expect("mkfs");
    image.close().expect("closed");
    let mut rng = Rng::new(5);
    let mut want: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..6 {
        check(Arc::new(RemoteDevice::open(store(), None, &options()).expect("reader")));
        let image = Image::from_devices(vec![writable(store)], &OpenOptions::writing()).expect("open");
        for (name, data) in &want {
            assert!(image.read(name.as_str()).expect("read") == *data, "{name}, round {round}");
        }
        for n in 0..30 {
            let len = rng.length(len_max) as usize;
            let (name, data) = (format!("{round}-{n}"), rng.bytes(len));
            image.write(name.as_str(), &data).expect("write");
            want.push((name, data));
        }
        image.sync().expect("synced");
        match round % 3 {
            0 => image.close().expect("closed"),
            _ => {
                image.write("late", b"perhaps").expect("write");
                // Somebody else takes over, and what was not synced is gone.
                let next = writable(store);
                drop(image);
                drop(next);
            }
        }
    }
    check(Arc::new(RemoteDevice::open(store(), None, &options()).expect("reader")));
}

#[test]
fn in_memory() {
    let store = MemoryStore::new();
    rounds(&|| Arc::new(store.copy()), LEN_MAX);
}

/// The same over S3, by way of a connection that breaks.
#[cfg(feature = "cloud")]
#[test]
fn over_s3() {
    use oleo_sim::moto::Moto;
    use oleo_sim::proxy::{Faults, Proxy};

    let moto = Moto::start().expect("moto");
    let faults = Faults { lost_requests: 50, lost_answers: 50, ..Faults::default() };
    let proxy = Proxy::start(moto.address(), faults, 3).expect("proxy");
    let mut how = options();
    for word in Moto::options(proxy.address()).split(',') {
        how.set(word).expect("an option");
    }
    let url = oleo_remote::Url::parse(&format!("{}/volume", moto.base())).expect("url");
    // moto takes long for large objects.
    rounds(&|| oleo_remote::open_store(&url, &how).expect("store"), LEN_MAX / 16);
    assert!(proxy.lost() > 0, "of {} requests", proxy.requests());
}

#[test]
fn in_a_directory() {
    let dir = tempfile::tempdir().expect("dir");
    let host = Arc::new(SystemHost::new());
    rounds(&|| Arc::new(FileStore::new(&dir.path().join("volume"), host.clone())), LEN_MAX);
}
