//! Listing directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Dir, FileType, OFlags};

use crate::mount::place::{Place, family, open};

family!(
    "";
    types_and_numbers, large after large_after, seek_to_each, rewind_sees_the_new, positions_outlive_other_changes, while_others_work,
    remove_all_while_listing, link_count_is_one, sizes_follow_names, long_names_fill_buffers, two_listings_at_once, renaming_while_listing,
);

/// Everything in a directory, with the position behind each; `.` and `..` left out.
fn list(dir: &mut Dir) -> Vec<(String, u64, FileType, i64)> {
    let mut out = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        if name != "." && name != ".." {
            out.push((name, entry.ino(), entry.file_type(), entry.offset()));
        }
    }
    out
}

fn opened(path: &std::path::Path) -> Dir {
    Dir::new(open(path, OFlags::RDONLY | OFlags::DIRECTORY).unwrap()).unwrap()
}

fn types_and_numbers(at: &Place) {
    at.file("file", b"");
    at.subdir("dir");
    rustix::fs::symlink("x", at.at("link")).unwrap();
    for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket), ("char", FileType::CharacterDevice)] {
        rustix::fs::mknodat(rustix::fs::CWD, at.at(name), kind, rustix::fs::Mode::from_raw_mode(0o600), 0x101).unwrap();
    }
    let listed = list(&mut opened(&at.dir));
    assert_eq!(listed.len(), 6);
    for (name, ino, kind, _) in listed {
        let stat = rustix::fs::lstat(at.at(&name)).unwrap();
        assert_eq!((ino, kind), (stat.st_ino, FileType::from_raw_mode(stat.st_mode)), "{name}");
    }
}

const LARGE: usize = 20_000;

fn large(at: &Place) {
    for n in 0..LARGE {
        fs::write(at.at(&format!("name-{n}")), b"").unwrap();
    }
    let listed = list(&mut opened(&at.dir));
    let names: BTreeSet<&str> = listed.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!((listed.len(), names.len()), (LARGE, LARGE));
    let inos: BTreeSet<u64> = listed.iter().map(|(_, ino, ..)| *ino).collect();
    assert_eq!(inos.len(), LARGE);
    for n in (0..LARGE).step_by(2) {
        fs::remove_file(at.at(&format!("name-{n}"))).unwrap();
    }
    large_after(&at.dir);
}

fn large_after(dir: &std::path::Path) {
    let names: BTreeSet<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), LARGE / 2);
    assert!(names.contains("name-1") && !names.contains("name-0"));
}

/// From the position behind any entry, exactly what came after it is listed.
fn seek_to_each(at: &Place) {
    for n in 0..300 {
        fs::write(at.at(&format!("a-name-of-some-length-{n}")), b"").unwrap();
    }
    let mut dir = opened(&at.dir);
    let all = list(&mut dir);
    for (i, (.., position)) in all.iter().enumerate().step_by(7) {
        dir.seek(*position).unwrap();
        let rest = list(&mut dir);
        assert_eq!(rest, all[i + 1..], "behind entry {i}");
    }
}

fn rewind_sees_the_new(at: &Place) {
    at.file("a", b"");
    let mut dir = opened(&at.dir);
    assert_eq!(list(&mut dir).len(), 1);
    at.file("b", b"");
    fs::remove_file(at.at("a")).unwrap();
    dir.rewind();
    let now = list(&mut dir);
    assert_eq!(now.len(), 1);
    assert_eq!(now[0].0, "b");
}

/// What is neither made nor removed meanwhile is listed once and only once.
fn positions_outlive_other_changes(at: &Place) {
    for n in 0..2000 {
        fs::write(at.at(&format!("{}-{n:05}", if n % 2 == 0 { "stays" } else { "goes" })), b"").unwrap();
    }
    let mut dir = opened(&at.dir);
    let mut seen = BTreeMap::new();
    let mut count = 0;
    while let Some(entry) = dir.read() {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        *seen.entry(name).or_insert(0) += 1;
        count += 1;
        if count % 10 == 0 && count / 10 * 2 < 2000 {
            let n = count / 10 * 2 - 1;
            drop(fs::remove_file(at.at(&format!("goes-{n:05}"))));
            fs::write(at.at(&format!("new-{n:05}")), b"").unwrap();
        }
    }
    for n in (0..2000).step_by(2) {
        assert_eq!(seen.get(&format!("stays-{n:05}")), Some(&1), "stays-{n:05}");
    }
    assert!(seen.values().all(|times| *times == 1), "something was listed twice");
}

