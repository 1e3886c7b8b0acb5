//! The bodies of the fuzz targets `remote_*` and `local_log`, fed with objects and a log of a volume, changed: a little in CI, and for a minute each by
//! `cargo test --release -p oleo-remote --test it -- --ignored mutated::`.

mod head;
mod key;
mod local_log;
mod map;
mod segment;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oleo_device::Device;
use oleo_remote::format::segment::parse_footer;
use oleo_remote::store::FileStore;
use oleo_remote::{KeySource, RemoteDevice, StoreOptions, create, pin};
use oleo_sim::mutate::feed;

/// Bytes of a frame's header.
const FRAME_HEADER_LEN: usize = 48;

/// A volume with everything there is, in files: its objects by the first part of their keys.
fn volume(sealed: bool) -> Vec<(String, Vec<u8>)> {
    let dir = tempfile::tempdir().expect("directory");
    let mut options = StoreOptions::default();
    options.keeper = false;
    options.bounds.segment_aim = 30_000;
    options.bounds.inline_max = 20_000;
    options.key = sealed.then(|| KeySource::file(&[1; 32]).expect("a key file"));
    let store = || Arc::new(FileStore::new(dir.path(), options.host.clone()));
    create(store(), 4 << 30, false, &options).expect("create");
    let dev = RemoteDevice::open_writable(store(), &options).expect("open");
    for n in 0..40u64 {
        dev.write_at(n * 300_000_000 / 4096 * 4096 % (3 << 30), &vec![n as u8; 4096 * (1 + n as usize % 5)])
            .expect("write");
    }
    dev.checkpoint().expect("checkpoint");
    dev.discard(0, 1 << 30).expect("discard");
    dev.write_at(4096, &[5; 8192]).expect("write");
    dev.flush().expect("flush");
    pin(store(), "one", "a test", &options).expect("pin");
    dev.checkpoint().expect("checkpoint");
    dev.write_at(4096, &[6; 8192]).expect("write");
    dev.flush().expect("flush");
    let mut out = Vec::new();
    collect(dir.path(), "", &mut out);
    out
}

fn collect(dir: &Path, kind: &str, out: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let kind = if kind.is_empty() { &name } else { kind };
        match path.is_dir() {
            true => collect(&path, kind, out),
            false => out.push((kind.to_owned(), std::fs::read(&path).expect("a file"))),
        }
    }
}

fn of(objects: &[(String, Vec<u8>)], kind: &str) -> Vec<Vec<u8>> {
    objects.iter().filter(|(of, _)| of == kind).map(|(_, bytes)| bytes.clone()).collect()
}

/// What the body of `remote_segment` takes: a whole one, a frame, and a directory behind its place.
fn segments(objects: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for bytes in of(objects, "seg") {
        let (segment, _) = parse_footer(&bytes).expect("a footer");
        let (from, to) = (segment.dir_off as usize, (segment.dir_off + segment.dir_len()) as usize);
        out.push(bytes.clone());
        out.push([&segment.dir_off.to_le_bytes()[..], &bytes[from..to]].concat());
        let stored = u32::from_le_bytes(bytes[32..36].try_into().expect("four bytes")) as usize;
        out.push(bytes[..FRAME_HEADER_LEN + stored].to_vec());
    }
    out
}

/// The pages of map objects: each begins with the same four bytes.
fn pages(objects: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for bytes in of(objects, "map") {
        let begins: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"OMAP")).collect();
        let ends = begins.iter().skip(1).copied().chain([bytes.len()]);
        out.extend(begins.iter().zip(ends).map(|(&from, to)| bytes[from..to].to_vec()));
    }
    out
}

fn run(time: Duration) {
    let (plain, sealed) = (volume(false), volume(true));
    let heads = [of(&plain, "head"), of(&plain, "pin"), of(&plain, "pins")].concat();
    let fed = [
        feed("remote_head", &heads, 1, time, head::body),
        feed("remote_segment", &segments(&plain), 2, time, segment::body),
        feed("remote_map", &pages(&plain), 3, time, map::body),
        feed("remote_key", &of(&sealed, "key"), 4, time, key::body),
        feed("local_log", &local_log::seeds(), 5, time, local_log::body),
    ];
    println!("inputs: {fed:?}");
}

/// Goal: no object of a store makes its reader panic, and what it takes it can write again. Method: see the module's text.
#[test]
fn a_little() {
    run(Duration::from_millis(400));
}

/// Goal: a log with a frame that cannot be read is kept aside, and the next opening does without it. Method: a frame with another
/// codec, its checksums corrected.
#[test]
fn a_frame_of_the_log_that_cannot_be_read() {
    assert!(!local_log::body(&local_log::unreadable()));
}

/// The same for a minute each.
#[test]
#[ignore = "five minutes"]
fn for_minutes() {
    run(Duration::from_secs(60));
}
