//! Sound trees give no findings; and the verdict does not depend on how a tree is cut into leaves and how these are
//! joined.

use oleo_format::{FileType, Ino, InodeFlags, ItemType, Key};
use oleo_sim::rng::Rng;

use super::super::{Forest, LeafSummary};
use super::kit::*;
use crate::finding::Kind;

/// Goal: the states in which eviction leaves inodes without names are not damage; with a name they are. Method: an
/// orphan with fewer extents than counted; a directory with half of its entries; a link without target.
#[test]
fn half_evicted() {
    let mut tree = Tree::new();
    let file = tree.inode(FileType::RegFile);
    tree.data(file, 0, 4 * SECTOR);
    tree.edit(file, |i| i.nbytes = (100 * SECTOR).into());
    let link = tree.inode(FileType::Symlink);
    tree.set_size(link, 7);
    let dir = tree.inode(FileType::Dir);
    let inside = tree.inode(FileType::RegFile);
    tree.entry(dir, b"gone", Key::inode(Ino(inside)), FileType::RegFile);
    tree.remove(Key::dir_item(Ino(dir), b"gone"));
    tree.set_size(dir, 0);
    for ino in [file, link, dir, inside] {
        tree.orphan(ino);
    }
    let items = tree.list();
    let every: Vec<usize> = (1..items.len()).collect();
    for cuts in [&[][..], &every] {
        assert_eq!(check_cut(&items, cuts, Order::Halves, How::default()).findings, []);
    }
    for ino in [file, link, dir] {
        let mut tree = tree.clone();
        tree.remove(Key::orphan(ino));
        tree.link(ino, ROOT, b"named");
        let kinds = check(&tree).kinds();
        let want = match ino {
            _ if ino == file => vec![Kind::FileBytes],
            _ if ino == link => vec![Kind::SymlinkSize],
            _ => vec![Kind::DirSize, Kind::DirItem, Kind::InodeRef],
        };
        assert_eq!(kinds, want);
    }
}

/// A random sound tree. Without `no_holes`, every file is covered.
fn random(seed: u64, no_holes: bool) -> Tree {
    let mut rng = Rng::new(seed);
    let mut tree = Tree::new();
    let mut dirs = vec![ROOT];
    let mut files = Vec::new();
    for n in 0..20 + rng.below(60) {
        let dir = *rng.pick(&dirs).unwrap();
        let name = format!("name-{n}-{}", "x".repeat(usize::try_from(rng.below(20)).unwrap()));
        match rng.below(8) {
            0 | 1 => dirs.push(tree.make(FileType::Dir, dir, name.as_bytes())),
            2 => {
                let link = tree.make(FileType::Symlink, dir, name.as_bytes());
                tree.inline(link, b"target");
            }
            3 => {
                tree.make(FileType::Fifo, dir, name.as_bytes());
            }
            4 if !files.is_empty() => {
                let file = *rng.pick(&files).unwrap();
                if rng.below(2) == 0 {
                    tree.link(file, dir, name.as_bytes());
                } else {
                    tree.link_extended(file, dir, name.as_bytes());
                }
            }
            5 => {
                let to = Key::new(300 + n, ItemType::ROOT_ITEM, u64::MAX);
                tree.entry(dir, name.as_bytes(), to, FileType::Dir);
            }
            6 => {
                let ino = tree.inode(FileType::RegFile);
                tree.orphan(ino);
            }
            _ => {
                let file = tree.make(FileType::RegFile, dir, name.as_bytes());
                files.push(file);
                tree.xattr(file, b"user.one", b"1");
                tree.xattr(file, b"user.two", b"2");
                let mut at = 0;
                for _ in 0..rng.below(6) {
                    let len = SECTOR * (1 + rng.below(9));
                    match rng.below(3) {
                        0 if no_holes => {}
                        0 => tree.hole(file, at, len),
                        _ => drop(tree.data(file, at, len)),
                    }
                    at += len;
                }
                if at == 0 {
                    tree.inline(file, b"some bytes");
                } else {
                    tree.set_size(file, at - rng.below(SECTOR));
                }
                if rng.below(4) == 0 {
                    tree.edit(file, |i| i.flags = InodeFlags::NODATASUM.bits().into());
                }
            }
        }
    }
    tree
}

/// Goal: sound trees of all shapes are silent, with and without NO_HOLES.
#[test]
fn sound_trees_are_silent() {
    for seed in 0..200 {
        for no_holes in [false, true] {
            let verdict = check_with(&random(seed, no_holes), How { no_holes, ..How::default() });
            assert_eq!(verdict.findings, [], "seed {seed} no_holes {no_holes}");
        }
    }
}