fn while_others_work(at: &Place) {
    for n in 0..500 {
        fs::write(at.at(&format!("stays-{n}")), b"").unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..2 {
            let stop = &stop;
            s.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let path = at.at(&format!("moves-{t}-{}", n % 50));
                    fs::write(&path, b"").unwrap();
                    fs::rename(&path, at.at(&format!("moved-{t}-{}", n % 50))).unwrap();
                    fs::remove_file(at.at(&format!("moved-{t}-{}", n % 50))).unwrap();
                }
            });
        }
        for _ in 0..40 {
            let names: Vec<String> = list(&mut opened(&at.dir)).into_iter().map(|(name, ..)| name).collect();
            let stays = names.iter().filter(|n| n.starts_with("stays-")).count();
            if stays != 500 {
                stop.store(true, Ordering::Relaxed);
                panic!("{stays} of 500 that nobody touches");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// As `rm -r` does it.
fn remove_all_while_listing(at: &Place) {
    let dir = at.subdir("d");
    for n in 0..5000 {
        fs::write(dir.join(format!("{n}")), b"").unwrap();
    }
    let mut listing = opened(&dir);
    while let Some(entry) = listing.read() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap();
        if name != "." && name != ".." {
            fs::remove_file(dir.join(name)).unwrap();
        }
    }
    fs::remove_dir(&dir).unwrap();
}

fn link_count_is_one(at: &Place) {
    let dir = at.subdir("d");
    for n in 0..5 {
        fs::create_dir(dir.join(format!("{n}"))).unwrap();
    }
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 1);
    assert_eq!(fs::metadata(&at.top).unwrap().nlink(), 1);
}

/// A directory's size is twice the length of its names.
fn sizes_follow_names(at: &Place) {
    let dir = at.subdir("d");
    let size = || fs::metadata(&dir).unwrap().len();
    assert_eq!(size(), 0);
    fs::write(dir.join("12345"), b"").unwrap();
    assert_eq!(size(), 10);
    fs::rename(dir.join("12345"), dir.join("123")).unwrap();
    assert_eq!(size(), 6);
    fs::hard_link(dir.join("123"), dir.join("1")).unwrap();
    assert_eq!(size(), 8);
    fs::remove_file(dir.join("123")).unwrap();
    fs::remove_file(dir.join("1")).unwrap();
    assert_eq!(size(), 0);
}

fn long_names_fill_buffers(at: &Place) {
    let want: BTreeSet<String> = (0..500).map(|n| format!("{n:0>255}")).collect();
    for name in &want {
        fs::write(at.at(name), b"").unwrap();
    }
    let listed: Vec<_> = list(&mut opened(&at.dir));
    assert_eq!(listed.len(), 500);
    assert_eq!(listed.into_iter().map(|(name, ..)| name).collect::<BTreeSet<_>>(), want);
}

fn two_listings_at_once(at: &Place) {
    for n in 0..1000 {
        fs::write(at.at(&format!("{n}")), b"").unwrap();
    }
    let (mut one, mut two) = (opened(&at.dir), opened(&at.dir));
    let mut names = (Vec::new(), Vec::new());
    loop {
        let (a, b) = (one.read(), two.read());
        if a.is_none() && b.is_none() {
            break;
        }
        names.0.extend(a.map(|e| e.unwrap().file_name().to_owned()));
        names.1.extend(b.map(|e| e.unwrap().file_name().to_owned()));
    }
    assert_eq!(names.0.len(), 1002);
    assert_eq!(names.0, names.1);
}

/// Whoever renames each entry that is listed comes to an end, and whoever starts again sees the new names. (A name in another
/// directory would be no new entry here.)
fn renaming_while_listing(at: &Place) {
    const FILES: usize = 3000;
    for n in 0..FILES {
        at.file(&format!("old-{n}"), b"");
    }
    let mut dir = opened(&at.dir);
    let mut seen = 0;
    while let Some(entry) = dir.read() {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        if name.starts_with('.') {
            continue;
        }
        seen += 1;
        assert!(seen <= FILES, "endless");
        fs::rename(at.at(&name), at.at(&format!("new-{seen}"))).unwrap();
    }
    assert_eq!(seen, FILES);
    dir.rewind();
    let listed = list(&mut dir);
    assert_eq!(listed.len(), FILES);
    assert!(listed.iter().all(|(name, ..)| name.starts_with("new-")));
}
