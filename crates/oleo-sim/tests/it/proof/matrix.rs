//! Images made here from a tree with every kind of file, over the shapes that a file system can have: the kernel must
//! mount them and see the tree, `btrfs check` and a scrub must find nothing; what the kernel then writes, we read back.

use std::path::{Path, PathBuf};

use oleo::OpenOptions;
use oleo::mkfs::{BuildOptions, Source, build};
use oleo_format::{BlockGroupFlags, Compression, CsumType};
use oleo_fs::data::Compress;
use oleo_mkfs::{FillOptions, MkfsOptions, Profile};
use oleo_sim::budget::budget;
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::oracle::{Oracle, Scratch, oracle};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Mix, Target, generate};
use oleo_sim::specimen::aged::DETAIL;
use oleo_sim::specimen::{self, Options};

use crate::ours::{manifest_of, move_groups, open};

const MIB: u64 = 1 << 20;

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
struct Shape {
    nodesize: u32,
    csum: CsumType,
    devices: usize,
    data: Profile,
    metadata: Profile,
    /// Words for `-O`.
    features: &'static [&'static str],
    compress: Option<(Compression, i32)>,
}

const PLAIN: Shape = Shape {
    nodesize: 16384,
    csum: CsumType::Crc32c,
    devices: 1,
    data: Profile::Single,
    metadata: Profile::Dup,
    features: &[],
    compress: None,
};

/// The tree that all images are made from; larger nodes need more names before extended references begin.
fn source(scratch: &Scratch, shape: &Shape) -> PathBuf {
    let dir = scratch.dir("source").unwrap();
    let extref = !shape.features.contains(&"^extref");
    let hard_links = if extref { usize::try_from(shape.nodesize / 250 + 20).unwrap() } else { 20 };
    let options = Options { hard_links, wide: 600, large_len: 5 * MIB, ..Options::default() };
    specimen::make(&dir, &options).unwrap();
    dir
}

/// Makes the file system and fills it, as `oleo mkfs --rootdir` does.
pub fn build_from(
    devices: &[PathBuf],
    mkfs: MkfsOptions,
    source: &Path,
    compress: Option<(Compression, i32)>,
    size: Option<u64>,
) {
    let compress = compress.map(|(algorithm, level)| Compress { algorithm, level, force: false });
    let options = BuildOptions::default()
        .mkfs(mkfs)
        .source(Source::Dir(source.to_owned()))
        // Times other than that of modification change when files are read; without them the bytes are reproducible.
        .fill(FillOptions::default().compress(compress).epoch_seconds(size.is_none().then_some(1 << 40)))
        .size(size)
        .shrink(size.is_none());
    let report = build(devices, options).unwrap();
    assert!(report.filled.warnings.is_empty(), "{:?}", report.filled.warnings);
}

fn options(shape: &Shape) -> MkfsOptions {
    let mut options = MkfsOptions::default()
        .nodesize(Some(shape.nodesize))
        .csum(shape.csum)
        .data(Some(shape.data))
        .metadata(Some(shape.metadata))
        .label("matrix".into())
        // The kernel takes file systems with one id for one file system.
        .fsid(Some(uuid::Uuid::new_v4()));
    shape.features.iter().for_each(|word| options.features.apply(word).unwrap());
    options
}

fn prove(shape: Shape) {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let source = source(&scratch, &shape);
    let devices = scratch.images("matrix", shape.devices, 400 * MIB).unwrap();
    build_from(&devices, options(&shape), &source, shape.compress, Some(400 * MIB));
    let what = format!("{shape:?}");

    let found = oracle.check(&devices).unwrap();
    assert!(found.is_clean(), "{what}: btrfs check: {found}");
    let detail = Detail { holes: true, ..Detail::default() };
    let want = Manifest::of_dir(&source, detail).unwrap();
    let mounted = oracle.mount(&devices, "").unwrap();
    // Space that is set aside but not written, and zeros, may become holes.
    let ignore = Ignore { holes: true, ..Ignore::from_elsewhere() };
    want.must_equal(
        &Manifest::of_dir(mounted.path(), detail).unwrap(),
        &ignore,
        &format!("{what}: source | as the kernel sees it"),
    );
    let found = mounted.scrub().unwrap();
    assert!(found.is_clean(), "{what}: scrub: {found}");

    kernel_uses(&mounted, shape);
    assert_eq!(mounted.device_errors().unwrap(), 0, "{what}: device errors");
    mounted.unmount().unwrap();
    oracle.must_be_sound(&devices, &format!("{what}: after the kernel used it")).unwrap();
    // Looked at after mounting again: some times the kernel keeps in memory only.
    let mounted = oracle.mount(&devices, "ro").unwrap();
    let want = Manifest::of_dir(mounted.path(), DETAIL).unwrap();
    mounted.unmount().unwrap();
    let have = manifest_of(&devices, DETAIL).unwrap();
    want.must_equal(&have, &Ignore::default(), &format!("{what}: what the kernel wrote | as we see it"));

    // Everything moves: only addresses change.
    let image = open(&devices, OpenOptions::default().access(oleo::Access::Write)).unwrap();
    let kinds = BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
    assert!(move_groups(image.fs(), kinds).unwrap() > 10, "{what}: hardly anything has moved");
    image.close().unwrap();
    let have = manifest_of(&devices, DETAIL).unwrap();
    // FIEMAP reports compressed extents longer than they are, so they overlap what happens to lie behind them.
    let ignore = Ignore { sharing: shape.compress.is_some(), ..Ignore::default() };
    want.must_equal(&have, &ignore, &format!("{what}: before everything moved | after it"));
    oracle.must_be_sound(&devices, &format!("{what}: after everything moved")).unwrap();
    devices_are_lost(oracle, &devices, &shape, &want, &ignore);
}

