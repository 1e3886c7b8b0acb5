//! Images made and used by the kernel, read block by block with this crate alone.

use std::collections::BTreeMap;
use std::fs;

use crate::common::Image;
use oleo_format::*;
use oleo_sim::budget::budget;
use oleo_sim::oracle::oracle;
use oleo_sim::specimen::aged;

/// What an item becomes when it is parsed and encoded again; `None` for items that have no owned form.
fn again(key: &Key, item: &[u8]) -> Option<Vec<u8>> {
    Some(match key.item_type {
        ItemType::EXTENT_DATA => FileExtent::parse(item).unwrap().encode(),
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => ExtentRecord::parse(key, item).unwrap().encode(),
        ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF
        | ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF => {
            let one = BackRef::parse_keyed(key, item).unwrap();
            assert_eq!(one.key(Logical(key.objectid)), *key);
            one.encode_keyed()
        }
        ItemType::CHUNK_ITEM => Chunk::parse(item).unwrap().encode(),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            DirEntry::encode_all(&DirEntry::parse_all(item).unwrap())
        }
        ItemType::INODE_REF => InodeRefEntry::encode_all(&InodeRefEntry::parse_all(item).unwrap()),
        ItemType::INODE_EXTREF => {
            let entries = InodeExtrefEntry::parse_all(item).unwrap();
            for e in &entries {
                assert_eq!(Key::inode_extref(Ino(key.objectid), e.parent, &e.name), *key);
            }
            InodeExtrefEntry::encode_all(&entries)
        }
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => RootRefEntry::parse(item).unwrap().encode(),
        ItemType::ROOT_ITEM => RootItem::decode(item).unwrap().encode(),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => UuidItem::parse(item).encode(),
        ItemType::QGROUP_STATUS => QgroupStatus::parse(item).unwrap().encode(),
        _ => return None,
    })
}

/// Goal: everything the kernel writes passes the verifier and survives parsing and encoding. Method: walk every tree of
/// file systems that the kernel aged, with quota on; compare items; decompress extents.
#[test]
fn aged_images_are_sound_and_round_trip_even() {
    aged_images_are_sound_and_round_trip(0);
}

#[test]
fn aged_images_are_sound_and_round_trip_odd() {
    aged_images_are_sound_and_round_trip(1);
}

/// Every second recipe of the sample from this one: two tests of half the time.
fn aged_images_are_sound_and_round_trip(from: usize) {
    let Some(oracle) = oracle() else { return };
    // The reader here knows no stripes; `oleo-volume` reads these.
    let striped = |mkfs: &str| ["raid10", "raid0", "raid5", "raid6"].iter().any(|profile| mkfs.contains(profile));
    let recipes = aged::recipes().into_iter().filter(|recipe| !striped(recipe.mkfs)).collect();
    for recipe in budget().sample(recipes, 2).into_iter().skip(from).step_by(2) {
        let scratch = oracle.scratch().unwrap();
        let made = aged::make(oracle, &scratch, &recipe).unwrap();
        let mounted = oracle.mount(&made.devices, "").unwrap();
        oleo_sim::oracle::run("btrfs", ["quota".as_ref(), "enable".as_ref(), mounted.path().as_os_str()]).unwrap();
        oleo_sim::oracle::run(
            "btrfs",
            ["quota".as_ref(), "rescan".as_ref(), "-w".as_ref(), mounted.path().as_os_str()],
        )
        .unwrap();
        mounted.unmount().unwrap();
        let image = Image::open(&made.devices);
        let mut kinds: BTreeMap<ItemType, usize> = BTreeMap::new();
        let mut packed = 0;
        image.each_item(&mut |tree, key, item| {
            *kinds.entry(key.item_type).or_default() += 1;
            if let Some(again) = again(&key, item) {
                assert_eq!(again, item, "{} tree {tree} {key}", recipe.name);
            }
            if key.item_type == ItemType::EXTENT_DATA {
                packed += usize::from(unpacks(&image, item));
            }
        });
        eprintln!("{}: {packed} compressed extents, items {kinds:?}", recipe.name);
        assert!(kinds.len() > 20, "{}: many kinds of items", recipe.name);
    }
}

/// Decompresses the extent of a file-extent item, if it is compressed.
fn unpacks(image: &Image, item: &[u8]) -> bool {
    match FileExtent::parse(item).unwrap() {
        FileExtent::Inline { compression, ram_bytes, data, .. } if compression != Compression::None => {
            decompress_inline(compression, &data, ram_bytes.0 as usize, image.rules.sectorsize).unwrap();
            true
        }
        FileExtent::Regular(e) if e.compression != Compression::None => {
            let data = image.read(e.disk_bytenr.0, e.disk_num_bytes.0 as usize);
            decompress(e.compression, &data, e.ram_bytes.0 as usize, image.rules.sectorsize).unwrap();
            true
        }
        _ => false,
    }
}

