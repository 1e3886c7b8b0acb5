use super::*;
use crate::manifest::Kind;

const TOP: Id = id(256);
const A: Id = id(257);
const B: Id = id(258);
const FILE: Id = id(259);
const OTHER: Id = id(260);

const fn id(ino: u64) -> Id {
    Id { tree: 5, ino }
}

fn node(kind: Kind, data: &[u8]) -> Arc<Node> {
    let mtime = (kind == Kind::File).then_some(crate::manifest::Time { sec: 1, nsec: 0 });
    let data = data.to_vec();
    let (owner, xattrs) = ((0, 0, 0, (0, 0)), BTreeMap::new());
    Arc::new(Node {
        kind,
        owner,
        nlink: 1,
        mtime,
        times: None,
        flags: None,
        room: None,
        xattrs,
        data,
        empty_subvol_dir: false,
    })
}

/// Two directories and the files in them: directory, name, inode, contents.
fn seen(files: &[(Id, &str, Id, &[u8])]) -> Seen {
    let mut out = Seen { top: TOP, nodes: BTreeMap::new(), entries: BTreeMap::new() };
    for dir in [TOP, A, B] {
        out.nodes.insert(dir, node(Kind::Dir, b""));
    }
    out.entries.insert((TOP, b"A".to_vec()), A);
    out.entries.insert((TOP, b"B".to_vec()), B);
    for (dir, name, file, data) in files {
        out.entries.insert((*dir, name.as_bytes().to_vec()), *file);
        let links = files.iter().filter(|f| f.2 == *file).count() as u64;
        let mut node = (*node(Kind::File, data)).clone();
        node.nlink = links;
        out.nodes.insert(*file, Arc::new(node));
    }
    out
}

fn run(moments: Vec<Seen>, promises: &[Option<Promise>]) -> History {
    let steps = promises.iter().map(|p| Step { label: String::new(), promise: *p }).collect();
    History { moments, steps, durable: Vec::new(), by_kernel: false, by_byte: false }
}

fn verdict(history: &History, found: &Seen) -> String {
    verify(history, Progress { done: history.steps.len(), begun: false }, None, found).join("; ")
}

/// Goal: a rename is one name or the other, never both, never none.
#[test]
fn a_rename_is_one_name_or_the_other() {
    let before = seen(&[(A, "x", FILE, b"1")]);
    let after = seen(&[(B, "y", FILE, b"1")]);
    let history = run(vec![before.clone(), after.clone()], &[None]);
    assert_eq!(verdict(&history, &before), "");
    assert_eq!(verdict(&history, &after), "");
    let both = seen(&[(A, "x", FILE, b"1"), (B, "y", FILE, b"1")]);
    assert!(verdict(&history, &both).contains("is A/x and B/y, allowed"), "{}", verdict(&history, &both));
    assert!(verdict(&history, &seen(&[])).contains("is gone"));
    // After an fsync of the file only the new name is right, after one of its new directory too.
    for promise in [Promise::Inode(FILE), Promise::Data(FILE), Promise::Inode(B), Promise::All] {
        let history = run(vec![before.clone(), after.clone(), after.clone()], &[None, Some(promise)]);
        assert!(
            verdict(&history, &before).contains("B/y leads to nothing"),
            "{promise:?}: {}",
            verdict(&history, &before)
        );
        assert_eq!(verdict(&history, &after), "", "{promise:?}");
    }
}

/// Goal: what a rename replaces is there, or what replaces it: never nothing.
#[test]
fn a_replaced_name_leads_to_one_of_the_two() {
    let before = seen(&[(A, "x", FILE, b"old"), (A, "new", OTHER, b"new")]);
    let after = seen(&[(A, "x", OTHER, b"new")]);
    let history = run(vec![before.clone(), after.clone()], &[None]);
    assert_eq!(verdict(&history, &before) + &verdict(&history, &after), "");
    let none = seen(&[(A, "new", OTHER, b"new")]);
    assert!(verdict(&history, &none).contains("A/x leads to nothing"), "{}", verdict(&history, &none));
}

/// Goal: bytes are those of the last promise or later, as a whole, and never those of another file.
#[test]
fn bytes_are_of_some_moment() {
    let file = |data: &[u8]| seen(&[(A, "x", FILE, data)]);
    let mut history = run(
        vec![file(b"aaaa"), file(b"bbbb"), file(b"bbbb"), file(b"bbcccc")],
        &[None, Some(Promise::Data(FILE)), None],
    );
    assert_eq!(verdict(&history, &file(b"bbbb")) + &verdict(&history, &file(b"bbcccc")), "");
    for wrong in [&b"aaaa"[..], b"bbcc", b"", b"bbdccc"] {
        assert!(verdict(&history, &file(wrong)).contains("as at no moment"));
    }
    history.by_kernel = true;
    assert_eq!(verdict(&history, &file(b"bbbb\0c")), "");
    for wrong in [&b"bbcc"[..3], b"bbdccc", b"aabb"] {
        assert!(!verdict(&history, &file(wrong)).is_empty(), "{}", wrong.escape_ascii());
    }
    (history.by_kernel, history.by_byte) = (false, true);
    assert_eq!(verdict(&history, &file(b"bbbbc")), "");
    for wrong in [&b"bbbbccc"[..], b"bbb", b"bbbba"] {
        assert!(!verdict(&history, &file(wrong)).is_empty(), "{}", wrong.escape_ascii());
    }
}