/// The kernel reads everything without any of the sets of devices that both profiles do without.
fn devices_are_lost(oracle: Oracle, devices: &[PathBuf], shape: &Shape, want: &Manifest, ignore: &Ignore) {
    let losses_of = |profile: Profile| match profile {
        Profile::Raid1 | Profile::Raid10 | Profile::Raid5 => 1,
        Profile::Raid1c3 | Profile::Raid6 => 2,
        Profile::Raid1c4 => 3,
        _ => 0,
    };
    let losses = losses_of(shape.data).min(losses_of(shape.metadata));
    for lost in (1_u32..1 << devices.len()).filter(|set| set.count_ones() <= losses) {
        let rest: Vec<&PathBuf> =
            devices.iter().enumerate().filter(|(nth, _)| lost >> nth & 1 == 0).map(|(_, device)| device).collect();
        let what = format!("{shape:?}: without devices {lost:#b}");
        let mounted = oracle.mount(&rest, "ro,degraded").unwrap_or_else(|e| panic!("{what}: {e:#}"));
        let have = Manifest::of_dir(mounted.path(), DETAIL).unwrap_or_else(|e| panic!("{what}: {e:#}"));
        mounted.unmount().unwrap();
        want.must_equal(&have, ignore, &what);
    }
}

/// The kernel writes to it: new files, changes of ours, a snapshot, deletes.
fn kernel_uses(mounted: &oleo_sim::oracle::Mounted, shape: Shape) {
    let mut rng = Rng::new(u64::from(shape.nodesize));
    let mut host = Host::new(mounted.path(), 4096);
    for op in generate(rng.next_u64(), &Mix { steps: 300, ..Mix::default() }) {
        let _ = host.apply(&op);
    }
    let sizes = mounted.path().join("sizes");
    std::fs::remove_file(sizes.join("large-text")).unwrap();
    std::fs::write(sizes.join("random-8192"), rng.bytes(20_000)).unwrap();
    std::fs::rename(mounted.path().join("deep"), sizes.join("deep")).unwrap();
    std::fs::remove_dir_all(mounted.path().join("wide")).unwrap();
    mounted.sync().unwrap();
}

macro_rules! shapes {
    ($($name:ident: { $($field:ident: $value:expr),* $(,)? }),* $(,)?) => {
        const SHAPES: &[(&str, Shape)] = &[$((stringify!($name), Shape { $($field: $value,)* ..PLAIN })),*];
    };
}

/// Shapes of the sample in CI; each takes some seconds.
const SAMPLE_CI: usize = 8;

/// Verifies every second shape of the sample: two tests side by side.
fn prove_half(from: usize) {
    for (name, shape) in budget().sample(SHAPES.to_vec(), SAMPLE_CI).into_iter().skip(from).step_by(2) {
        eprintln!("{name}");
        prove(shape);
    }
}

#[test]
fn shapes_even() {
    prove_half(0);
}

#[test]
fn shapes_odd() {
    prove_half(1);
}

const NONE: Option<(Compression, i32)> = None;

