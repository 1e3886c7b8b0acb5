//! File data against arrays of bytes, and then before the kernel.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oleo_device::{Device, FileDevice, FileOptions};
use oleo_format::{Compression, CsumType, InodeFlags, TreeId};
use oleo_fs::data::{CloneRange, Compress, Dedupe, KeepSize, Prepared, Stamp, Whole};
use oleo_fs::{Fs, FsError, FsOptions, InodeRef, NewInode, NewKind, SetAttr};
use oleo_mkfs::{FeatureSet, MkfsOptions, make};
use oleo_sim::budget::budget;
use oleo_sim::oracle::{Oracle, oracle, run};
use oleo_sim::rng::Rng;
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const MIB: u64 = 1 << 20;
const FILES: usize = 5;
const SECTOR: u64 = 4096;
/// Operations of one run.
const STEPS: usize = 300;
/// Most operations stay below this offset, so that they meet.
const NEAR: u64 = 400_000;

fn open(image: &Path, compress: Option<Compress>) -> anyhow::Result<Fs> {
    let device = FileDevice::open(image, &FileOptions::default().write(true))?;
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    let volume = Volume::open(devices, &OpenOptions { write: true, ..OpenOptions::default() })?;
    let engine = Engine::open(Arc::new(volume), &EngineOptions::default())?;
    let mut opts = FsOptions::default();
    opts.data.compress = compress;
    opts.data.dirty_bytes_max = 4 * MIB;
    Ok(Fs::open(engine, &opts)?)
}

/// The files and what should be in them.
struct World {
    fs: Fs,
    files: Vec<InodeRef>,
    model: Vec<Vec<u8>>,
}

impl World {
    fn name(n: usize) -> Vec<u8> {
        format!("file{n}").into_bytes()
    }

    fn create(fs: Fs) -> anyhow::Result<World> {
        let root = fs.root(TreeId::FS)?;
        let mut files = Vec::new();
        for n in 0..FILES {
            let file = fs.create(&root, &World::name(n), &NewInode::new(NewKind::File, 0o644))?;
            if n == FILES - 1 {
                let flags = InodeFlags::NODATASUM | InodeFlags::NODATACOW;
                fs.set_attr(&file, &SetAttr::default().flags(Some(flags)))?;
            }
            files.push(file);
        }
        Ok(World { fs, files, model: vec![Vec::new(); FILES] })
    }

    fn reopen(self, image: &Path, compress: Option<Compress>) -> anyhow::Result<World> {
        let World { fs, files, model } = self;
        fs.sync()?;
        drop(files);
        drop(fs);
        let fs = open(image, compress)?;
        let root = fs.root(TreeId::FS)?;
        let mut files = Vec::new();
        for n in 0..FILES {
            files.push(fs.lookup(&root, &World::name(n))?.ok_or_else(|| anyhow::anyhow!("file {n} is gone"))?);
        }
        Ok(World { fs, files, model })
    }

