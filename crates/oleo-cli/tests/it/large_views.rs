//! Maps and the explorer on large volumes: 10 TiB, a million files, all that a system has installed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Bounds, bounded};
use oleo::fs::{KeepSize, NewInode, NewKind};
use oleo::inspect::Inspector;
use oleo::{Image, OpenOptions};
use oleo_sim::oracle::{self, Scratch, oracle};
use oleo_view::{Map, MapOptions};

const VOLUME_BYTES: u64 = 10 << 40;
/// In extents of 128 MiB, the longest that there are.
const RESERVED_BYTES: u64 = 9 << 40;
/// Files of one extent each.
const FILES: u64 = 200_000;
/// What a map may hold in memory: the tables that it was given, its pictures, and what any command holds.
const TABLES: &str = "64M";
const PEAK_KIB_MAX: u64 = 256 << 10;
/// What was written is 2 MB.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;
const TIME_MAX: Duration = Duration::from_secs(300);

/// Goal: a map of a large volume takes no more memory and time than it may, in each form, and counts every extent. Method: 9 TiB in the longest extents and 200 000 files of a sector each, in a sparse
/// image; the command's peak is looked at until it ends.
#[test]
#[ignore = "a quarter of a minute: cargo test --release -p oleo-cli --test it -- --ignored --nocapture large_views::ten"]
fn ten_tebibytes() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("large.img");
    let image = Image::create(&path, VOLUME_BYTES).unwrap();
    let reserved = image.create_file("reserved").unwrap();
    image.fs().preallocate(reserved.inode(), 0, RESERVED_BYTES, KeepSize::No).unwrap();
    drop(reserved);
    image.create_subvol("many").unwrap();
    let mut dir = image.subvol("many").unwrap();
    for n in 0..FILES {
        if n % 1000 == 0 {
            dir = image.create_dir(format!("many/{}", n / 1000)).unwrap();
        }
        let file = image.fs().create(&dir, n.to_string().as_bytes(), &NewInode::new(NewKind::File, 0o644)).unwrap();
        // Longer than what is kept in a tree block.
        image.fs().write(&file, 0, &[n as u8 | 1; 4096]).unwrap();
    }
    drop(dir);
    image.close().unwrap();
    for form in ["svg", "html", "json"] {
        let out = scratch.path().join("map").with_extension(form);
        let mut command = Command::new(env!("CARGO_BIN_EXE_oleo"));
        command.args(["map", "--memory", TABLES, "-o"]).args([&out, &path]);
        let (begun, bounds) = (Instant::now(), Bounds { time: TIME_MAX, memory_kib: PEAK_KIB_MAX });
        let (status, complaints, peak) = bounded(command, &scratch.path().join("printed"), form, &bounds);
        assert!(status.success(), "{form}: {complaints}");
        let bytes = std::fs::metadata(&out).unwrap().len();
        println!("{form}: {:.1?}, peak {} MiB, {} KiB written", begun.elapsed(), peak >> 10, bytes >> 10);
        assert!(bytes < OUTPUT_BYTES_MAX, "{form}: {bytes}");
    }
    let map = std::fs::read(scratch.path().join("map.json")).unwrap();
    let map: serde_json::Value = serde_json::from_slice(&map).unwrap();
    assert_eq!(map["space"]["data"], RESERVED_BYTES + FILES * 4096, "every extent is counted");
    assert_eq!(map["unread"], 0);
    let groups = map["groups"].as_array().unwrap();
    assert!(groups.len() > 900, "{}", groups.len());
    let used: u64 =
        groups.iter().filter(|group| group["type"] == "Data").map(|group| group["used"].as_u64().unwrap()).sum();
    assert_eq!(used, RESERVED_BYTES + FILES * 4096);
}

/// A program that ends with its guard.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Files of the volume that is explored, half of them in one directory.
const MANY: u64 = 1_000_000;
/// The aim for the first byte of an answer.
const FIRST_BYTE_MAX: Duration = Duration::from_millis(100);
/// The quickest counts, since others may use the machine.
const TRIES: u32 = 5;

