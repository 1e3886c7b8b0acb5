//! Benchmarks beside the kernel and btrfs-progs: `oleo-bench list`, `oleo-bench NAME [--json]`.
//!
//! Each prints ours, the peer's and the ratio from one run, each figure the median of several, everything on a tmpfs.
//! Each benchmark's `what` describes what both sides do, the durability they give and the state of the caches;
//! [`Timed`] describes what its times contain, and is printed first with the versions of the kernel and of btrfs-progs.
//! Library calls are timed with the C library's allocator, which the library uses; the command brings its own.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;

use crate::peer::Peer;

mod aims;
mod allocator;
mod balance;
mod check;
mod commit;
mod create;
mod dbench;
mod fallocate;
mod fsmark;
mod fsync;
mod image_build;
mod library;
mod many_devices;
mod measure;
mod mount_io;
mod mount_metadata;
mod mounted;
mod nbd;
mod peer;
mod quota;
mod raid_write;
mod ref_heads;
mod remote;
mod replace;
mod restore;
mod scaling;
mod scrub;
mod shared_lines;
mod stalls;
mod stream;
mod transport;
mod trees;
mod volume_scale;

/// What a run was asked to do.
#[derive(Parser, Debug)]
#[command(name = "oleo-bench", about = "Benchmarks of Oleo beside the kernel and btrfs-progs")]
pub struct Args {
    /// A benchmark, `list`, `all`, or `aims`.
    name: String,
    /// Print JSON lines.
    #[arg(long)]
    json: bool,
    /// Runs of each side; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The tree that image-build and restore work on, and what mount-metadata untars.
    #[arg(long, default_value = "/usr")]
    tree: PathBuf,
    /// Files that create, trees and commit work with.
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// A directory on a disk, for fsync.
    #[arg(long, default_value = "/var/tmp")]
    disk: PathBuf,
    /// Only figures whose name holds this, or one of these.
    #[arg(long)]
    only: Vec<String>,
    /// On mounts: only these peers beside ours.
    #[arg(long = "peer", value_enum)]
    peers: Vec<Peer>,
    /// On mounts: an older `oleo`, measured in turns with this tree's. For `aims`: a directory with the older `oleo` and
    /// `oleo-bench`.
    #[arg(long)]
    old: Option<PathBuf>,
    /// How mounts talk to the kernel: sets the fuse module's `enable_uring` for the run, which needs root.
    #[arg(long, value_enum)]
    transport: Option<transport::Transport>,
    /// Sizes of volume-scale and write-rate are divided by this.
    #[arg(long, default_value_t = 1)]
    part: u64,
    /// How long latency and stalls work on each side.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The file that a process of the benchmark fallocate works on.
    #[arg(long, hide = true)]
    within: Option<PathBuf>,
}

impl Args {
    /// Whether a figure of this name was asked for.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }

    /// Those of `all` that are to run: ours come first, the older command beside the new one.
    fn peers(&self, all: &[Peer]) -> Vec<Peer> {
        let wanted = |peer: &Peer| peer.is_ours() || self.peers.is_empty() || self.peers.contains(peer);
        let mut chosen: Vec<Peer> = all.iter().copied().filter(wanted).collect();
        if let (Some(_), Some(at)) = (&self.old, chosen.iter().position(|p| *p == Peer::Oleo)) {
            chosen.insert(at + 1, Peer::Old);
        }
        chosen
    }
}

/// What the times of a benchmark contain.
#[derive(Clone, Copy, Debug)]
enum Timed {
    /// Whole commands on both sides: start of the process, opening of the image, the work, closing. The kernel's side has the
    /// volume mounted before the clock starts unless `what` says otherwise.
    Commands,
    /// Programs that work on mounts, Oleo's and the peers' alike.
    Mounts,
    /// Calls of the library in this process. If a peer is the kernel, its time contains the system calls, and the
    /// process that makes them if one is named.
    Calls,
    /// A part of the library by itself, in memory, beside others of its kind.
    Parts,
}

impl Timed {
    fn words(self) -> &'static str {
        match self {
            Timed::Commands => "times are of whole commands",
            Timed::Mounts => "times are of programs on mounts",
            Timed::Calls => {
                "times are of library calls; a peer's contain its system calls and the start of the command named"
            }
            Timed::Parts => "times are of a part of the library, in memory",
        }
    }
}

