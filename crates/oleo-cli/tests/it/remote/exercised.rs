//! Mounts under load while answers come late and connections break: one file changed in every way, as fsx does, and
//! threads that change directories, as fsstress does. Whatever the connection does, nobody may notice but by waiting.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oleo_sim::oracle::{Scratch, oracle, skip};
use oleo_sim::rng::Rng;

use crate::common::exercise::Exercise;
use crate::remote::harness::Store;

const THREADS: u64 = 3;
/// Bytes of a file of the stress at most.
const FILE_LEN_MAX: u64 = 100_000;
/// Files and directories that a thread has at most.
const NAMES_MAX: usize = 60;

/// A thread's directory and what it should hold: files with their bytes, and directories.
struct Stress {
    top: PathBuf,
    model: BTreeMap<String, Option<Vec<u8>>>,
    rng: Rng,
    made: u64,
}

impl Stress {
    fn new(top: PathBuf, seed: u64) -> Stress {
        fs::create_dir(&top).unwrap();
        Stress { top, model: BTreeMap::new(), rng: Rng::new(seed), made: 0 }
    }

    /// A name that there is not, in one of the directories.
    fn fresh(&mut self) -> String {
        let dirs: Vec<String> =
            self.model.iter().filter(|(_, file)| file.is_none()).map(|(dir, _)| dir.clone()).collect();
        let dir = if self.rng.one_in(3) { String::new() } else { self.rng.pick(&dirs).cloned().unwrap_or_default() };
        self.made += 1;
        if dir.is_empty() { format!("n{}", self.made) } else { format!("{dir}/n{}", self.made) }
    }

    fn file(&mut self) -> Option<String> {
        let files: Vec<&String> = self.model.iter().filter(|(_, file)| file.is_some()).map(|(name, _)| name).collect();
        self.rng.pick(&files).map(|name| (*name).clone())
    }

    fn step(&mut self) {
        let many = self.model.len() >= NAMES_MAX;
        match self.rng.below(10) {
            0..3 if !many => {
                let (name, len) = (self.fresh(), self.rng.length(FILE_LEN_MAX) as usize);
                let bytes = self.rng.bytes(len);
                fs::write(self.top.join(&name), &bytes).unwrap();
                self.model.insert(name, Some(bytes));
            }
            3 if !many => {
                let name = self.fresh();
                if name.matches('/').count() < 4 {
                    fs::create_dir(self.top.join(&name)).unwrap();
                    self.model.insert(name, None);
                }
            }
            4 => {
                let Some(name) = self.file() else { return };
                let more = self.rng.bytes(1000);
                let mut file = fs::File::options().append(true).open(self.top.join(&name)).unwrap();
                file.write_all(&more).unwrap();
                if self.rng.one_in(2) {
                    file.sync_all().unwrap();
                }
                self.model.get_mut(&name).and_then(Option::as_mut).unwrap().extend(more);
            }
            5 => {
                let Some(name) = self.file() else { return };
                let to = if self.rng.one_in(2) { self.fresh() } else { self.file().unwrap() };
                fs::rename(self.top.join(&name), self.top.join(&to)).unwrap();
                if to != name {
                    let bytes = self.model.remove(&name).unwrap();
                    self.model.insert(to, bytes);
                }
            }
            6 => {
                let Some(name) = self.file() else { return };
                let to = self.fresh();
                fs::copy(self.top.join(&name), self.top.join(&to)).unwrap();
                let bytes = self.model[&name].clone();
                self.model.insert(to, bytes);
            }
            7 => {
                let Some(name) = self.file() else { return };
                let len = self.rng.below(FILE_LEN_MAX) as usize;
                fs::File::options().write(true).open(self.top.join(&name)).unwrap().set_len(len as u64).unwrap();
                self.model.get_mut(&name).and_then(Option::as_mut).unwrap().resize(len, 0);
            }
            8 => {
                let Some(name) = self.file() else { return };
                assert!(fs::read(self.top.join(&name)).unwrap() == *self.model[&name].as_ref().unwrap(), "{name}");
            }
            _ => {
                let Some(name) = self.file() else { return };
                fs::remove_file(self.top.join(&name)).unwrap();
                self.model.remove(&name);
            }
        }
    }

    /// Everything is there, and nothing else.
    fn must_hold(&self, top: &Path) {
        let mut found = BTreeMap::new();
        list(top, "", &mut found);
        let names = |model: &BTreeMap<String, Option<Vec<u8>>>| model.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&self.model));
        found.iter().for_each(|(name, bytes)| assert!(*bytes == self.model[name], "{name} holds something else"));
    }
}

