//! The compiled part in node: what the kernel reads, soon enough, and what cannot be opened.
//!
//! `cargo xtask web` compiles it; its bytes do not depend on whether tests are built for debugging.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{PoisonError, RwLock};

use oleo::check::{CheckOptions, Severity, Start};
use oleo::inspect::Inspector;
use oleo::restore::{RestoreOptions, restore_to_tar};
use oleo::{Image, OpenOptions};
use oleo_sim::oracle;
use oleo_sim::rng::Rng;
use oleo_sim::rot::{Inflicted, Lie, Rot};
use oleo_view::{Map, MapOptions};
use serde_json::{Value, json};

/// Held to read by whoever keeps processors busy, to write by whoever measures them.
static BUSY: RwLock<()> = RwLock::new(());

/// How often speed is measured; it has to suffice once: others may use the machine.
const TRIES: usize = 5;

/// What `cargo xtask web` made.
fn compiled() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/web/oleo.wasm");
    if !path.exists() {
        oracle::skip("the page is not made (cargo xtask web)");
        return None;
    }
    if !Command::new("node").arg("--version").output().is_ok_and(|out| out.status.success()) {
        oracle::skip("there is no node (scripts/test installs it)");
        return None;
    }
    Some(path)
}

/// A node that has the compiled part.
struct Prover {
    node: Child,
    ask: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Prover {
    fn start(wasm: &Path) -> Prover {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prove.js");
        let mut command = Command::new("node");
        let mut node = command.arg(script).arg(wasm).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (ask, said) = (node.stdin.take(), BufReader::new(node.stdout.take().unwrap()));
        Prover { node, ask, said }
    }

    /// What it says of the opening and of each job, with memory of its own.
    fn prove(&mut self, jobs: &[&str], images: &[&Path]) -> Vec<Value> {
        let asked = json!({ "jobs": jobs, "images": images });
        writeln!(self.ask.as_mut().unwrap(), "{asked}").unwrap();
        let mut said = Vec::new();
        loop {
            let mut line = String::new();
            self.said.read_line(&mut line).unwrap();
            assert!(!line.is_empty(), "node has ended: {said:?}");
            match serde_json::from_str(&line).unwrap() {
                Value::Null => return said,
                value => said.push(value),
            }
        }
    }
}

impl Drop for Prover {
    fn drop(&mut self) {
        // It ends with its input.
        self.ask = None;
        let ended = self.node.wait().unwrap();
        assert!(ended.success() || std::thread::panicking(), "{ended}");
    }
}

fn prove(wasm: &Path, jobs: &[&str], images: &[&Path]) -> Vec<Value> {
    Prover::start(wasm).prove(jobs, images)
}

fn sha256(path: &Path) -> String {
    let out = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(out.stdout).unwrap()[..64].to_owned()
}

/// Goal: whatever the kind of compression, checksum and profile, and beyond what 32 bits count, the compiled part reads what the kernel reads. Method: volumes that the kernel wrote, hashes of their files as
/// it reads them; space is taken first so that data lies beyond 4 GiB.
#[test]
fn reads_what_the_kernel_reads() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let (Some(wasm), Some(oracle)) = (compiled(), oracle::oracle()) else { return };
    let scratch = oracle.scratch().unwrap();
    let text: Vec<u8> = (0..150_000).flat_map(|n| format!("line {n} of a text\n").into_bytes()).collect();
    for (csum, profile, compress) in [
        ("crc32c", "single", "no"),
        ("xxhash", "raid1", "zlib"),
        ("sha256", "raid0", "lzo"),
        ("blake2", "raid1", "zstd"),
    ] {
        let is_far = profile == "single";
        let images = match is_far {
            true => scratch.images(csum, 1, 8 << 30),
            false => scratch.images(csum, 2, 512 << 20),
        };
        let images = images.unwrap();
        oracle.mkfs(&["--csum", csum, "-d", profile, "-m", profile], &images).unwrap();
        let mounted = oracle.mount(&images, &format!("compress-force={compress}")).unwrap();
        let dir = mounted.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        if is_far {
            oracle::run("fallocate", ["-l", "5G", dir.join("space").to_str().unwrap()]).unwrap();
            let far = std::fs::File::create(dir.join("far")).unwrap();
            far.write_all_at(b"far away", 5 << 30).unwrap();
        }
        std::fs::write(dir.join("text"), &text).unwrap();
        std::fs::write(dir.join("inline"), b"inline").unwrap();
        mounted.sync().unwrap();
        // As it reads them from the disk.
        mounted.unmount().unwrap();
        let mounted = oracle.mount(&images, "ro").unwrap();
        let dir = mounted.path().join("dir");
        let want = [sha256(&dir.join("text")), sha256(&dir.join("inline"))];
        let count = std::fs::read_dir(&dir).unwrap().count();
        mounted.unmount().unwrap();
        let images: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let far = format!("ask=api/hex?path=dir/far&at={}", 5u64 << 30);
        let said = prove(&wasm, &["list=dir", "read=dir/text", "read=dir/inline", &far], &images);
        assert_eq!(said[1]["entries"], count, "{csum}");
        assert_eq!(
            [&said[2]["sha256"], &said[3]["sha256"]],
            [&want[0], &want[1]],
            "{csum} {profile} {compress}: {said:?}"
        );
        assert!(said[2]["is_whole"] == true && said[2]["bytes"] == text.len(), "{said:?}");
        if is_far {
            assert!(said[4]["text"].as_str().unwrap().contains("far away"), "{said:?}");
        }
    }
}

