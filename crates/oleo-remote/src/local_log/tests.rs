use std::os::unix::fs::FileExt;

use oleo_device::Device;
use tempfile::TempDir;

use super::*;
use crate::create::create;
use crate::device::RemoteDevice;
use crate::format::log::parse_record;
use crate::keys::KeySource;
use crate::options::CacheOptions;
use crate::seal::Key;
use crate::store::MemoryStore;

const BLOCK: usize = 4096;

fn options(dir: &TempDir) -> StoreOptions {
    StoreOptions {
        cache: Some(CacheOptions { dir: dir.path().join("cache"), bytes_max: 0 }),
        durable: Durable::Local,
        keeper: false,
        log_bytes_max: LOG_BYTES_MIN,
        ..StoreOptions::default()
    }
}

/// Ends a writer as a crash does: nothing is published any more.
fn crash(dev: RemoteDevice) {
    dev.core.close_latch(&RemoteError::Split { epoch: 0 });
}

/// A volume whose writer has crashed after some confirmed flushes of a block each, with the path of its log and the blocks.
fn crashed(store: &MemoryStore, options: &StoreOptions) -> (PathBuf, Vec<Vec<u8>>) {
    create(Arc::new(store.copy()), 1 << 20, false, options).expect("create");
    let dev = RemoteDevice::open_writable(Arc::new(store.copy()), options).expect("open");
    let blocks: Vec<Vec<u8>> = (1..6).map(|n| vec![n; BLOCK]).collect();
    for (n, block) in blocks.iter().enumerate() {
        dev.write_at((n * BLOCK) as u64, block).expect("write");
        dev.discard(((n + 10) * BLOCK) as u64, BLOCK as u64).expect("discard");
        dev.flush().expect("confirmed");
    }
    let path = dev.core.log.as_ref().expect("a log").path();
    crash(dev);
    (path, blocks)
}

/// What a log is found to have by the head that it begins with.
fn scanned(path: &Path, key: Option<&Key>) -> Result<Scanned, Unread> {
    let file = File::options().read(true).write(true).open(path).expect("open");
    let mut bytes = [0; LOG_HEADER_LEN];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&bytes[16..32]);
    let (epoch, commit) = (u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]), &bytes[48..64]);
    let commit = commit.try_into().expect("16 bytes");
    scan(&file, Volume { uuid, key }, Wanted { epoch, commit, position: 0 })
}

/// Where the records begin, and the end.
fn borders(path: &Path) -> Vec<u64> {
    let bytes = fs::read(path).expect("read");
    let mut out = vec![LOG_HEADER_LEN as u64];
    while let Some(frame) = crate::format::log::frame_len_of(&bytes[*out.last().expect("one") as usize..]) {
        out.push(out.last().expect("one") + (RECORD_LEN + frame) as u64);
    }
    out
}

/// Goal: every bit of what was confirmed counts: with one changed the log is found to be damaged, never shorter than it was.
/// Method: one bit of every seventh byte of all records is changed; behind the last confirmation there is only the note of it.
#[test]
fn a_changed_bit_is_found() {
    let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
    let (path, _) = crashed(&store, &options(&dir));
    let whole = scanned(&path, None).ok().expect("sound");
    assert_eq!((whole.last, whole.has_head, whole.complete), (Some(10), true, true));
    let note = borders(&path);
    let note = note[note.len() - 2];
    let file = File::options().read(true).write(true).open(&path).expect("open");
    let mut found = 0;
    for at in (0..whole.end).step_by(7) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 0x10], at).expect("write");
        match scanned(&path, None) {
            Err(Unread::Bad(_)) => found += 1,
            Err(Unread::Io(e)) => panic!("{e}"),
            // The commit id and the epoch of the header are what this test asks for, so it finds itself; its sum does not.
            Ok(now) => assert!(at >= note && now.last == whole.last, "byte {at} of {}", whole.end),
        }
        file.write_all_at(&byte, at).expect("write");
    }
    assert!(found as u64 >= (note - 7) / 7, "{found}");
}