/// Goal: who looks at a volume of a million files sees the beginning of what was asked for within 100 ms, also if the explorer is only being started. Method: time from the start of the command, and from
/// each request, to the first byte of the answer, with the image in the system's cache.
#[test]
#[ignore = "half a minute: cargo test --release -p oleo-cli --test it -- --ignored --nocapture large_views::first"]
fn first_bytes() {
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("many.img");
    let image = Image::create(&path, 16 << 30).unwrap();
    let mut dir = image.create_dir("flat").unwrap();
    for n in 0..MANY {
        if n >= MANY / 2 && n % 1000 == 0 {
            dir = image.create_dir(format!("dir {n}")).unwrap();
        }
        let new = NewInode::new(NewKind::File, 0o644);
        image.fs().create(&dir, format!("file number {n}").as_bytes(), &new).unwrap();
    }
    drop(dir);
    image.write("flat/text", b"text").unwrap();
    image.close().unwrap();
    let mut quickest = BTreeMap::new();
    let mut note = |what: &str, took: Duration| {
        let least = quickest.entry(what.to_owned()).or_insert(took);
        *least = took.min(*least);
    };
    for _ in 0..TRIES {
        let begun = Instant::now();
        let child = Command::new(env!("CARGO_BIN_EXE_oleo")).arg("explore").arg(&path).stdout(Stdio::piped()).spawn();
        let mut explorer = Ended(child.unwrap());
        let mut url = String::new();
        BufReader::new(explorer.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let (host, root) = url.trim().strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
        for (at, request) in [
            "api/list?path=",
            "",
            "api/info",
            "api/subvolumes",
            "api/list?path=flat",
            "api/list?path=dir 999000",
            "api/text?path=flat/text",
            "api/search?path=flat&name=number%201",
            "tar?path=flat",
            "zip?path=flat",
        ]
        .iter()
        .enumerate()
        {
            let asked = Instant::now();
            let mut stream = TcpStream::connect(host).unwrap();
            let request = request.replace(' ', "%20");
            let line = format!("GET /{root}{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            stream.write_all(line.as_bytes()).unwrap();
            let mut head = [0; 12];
            stream.read_exact(&mut head).unwrap();
            assert_eq!(&head, b"HTTP/1.1 200", "{request}");
            if at == 0 {
                note("from the start of the command to a list", begun.elapsed());
            }
            note(&request, asked.elapsed());
        }
    }
    println!("{quickest:#?}");
    assert!(quickest.values().all(|took| *took < FIRST_BYTE_MAX), "{quickest:?}");
}

/// Bytes of a line of `btrfs filesystem usage -b`, as in `Data,single: Size:1, Used:2 (3%)`.
fn used(text: &str, kind: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix(kind)?.strip_prefix(','));
    lines
        .map(|line| line.split("Used:").nth(1).unwrap().split([' ', '(']).next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Bytes of data that files lie in, each once, as FIEMAP has them.
fn mapped(top: &Path) -> u64 {
    let list = Command::new("find").arg(top).args(["-type", "f", "-print0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut list = Ended(list);
    let shown =
        Command::new("xargs").args(["-0", "filefrag", "-v", "-b1"]).stdin(list.0.stdout.take().unwrap()).output();
    let shown = shown.unwrap();
    assert!(shown.status.success() && list.0.wait().unwrap().success());
    let mut ranges = BTreeMap::new();
    for line in String::from_utf8_lossy(&shown.stdout).lines().filter(|line| !line.contains("inline")) {
        // `   0:        0..   40959:   13631488..  13672447:  40960: last,eof`
        let fields: Vec<&str> = line.split(':').map(str::trim).collect();
        let (Some(Ok(_)), true) = (fields.first().map(|n| n.parse::<u64>()), fields.len() > 3) else { continue };
        let start: u64 = fields[2].split_once("..").unwrap().0.trim().parse().unwrap();
        let len: u64 = fields[3].parse().unwrap();
        ranges.entry(start).and_modify(|of: &mut u64| *of = len.max(*of)).or_insert(len);
    }
    // Extents may be shared in part.
    let mut end = 0;
    ranges.iter().fold(0, |sum, (start, len)| {
        let from = end.max(*start);
        end = end.max(start + len);
        sum + end.saturating_sub(from)
    })
}

/// Goal: the map of what a system has installed has the numbers of `btrfs filesystem usage`, of `btrfs filesystem du`, and of FIEMAP. Method: an image of /usr with share as a subvolume; then the kernel takes a snapshot of that.
#[test]
#[ignore = "a minute, and as much memory as /usr has: cargo test --release -p oleo-cli --test it -- --ignored --nocapture large_views::usr"]
fn usr_in_numbers() {
    let Some(oracle) = oracle() else { return };
    let scratch = Scratch::new().unwrap();
    let path = scratch.path().join("usr.img");
    let oleo =
        |args: &[&str]| oracle::run(env!("CARGO_BIN_EXE_oleo"), args.iter().chain(&[path.to_str().unwrap()])).unwrap();
    oleo(&["mkfs", "--rootdir", "/usr", "--subvol", "share"]);
    let map = |path: &Path| {
        Map::read(&Inspector::open(path, &OpenOptions::default()).unwrap(), &MapOptions::default()).unwrap()
    };
    let before = map(&path);
    assert_eq!((before.notes.as_slice(), before.sample), (&[][..], None));
    let mounted = oracle.mount(&[&path], "noatime").unwrap();
    let top = mounted.path().to_str().unwrap().to_owned();
    let usage = oracle::run("btrfs", ["filesystem", "usage", "-b", &top]).unwrap();
    let fiemap = mapped(mounted.path());
    println!("data {}, metadata {}, FIEMAP {fiemap}\n{usage}", before.space.data, before.space.metadata);
    assert_eq!(
        (before.space.data, before.space.metadata),
        (used(&usage, "Data"), used(&usage, "Metadata") + used(&usage, "System"))
    );
    assert_eq!(before.space.data, fiemap);
    let du = |what: &str| {
        let shown = oracle::run("btrfs", ["filesystem", "du", "--raw", "-s", &format!("{top}/{what}")]).unwrap();
        let numbers = shown.lines().last().unwrap().split_whitespace().take(3);
        numbers.map(|n| n.parse::<u64>().unwrap()).collect::<Vec<_>>()
    };
    let id = |name: &str| -> u64 {
        oracle::run("btrfs", ["inspect-internal", "rootid", &format!("{top}/{name}")]).unwrap().trim().parse().unwrap()
    };
    let (whole, share) = (du("."), id("share"));
    println!("du: {whole:?}; share alone: {:?}", du("share"));
    // Nothing is shared yet.
    assert_eq!(before.paths.nodes[0].bytes, before.space.data);
    assert_eq!(whole[1], fiemap, "exclusive");
    let held = |map: &Map, name: &str| {
        let at = (0..map.paths.nodes.len()).find(|at| map.paths.path(*at) == name);
        at.map_or(0, |at| map.paths.nodes[at].bytes)
    };
    assert_eq!(held(&before, "share"), du("share")[1]);
    oracle::run("btrfs", ["subvolume", "snapshot", "-r", &format!("{top}/share"), &format!("{top}/of-share")]).unwrap();
    mounted.sync().unwrap();
    let (whole, snapshot) = (du("."), id("of-share"));
    mounted.unmount().unwrap();
    let after = map(&path);
    assert_eq!((held(&after, "share"), held(&after, "of-share")), (0, 0));
    let sizes = Image::open(&path, &OpenOptions::default()).unwrap();
    for size in oleo::layers::jobs::subvol_sizes(sizes.fs()).unwrap() {
        let subvol = after.sharing.subvol(size.id.0).unwrap();
        assert_eq!((subvol.reached, subvol.alone), (Some(size.rfer), Some(size.excl)), "{}", size.id.0);
    }
    let shared: u64 =
        after.sharing.sets.iter().filter(|set| set.subvols == [share, snapshot]).map(|set| set.bytes).sum();
    println!("du: {whole:?}; shared by both, with tree blocks: {shared}");
    assert_eq!(after.space.shared, shared);
    assert_eq!(whole[2], held(&before, "share"), "set shared");
}