// Every node size with every checksum; profiles, features and compression spread over them so that each value meets
// several others.
shapes! {
    n4k_crc32c: { nodesize: 4096, compress: Some((Compression::Zstd, 3)) },
    n4k_xxhash_bgt: { nodesize: 4096, csum: CsumType::Xxh64, features: &["block-group-tree"] },
    n4k_sha256_raid1: { nodesize: 4096, csum: CsumType::Sha256, devices: 2, data: Profile::Raid1, metadata: Profile::Raid1 },
    n4k_blake2_lzo: { nodesize: 4096, csum: CsumType::Blake2b, compress: Some((Compression::Lzo, 0)) },
    n16k_crc32c: { compress: NONE },
    n16k_xxhash_zlib: { csum: CsumType::Xxh64, compress: Some((Compression::Zlib, 3)) },
    n16k_sha256_raid0_bgt: {
        csum: CsumType::Sha256, devices: 3, data: Profile::Raid0, metadata: Profile::Raid1c3, features: &["block-group-tree"],
    },
    n16k_blake2_raid10: { csum: CsumType::Blake2b, devices: 4, data: Profile::Raid10, metadata: Profile::Raid10 },
    n64k_crc32c_zstd: { nodesize: 65536, compress: Some((Compression::Zstd, 15)) },
    n64k_xxhash_raid1c4: {
        nodesize: 65536, csum: CsumType::Xxh64, devices: 4, data: Profile::Raid1c4, metadata: Profile::Raid1c4,
        compress: Some((Compression::Lzo, 0)),
    },
    n64k_sha256_single_bgt: {
        nodesize: 65536, csum: CsumType::Sha256, metadata: Profile::Single, features: &["block-group-tree"],
    },
    n64k_blake2_raid1c3: {
        nodesize: 65536, csum: CsumType::Blake2b, devices: 3, data: Profile::Raid1c3, metadata: Profile::Raid1c3,
    },
    mixed: { nodesize: 4096, data: Profile::Single, metadata: Profile::Single, features: &["mixed-bg"] },
    mixed_dup_lzo: {
        nodesize: 4096, data: Profile::Dup, metadata: Profile::Dup, features: &["mixed-bg"],
        compress: Some((Compression::Lzo, 0)),
    },
    dup_data: { data: Profile::Dup },
    single_on_two: { devices: 2, metadata: Profile::Raid1 },
    raid0_on_two: { devices: 2, data: Profile::Raid0, metadata: Profile::Raid0 },
    raid10_on_two: { devices: 2, data: Profile::Raid10, metadata: Profile::Raid1 },
    raid5_on_two: { devices: 2, data: Profile::Raid5, metadata: Profile::Raid5 },
    raid5_mixed: { devices: 4, nodesize: 4096, data: Profile::Raid5, metadata: Profile::Raid5, features: &["mixed-bg"] },
    raid5_on_three_bgt: { devices: 3, data: Profile::Raid5, metadata: Profile::Raid1, features: &["block-group-tree"] },
    raid5_on_five_zstd: {
        devices: 5, csum: CsumType::Xxh64, data: Profile::Raid5, metadata: Profile::Raid5, compress: Some((Compression::Zstd, 3)),
    },
    raid6_on_three: { devices: 3, data: Profile::Raid6, metadata: Profile::Raid6 },
    raid6_on_six_raid1c3: { devices: 6, nodesize: 65536, data: Profile::Raid6, metadata: Profile::Raid1c3 },
    raid6_on_four_4k: { devices: 4, nodesize: 4096, data: Profile::Raid6, metadata: Profile::Raid6 },
    raid0_beside_raid6: { devices: 4, data: Profile::Raid0, metadata: Profile::Raid6 },
    without_no_holes: { features: &["^no-holes"] },
    without_extref: { features: &["^extref"] },
    without_free_space_tree: { features: &["^free-space-tree"], compress: Some((Compression::Zstd, 3)) },
    without_free_space_tree_mixed: {
        nodesize: 4096, data: Profile::Single, metadata: Profile::Single, features: &["mixed-bg", "^free-space-tree"],
    },
    without_free_space_tree_raid1: {
        devices: 2, csum: CsumType::Xxh64, data: Profile::Raid1, metadata: Profile::Raid1,
        features: &["^free-space-tree", "^skinny-metadata", "^no-holes"],
    },
    without_skinny_metadata: { features: &["^skinny-metadata"] },
}

/// Goal: what cannot be made is refused by name, before anything is written.
#[test]
fn impossible_volumes_are_refused_by_name() {
    let scratch = Scratch::new().unwrap();
    let device = scratch.image("refused.img", 400 * MIB).unwrap();
    for (words, name) in [
        ("^free-space-tree,block-group-tree", "free-space-tree"),
        ("^no-holes,block-group-tree", "no-holes"),
        ("zoned", "zoned"),
        ("raid-stripe-tree", "raid-stripe-tree"),
    ] {
        let mut mkfs = MkfsOptions::default();
        let result = words.split(',').try_for_each(|word| mkfs.features.apply(word)).map_err(oleo::Error::from);
        let result = result.and_then(|()| build(&[&device], BuildOptions::default().mkfs(mkfs).size(Some(400 * MIB))));
        let message = result.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(message.contains(name), "{words}: {message:?}");
    }
    assert!(std::fs::read(&device).unwrap().iter().all(|b| *b == 0), "something was written");
}

/// Goal: an image that grows as needed and is cut behind its last chunk is as good as any; the same input gives the same
/// bytes.
#[test]
fn grown_and_shrunk() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let source = source(&scratch, &PLAIN);
    let (first, second) = (scratch.path().join("first.img"), scratch.path().join("second.img"));
    for path in [&first, &second] {
        let mkfs = options(&PLAIN).fsid(Some(uuid::Uuid::from_bytes([0x5a; 16])));
        build_from(std::slice::from_ref(path), mkfs, &source, Some((Compression::Zstd, 3)), None);
    }
    assert!(std::fs::read(&first).unwrap() == std::fs::read(&second).unwrap(), "the same input, other bytes");
    std::fs::remove_file(&second).unwrap();
    oracle.must_be_sound(&[&first], "shrunk").unwrap();
    let mounted = oracle.mount(&[&first], "ro").unwrap();
    let ignore = Ignore { holes: true, ..Ignore::from_elsewhere() };
    let want = Manifest::of_dir(&source, Detail::default()).unwrap();
    want.must_equal(&Manifest::of_dir(mounted.path(), Detail::default()).unwrap(), &ignore, "source | image");
}
