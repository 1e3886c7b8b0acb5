//! The replay of a log that lies: read and written, each in memory only.

use std::io;
use std::path::Path;
use std::sync::Arc;

use oleo::check::{CheckOptions, Severity, Start, devices};
use oleo::device::{Device, FileDevice, FileOptions};
use oleo::restore::{RestoreOptions, restore_to_tar};
use oleo::{Image, OpenOptions};
use oleo_device::Overlay;

use super::lying::{self, Damaged, Which};

/// Bytes that an opening may write.
const WRITTEN_MAX: u64 = 64 << 20;

/// Whether the log was replayed.
pub fn body(data: &[u8]) -> bool {
    lying::with(Which::Logged, data, replay)
}

fn file(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, &FileOptions::default()).expect("the image"))
}

fn read(image: &Image) {
    if let Ok(top) = image.top() {
        let _ = restore_to_tar(image, &top, b"", io::sink(), &RestoreOptions::default().threads(1));
    }
}

fn replay(damaged: &Damaged<'_>) -> bool {
    // Reading has an overlay of its own, and one over another would break the order of locks.
    let shown = Image::from_devices(vec![file(damaged.path)], &OpenOptions::default());
    if let Ok(image) = &shown {
        read(image);
    }
    let device = Arc::new(Overlay::new(file(damaged.path), WRITTEN_MAX));
    let image = match Image::from_devices(vec![device.clone()], &OpenOptions::writing()) {
        Ok(image) => image,
        Err(error) => {
            assert!(!damaged.only_log || shown.is_err(), "read, but not written: {error}");
            return false;
        }
    };
    assert!(!damaged.only_log || shown.is_ok(), "written, but not read: {:?}", shown.err());
    read(&image);
    let closed = image.close();
    if damaged.only_log {
        closed.expect("a commit after the replay");
        let how = CheckOptions::default().threads(1);
        let report = devices(vec![device as Arc<dyn Device>], false, Start::default(), &how).expect("a check");
        let wrong: Vec<_> = report.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
        assert!(wrong.is_empty(), "replayed: {wrong:?}");
    }
    true
}