/// What a large directory and a large file take.
struct Load {
    entries: u64,
    file_bytes: usize,
    /// Of memory.
    bytes_max: u64,
}

/// Makes them and has them read so often; returns for each time how long the list took, in milliseconds, and how fast the file was read, in MB/s. What does not depend on the machine is compared.
fn measured(wasm: &Path, load: &Load, times: usize) -> Vec<(f64, f64)> {
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 4 << 30).unwrap();
    let dir = image.create_dir("many").unwrap();
    for n in 0..load.entries {
        let new = oleo::fs::NewInode::new(oleo::fs::NewKind::File, 0o644);
        image.fs().create(&dir, format!("file number {n}").as_bytes(), &new).unwrap();
    }
    let bytes: Vec<u8> = (0..16u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let bytes = bytes.repeat(load.file_bytes.div_ceil(bytes.len()));
    image.write("large", &bytes).unwrap();
    image.close().unwrap();
    let plain = scratch.path().join("large");
    std::fs::write(&plain, &bytes).unwrap();
    let want = sha256(&plain);
    let measure = |_| {
        let said = prove(wasm, &["list=many", "read=large"], &[&path]);
        println!("{said:?}");
        assert!(said[0]["slices"].as_u64().unwrap() < 100, "{said:?}");
        // A page of a file is a slice; of directories each is read once.
        assert!(said[1]["slices"].as_u64().unwrap() < load.entries / 200, "{said:?}");
        assert!(said[2]["slices"].as_u64().unwrap() < bytes.len() as u64 >> 17, "{said:?}");
        assert_eq!((&said[1]["entries"], &said[2]["sha256"]), (&load.entries.into(), &want.as_str().into()));
        assert!(said[2]["memory"].as_u64().unwrap() < load.bytes_max, "{said:?}");
        (said[1]["ms"].as_f64().unwrap(), said[2]["mb_per_s"].as_f64().unwrap())
    };
    (0..times).map(measure).collect()
}

/// Goal: lists and reads take slices and memory in bounds, and never ten times as long as is aimed at, on any machine.
#[test]
fn in_bounds() {
    let _busy = BUSY.write().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let load = Load { entries: 10_000, file_bytes: 128 << 20, bytes_max: 96 << 20 };
    let (ms, mb_per_s) = measured(&wasm, &load, 1)[0];
    assert!(ms < 1000.0 && mb_per_s > 10.0, "{ms} ms, {mb_per_s} MB/s");
}

/// Goal: a directory of 100 000 entries is listed within a second, a file read with 100 MB/s or more, in bounded memory, and opening reads next to nothing.
#[test]
#[ignore = "measures the machine, too: by command, and every night"]
fn soon_enough() {
    let _busy = BUSY.write().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let load = Load { entries: 100_000, file_bytes: 256 << 20, bytes_max: 128 << 20 };
    let measured = measured(&wasm, &load, TRIES);
    assert!(measured.iter().any(|(ms, mb_per_s)| *ms < 1000.0 && *mb_per_s >= 100.0), "{measured:?}");
}

