//! The log on the local disk of any bytes, with its chain of checksums corrected: opening the volume replays it or fails with a
//! typed error, and an opening after that, which takes the volume over, succeeds.
//!
//! The first byte of the input says how to open the volume; the header and the records follow.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oleo_device::Device;
use oleo_remote::format::xxh64;
use oleo_remote::store::{Answer, Body, Cond, Deadline, MemoryStore, Op, Store, StoreTime, Ticket};
use oleo_remote::{
    CacheOptions, Durable, Host, RemoteDevice, RemoteError, StoreError, StoreOptions, SystemHost, create,
};
use oleo_sim::oracle::Scratch;

const LEN: u64 = 1 << 20;
/// Bytes of a log.
const LOG_LEN: usize = 1 << 20;
const DEADLINE: Duration = Duration::MAX;
/// Fields of the header and of a record, and of the header of a frame.
const HEADER_LEN: usize = 128;
const RECORD_LEN: usize = 112;
const FRAME_HEADER_LEN: usize = 48;

/// Bits of the first byte.
const TAKE_OVER: u8 = 1;
const LOCAL: u8 = 2;
/// The header's head is not put right.
const OTHER_HEAD: u8 = 4;

/// Random bytes that are numbers in turn, the same in each process: an input always means the same.
#[derive(Default)]
struct Counting(AtomicU64);

impl Host for Counting {
    fn now(&self) -> Duration {
        SystemHost::new().now()
    }
    fn sleep(&self, time: Duration) {
        SystemHost::new().sleep(time);
    }
    fn random(&self) -> [u8; 16] {
        let number = self.0.fetch_add(1, Relaxed);
        [number.to_le_bytes(), [0x5a; 8]].as_flattened().try_into().expect("16 bytes")
    }
}

/// The way of a writer to its store, until it dies.
struct Way {
    store: MemoryStore,
    dead: Arc<AtomicBool>,
}

impl Store for Way {
    fn submit(&self, op: Op, deadline: Deadline) -> Ticket {
        match self.dead.load(Relaxed) {
            true => Ticket::new(|| Err(StoreError::Denied("dead".into()))),
            false => self.store.submit(op, deadline),
        }
    }
    fn describe(&self) -> String {
        "way".into()
    }
    fn now(&self) -> Option<StoreTime> {
        self.store.now()
    }
}

/// The objects of a volume whose writer has died, and its log.
struct Crashed {
    objects: Vec<(String, Vec<u8>)>,
    /// Its directory in that of the cache.
    dir: String,
    log: Vec<u8>,
}

fn options(cache: &Path, host: Arc<Counting>) -> StoreOptions {
    let mut options = StoreOptions::default();
    options.host = host;
    options.cache = Some(CacheOptions { dir: cache.into(), bytes_max: 0 });
    options.durable = Durable::Local;
    options.keeper = false;
    options.probe = false;
    options.log_bytes_max = LOG_LEN as u64;
    options
}

fn crashed() -> &'static Crashed {
    static CRASHED: OnceLock<Crashed> = OnceLock::new();
    CRASHED.get_or_init(|| {
        let scratch = Scratch::new().expect("a scratch directory");
        let cache = scratch.path().join("cache");
        let options = options(&cache, Arc::default());
        let store = MemoryStore::new();
        create(Arc::new(store.copy()), LEN, false, &options).expect("create");
        let dead = Arc::new(AtomicBool::new(false));
        let way = Arc::new(Way { store: store.copy(), dead: dead.clone() });
        let dev = RemoteDevice::open_writable(way, &options).expect("open");
        let path = log_in(&cache).expect("a log");
        // The store has nothing of the rest.
        dead.store(true, Relaxed);
        for n in 1..6u8 {
            dev.write_at(u64::from(n) * 8192, &vec![n; 4096 * usize::from(n % 3 + 1)]).expect("write");
            dev.discard(u64::from(n + 10) * 8192, 4096).expect("discard");
            dev.flush().expect("confirmed");
        }
        let mut log = fs::read(&path).expect("the log");
        drop(dev);
        log.truncate(log.iter().rposition(|&byte| byte != 0).map_or(0, |last| (last + 1).next_multiple_of(16)));
        let dir = path.parent().and_then(Path::file_name).expect("a directory").to_string_lossy().into_owned();
        Crashed { objects: objects(&store), dir, log }
    })
}

fn log_in(cache: &Path) -> Option<PathBuf> {
    let dirs = fs::read_dir(cache).ok()?;
    dirs.filter_map(|dir| Some(dir.ok()?.path().join("log"))).find(|path| path.exists())
}

fn objects(store: &MemoryStore) -> Vec<(String, Vec<u8>)> {
    let list = Op::List { prefix: String::new(), after: String::new(), count_max: 1000 };
    let Ok(Answer::Listed(listed)) = store.submit(list, DEADLINE).wait() else { panic!("no list") };
    let get = |key: String| {
        let op = Op::Get { key: key.clone(), range: None, len_max: u64::MAX, if_changed: None };
        let Ok(Answer::Object { body, .. }) = store.submit(op, DEADLINE).wait() else { panic!("no {key}") };
        (key, body)
    };
    listed.into_iter().map(|object| get(object.key)).collect()
}

