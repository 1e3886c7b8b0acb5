//! What a server's clients can cost in memory: in a process of its own, which does nothing else.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use oleo_device::{Device, FileDevice, FileOptions};
use oleo_nbd::ServeOptions;

use raw::{Raw, Running, WRITE};

#[path = "../it/server/raw.rs"]
#[allow(dead_code, reason = "made for more than this")]
mod raw;

/// Bytes of memory of this process.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a size");
    line.split_whitespace().next().unwrap().parse::<u64>().expect("a number") << 10
}

/// Goal: memory for payloads is bounded. Method: many connections send long writes but for the last byte, and stall; with
/// a budget for two of them the process stays small, and all writes arrive in the end.
#[test]
fn memory() {
    const WRITE_LEN: u32 = 8 << 20;
    const COUNT: u64 = 16;
    let dir = tempfile::tempdir().expect("dir");
    let dev =
        FileDevice::open(&dir.path().join("img"), &FileOptions::default().write(true).create(true)).expect("open");
    dev.set_len(COUNT * u64::from(WRITE_LEN)).expect("grow");
    let server = Running::of(Arc::new(dev), ServeOptions::default().memory_bytes_max(16 << 20).connections_max(17));
    let data = Arc::new(vec![7u8; WRITE_LEN as usize]);
    let before = resident_bytes();
    let chosen = |mut raw: Raw| {
        raw.greet();
        // A budget this small is announced, and has to be asked for.
        raw.option(7, &[0, 0, 0, 0, 0, 0]);
        assert_eq!(raw.option_reply(7).0, 3);
        assert_eq!(raw.option_reply(7).0, (1 << 31) + 8);
        raw.option(7, &[0, 0, 0, 0, 0, 1, 0, 3]);
        while raw.option_reply(7).0 != 1 {}
        raw
    };
    let writers: Vec<_> = (0..COUNT)
        .map(|n| {
            let (mut raw, data) = (chosen(server.connect()), data.clone());
            std::thread::spawn(move || {
                let (last, most) = data.split_last().expect("bytes");
                let cookie = raw.request(WRITE, 0, n * u64::from(WRITE_LEN), WRITE_LEN, most);
                std::thread::sleep(Duration::from_millis(300));
                raw.send(&[*last]);
                assert_eq!(raw.answer(cookie, 0, None), Ok(vec![]));
            })
        })
        .collect();
    let mut grown = 0;
    while !writers.iter().all(|writer| writer.is_finished()) {
        grown = grown.max(resident_bytes().saturating_sub(before));
        std::thread::sleep(Duration::from_millis(5));
    }
    // Without a bound it would be 128 MiB.
    assert!(grown < 40 << 20, "{} MiB", grown >> 20);
    writers.into_iter().for_each(|writer| writer.join().expect("written"));
    let mut raw = chosen(server.connect());
    for n in 0..COUNT {
        assert_eq!(raw.read((n + 1) * u64::from(WRITE_LEN) - 1, 1), Ok(vec![7]));
    }
}