/// Goal: what the kernel compressed decompresses to what was written, byte for byte, inline and not.
/// Method: files of many lengths and textures under `compress-force`, read back from their extents.
#[test]
fn kernel_compression_reads_back() {
    let Some(oracle) = oracle() else { return };
    for option in ["compress-force=zlib:9", "compress-force=lzo", "compress-force=zstd:1", "compress-force=zstd:15"] {
        let scratch = oracle.scratch().unwrap();
        let devices = scratch.images("packed", 1, 256 << 20).unwrap();
        oracle.mkfs(&[], &devices).unwrap();
        let mounted = oracle.mount(&devices, option).unwrap();
        let mut files = BTreeMap::new();
        for (i, len) in [1, 100, 1500, 2047, 4096, 5000, 100_000, 131_072, 131_073, 1_000_000].into_iter().enumerate() {
            for texture in 0..3u64 {
                let data = texture_of(len, texture);
                let path = mounted.path().join(format!("f{i}-{texture}"));
                fs::write(&path, &data).unwrap();
                files.insert(std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap()), data);
            }
        }
        mounted.unmount().unwrap();
        let image = Image::open(&devices);
        let mut read: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut packed = [0; 2];
        let (_, root, level) = image.roots().into_iter().find(|(t, ..)| *t == TreeId::FS).unwrap();
        image.walk(root, level, TreeId::FS, &mut |leaf| {
            for (key, item) in leaf.iter().filter(|(k, _)| k.item_type == ItemType::EXTENT_DATA) {
                let file = read.entry(key.objectid).or_default();
                file.resize(key.offset as usize, 0);
                match FileExtent::parse(item).unwrap() {
                    FileExtent::Inline { compression, ram_bytes, data, .. } => {
                        packed[0] += usize::from(compression != Compression::None);
                        file.extend(match compression {
                            Compression::None => data,
                            c => decompress_inline(c, &data, ram_bytes.0 as usize, 4096).unwrap(),
                        });
                    }
                    FileExtent::Regular(e) => {
                        packed[1] += usize::from(e.compression != Compression::None);
                        let data = image.read(e.disk_bytenr.0, e.disk_num_bytes.0 as usize);
                        let whole = match e.compression {
                            Compression::None => data,
                            c => decompress(c, &data, e.ram_bytes.0 as usize, 4096).unwrap(),
                        };
                        file.extend(&whole[e.offset.0 as usize..(e.offset.0 + e.num_bytes.0) as usize]);
                    }
                    FileExtent::Prealloc(_) => panic!("nothing is preallocated"),
                }
            }
        });
        assert!(packed[0] > 0 && packed[1] > 10, "{option}: {packed:?} inline and regular extents are compressed");
        for (ino, want) in files {
            let have = read.get(&ino).map_or(&[][..], |f| &f[..want.len().min(f.len())]);
            assert!(have == want, "{option}: inode {ino} of {} bytes", want.len());
        }
    }
}