/// Goal: what is no volume, or not all of one, is said in words; nothing of it is guessed. Method: other files, a volume that is cut short, one of two devices, bytes that are not what they were.
#[test]
fn what_is_not_whole() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    image.write("file", &data).unwrap();
    image.sync().unwrap();
    let extents = image.fs().extents(&image.find("file").unwrap(), 0, u64::MAX).unwrap();
    image.close().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let given = |bytes: &[u8]| {
        let path = scratch.path().join("given");
        std::fs::write(&path, bytes).unwrap();
        prove(&wasm, &["read=file", "ask=api/info"], &[&path])
    };
    let foreign: [&[u8]; 4] = [&[], &[7; 100], &[0x5a; 1 << 20], &whole[..60 << 10]];
    for foreign in foreign {
        let said = given(foreign);
        assert_eq!((said.len(), &said[0]["open"]), (1, &false.into()), "{said:?}");
        let why = said[0]["error"].as_str().unwrap();
        assert!(why.contains("given") && why.contains("btrfs"), "{why}");
    }
    // Cut within the file.
    let inspector = oleo::inspect::Inspector::open(&path, &oleo::OpenOptions::default()).unwrap();
    let logical = extents[0].disk.unwrap();
    let chunk = inspector.volume().chunk_of(logical).unwrap();
    let places = chunk.stripes.iter().map(|stripe| stripe.offset.0 + (logical.0 - chunk.start.0) + 500_000);
    let places: Vec<usize> = places.map(|at| usize::try_from(at).unwrap()).collect();
    let said = given(&whole[..places[0]]);
    assert_eq!((&said[0]["open"], &said[1]["is_whole"]), (&true.into(), &false.into()), "{said:?}");
    assert!(said[1]["error"].as_str().unwrap().contains("beyond the end"), "{said:?}");
    let info: Value = serde_json::from_str(said[2]["text"].as_str().unwrap()).unwrap();
    assert_eq!(info["cut_short"], json!(["given"]));
    // A byte of the file.
    let mut rotten = whole.clone();
    places.iter().for_each(|at| rotten[*at] ^= 1);
    let said = given(&rotten);
    assert_eq!((&said[0]["open"], &said[1]["is_whole"]), (&true.into(), &false.into()), "{said:?}");
    assert!(said[1]["error"].as_str().unwrap().contains("checksum"), "{said:?}");
    assert!(said[1]["bytes"].as_u64().unwrap() < 1_000_000);
}

/// Goal: of a mirror one device suffices, and the page is told that another is missing; of stripes it does not, and the page is told.
#[test]
fn one_of_two() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let (Some(wasm), Some(oracle)) = (compiled(), oracle::oracle()) else { return };
    let scratch = oracle.scratch().unwrap();
    for profile in ["raid1", "raid0"] {
        let images = scratch.images(profile, 2, 512 << 20).unwrap();
        oracle.mkfs(&["-d", profile, "-m", "raid1"], &images).unwrap();
        let mounted = oracle.mount(&images, "").unwrap();
        let data: Vec<u8> = (0..1_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        std::fs::write(mounted.path().join("file"), &data).unwrap();
        mounted.unmount().unwrap();
        let said = prove(&wasm, &["ask=api/info", "read=file"], &[&images[1]]);
        let info: Value = serde_json::from_str(said[1]["text"].as_str().unwrap()).unwrap();
        assert_eq!((&info["devices"], &info["missing"]), (&json!(2), &json!(1)), "{said:?}");
        assert_eq!(said[2]["is_whole"], profile == "raid1", "{said:?}");
        assert_eq!(said[2]["error"].is_null(), profile == "raid1", "{said:?}");
    }
}