    /// One random operation on the files and on the model; answers what it was.
    fn step(&mut self, rng: &mut Rng) -> anyhow::Result<String> {
        let n = rng.below(FILES as u64) as usize;
        let file = self.files[n].clone();
        let fs = self.fs.clone();
        let size = self.model[n].len() as u64;
        let mut at = if rng.one_in(3) { size } else { rng.below(NEAR) };
        let mut len = if rng.one_in(8) { rng.below(600_000) + 1 } else { rng.length(40_000) + 1 };
        if rng.one_in(3) {
            at = at / SECTOR * SECTOR;
            len = len.next_multiple_of(SECTOR);
        }
        if rng.one_in(12) {
            at = rng.below(300);
            len = rng.below(300) + 1;
        }
        let end = at + len;
        Ok(match rng.below(26) {
            0..=8 => {
                let data = if rng.one_in(2) { rng.bytes(len as usize) } else { rng.text(len as usize) };
                fs.write(&file, at, &data)?;
                let model = &mut self.model[n];
                model.resize(model.len().max(end as usize), 0);
                model[at as usize..end as usize].copy_from_slice(&data);
                format!("write {n} {at} {len}")
            }
            9 => {
                let to = if rng.one_in(4) { 0 } else { rng.below(NEAR) };
                fs.truncate(&file, to)?;
                self.model[n].resize(to as usize, 0);
                format!("truncate {n} {to}")
            }
            10 => {
                let to = if rng.one_in(2) { rng.below(300) } else { (size + rng.below(9000)).saturating_sub(4500) };
                fs.truncate(&file, to)?;
                self.model[n].resize(to as usize, 0);
                format!("truncate {n} {to}")
            }
            11 | 12 => {
                fs.punch_hole(&file, at, len)?;
                let end = end.min(size) as usize;
                if (at as usize) < end {
                    self.model[n][at as usize..end].fill(0);
                }
                format!("punch {n} {at} {len}")
            }
            13 => {
                let keep = if rng.one_in(2) { KeepSize::Yes } else { KeepSize::No };
                fs.zero_range(&file, at, len, keep)?;
                let model = &mut self.model[n];
                if keep == KeepSize::No {
                    model.resize(model.len().max(end as usize), 0);
                }
                let end = (end as usize).min(model.len());
                if (at as usize) < end {
                    model[at as usize..end].fill(0);
                }
                format!("zero {n} {at} {len} {keep:?}")
            }
            14 | 15 => {
                let keep = if rng.one_in(2) { KeepSize::Yes } else { KeepSize::No };
                fs.preallocate(&file, at, len, keep)?;
                if keep == KeepSize::No {
                    let model = &mut self.model[n];
                    model.resize(model.len().max(end as usize), 0);
                }
                format!("preallocate {n} {at} {len} {keep:?}")
            }
            16..=18 => self.clone_some(rng)?,
            19 => {
                let (a, b) = (rng.below(FILES as u64) as usize, n);
                let at = rng.below(NEAR) / SECTOR * SECTOR;
                let range = CloneRange { from: at, len: SECTOR * (1 + rng.below(4)), to: at };
                let span = at as usize..(at + range.len) as usize;
                let fits = self.model[a].len() >= span.end && self.model[b].len() >= span.end;
                let differ_in_sums = (a == FILES - 1) != (b == FILES - 1);
                match fs.dedupe_range(&self.files[a], &file, &range) {
                    Ok(found) => {
                        assert!(fits && !differ_in_sums && a != b);
                        let same = self.model[a][span.clone()] == self.model[b][span];
                        assert_eq!(found == Dedupe::Shared, same);
                    }
                    Err(FsError::Invalid(why)) => assert!(!fits || differ_in_sums || a == b, "{why}"),
                    Err(e) => return Err(e.into()),
                }
                format!("dedupe {a} {b} {at}")
            }
            20 => {
                fs.flush(&file)?;
                format!("flush {n}")
            }
            21 => {
                fs.sync()?;
                "sync".into()
            }
            22 => {
                let len = rng.length(300_000) as usize;
                let data = rng.text(len);
                fs.write_all(&file, &data, Stamp::Now)?;
                self.model[n] = data;
                format!("write_all {n} {}", self.model[n].len())
            }
            23 | 24 => {
                let algorithms = [Compression::None, Compression::Zlib, Compression::Lzo, Compression::Zstd];
                let algorithm = algorithms[rng.below(4) as usize];
                let compress = (!rng.one_in(3)).then_some(Compress { algorithm, level: 0, force: rng.one_in(2) });
                let bytes = fs.rewrite(&file, at, len, compress)?;
                format!("rewrite {n} {at} {len} {compress:?}: {bytes}")
            }
            _ => {
                let len = rng.length(50_000) as usize + 1;
                let tail = rng.bytes(len);
                let from = size.next_multiple_of(SECTOR);
                let prepared = Prepared::new(&tail[..], from, Whole::Part, &fs.policy(&file)?);
                fs.install_many(&[(file, prepared)], Stamp::Now)?;
                self.model[n].resize(from as usize, 0);
                self.model[n].extend_from_slice(&tail);
                format!("install {n} {from} {}", tail.len())
            }
        })
    }