/// Goal: the kernel decompresses what we compress. Method: in an image of the kernel, replace its stream by ours for
/// every extent for which both need as many sectors, and its checksums by ours; mount; compare contents; scrub.
#[test]
fn kernel_reads_our_compression() {
    let Some(oracle) = oracle() else { return };
    for (option, algo, levels) in [
        ("compress-force=zlib:3", Compression::Zlib, vec![1, 3, 9]),
        ("compress-force=lzo", Compression::Lzo, vec![0]),
        ("compress-force=zstd:3", Compression::Zstd, vec![-15, 1, 3, 9, 15]),
    ] {
        let scratch = oracle.scratch().unwrap();
        let devices = scratch.images("packed", 1, 256 << 20).unwrap();
        oracle.mkfs(&["-m", "single", "-d", "single"], &devices).unwrap();
        let mounted = oracle.mount(&devices, option).unwrap();
        let mut files = Vec::new();
        for n in 0..60 {
            let path = format!("f{n}");
            let len = 20_000 + n * 1900;
            let data: Vec<u8> = texture_of(len, n as u64 % 3).iter().map(|b| b.wrapping_add((n / 3) as u8)).collect();
            fs::write(mounted.path().join(&path), &data).unwrap();
            files.push((path, data));
        }
        mounted.unmount().unwrap();
        let image = Image::open(&devices);
        let mut replaced: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        image.each_item(&mut |_, key, item| {
            if key.item_type != ItemType::EXTENT_DATA {
                return;
            }
            let FileExtent::Regular(e) = FileExtent::parse(item).unwrap() else { return };
            if e.compression != algo {
                return;
            }
            let theirs = image.read(e.disk_bytenr.0, e.disk_num_bytes.0 as usize);
            let data = decompress(algo, &theirs, e.ram_bytes.0 as usize, 4096).unwrap();
            let level = levels[replaced.len() % levels.len()];
            if let Some(ours) = compress(algo, level, &data, 4096).filter(|o| o.len() == theirs.len()) {
                assert_ne!(ours, theirs, "the test would show nothing");
                image.write(e.disk_bytenr.0, &ours);
                replaced.insert(e.disk_bytenr.0, ours);
            }
        });
        eprintln!("{option}: {} extents are ours", replaced.len());
        assert!(replaced.len() >= 15, "{option}: only {} extents fit", replaced.len());
        let (_, root, level) = image.roots().into_iter().find(|(t, ..)| *t == TreeId::CSUM).unwrap();
        image.walk(root, level, TreeId::CSUM, &mut |leaf| {
            let mut bytes = leaf.bytes().to_vec();
            for (slot, (key, item)) in leaf.iter().enumerate() {
                let start = HEADER_LEN + leaf.items()[slot].offset.get() as usize;
                for n in 0..item.len() / 4 {
                    let at = key.offset + n as u64 * 4096;
                    let csum = CsumType::Crc32c.csum(&image.read(at, 4096));
                    bytes[start + n * 4..start + n * 4 + 4].copy_from_slice(&csum[..4]);
                }
            }
            seal(&mut bytes, CsumType::Crc32c);
            image.write(leaf.logical().0, &bytes);
        });
        let mounted = oracle.mount(&devices, "ro").unwrap();
        for (path, data) in files {
            let have = fs::read(mounted.path().join(&path)).unwrap_or_else(|e| panic!("{option} {path}: {e}"));
            assert!(have == data, "{option} {path}");
        }
        mounted.unmount().unwrap();
    }
}

/// Text, text with noise in it, or runs of noise between zeros.
fn texture_of(len: usize, texture: u64) -> Vec<u8> {
    let mut rng = oleo_sim::rng::Rng::new(texture + 1);
    (0..len)
        .map(|i| {
            let noise = rng.next_u64().to_le_bytes()[3];
            match texture {
                0 => b"all work and no play makes a dull tree; "[i % 40],
                1 if i % 5 < 3 => b"abcde"[i % 5],
                2 if i % 700 > 300 => 0,
                _ => noise,
            }
        })
        .collect()
}

/// Goal: what btrfs-progs write passes too. Method: an image of `mkfs.btrfs --rootdir`, one of `btrfs-convert`.
#[test]
fn images_of_btrfs_progs_are_sound() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let dir = scratch.dir("dir").unwrap();
    oleo_sim::specimen::make(&dir, &oleo_sim::specimen::Options::default()).unwrap();
    let devices = scratch.images("filled", 1, 512 << 20).unwrap();
    oracle.mkfs(&["--rootdir", dir.to_str().unwrap()], &devices).unwrap();
    let converted = scratch.images("converted", 1, 512 << 20).unwrap();
    let run = |tool: &str, args: &[&str]| oleo_sim::oracle::run(tool, args).unwrap();
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    run("mkfs.ext4", &["-q", "-d", sources, converted[0].to_str().unwrap()]);
    run("btrfs-convert", &[converted[0].to_str().unwrap()]);
    for devices in [devices, converted] {
        let image = Image::open(&devices);
        let mut count = 0;
        image.each_item(&mut |tree, key, item| {
            count += 1;
            if let Some(again) = again(&key, item) {
                assert_eq!(again, item, "tree {tree} {key}");
            }
        });
        assert!(count > 1000, "{count} items");
    }
}

/// Goal: log trees pass. Method: fsync files, links, renames and attributes after a commit; copy the device as it is then.
#[test]
fn log_trees_are_sound() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let devices = scratch.images("logged", 1, 256 << 20).unwrap();
    oracle.mkfs(&[], &devices).unwrap();
    let mounted = oracle.mount(&devices, "").unwrap();
    let top = mounted.path();
    let write = |name: &str, data: &[u8]| {
        fs::write(top.join(name), data).unwrap();
        fs::File::open(top.join(name)).unwrap().sync_all().unwrap();
    };
    fs::create_dir(top.join("d")).unwrap();
    (0..200).for_each(|n| fs::write(top.join(format!("d/old{n}")), vec![7; n * 50]).unwrap());
    mounted.sync().unwrap();
    for n in 0..100 {
        write(&format!("new{n}"), &vec![1; n * 500]);
        fs::remove_file(top.join(format!("d/old{n}"))).unwrap();
        fs::rename(top.join(format!("d/old{}", n + 100)), top.join(format!("d/renamed{n}"))).unwrap();
    }
    fs::hard_link(top.join("new7"), top.join("d/link")).unwrap();
    write("new7", b"again");
    fs::File::open(top.join("d")).unwrap().sync_all().unwrap();
    let copy = scratch.path().join("copy");
    fs::copy(&devices[0], &copy).unwrap();
    mounted.unmount().unwrap();

    let image = Image::open(&[copy]);
    let root = Logical(image.sb.log_root.get());
    assert_ne!(root.0, 0, "the kernel left a log");
    let mut logs = Vec::new();
    image.walk(root, image.sb.log_root_level, TreeId::TREE_LOG, &mut |leaf| {
        logs.extend(leaf.iter().map(|(_, item)| RootItem::decode(item).unwrap()));
    });
    let mut kinds: BTreeMap<ItemType, usize> = BTreeMap::new();
    for log in logs {
        image.walk(Logical(log.bytenr.get()), log.level, TreeId::TREE_LOG, &mut |leaf| {
            leaf.iter().for_each(|(key, _)| *kinds.entry(key.item_type).or_default() += 1);
        });
    }
    eprintln!("{kinds:?}");
    assert!(kinds.contains_key(&ItemType::DIR_LOG_INDEX) && kinds.contains_key(&ItemType::EXTENT_CSUM));
}