/// A volume with what there is of kinds: subvolumes, a snapshot, a clone, hard links, holes, compressed data, and, unless it is closed, a log.
fn varied(path: &Path, closes: bool) {
    let image = Image::create(path, 512 << 20).unwrap();
    image.create_subvol("v").unwrap();
    image.create_dir("v/dir").unwrap();
    for n in 0..40 {
        image.write(&format!("v/dir/a{n}")[..], &vec![n as u8; n * 700]).unwrap();
    }
    let noise: Vec<u8> = (0..1_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    image.write("v/noise", &noise).unwrap();
    image.write("v/<b>\"x\n", &noise[..70_000]).unwrap();
    let compressed = image.create_file("v/compressed").unwrap();
    image.set_property(compressed.inode(), "compression", "zstd").unwrap();
    compressed.write_at(&[7; 400_000], 0).unwrap();
    let holes = image.create_file("v/holes").unwrap();
    holes.write_at(&noise[..9000], 3 << 20).unwrap();
    let dir = image.find("v/dir").unwrap();
    image.fs().link(&image.find("v/noise").unwrap(), &dir, b"linked").unwrap();
    image.sync().unwrap();
    image.snapshot("v", "snap", &oleo::SnapshotOptions::default().read_only(true)).unwrap();
    image.write("v/dir/a39", &noise[..200_000]).unwrap();
    drop((compressed, holes, dir));
    if closes {
        return image.close().unwrap();
    }
    image.sync().unwrap();
    image.write("v/synced", &noise[..100_000]).unwrap();
    image.fs().fsync(&image.find("v/synced").unwrap()).unwrap();
    drop(image);
}

/// Goal: maps and archives are the ones that the command makes. Method: each of one image, from both; a map is compared in numbers, but for where devices are.
#[test]
fn maps_and_archives() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    varied(&path, true);
    let jobs =
        ["ask=map.json", "hash=map.svg", "hash=map.html", "hash=tar?path=", "hash=tar?path=v/dir", "ask=tar?path=no"];
    let said = prove(&wasm, &jobs, &[&path]);
    let inspector = Inspector::open(&path, &OpenOptions::default()).unwrap();
    let mut map = Map::read(&inspector, &MapOptions::default()).unwrap();
    map.devices[0].name = "disk.img".into();
    let shown: Value = serde_json::from_str(said[1]["text"].as_str().unwrap()).unwrap();
    assert_eq!(shown, serde_json::to_value(&map).unwrap());
    assert!(map.sharing.subvols.len() == 3 && map.space.compressed > 0 && map.space.shared > 0, "{map:?}");
    let given = |bytes: &[u8]| {
        let path = scratch.path().join("given");
        std::fs::write(&path, bytes).unwrap();
        json!([true, sha256(&path)])
    };
    let same =
        |said: &Value, want: &[u8]| assert_eq!(json!([said["is_whole"], said["sha256"]]), given(want), "{said:?}");
    same(&said[2], oleo_view::to_svg(&map).as_bytes());
    same(&said[3], oleo_view::to_html(&map).as_bytes());
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    for (said, from, name) in [(&said[4], image.top().unwrap(), ""), (&said[5], image.find("v/dir").unwrap(), "dir")] {
        let mut archive = Vec::new();
        restore_to_tar(&image, &from, name.as_bytes(), &mut archive, &RestoreOptions::default()).unwrap();
        same(said, &archive);
    }
    assert_eq!(said[6]["status"], 404, "{said:?}");
}