    fn clone_some(&mut self, rng: &mut Rng) -> anyhow::Result<String> {
        let (a, b) = (rng.below(FILES as u64) as usize, rng.below(FILES as u64) as usize);
        let from = rng.below(NEAR) / SECTOR * SECTOR;
        let to = rng.below(NEAR) / SECTOR * SECTOR;
        let size = self.model[a].len() as u64;
        let mut len = (rng.below(60_000) + 1).next_multiple_of(SECTOR);
        if rng.one_in(3) {
            len = size.saturating_sub(from);
        }
        let range = CloneRange { from, len, to };
        let outcome = self.fs.clone_range(&self.files[a], &self.files[b], &range);
        let text = format!("clone {a} {from} {len} {b} {to}: {outcome:?}");
        match outcome {
            Ok(()) if len > 0 || size > from => {
                let len = if len == 0 { size - from } else { len };
                let bytes = self.model[a][from as usize..(from + len) as usize].to_vec();
                let model = &mut self.model[b];
                model.resize(model.len().max((to + len) as usize), 0);
                model[to as usize..(to + len) as usize].copy_from_slice(&bytes);
            }
            Ok(()) => {}
            Err(FsError::Invalid(_)) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(text)
    }

    /// Compares everything, in pieces of random size.
    fn compare(&self, rng: &mut Rng, what: &str) -> anyhow::Result<()> {
        for (n, model) in self.model.iter().enumerate() {
            let file = &self.files[n];
            assert_eq!(self.fs.attr(file).size, model.len() as u64, "{what}: size of file {n}");
            let mut pos = 0;
            while pos <= model.len() {
                let step = rng.length(200_000) as usize + 1;
                let mut out = vec![0xEE; step];
                let got = self.fs.read(file, pos as u64, &mut out)?;
                let want = &model[pos..(pos + step).min(model.len())];
                assert_eq!(got, want.len(), "{what}: file {n} at {pos}");
                if let Some(bad) = out[..got].iter().zip(want).position(|(a, b)| a != b) {
                    panic!("{what}: file {n} differs at {}: {} want {}", pos + bad, out[bad], want[bad]);
                }
                pos += step;
            }
            self.compare_holes(n, model, what)?;
        }
        Ok(())
    }

    /// What `seek_hole` calls a hole is zeros.
    fn compare_holes(&self, n: usize, model: &[u8], what: &str) -> anyhow::Result<()> {
        let mut pos = 0u64;
        while let Some(hole) = self.fs.seek_hole(&self.files[n], pos)? {
            let data = self.fs.seek_data(&self.files[n], hole)?.unwrap_or(model.len() as u64);
            assert!(model[hole as usize..data as usize].iter().all(|b| *b == 0), "{what}: file {n}, hole at {hole}");
            if data >= model.len() as u64 {
                break;
            }
            assert!(data >= pos && data >= hole);
            pos = data.max(pos + 1);
        }
        Ok(())
    }
}

/// What the kernel finds in the image.
fn kernel_compare(oracle: &Oracle, image: &PathBuf, model: &[Vec<u8>], what: &str) -> anyhow::Result<()> {
    oracle.must_be_sound(&[image], what)?;
    let mounted = oracle.mount(&[image], "ro")?;
    for (n, want) in model.iter().enumerate() {
        let have = std::fs::read(mounted.path().join(format!("file{n}")))?;
        assert_eq!(have.len(), want.len(), "{what}: size of file {n} in the kernel");
        if let Some(bad) = have.iter().zip(want).position(|(a, b)| a != b) {
            panic!("{what}: the kernel sees file {n} differ at {bad}");
        }
    }
    mounted.unmount()?;
    Ok(())
}

/// Goal: what the kernel wrote reads equal, can be changed, and is sound afterwards. Method: files of every kind of extent
/// made on a kernel mount, then the random operations on them.
#[test]
fn on_kernel_images() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for (n, (mkfs, mount)) in [
        ("^no-holes", "compress=lzo"),
        ("no-holes", "compress-force=zstd"),
        ("^no-holes", ""),
        ("no-holes", "compress=zlib"),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("kernel image {mkfs} {mount}");
        let mut rng = Rng::new(n as u64 + 31);
        let scratch = oracle.scratch()?;
        let image = scratch.image("image", 600 * MIB)?;
        oracle.mkfs(&["-O", mkfs], &[&image])?;
        let mounted = oracle.mount(&[&image], mount)?;
        let path = |n: usize| mounted.path().join(format!("file{n}"));
        for n in 0..FILES {
            std::fs::write(path(n), b"")?;
        }
        run("chattr", ["+C".as_ref(), path(FILES - 1).as_os_str()])?;
        for _ in 0..60 {
            let n = rng.below(FILES as u64) as usize;
            let at = rng.below(NEAR);
            let len = rng.length(50_000) + 1;
            let data = if rng.one_in(2) { rng.text(len as usize) } else { rng.bytes(len as usize) };
            let file = std::fs::OpenOptions::new().write(true).open(path(n))?;
            let range = [format!("--offset={at}"), format!("--length={len}")];
            let allocate = |mode: &[&str]| -> anyhow::Result<()> {
                let mut args: Vec<std::ffi::OsString> = mode.iter().map(|m| m.into()).collect();
                args.extend(range.iter().map(|r| r.into()));
                args.push(path(n).into());
                run("fallocate", args).map(drop)
            };
            match rng.below(9) {
                0 => file.set_len(rng.below(NEAR))?,
                1 => allocate(&["--punch-hole"])?,
                2 => allocate(&["--keep-size"])?,
                3 => allocate(&[])?,
                4 if n != FILES - 1 => {
                    run(
                        "cp",
                        ["--reflink=always".as_ref(), path(n).as_os_str(), path((n + 1) % (FILES - 1)).as_os_str()],
                    )?;
                }
                5 => {
                    file.set_len(0)?;
                    file.write_all_at(&data[..data.len().min(3000)], 0)?;
                }
                _ => file.write_all_at(&data, at)?,
            }
            if rng.one_in(3) {
                file.sync_all()?;
            }
        }
        let mut model = Vec::new();
        for n in 0..FILES {
            model.push(std::fs::read(path(n))?);
        }
        mounted.unmount()?;
        oracle.must_be_sound(&[&image], &what)?;
        let compress = Some(Compress { algorithm: Compression::Zstd, level: 0, force: n == 1 });
        let fs = open(&image, compress)?;
        let root = fs.root(TreeId::FS)?;
        let mut files = Vec::new();
        for n in 0..FILES {
            files.push(fs.lookup(&root, &World::name(n))?.ok_or(FsError::NotFound)?);
        }
        let mut world = World { fs, files, model };
        world.compare(&mut rng, &what)?;
        let mut reported = Vec::new();
        for step in 0..150 {
            reported.push(world.step(&mut rng).map_err(|e| e.context(format!("{what}, step {step}")))?);
            if rng.one_in(5) {
                let late = &reported[reported.len().saturating_sub(12)..];
                world.compare(&mut rng, &format!("{what}, step {step}, after {late:#?}"))?;
            }
        }
        world.fs.sync()?;
        let model = world.model.clone();
        drop(world);
        kernel_compare(&oracle, &image, &model, &what)?;
    }
    Ok(())
}