/// The blocks of a dump-tree text by their address.
fn blocks_of(text: &str) -> BTreeMap<u64, String> {
    let mut blocks = BTreeMap::new();
    let mut current: Option<u64> = None;
    for line in text.lines() {
        let mut words = line.split(' ');
        let is_block = matches!(words.next(), Some("leaf" | "node"));
        match words.next().and_then(|n| n.parse().ok()) {
            Some(at) if is_block => current = Some(at),
            _ if !line.starts_with('\t') && !line.contains("uuid ") => current = None,
            _ => {}
        }
        if let Some(at) = current {
            let block: &mut String = blocks.entry(at).or_default();
            block.push_str(line);
            block.push('\n');
        }
    }
    blocks
}

/// A line of a dump without what only newer versions of btrfs-progs show: the key of a reference inside a record.
fn of_all_versions(line: &str) -> String {
    match line.split_once(") ") {
        Some((key, rest)) if key.starts_with("\t\t(17") && rest.contains("backref") => format!("\t\t{rest}"),
        _ => line.to_owned(),
    }
}

/// Goal: a user of `btrfs inspect-internal` reads our dumps without learning anything.
/// Method: dump every block of an aged image with both, compare line by line; the same for the superblock.
#[test]
fn dumps_read_like_those_of_btrfs_progs() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let recipe = aged::recipes().into_iter().find(|r| r.name == "holes-items").unwrap();
    let made = aged::make(oracle, &scratch, &recipe).unwrap();
    let path = made.devices[0].to_str().unwrap();
    let tool = |words: &[&str]| {
        let mut env = vec!["TZ=UTC", "btrfs", "inspect-internal"];
        env.extend(words);
        // Names in the specimen are not all UTF-8.
        let out = std::process::Command::new("env").args(env).arg(path).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let image = Image::open(&made.devices);
    let theirs = tool(&["dump-super", "-f"]);
    let ours = print::super_block(&image.sb, true).to_string();
    // Newer versions show zeros where there is no other uuid.
    let shown = |l: &&str| !l.is_empty() && !l.starts_with("metadata_uuid");
    let theirs: Vec<&str> = theirs.lines().skip(2).filter(shown).collect();
    let ours: Vec<&str> = ours.lines().filter(shown).collect();
    assert_eq!(ours, theirs);

    let theirs = blocks_of(&tool(&["dump-tree"]));
    let (mut same, mut seen, mut shown) = (0, 0, 0);
    for (tree, root, level) in image.roots() {
        image.walk(root, level, tree, &mut |leaf| {
            let ours = print::block(leaf, &image.rules).to_string();
            serde_json::to_string(&print::json::block(leaf, &image.rules)).unwrap();
            assert!(!ours.contains("error"), "{ours}");
            let Some(theirs) = theirs.get(&leaf.logical().0) else { return };
            for (ours, theirs) in ours.lines().zip(theirs.lines()) {
                seen += 1;
                let is_same = of_all_versions(ours) == of_all_versions(theirs);
                same += usize::from(is_same);
                if !is_same && shown < 5 {
                    shown += 1;
                    eprintln!("ours   {ours}\ntheirs {theirs}");
                }
            }
        });
    }
    eprintln!("{same} of {seen} lines are the same");
    // Names and values that are not printable are escaped here, and there only by newer versions.
    let escapes = |l: &str| l.starts_with("\t\tname: ") && l.contains("\\3");
    let least = if theirs.values().any(|block| block.lines().any(escapes)) { 999 } else { 950 };
    assert!(seen > 10_000 && same * 1000 >= seen * least, "{same} of {seen} lines are the same");
}