/// Goal: a check finds what `oleo check` finds, tells it in lines as it goes, with paths, and the next map has it. Method: an image that is sound; then damage of all kinds, one after the other, each by both.
#[test]
fn checks() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    varied(&path, true);
    let mut prover = Prover::start(&wasm);
    let mut check = || {
        let said = prover.prove(&["ask=api/check?data=1", "ask=map.json"], &[&path]);
        (said[0]["open"] == true).then(|| {
            assert!(said[1]["is_whole"] == true, "{said:?}");
            let lines: Vec<Value> =
                said[1]["text"].as_str().unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            // Each line is handed on by itself.
            assert!(said[1]["pieces"].as_u64().unwrap() >= lines.len() as u64 && lines.len() > 1, "{said:?}");
            let map = serde_json::from_str(said[2]["text"].as_str().unwrap()).unwrap_or_default();
            (lines, map)
        })
    };
    let (lines, map): (Vec<Value>, Value) = check().unwrap();
    let end = json!({ "finished": true, "sound": true, "findings": 0, "left_out": 0 });
    assert_eq!(lines.last(), Some(&end));
    assert!(lines.iter().any(|line| line["what"] == "data") && map["findings"]["of"] == json!(["check"]), "{lines:?}");

    // A byte of a file.
    let inspector = Inspector::open(&path, &OpenOptions::default()).unwrap();
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    let at = image.fs().extents(&image.find("v/noise").unwrap(), 0, u64::MAX).unwrap()[0].disk.unwrap();
    let chunk = inspector.volume().chunk_of(at).unwrap();
    let places: Vec<u64> = chunk.stripes.iter().map(|stripe| stripe.offset.0 + (at.0 - chunk.start.0) + 5000).collect();
    drop((inspector, image));
    let flip = || {
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        for at in &places {
            let mut byte = [0];
            file.read_exact_at(&mut byte, *at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], *at).unwrap();
        }
    };
    flip();
    let (lines, map) = check().unwrap();
    let finding = lines.iter().find(|line| line["kind"].is_string()).unwrap();
    assert_eq!((&finding["severity"], &finding["kind"]), (&json!("error"), &json!("data-checksum")), "{finding}");
    assert_eq!(finding["paths"], json!(["v/noise", "v/dir/linked", "snap/noise", "snap/dir/linked"]), "{finding}");
    assert_eq!(map["findings"]["list"][0]["at"], finding["at"]);
    flip();

    let rot = Rot::survey(&path).unwrap();
    let mut rng = Rng::new(77);
    let (mut damaged, mut refused) = (0, 0);
    for _ in 0..40 {
        let _inflicted = rot.inflict(&rot.random(&mut rng).unwrap()).unwrap();
        let Some((lines, _)) = check() else { continue };
        let how = CheckOptions::default().data(true);
        let open = OpenOptions::default().degraded(true);
        let here = |text: &str| text.replace(path.to_str().unwrap(), "disk.img");
        match oleo::check::image(&path, &open, Start::default(), &how) {
            Ok(report) => {
                let told = lines
                    .iter()
                    .filter(|line| line["kind"].is_string())
                    .map(|line| json!([line["severity"], line["kind"], line["at"], line["device"], line["text"]]));
                let found = report.findings.iter().map(|finding| {
                    let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
                    let text = format!("have {}; want {}", finding.have, finding.want);
                    json!([
                        severity,
                        finding.kind.name(),
                        finding.at.block.map(|at| at.0),
                        finding.at.device,
                        here(&text)
                    ])
                });
                assert_eq!(told.collect::<Vec<_>>(), found.collect::<Vec<_>>());
                assert_eq!(lines.last().unwrap()["left_out"], report.left_out.values().sum::<u64>());
                damaged += usize::from(report.has_errors());
            }
            Err(error) => {
                let told = lines.last().unwrap()["error"].as_str().unwrap();
                assert!(here(&error.to_string()).ends_with(told), "{told}: {error}");
                refused += 1;
            }
        }
    }
    assert!(damaged > 10 && refused < 20, "{damaged} damaged, {refused} refused");
}

/// Goal: what was synced before a crash is seen, as the kernel sees it after it has replayed its log; of a log that cannot be read the page is told, and shows the last commit. The files are not changed.
#[test]
fn a_log() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    varied(&path, false);
    let before = sha256(&path);
    let said = prove(&wasm, &["read=v/synced", "ask=api/info", "ask=api/check?data=1"], &[&path]);
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    let plain = scratch.path().join("plain");
    std::fs::write(&plain, image.read("v/synced").unwrap()).unwrap();
    assert_eq!((&said[1]["is_whole"], &said[1]["bytes"]), (&json!(true), &json!(100_000)), "{said:?}");
    assert_eq!(said[1]["sha256"], sha256(&plain));
    let info = |said: &Value| -> Value { serde_json::from_str(said["text"].as_str().unwrap()).unwrap() };
    assert_eq!(info(&said[2])["unapplied"], Value::Null);
    assert!(said[3]["text"].as_str().unwrap().contains("\"sound\":true"), "{said:?}");
    assert_eq!(sha256(&path), before);

    let without = Image::open(&path, &OpenOptions::default().no_log_replay(true)).unwrap();
    let root = oleo::format::Logical(without.volume().super_block().log_root.get());
    let chunk = without.volume().chunk_of(root).unwrap();
    let places: Vec<u64> = chunk.stripes.iter().map(|stripe| stripe.offset.0 + (root.0 - chunk.start.0)).collect();
    drop((image, without));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    places.iter().for_each(|at| file.write_all_at(&[0xa5; 16], *at).unwrap());
    let said = prove(&wasm, &["ask=api/list?path=v/synced", "ask=api/info", "read=v/noise"], &[&path]);
    assert_eq!((&said[1]["status"], &said[3]["bytes"]), (&json!(404), &json!(1_000_000)), "{said:?}");
    assert!(info(&said[2])["unapplied"].as_str().unwrap().contains("checksum"), "{said:?}");

    let Some(oracle) = oracle::oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let images = scratch.images("log", 1, 512 << 20).unwrap();
    oracle.mkfs(&[], &images).unwrap();
    let mounted = oracle.mount(&images, "").unwrap();
    let dir = mounted.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("renamed"), b"old").unwrap();
    mounted.sync().unwrap();
    std::fs::write(dir.join("synced"), vec![9; 300_000]).unwrap();
    std::fs::rename(dir.join("renamed"), dir.join("new name")).unwrap();
    for name in ["synced", "new name"] {
        std::fs::File::open(dir.join(name)).unwrap().sync_all().unwrap();
    }
    // As a crash leaves it.
    let crashed = scratch.path().join("crashed.img");
    std::fs::copy(&images[0], &crashed).unwrap();
    mounted.unmount().unwrap();
    let said = prove(&wasm, &["list=dir", "read=dir/synced", "read=dir/new name", "ask=api/info"], &[&crashed]);
    assert_eq!(info(&said[4])["unapplied"], Value::Null);
    let mounted = oracle.mount(&[&crashed], "").unwrap();
    let dir = mounted.path().join("dir");
    assert_eq!(said[1]["entries"], std::fs::read_dir(&dir).unwrap().count());
    assert_eq!(
        (&said[2]["sha256"], &said[3]["sha256"]),
        (&json!(sha256(&dir.join("synced"))), &json!(sha256(&dir.join("new name"))))
    );
    assert_eq!(said[2]["bytes"], 300_000);
    mounted.unmount().unwrap();
}