fn list(dir: &Path, prefix: &str, out: &mut BTreeMap<String, Option<Vec<u8>>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_string_lossy());
        if path.is_dir() {
            list(&path, &format!("{name}/"), out);
            out.insert(name, None);
        } else {
            out.insert(name, Some(fs::read(&path).unwrap()));
        }
    }
}

/// Both loads side by side on one mount of a store that is far away, for some time; then everything is there, also for the
/// next mount, and the volume is sound.
fn load(seed: u64, options: &str, time: Duration) {
    if !Path::new("/dev/fuse").exists() {
        return skip("no mounts here");
    }
    let scratch = Scratch::new().unwrap();
    let store = Store::far();
    let url = store.url("volume");
    store.ok(scratch.path(), &["mkfs", "--size", "8G", &url]);
    let mounted = store.mount(&url, options);
    let end = Instant::now() + time;
    let top = mounted.path();
    let (exercise, stresses) = std::thread::scope(|scope| {
        let stressing: Vec<_> = (0..THREADS)
            .map(|n| {
                scope.spawn(move || {
                    let mut stress = Stress::new(top.join(format!("t{n}")), seed * THREADS + n);
                    while Instant::now() < end {
                        stress.step();
                    }
                    stress.must_hold(&stress.top);
                    stress
                })
            })
            .collect();
        let mut exercise = Exercise::new(top, seed);
        exercise.done.push(format!("seed {seed}, {options}"));
        while Instant::now() < end {
            exercise.step();
        }
        exercise.must_hold(&exercise.path());
        (exercise, stressing.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>())
    });
    let steps = (exercise.done.len(), stresses.iter().map(|stress| stress.made).sum::<u64>());
    let proxy = store.proxy.as_ref().unwrap();
    println!("seed {seed}: {steps:?} steps, {} requests, {} lost", proxy.requests(), proxy.lost());
    assert!(steps.0 > 20 && steps.1 > 20 && proxy.lost() > 0, "too little was done: {steps:?}, {} lost", proxy.lost());
    let (model, _) = exercise.end();
    mounted.unmount().unwrap();
    assert!(store.ok(scratch.path(), &["check", "--data", &url]).contains("clean"));
    let mounted = store.mount(&url, "ro");
    assert!(fs::read(mounted.path().join("v/f")).unwrap() == model, "the file holds something else afterwards");
    for (n, stress) in stresses.iter().enumerate() {
        stress.must_hold(&mounted.path().join(format!("t{n}")));
    }
    mounted.unmount().unwrap();
    for_the_kernel(&store, &scratch, &url, &model, &stresses);
}

/// The same for the kernel and its checker: a copy of the volume is sound, and holds the same.
fn for_the_kernel(store: &Store, scratch: &Scratch, url: &str, model: &[u8], stresses: &[Stress]) {
    let Some(oracle) = oracle() else { return };
    store.ok(scratch.path(), &["copy", url, "disk.img"]);
    let image = [scratch.path().join("disk.img")];
    oracle.must_be_sound(&image, "a copy of a volume on a store, after both loads").unwrap();
    let mounted = oracle.mount(&image, "ro").unwrap();
    assert!(fs::read(mounted.path().join("v/f")).unwrap() == model, "the kernel reads something else");
    for (n, stress) in stresses.iter().enumerate() {
        stress.must_hold(&mounted.path().join(format!("t{n}")));
    }
    mounted.unmount().unwrap();
}

/// Goal: a mount holds what was written to it while its store answers late and its connection breaks, and so does the next one.
/// Method: a file changed in every way beside directories changed by threads, through a proxy that delays by 20 ms and
/// loses a fortieth of requests and answers.
#[test]
fn under_load() {
    load(1, "", Duration::from_secs(5));
}

/// The same for `OLEO_FSX_SECONDS` (60) from seed `OLEO_FSX_SEED` on; with small bounds in turn, so that segments end and
/// writers wait more often.
#[test]
#[ignore = "by command: `cargo test --release -p oleo-cli --test it -- --ignored remote::`; `cargo xtask nightly`"]
fn longer() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let begun = Instant::now();
    let time = Duration::from_secs(number("OLEO_FSX_SECONDS").unwrap_or(60));
    let mut seed = number("OLEO_FSX_SEED").unwrap_or(1000);
    while begun.elapsed() < time {
        let options = ["", "segment=1M,inline=16K,dirty=2M", "claim=2,read_cache=64K"][seed as usize % 3];
        load(seed, options, Duration::from_secs(20).min(time));
        seed += 1;
    }
}