/// The log of the writer that died, as inputs.
#[allow(dead_code)]
pub fn seeds() -> Vec<Vec<u8>> {
    [LOCAL, LOCAL | TAKE_OVER, 0].map(|first| [&[first], &crashed().log[..]].concat()).into()
}

/// The same with a frame that says that it is compressed, and is not.
#[allow(dead_code)]
pub fn unreadable() -> Vec<u8> {
    const CODEC_AT: usize = 5;
    let mut out = seeds().swap_remove(0);
    let frame = out.windows(4).position(|magic| magic == b"OFRM").expect("a frame");
    out[frame + CODEC_AT] = 1;
    out
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// A log of these bytes, as long as the header must say, with everything in it that a fuzzer would not find.
fn repaired(data: &[u8], first: u8) -> Vec<u8> {
    let sound = &crashed().log;
    let mut log = data[..data.len().min(LOG_LEN)].to_vec();
    log.resize(LOG_LEN, 0);
    // Magic, version, flags, the head's epoch, the volume; id; its commit; length.
    log[..12].copy_from_slice(&sound[..12]);
    log[16..32].copy_from_slice(&sound[16..32]);
    if first & OTHER_HEAD == 0 {
        log[12..16].copy_from_slice(&sound[12..16]);
        log[48..64].copy_from_slice(&sound[48..64]);
    }
    log[64..72].copy_from_slice(&(LOG_LEN as u64).to_le_bytes());
    log[80..120].fill(0);
    let (uuid, id): ([u8; 16], [u8; 16]) =
        (*log[16..].first_chunk().expect("16"), *log[32..].first_chunk().expect("16"));
    let mut before = xxh64(&log[..HEADER_LEN - 8]).to_le_bytes();
    log[HEADER_LEN - 8..HEADER_LEN].copy_from_slice(&before);
    let mut rest = &mut log[HEADER_LEN..data.len().clamp(HEADER_LEN, LOG_LEN)];
    for number in 0u64.. {
        let Some((record, more)) = rest.split_at_mut_checked(RECORD_LEN) else { break };
        let Some((frame, more)) = more.split_at_mut_checked(u32_at(record, 8)) else { break };
        record[..4].copy_from_slice(b"OLGR");
        record[16..24].copy_from_slice(&number.to_le_bytes());
        record[56..64].copy_from_slice(&before);
        record[64..104].fill(0);
        seal_frame(frame, &uuid, &record[32..48]);
        let head = &frame[..frame.len().min(FRAME_HEADER_LEN)];
        before = xxh64(&[&record[..RECORD_LEN - 8], &uuid, &id, head].concat()).to_le_bytes();
        record[RECORD_LEN - 8..].copy_from_slice(&before);
        rest = more;
    }
    log
}

/// Corrects the checksum of a frame: over its payload, its header, the volume and its place.
fn seal_frame(frame: &mut [u8], uuid: &[u8; 16], name: &[u8]) {
    const SUM_AT: usize = FRAME_HEADER_LEN - 8;
    let Some((header, rest)) = frame.split_at_mut_checked(FRAME_HEADER_LEN) else { return };
    let Some(payload) = rest.get(..u32_at(header, 32)) else { return };
    let sum = xxh64(&[payload, &header[..SUM_AT], uuid, name].concat());
    header[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
}

/// Whether the volume could be opened with the log in its place.
pub fn body(data: &[u8]) -> bool {
    let Some((&first, data)) = data.split_first() else { return false };
    let crashed = crashed();
    let scratch = Scratch::new().expect("a scratch directory");
    let cache = scratch.path().join("cache");
    let mut options = options(&cache, Arc::new(Counting(AtomicU64::new(1 << 32))));
    let store = MemoryStore::new();
    for (key, body) in &crashed.objects {
        let op = Op::Put { key: key.clone(), body: Body::from(body.clone()), cond: Cond::None };
        store.submit(op, DEADLINE).wait().expect("put");
    }
    let store = || Arc::new(store.copy());
    options.take_over = first & TAKE_OVER != 0;
    if first & LOCAL == 0 {
        options.durable = Durable::Remote;
    }
    let dir = cache.join(&crashed.dir);
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).expect("directories");
    let log = repaired(data, first);
    let used = log.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    fs::write(dir.join("log"), &log[..used]).expect("the log");
    File::options()
        .write(true)
        .open(dir.join("log"))
        .and_then(|file| file.set_len(LOG_LEN as u64))
        .expect("its length");
    let opened = match RemoteDevice::open_writable(store(), &options) {
        Ok(dev) => {
            use_some(&dev);
            true
        }
        Err(RemoteError::LogKept { .. } | RemoteError::Held { .. } | RemoteError::Corrupt(_)) => false,
        Err(e) => panic!("{e}"),
    };
    options.take_over = true;
    // A log that cannot be read does not say that the volume is its own; after a take-over it is kept aside, once.
    let again = || RemoteDevice::open_writable(store(), &options);
    let dev = match again() {
        Err(RemoteError::LogKept { .. }) => again(),
        other => other,
    };
    use_some(&dev.expect("open again"));
    opened
}

fn use_some(dev: &RemoteDevice) {
    // The log may have changed the length.
    let mut all = vec![0; dev.len().min(LEN) as usize];
    dev.read_at(0, &mut all).expect("read");
    if all.len() >= 8192 {
        dev.write_at(4096, &[9; 4096]).expect("write");
    }
    dev.flush().expect("flush");
}