/// Goal: memory is bounded by what is compiled, to the number that the documentation has, and whoever has too little of it is told so. Method: the bound is lowered.
#[test]
fn too_little_memory() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    varied(&path, true);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prove.js");
    let run = |pages: &str| {
        let mut command = Command::new("node");
        command.arg(&script).arg(&wasm).arg(pages).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut node = command.spawn().unwrap();
        let asked = json!({ "jobs": ["walk="], "images": [&path] });
        writeln!(node.stdin.take().unwrap(), "{asked}").unwrap();
        let out = node.wait_with_output().unwrap();
        (out.status.success(), String::from_utf8(out.stderr).unwrap())
    };
    // As it is compiled: 256 MiB.
    assert_eq!(run("4096"), (true, String::new()));
    let (ended_well, said) = run("128");
    assert!(!ended_well && said.contains("this needs more memory than the page may have"), "{said}");
}

/// Damages images in so many ways and has everything of each asked for; returns how many could be opened.
fn walked_damaged(wasm: &Path, rounds: usize, seed: u64) -> usize {
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    varied(&path, false);
    let mut prover = Prover::start(wasm);
    let mut walk = || prover.prove(&["walk="], &[&path]);
    let whole = walk();
    assert_eq!(whole[1]["entries"], 95, "{whole:?}");
    let rot = Rot::survey(&path).unwrap();
    let mut rng = Rng::new(seed);
    let mut opened = 0;
    for n in 0..rounds {
        // What a reader could follow without end, too.
        let damage = match n % 4 {
            3 => rot.lie(*rng.pick(&Lie::ALL).unwrap(), &mut rng).unwrap().unwrap_or_default(),
            _ => vec![rot.random(&mut rng).unwrap()],
        };
        let mut inflicted: Vec<Inflicted> = damage.iter().map(|damage| rot.inflict(damage).unwrap()).collect();
        let said = walk();
        if said[0]["open"] == true {
            opened += 1;
            assert!(said[1]["memory"].as_u64().unwrap() < 200 << 20, "{said:?}");
        }
        // The last first: two may be of one block.
        while inflicted.pop().is_some() {}
    }
    opened
}

/// Goal: whatever an image claims, the compiled part, whose numbers are 32 bits wide, ends what it is asked and is there for the next question, in bounded memory. Method: damage with right checksums, of a volume with a
/// log; everything is walked, mapped, checked and packed, and a trap ends node, and so the test.
#[test]
fn hostile() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let opened = walked_damaged(&wasm, 24, 19);
    assert!(opened > 8, "{opened}");
}

/// Goal: the same, more of it.
#[test]
#[ignore = "takes minutes: every night"]
fn hostile_longer() {
    let _busy = BUSY.read().unwrap_or_else(PoisonError::into_inner);
    let Some(wasm) = compiled() else { return };
    let opened = walked_damaged(&wasm, 600, 20);
    assert!(opened > 150, "{opened}");
}