struct Bench {
    name: &'static str,
    times: Timed,
    what: &'static str,
    run: fn(&Args, &mut measure::Report) -> Result<()>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "rescan",
        times: Timed::Commands,
        what: "counting all quota groups anew with 1, 16 and 64 snapshots: oleo quota rescan of an image, which opens and closes it, \
               beside btrfs quota rescan -w of a mount; caches as opening and mounting leave them; both commit the result",
        run: quota::rescan,
    },
    Bench {
        name: "snapshot-drop",
        times: Timed::Calls,
        what: "deleting half of 16 and 64 snapshots until their space is back, quota off and on, on copies of one image: calls \
               beside btrfs subvolume delete, filesystem sync and a look each 5 ms whether all are gone (some ms of processes)",
        run: quota::snapshot_drop,
    },
    Bench {
        name: "balance",
        times: Timed::Commands,
        what: "moving all metadata with 16 and 64 snapshots, and with snapshots that share less, quota off and on: oleo balance \
               start -m of an image, which opens and closes it, beside btrfs balance start -m of a mount, on copies of one image",
        run: balance::run,
    },
    Bench {
        name: "quota-cost",
        times: Timed::Calls,
        what: "what quota adds: oleo balance start -m as a command, and deleting half of the snapshots in-process, with quota off and on \
               in turns, on copies of two images that differ in nothing else; wall time (median) and processor time (mean); no peer",
        run: quota::cost,
    },
    Bench {
        name: "qgroup-churn",
        times: Timed::Calls,
        what: "making empty files in two threads with quota on beside quota off, in-process, a commit at the end",
        run: quota::churning,
    },
    Bench {
        name: "scrub",
        times: Timed::Commands,
        what: "verifying 4 GiB of files on 4 devices (raid0, raid10 with 2 GiB, raid5): oleo scrub start -r of images, which opens them, beside \
               btrfs scrub start -B -r of a mount over loop devices, and beside reading what is in chunks with a process for each device; \
               --part makes it smaller",
        run: scrub::run,
    },
    Bench {
        name: "raid-write",
        times: Timed::Calls,
        what: "a file on raid5 of 4 and raid6 of 6 devices, loop devices over files in memory, on volumes that mkfs.btrfs made: in-process and on \
               the mount beside system calls on the kernel's; written in order by 1 MiB, then at random by 64 KiB and 4 KiB, each with one \
               fsync at the end that counts, then by 4 KiB with an fsync each; one thread; between them all is synced, which does not count, \
               and what caches have stays; and how many rows ours wrote whole, in part, and with a record; --part divides the sizes, --only \
               'raid6'",
        run: raid_write::run,
    },
    Bench {
        name: "replace",
        times: Timed::Commands,
        what: "one of 4 devices with 4 GiB of files (raid5; raid10 with 2 GiB) replaced by an empty one, loop devices over files in memory: oleo replace \
               start of the devices, which opens and closes the volume, and -B of a mount, beside btrfs replace start -B of a mount, and beside dd \
               with fsync of what the device has in chunks, used or not; all end with what was copied on the new device; caches are dropped \
               before each run; --part makes it smaller",
        run: replace::run,
    },
    Bench {
        name: "image-build",
        times: Timed::Commands,
        what: "an image of a directory tree: mkfs --rootdir beside mkfs.btrfs --rootdir and beside kernel mount + cp -a + \
               sync + umount; plain and zstd:3; page cache of the source warm on all sides; peak memory",
        run: image_build::run,
    },
    Bench {
        name: "create",
        times: Timed::Calls,
        what: "empty files in 2 threads, a commit at the end and whenever the library makes one, beside fs_mark -S 0 on a kernel mount \
               (its system calls, its start, its log and its clock are in the peer's time); both on a loop device over a file in memory; \
               ours with processor time and peak memory",
        run: create::run,
    },
    Bench {
        name: "restore",
        times: Timed::Commands,
        what: "all files out of an image into a tmpfs directory beside kernel mount + cp -a; page cache of the image warm",
        run: restore::run,
    },
    Bench {
        name: "mount-metadata",
        times: Timed::Mounts,
        what: "names and attributes on a mount, beside the kernel's btrfs on a loop device and a FUSE pass-through over tmpfs: \
               fs_mark without sync, untar, find over 200 000 files looking at attributes (with many files \
               bindfs is the pass-through, which works by names; cold: after unmounting, dropping \
               all caches and mounting again; warm and again: the second and third time), rm -r, dbench with 4 clients; no \
               fsync but dbench's own; --tree is what is untarred (default /usr/include)",
        run: mount_metadata::run,
    },
    Bench {
        name: "mount-io",
        times: Timed::Mounts,
        what: "data on a mount, beside the same two: fio with one job, psync, a file of 1 GiB that does not compress; writes \
               are not synced but where it says fsync (on the pass-through that costs nothing: its tmpfs has no disk); direct writes end in \
               the server's memory on Oleo and on the pass-through, and in the loop device on the kernel; cold: \
               after unmounting, dropping all caches and mounting again",
        run: mount_io::run,
    },
    Bench {
        name: "transfer-sizes",
        times: Timed::Mounts,
        what: "data in calls of 4 KiB, 64 KiB, 256 KiB and 1 MiB, each one request: written, written over, both into the kernel's cache and direct, \
               and read direct, over io_uring beside the same mount at /dev/fuse, in turns; fio with one job, psync, a file of 1 GiB; needs root, \
               for enable_uring; --only picks, as in 'write 1 MiB'",
        run: mount_io::transfers,
    },
    Bench {
        name: "dbench",
        times: Timed::Mounts,
        what: "dbench with 1, 4 and 16 clients on the mount and on the kernel's btrfs, both in memory: throughput, average and \
               maximum of Rename, Flush, Unlink, NTCreateX; fsync on both sides waits for the image file's fsync",
        run: dbench::run,
    },
    Bench {
        name: "fsync",
        times: Timed::Calls,
        what: "fsync of a small appended file in a directory of 10 000, alone and with 8 threads; rename and link after fsync: \
               in-process, through Oleo's mount, and through the kernel's, names relative to an open directory; all on a loop device over a file in memory and over one on \
               disk (--disk)",
        run: fsync::run,
    },
    Bench {
        name: "allocator",
        times: Timed::Parts,
        what: "the block allocator alone, in memory: nanoseconds per allocation and free (median, 99th percentile) with 1 to 16 \
               threads and pieces of 4 KiB to 128 MiB, on an aged image and on hostile patterns, beside best fit with one lock; \
               how free space lies after 10 million operations, beside first fit and best fit; --only picks, as in '2 threads'",
        run: allocator::run,
    },
    Bench {
        name: "fallocate",
        times: Timed::Calls,
        what: "8 KiB of a file preallocated and truncated away, by 1, 2, 4 and 8 in parallel, each on its own file: threads \
               in-process beside processes on the kernel's btrfs and on ext4 with mb_optimize_scan=0 and =1, which place space at \
               once; ours promised only, then written out with addresses (the figure with the aim); thousands of rounds per second, \
               nothing synced",
        run: fallocate::run,
    },
    Bench {
        name: "fsmark",
        times: Timed::Mounts,
        what: "fs_mark -S 0 -L 5 -n 100000 -s 0 -k with 2 threads: on the mount, on the kernel's btrfs, and the same loop \
               in-process; files per second at each of the 5 loops",
        run: fsmark::run,
    },
    Bench {
        name: "commit",
        times: Timed::Calls,
        what: "one commit of 1 to 1 000 000 changes (modes in order, at random, new files) of a tree of --files files, beside the \
               kernel on a copy of the same image: what the loop device was given to write, and time, per change",
        run: commit::run,
    },
    Bench {
        name: "ref-heads",
        times: Timed::Parts,
        what: "the store of delayed refs beside an ordered tree, a radix tree and sorted hash tables: nanoseconds per record and \
               per drained head, 1 000 to 10 000 000 heads, 1, 2 and 4 threads recording; bytes per head; --only picks, as in \
               'delete 100000'",
        run: ref_heads::run,
    },
    Bench {
        name: "check",
        times: Timed::Commands,
        what: "oleo check beside btrfs check (original mode; lowmem mode once, which takes minutes: --only original leaves it \
               out): 200 000 files, 16 snapshots, image in memory, page cache warm; time and peak memory",
        run: check::run,
    },
    Bench {
        name: "send-shared",
        times: Timed::Commands,
        what: "oleo send of an image beside btrfs send of its mount: files of one extent of 4 and 8 KiB, each reflinked 50 times \
               (--files, 3000 by default), full and incremental; 20 files of 128 KiB reflinked 1000, 1100 and 100 000 times (the \
               last only ours); streams to files in memory; --only picks, as in '128 KiB'",
        run: stream::shared,
    },
    Bench {
        name: "send-tree",
        times: Timed::Commands,
        what: "the same of an ordinary tree: 60 000 files, 850 MiB, whole",
        run: stream::tree,
    },
    Bench {
        name: "send-incremental",
        times: Timed::Commands,
        what: "the same, of what one file in a hundred changed",
        run: stream::incremental,
    },
    Bench {
        name: "receive",
        times: Timed::Commands,
        what: "oleo receive into an image beside btrfs receive into a mount, synced: the tree, the tree and its changes, and shared \
               files; each side its own stream but where it says otherwise",
        run: stream::receive,
    },
    Bench {
        name: "latency",
        times: Timed::Calls,
        what: "how long a call waits while another thread commits in a loop, beside the same without commits: one thread creates \
               files, writes 4 KiB and looks names up for --seconds, in-process, device in memory; each call timed by itself; no \
               peer outside",
        run: library::latency,
    },
    Bench {
        name: "stalls",
        times: Timed::Calls,
        what: "how long writers wait beside a sync each second: 8 threads create files and write 8 KiB to each, in directories of their \
               own, at a pace and flat out, in-process beside system calls on the kernel's btrfs, and without syncs; a loop device over \
               a file in memory; --seconds of each; --only 'at a pace'",
        run: stalls::run,
    },
    Bench {
        name: "listing-rate",
        times: Timed::Calls,
        what: "a directory of 20 000 files listed with their inodes, 128 at a time, in one call beside one call per entry; opened \
               anew for each, device in memory; no peer outside",
        run: library::listing_rate,
    },
    Bench {
        name: "write-rate",
        times: Timed::Calls,
        what: "a file of 512 MiB in steps of 1 MiB, then 20 000 times 4 KiB all over it: the writes (into memory), the flush (summed and \
               written to a device in memory) and the commit, each timed by itself; the first round and overwriting; no peer; \
               --part 10 divides the sizes",
        run: library::write_rate,
    },
    Bench {
        name: "nbd",
        times: Timed::Commands,
        what: "oleo serve nbd beside qemu-nbd and nbdkit file on one image of 1 GiB in memory, over a socket of the file system, fio's \
               client: 4 KiB at random and 1 MiB in order, read and written, 1 and 16 under way, not synced but where it says so; the \
               server's processor time per request; and all of the image read from qemu-nbd by our client beside nbdcopy; --seconds each",
        run: nbd::run,
    },
    Bench {
        name: "remote",
        times: Timed::Mounts,
        what: "oleo mount s3:// beside the kernel's btrfs over s3backer (FUSE file, loop device) and over nbdkit's S3 plugin (nbdfuse, loop \
               device), each with a moto server of its own behind a proxy, which counts requests and bytes, and answers 0 or 30 ms \
               late: 1000 small files untarred and synced, 4 KiB appended and synced 40 times, 500 files created and synced, a \
               file written and synced, and read with nothing in memory (256 MiB, with 30 ms 16 MiB). All that is synced is on \
               the store on all sides: s3backer writes through (--blockCacheSync), nbdkit keeps nothing; --part divides the \
               sizes; whoever takes longer than 140 s is ended, and has no figures from there on",
        run: remote::run,
    },
    Bench {
        name: "trees",
        times: Timed::Parts,
        what: "batches of items applied to a tree in memory (nothing shared, nothing written), look-ups and a cursor's steps, wall time \
               on one thread and on all cores; no peer; --files says how large the tree is",
        run: trees::run,
    },
    Bench {
        name: "shared-lines",
        times: Timed::Parts,
        what: "stores to cache lines that two threads share, per operation, counted by valgrind's lackey while two threads work in \
               different directories in turn: nothing is timed; no peer; fails if an operation makes more than it may",
        run: shared_lines::run,
    },
    Bench {
        name: "scaling",
        times: Timed::Parts,
        what: "inputs of the model of many cores (decision 0025): additions to a line of one's own and of two threads; look-ups, reads, creates \
               and writes by one thread and by two in different directories, device in memory, no commits; and what the model says of \
               1 to 64 threads; no peer",
        run: scaling::run,
    },
    Bench {
        name: "volume-scale",
        times: Timed::Calls,
        what: "what an operation costs on a volume of a hundredth of the size and at full size: a million block groups (a \
               petabyte, nearly full), a directory of 10 million entries, a file of 10 million extents, 100 000 subvolumes, \
               10 000 snapshots; in-process, one thread, tree blocks in memory (up to 6 GiB), data not kept; --only groups, \
               directory, …; --part 100 divides all sizes",
        run: volume_scale::run,
    },
];

fn main() -> Result<()> {
    let args = Args::parse();
    if let (fallocate::CHILD, Some(file)) = (args.name.as_str(), &args.within) {
        return fallocate::child(file);
    }
    if args.name == shared_lines::CHILD {
        return shared_lines::child();
    }
    let _transport = args.transport.map(transport::Chosen::set).transpose()?;
    if args.name == aims::NAME {
        return aims::run(&args);
    }
    if args.name == "list" {
        println!("{:14} {}", aims::NAME, aims::WHAT);
        for b in BENCHES {
            println!("{:14} {}", b.name, b.what);
        }
        return Ok(());
    }
    let chosen: Vec<&Bench> = BENCHES.iter().filter(|b| args.name == "all" || b.name == args.name).collect();
    if chosen.is_empty() {
        bail!("no benchmark is called {}; see `list`", args.name);
    }
    for b in chosen {
        let mut report = measure::Report::new(b.name, args.json);
        if let Some(transport) = args.transport {
            report.note(transport.words());
        }
        report.note(&format!("{}; {}", b.times.words(), measure::versions()));
        (b.run)(&args, &mut report)?;
    }
    Ok(())
}
