//! A server that does nothing but reply: files have a number, a name that is not stored, and no contents. Creating
//! files on it costs what FUSE itself costs. Like Oleo it does not answer CREATE, so that the kernel sends MKNOD, and
//! no RELEASE. `docs/decisions/0021-requests.md` has figures.
//!
//! `null DIR [on|off]` mounts it on DIR, with io_uring, without, or as the kernel offers, until it is unmounted.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use oleo_fuse::transport::{HaltPolling, Handler, IO_LEN_MAX, Outcome, connect};
use oleo_fuse::wire::abi::{self, InitFlags};
use oleo_fuse::wire::{Op, Reply, Request};
use oleo_fuse::{AttachOptions, Uring, attach};

const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
/// Some years: more than the kernel can add to its clock makes it ask each time.
const FOREVER: u64 = 1 << 28;
const MODE_DIR: u32 = 0o040_755;
const MODE_FILE: u32 = 0o100_644;
/// In the numbers of directories.
const DIR: u64 = 1 << 62;

/// The type of a file, which its number encodes.
fn mode_of(node: u64) -> u32 {
    if node == abi::ROOT_ID || node & DIR != 0 { MODE_DIR } else { MODE_FILE }
}

struct Null {
    next: AtomicU64,
    /// By the parent's number and the name.
    dirs: RwLock<HashMap<(u64, Vec<u8>), u64>>,
}

impl Null {
    fn attr(node: u64) -> abi::Attr {
        abi::Attr { ino: node, mode: mode_of(node), nlink: 1, blksize: 4096, ..Default::default() }
    }

    fn made(&self, mark: u64) -> abi::EntryOut {
        Null::entry(self.next.fetch_add(1, Ordering::Relaxed) | mark)
    }

    fn entry(nodeid: u64) -> abi::EntryOut {
        let attr = Null::attr(nodeid);
        abi::EntryOut { nodeid, entry_valid: FOREVER, attr_valid: FOREVER, attr, ..Default::default() }
    }
}

impl Handler for Null {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        let node = request.head.nodeid;
        match &request.op {
            Op::Lookup { name } => {
                let found = self.dirs.read().ok().and_then(|dirs| dirs.get(&(node, name.to_vec())).copied());
                let Some(found) = found else { return Outcome::Failed(ENOENT) };
                reply.put(&Null::entry(found));
            }
            Op::Mknod { .. } => reply.put(&self.made(0)),
            Op::Mkdir { name, .. } => {
                let made = self.made(DIR);
                if let Ok(mut dirs) = self.dirs.write() {
                    dirs.insert((node, name.to_vec()), made.nodeid);
                }
                reply.put(&made);
            }
            Op::GetAttr | Op::SetAttr(_) => {
                reply.put(&abi::AttrOut { attr_valid: FOREVER, attr: Null::attr(node), ..Default::default() });
            }
            Op::Write { args, .. } => reply.put(&abi::WriteOut { size: args.size, padding: 0 }),
            Op::StatFs => {
                let free = 1 << 30;
                let out = abi::StatfsOut {
                    blocks: free,
                    bfree: free,
                    bavail: free,
                    files: free,
                    ffree: free,
                    ..Default::default()
                };
                reply.put(&abi::StatfsOut { bsize: 4096, frsize: 4096, namelen: 255, ..out });
            }
            Op::Unlink { .. } | Op::Rmdir { .. } | Op::ReadDir(_) | Op::ReadDirPlus(_) => {}
            Op::Forget { .. } | Op::BatchForget(_) | Op::Interrupt => return Outcome::Silent,
            _ => return Outcome::Failed(ENOSYS),
        }
        Outcome::Done
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let Some(dir) = args.get(1) else { return Err("null DIR [on|off]".into()) };
    let uring = match args.get(2).map(String::as_str) {
        Some("on") => Uring::On,
        Some("off") => Uring::Off,
        _ => Uring::Auto,
    };
    let options = AttachOptions {
        source: "null".into(),
        subtype: "null".into(),
        read_only: false,
        allow_other: false,
        block: false,
        flags: rustix::mount::MountFlags::empty(),
    };
    let channel = attach(Path::new(dir), &options)?;
    let transport = connect(channel, 16, (uring, HaltPolling::default()), &|init, uring| {
        let offered = u64::from(init.flags) | u64::from(init.flags2) << 32;
        let mut wanted = InitFlags::BIG_WRITES | InitFlags::NO_OPEN_SUPPORT | InitFlags::NO_OPENDIR_SUPPORT;
        wanted |= InitFlags::PARALLEL_DIROPS | InitFlags::MAX_PAGES | InitFlags::INIT_EXT;
        if uring {
            wanted |= InitFlags::OVER_IO_URING;
        }
        let agreed = offered & wanted.bits();
        Ok(abi::InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR.min(init.minor),
            max_readahead: init.max_readahead,
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: 64,
            congestion_threshold: 48,
            max_write: IO_LEN_MAX as u32,
            time_gran: 1,
            max_pages: (IO_LEN_MAX / 4096) as u16,
            ..Default::default()
        })
    })?;
    println!("mounted");
    transport.serve(Arc::new(Null { next: AtomicU64::new(2), dirs: RwLock::default() }))?;
    Ok(())
}
