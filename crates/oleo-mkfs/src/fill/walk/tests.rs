use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use super::*;

fn options(threads: usize, bytes_ahead_max: u64) -> WalkOptions {
    WalkOptions { threads, bytes_ahead_max, skip: Vec::new(), boundaries: HashSet::new(), align: 4096 }
}

/// The events of a walk, as text that can be compared.
fn transcript(top: &Path, options: &WalkOptions) -> Vec<String> {
    let walk = walk(top, options, Ok).unwrap();
    let mut reported = Vec::new();
    let data = |piece: Piece<UnpreparedPiece>| {
        let piece = piece.take().unwrap().pop().unwrap();
        format!(
            "data {} {} {:?}",
            piece.offset,
            piece.bytes.len(),
            piece.bytes.iter().map(|&b| u64::from(b)).sum::<u64>()
        )
    };
    for event in &walk.events {
        match event.unwrap() {
            Event::Enter { dir } => reported.push(format!("enter {dir}")),
            Event::Leave { meta } => reported.push(format!("leave {:o}", meta.mode)),
            Event::More(piece) => reported.push(data(piece)),
            Event::Entry(entry) => {
                let name = String::from_utf8(entry.name).unwrap();
                let mode = entry.meta.mode;
                let (what, first) = match entry.body {
                    Body::Dir(n) => (format!("dir {n}"), None),
                    Body::File { size, first } => (format!("file {size}"), first),
                    Body::Link(_) => ("link".into(), None),
                    Body::Symlink(target) => (format!("-> {}", String::from_utf8(target).unwrap()), None),
                    Body::Node { major, minor } => (format!("node {major} {minor}"), None),
                };
                reported.push(format!("{name} {mode:o} {what}"));
                reported.extend(first.map(data));
            }
        }
    }
    reported
}

/// Goal: the events of a walk do not depend on threads or budget, and no budget deadlocks it. Method: a tree of some
/// depth with small, large and sparse files; many combinations; compare with one thread.
#[test]
fn same_story_for_every_thread_count() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = 0u8;
    for a in 0..6 {
        for b in 0..5 {
            let sub = dir.path().join(format!("d{a}/e{b}"));
            std::fs::create_dir_all(&sub).unwrap();
            for c in 0..7 {
                files = files.wrapping_add(1);
                std::fs::write(sub.join(format!("f{c}")), vec![files; usize::from(files) * 100]).unwrap();
            }
        }
    }
    std::fs::write(dir.path().join("large"), vec![7; PIECE_BYTES as usize * 2 + 5]).unwrap();
    let want = transcript(dir.path(), &options(1, 64 << 20));
    for threads in [1, 2, 7] {
        for budget in [1, 10_000, 5 << 20, 64 << 20] {
            assert_eq!(transcript(dir.path(), &options(threads, budget)), want, "{threads} threads, {budget} bytes");
        }
    }
    let data = want.iter().filter(|line| line.starts_with("data")).count();
    assert_eq!(data, 6 * 5 * 7 + 3);
}

/// Goal: order by name, types, holes and links are reported. Method: one of each.
#[test]
fn kinds_and_holes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let top = dir.path();
    std::fs::write(top.join("b"), "bb").unwrap();
    std::fs::hard_link(top.join("b"), top.join("a")).unwrap();
    symlink("some/where", top.join("c")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, top.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let sparse = std::fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(&[1; 100], 512 << 20).unwrap();
    std::fs::write(top.join("empty"), "").unwrap();
    for name in ["b", "sparse", "empty"] {
        std::fs::set_permissions(top.join(name), std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    std::fs::set_permissions(top, std::fs::Permissions::from_mode(0o750)).unwrap();
    let want = [
        "enter 0",
        "a 100644 file 2",
        "data 0 2 196",
        "b 100644 link",
        "c 120777 -> some/where",
        "empty 100644 file 0",
        "fifo 10600 node 0 0",
        "sparse 100644 file 1073741824",
        "data 536870912 4096 100",
        "leave 40750",
    ];
    assert_eq!(transcript(top, &options(2, 1 << 20)), want);
}

/// Goal: the image itself is left out, attributes that the host keeps are read, and dropping a walk in the middle
/// ends its threads.
#[test]
fn skip_xattrs_and_early_end() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for i in 0..2000 {
        std::fs::write(dir.path().join(format!("f{i}")), "x").unwrap();
    }
    let image = dir.path().join("f5");
    rustix::fs::setxattr(dir.path().join("f1"), c"trusted.z", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(dir.path().join("f1"), c"trusted.a", b"2", rustix::fs::XattrFlags::empty()).unwrap();
    let stat = std::fs::metadata(&image).unwrap();
    let skip = vec![HostFile { device: stat.dev(), inode: stat.ino() }];
    let walk = walk(dir.path(), &WalkOptions { skip, ..options(2, 1 << 20) }, Ok).unwrap();
    let mut seen = BTreeMap::new();
    for event in &walk.events {
        if let Event::Entry(entry) = event.unwrap() {
            if let Body::File { first: Some(piece), .. } = entry.body {
                piece.take().unwrap();
            }
            seen.insert(entry.name, entry.meta.xattrs);
        }
        if seen.len() == 1600 {
            break;
        }
    }
    drop(walk);
    assert!(!seen.contains_key(&b"f5"[..]));
    let want = [(b"trusted.a".to_vec(), b"2".to_vec()), (b"trusted.z".to_vec(), b"1".to_vec())];
    assert_eq!(seen[&b"f1"[..]], want);
}