/// Goal: a file that is shorter than it was made is never trusted; one whose end was not written has what is before it, if nobody
/// was told of more.
/// Method: the file is cut at every record and within each; then the same with zeros instead.
#[test]
fn cut_and_torn_at_every_record() {
    let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
    let (path, _) = crashed(&store, &options(&dir));
    let (bytes, borders) = (fs::read(&path).expect("read"), borders(&path));
    let len = bytes.len() as u64;
    let mut last = 0;
    for (n, &border) in borders.iter().enumerate() {
        for at in [border, border + 16, border + RECORD_LEN as u64 + 20] {
            fs::write(&path, &bytes[..at as usize]).expect("write");
            assert!(matches!(scanned(&path, None), Err(Unread::Bad(_))), "cut at {at}");
            let mut torn = bytes[..at as usize].to_vec();
            torn.resize(len as usize, 0);
            fs::write(&path, &torn).expect("write");
            let found = scanned(&path, None).ok().unwrap_or_else(|| panic!("torn at {at}"));
            assert!(found.end <= at && found.end >= borders[n.min(borders.len() - 1)].min(at), "{found:?} at {at}");
            assert!(found.last.unwrap_or(0) >= last);
            last = found.last.unwrap_or(0);
        }
    }
    assert_eq!(last, 10);
    // A record in the middle that is missing, with later ones that say it was on the disk.
    let mut hole = bytes.clone();
    hole[borders[3] as usize..borders[4] as usize].fill(0);
    fs::write(&path, &hole).expect("write");
    assert!(matches!(scanned(&path, None), Err(Unread::Bad(_))));
    fs::write(&path, &bytes).expect("write");
    assert_eq!(scanned(&path, None).ok().expect("sound").last, Some(10));
}

/// Bytes that this thread has read.
fn bytes_read() -> u64 {
    let counts = fs::read_to_string("/proc/thread-self/io").expect("counts");
    let count = counts.lines().find_map(|line| line.strip_prefix("rchar: "));
    count.and_then(|count| count.parse().ok()).expect("a count")
}

/// Goal: data of files that looks like records, behind the end of a log, does not make opening long: the log is read a few times.
/// Method: the beginning of a record with a long frame, again and again; the bytes that are read are counted.
#[test]
fn data_that_looks_like_records() {
    let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
    let (path, _) = crashed(&store, &options(&dir));
    let end = scanned(&path, None).ok().expect("sound").end;
    let begin = [*b"OLGR", [1, 0, 0, 0], (1u32 << 19).to_le_bytes(), [0; 4]];
    let all = begin.as_flattened().repeat((LOG_BYTES_MIN - end) as usize / 16);
    File::options().write(true).open(&path).and_then(|file| file.write_all_at(&all, end)).expect("write");
    let before = bytes_read();
    assert_eq!(scanned(&path, None).ok().expect("sound").end, end);
    let read = bytes_read() - before;
    assert!(read < 4 * LOG_BYTES_MIN, "{read} bytes were read");
}

/// Goal: a log that is damaged, or of another volume, is kept aside and named, and the volume is as the store has it.
#[test]
fn what_is_not_trusted_is_kept() {
    for foreign in [false, true] {
        let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
        let options = options(&dir);
        let (path, _) = crashed(&store, &options);
        if foreign {
            let (dir, other) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
            let (from, _) = crashed(&other, &self::options(&dir));
            fs::copy(from, &path).expect("copy");
        } else {
            let file = File::options().write(true).open(&path).expect("open");
            file.write_all_at(b"x", LOG_HEADER_LEN as u64 + 200).expect("write");
        }
        let mut takes = options.clone();
        takes.take_over = true;
        let open = || RemoteDevice::open_writable(Arc::new(store.copy()), &takes);
        let kept = match open().err() {
            Some(RemoteError::LogKept { path, what }) => {
                assert!(what.contains("local log"), "{what}");
                path
            }
            other => panic!("{other:?}"),
        };
        assert!(kept.exists() && !path.exists());
        let dev = open().expect("without it");
        let mut block = vec![9; BLOCK];
        dev.read_at(0, &mut block).expect("read");
        assert!(block == [0; BLOCK]);
    }
}