struct Case {
    no_holes: bool,
    compress: Option<Compression>,
    csum: CsumType,
    nodesize: u32,
}

fn play(oracle: &Oracle, case: &Case, seed: u64, steps: usize) -> anyhow::Result<()> {
    let what = format!(
        "seed {seed}, no-holes {}, {:?}, {:?}, nodesize {}",
        case.no_holes, case.compress, case.csum, case.nodesize
    );
    let scratch = oracle.scratch()?;
    let image = scratch.image("image", 600 * MIB)?;
    {
        let device = FileDevice::open(&image, &FileOptions::default().write(true))?;
        let options = MkfsOptions::default()
            .nodesize(Some(case.nodesize))
            .csum(case.csum)
            .features(FeatureSet::default().no_holes(case.no_holes))
            .seed(*CsumType::Sha256.csum(what.as_bytes()).first_chunk().unwrap_or(&[0; 32]));
        make(&[Arc::new(device) as Arc<dyn Device>], &options)?;
    }
    let compress = case.compress.map(|algorithm| Compress { algorithm, level: 0, force: false });
    let mut rng = Rng::new(seed);
    let mut world = World::create(open(&image, compress)?)?;
    let mut reported: BTreeMap<usize, String> = BTreeMap::new();
    for step in 0..steps {
        let op = world.step(&mut rng).map_err(|e| e.context(format!("{what}, step {step} after {reported:?}")))?;
        reported.insert(step, op);
        if reported.len() > 12 {
            reported.pop_first();
        }
        let context = || format!("{what}, step {step}: {reported:#?}");
        if rng.one_in(3) {
            world.compare(&mut rng, &context())?;
        }
        if rng.one_in(60) {
            world = world.reopen(&image, compress)?;
            world.compare(&mut rng, &context())?;
        }
        if step % 150 == 149 {
            world.fs.sync()?;
            kernel_compare(oracle, &image, &world.model, &context())?;
        }
    }
    world = world.reopen(&image, compress)?;
    world.compare(&mut rng, &what)?;
    let model = world.model.clone();
    drop(world);
    kernel_compare(oracle, &image, &model, &what)
}

/// Goal: whatever is done to files, their bytes are those of an array, for us, after a reopening, and for the kernel, which
/// finds nothing wrong. Method: random operations on five files, one of them without checksums.
#[test]
fn like_arrays() -> anyhow::Result<()> {
    let Some(oracle) = oracle() else { return Ok(()) };
    for seed in budget().seeds(1, 1, 1) {
        for (i, compress) in
            [None, Some(Compression::Zstd), Some(Compression::Lzo), Some(Compression::Zlib)].into_iter().enumerate()
        {
            let case = Case {
                no_holes: i % 2 == 0,
                compress,
                csum: CsumType::ALL[i],
                nodesize: if i % 2 == 0 { 16384 } else { 4096 },
            };
            play(&oracle, &case, seed * 100 + i as u64, STEPS)?;
        }
        play(
            &oracle,
            &Case { no_holes: false, compress: None, csum: CsumType::Crc32c, nodesize: 16384 },
            seed * 100 + 50,
            STEPS,
        )?;
    }
    Ok(())
}