/// Goal: without a log there is one moment for everything; with one, each inode has its own.
#[test]
fn a_commit_is_one_moment() {
    let moments = vec![
        seen(&[]),
        seen(&[(A, "x", FILE, b"")]),
        seen(&[(A, "x", FILE, b""), (B, "y", OTHER, b"")]),
        seen(&[(A, "x", FILE, b""), (B, "y", OTHER, b"")]),
    ];
    let mut history = run(moments.clone(), &[None, None, None]);
    history.durable = vec![7, 7, 7, 8];
    let mixed = seen(&[(B, "y", OTHER, b"")]);
    let at = |log, generation, found: &Seen| {
        verify(&history, Progress { done: 3, begun: false }, Some(Commit { generation, log }), found).join("; ")
    };
    assert_eq!(at(true, 7, &mixed), "");
    assert!(at(false, 7, &mixed).contains("no log, and not the state of moments 0 to 0"));
    assert!(at(false, 8, &mixed).contains("no log, and not the state of moments 2 to 3"));
    assert_eq!(at(false, 8, &moments[3]), "");
    assert!(at(false, 8, &moments[1]).contains("no log"));
    assert!(at(false, 12, &moments[3]).contains("newest"));
}

/// Goal: link counts, entries of a synced directory, and inodes that come back from the dead are seen.
#[test]
fn other_rules() {
    let two = seen(&[(A, "x", FILE, b""), (B, "y", FILE, b"")]);
    let one = seen(&[(A, "x", FILE, b"")]);
    let history = run(vec![one.clone(), two.clone(), two.clone()], &[None, Some(Promise::Inode(B))]);
    assert_eq!(verdict(&history, &two), "");
    assert!(verdict(&history, &one).contains("B/y leads to nothing"));
    let mut miscounted = two.clone();
    miscounted.nodes.insert(FILE, one.nodes[&FILE].clone());
    assert!(verdict(&history, &miscounted).contains("1 links, 2 names"));
    let history = run(vec![one.clone(), seen(&[]), seen(&[])], &[None, Some(Promise::Inode(A))]);
    assert!(verdict(&history, &one).contains("A/x leads to inode 5/259"));
    let history = run(vec![seen(&[]), seen(&[])], &[None]);
    assert!(verdict(&history, &one).contains("it was at none"));
}

/// Goal: the times of a directory, flags and preallocated space that an fsync has promised are verified. Method: each
/// changes, is synced, and is found as it was before; and as it was promised.
#[test]
fn times_flags_and_space_are_looked_at() {
    let time = |sec| crate::manifest::Time { sec, nsec: 0 };
    let change = |seen: &mut Seen, id: Id, how: &dyn Fn(&mut Node)| {
        let mut node = (*seen.nodes[&id]).clone();
        how(&mut node);
        seen.nodes.insert(id, Arc::new(node));
    };
    let mut before = seen(&[(A, "x", FILE, b"1")]);
    for id in [A, FILE] {
        change(&mut before, id, &|n| (n.times, n.flags) = (Some((time(1), time(1))), Some(0)));
    }
    change(&mut before, FILE, &|n| n.room = Some(vec![Room { first: 0, end: 1, unwritten: false }]));
    let kept = |what: &str, id: Id, how: &dyn Fn(&mut Node)| {
        let mut after = before.clone();
        change(&mut after, id, how);
        let history = run(vec![before.clone(), after.clone(), after.clone()], &[None, Some(Promise::Inode(id))]);
        assert_eq!(verdict(&history, &after), "");
        assert!(verdict(&history, &before).contains(what), "{what}: {}", verdict(&history, &before));
        // Without the promise either is right.
        let history = run(vec![before.clone(), after.clone(), after], &[None, None]);
        assert_eq!(verdict(&history, &before), "");
    };
    kept("mtime", A, &|n| n.times = Some((time(2), time(1))));
    kept("ctime", A, &|n| n.times = Some((time(1), time(2))));
    kept("ctime", FILE, &|n| n.times = Some((time(1), time(2))));
    kept("flags", FILE, &|n| n.flags = Some(1));
    let reserved = Room { first: 1, end: 4, unwritten: true };
    kept("sector 1 is a hole", FILE, &|n| n.room.as_mut().unwrap().push(reserved));
}