/// Goal: the verdict is the same however the tree is cut and joined, for sound and for damaged trees. Method: random
/// items are removed or given other keys' bytes; random cuts; three orders of joining.
#[test]
fn cuts_do_not_matter() {
    let mut damaged = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(seed ^ 0xabcd);
        let mut items = random(seed, false).list();
        for _ in 0..rng.below(4) {
            let at = usize::try_from(rng.below(items.len() as u64)).unwrap();
            if rng.below(2) == 0 {
                items.remove(at);
            } else {
                let from = usize::try_from(rng.below(items.len() as u64)).unwrap();
                items[at].1 = items[from].1.clone();
            }
        }
        let how = How { no_holes: false, ..How::default() };
        let whole = check_cut(&items, &[], Order::FromLeft, how);
        damaged += usize::from(!whole.findings.is_empty());
        for order in [Order::FromLeft, Order::FromRight, Order::Halves] {
            let mut cuts: Vec<usize> =
                (0..rng.below(30)).map(|_| usize::try_from(rng.below(items.len() as u64)).unwrap()).collect();
            cuts.sort_unstable();
            let cut = check_cut(&items, &cuts, order, how);
            assert_eq!(cut, whole, "seed {seed} {order:?} {cuts:?}");
        }
        let every: Vec<usize> = (1..items.len()).collect();
        assert_eq!(check_cut(&items, &every, Order::Halves, how), whole, "seed {seed}: a leaf for every item");
    }
    assert!(damaged > 50, "only {damaged} damaged trees");
}

/// Goal: items of any bytes under any keys never panic and are skipped or reported. Method: sound trees with bytes
/// flipped, items cut short, keys changed; and items of random bytes. The same items are passed to the checks between
/// trees.
#[test]
fn hostile_items() {
    let mut reported_of = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let mut items = random(seed, true).items;
        for _ in 0..1 + rng.below(20) {
            let keys: Vec<Key> = items.keys().copied().collect();
            let key = *rng.pick(&keys).unwrap();
            let Some(mut bytes) = items.remove(&key) else { continue };
            let mut new_key = key;
            match rng.below(5) {
                0 if !bytes.is_empty() => {
                    let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
                    bytes[at] ^= 1 << rng.below(8);
                }
                1 => bytes.truncate(usize::try_from(rng.below(bytes.len() as u64 + 1)).unwrap()),
                2 => {
                    new_key.objectid = *rng.pick(&[0, 1, 255, 256, u64::MAX, Key::ORPHAN, Key::FREE_INO, 300]).unwrap()
                }
                3 => new_key.offset = *rng.pick(&[0, 1, 4095, u64::MAX, u64::MAX - 4095, 1 << 63]).unwrap(),
                _ => {
                    new_key.item_type = ItemType(u8::try_from(rng.below(256)).unwrap());
                    bytes = (0..rng.below(500)).map(|_| u8::try_from(rng.below(256)).unwrap()).collect();
                }
            }
            items.insert(new_key, bytes);
        }
        let items: Vec<(Key, Vec<u8>)> = items.into_iter().collect();
        let how = How { no_holes: false, ..How::default() };
        let verdict = check_cut(&items, &[], Order::FromLeft, how);
        reported_of += usize::from(!verdict.findings.is_empty());
        super::between::check_items(&items);
    }
    assert!(reported_of > 200, "only {reported_of} of 300 were noticed");
}

/// Goal: neighbours of a lost block are not checked, and everything else is. Method: one leaf in the middle is lost;
/// findings of inodes that lie wholly elsewhere stay.
#[test]
fn around_a_lost_block() {
    let mut tree = Tree::new();
    let files: Vec<u64> = (0..9u8).map(|n| tree.make(FileType::RegFile, ROOT, &[b'a' + n])).collect();
    for &file in &files {
        tree.data(file, 0, SECTOR);
        tree.set_size(file, SECTOR);
        // All of them are wrong.
        tree.edit(file, |i| i.nbytes = 1.into());
    }
    let items = tree.list();
    // From the data of the third file to the inode item of the sixth.
    let from = items.iter().position(|(k, _)| *k == Key::extent_data(Ino(files[2]), 0)).unwrap();
    let to = items.iter().position(|(k, _)| *k == Key::inode(Ino(files[5]))).unwrap() + 1;
    for order in [false, true] {
        let verdict = reported(How::default(), |c| {
            let leaf = |part: &[(Key, Vec<u8>)]| LeafSummary::of_items(c, part.iter().map(|(k, v)| (*k, v.as_slice())));
            let (a, b) = (leaf(&items[..from]), leaf(&items[to..]));
            let lost = LeafSummary::lost();
            let summaries = if order { a.then(&lost, c).then(&b, c) } else { a.then(&lost.then(&b, c), c) };
            let look = &mut |_: &mut dyn FnMut(&Key, &[u8])| panic!("a tree with a hole is not looked into");
            Forest::default().check(c, summaries, false, look);
        });
        let have: Vec<_> = verdict.findings.iter().map(|f| (f.kind, f.at.key.unwrap().objectid)).collect();
        let want: Vec<_> = [0, 1, 6, 7, 8].map(|n| (Kind::FileBytes, files[n])).to_vec();
        assert_eq!(have, want);
    }
}