/// Goal: one log has one owner. Method: a second writer of the same directory is refused while the first lives; when the file is
/// replaced under the first one, as by a machine that does not see the lock, it confirms nothing more by it, and loses nothing.
#[test]
fn two_owners() {
    let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
    let mut options = options(&dir);
    options.take_over = true;
    create(Arc::new(store.copy()), 1 << 20, false, &options).expect("create");
    let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &options).expect("open");
    for durable in [Durable::Local, Durable::Remote] {
        options.durable = durable;
        let second = RemoteDevice::open_writable(Arc::new(store.copy()), &options).err();
        assert!(matches!(second, Some(RemoteError::LogBusy { .. })), "{second:?}");
    }
    dev.write_at(0, &[1; BLOCK]).expect("write");
    dev.flush().expect("confirmed");
    let path = dev.core.log.as_ref().expect("a log").path();
    let beside = dir.path().join("beside");
    fs::copy(&path, &beside).expect("copy");
    fs::rename(&beside, &path).expect("rename");
    dev.write_at(0, &[2; BLOCK]).expect("write");
    dev.flush().expect("by the store");
    let stats = dev.core.log.as_ref().expect("a log").stats();
    assert_eq!((stats[0].1, stats[3].1), (1, 1), "{stats:?}");
    assert_eq!(dev.core.published.lock().head.position, dev.position());
    crash(dev);
    // The copy is an old state of the log, whose head is not the newest, but what it has is in the store.
    let file = File::options().read(true).write(true).open(&path).expect("the other's file stays");
    drop(file);
    let opened = RemoteDevice::open_writable(Arc::new(store.copy()), &options);
    let dev = match opened {
        Err(RemoteError::LogKept { .. }) => {
            RemoteDevice::open_writable(Arc::new(store.copy()), &options).expect("open")
        }
        other => other.expect("open"),
    };
    let mut block = vec![9; BLOCK];
    dev.read_at(0, &mut block).expect("read");
    assert!(block == [2; BLOCK]);
}

/// Goal: the log of a sealed volume tells nobody what is in it, and nobody without the key can make a record of it.
#[test]
fn sealed() {
    let (dir, store) = (tempfile::tempdir().expect("dir"), MemoryStore::new());
    let mut options = options(&dir);
    options.key = Some(KeySource::file(&[1; 32]).expect("a key file"));
    let (path, blocks) = crashed(&store, &options);
    let bytes = fs::read(&path).expect("read");
    assert!(!bytes.windows(64).any(|part| blocks.iter().any(|block| part == &block[..64])));
    let dev = RemoteDevice::open_writable(Arc::new(store.copy()), &options).expect("open");
    let mut all = vec![9; 5 * BLOCK];
    dev.read_at(0, &mut all).expect("read");
    assert!(all == blocks.concat());
    let key = dev.core.coder.key().expect("sealed");
    let (uuid, id) = (dev.core.uuid, [7; 16]);
    let place = Place { number: 0, before: 0, durable: 0 };
    let entry = Entry::Published { position: 3 };
    for with in [true, false] {
        let (mut out, mine) = (Vec::new(), Of { uuid, id, key: with.then_some(key) });
        push_record(&mut out, &mine, place, entry, &[], || [3; 24]);
        assert_eq!(parse_record(&out, &Of { uuid, id, key: Some(key) }).is_ok(), with);
        assert_eq!(parse_record(&out, &Of { uuid, id, key: None }).is_ok(), !with);
    }
}
