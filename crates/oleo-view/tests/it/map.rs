//! Maps of volumes that are made here, in numbers and as markup.

use std::path::Path;

use oleo::fs::{CloneRange, parse_compress};
use oleo::inspect::Inspector;
use oleo::{Image, OpenOptions, SnapshotOptions};
use oleo_view::{Findings, Map, MapOptions, to_html, to_svg};

const NAMES: [&[u8]; 7] = [
    b"<script>alert(1)<",
    b"\"onload=\"alert(1)\" x='",
    b"]]><!--",
    b"line\nbreak\x1b[31m",
    b"\xff\xfe\xc0\xaf",
    "\u{202e}txt.exe\u{200b}".as_bytes(),
    b"&lt;&amp;",
];

fn read(path: &Path, options: &MapOptions) -> Map {
    Map::read(&Inspector::open(path, &OpenOptions::default()).unwrap(), options).unwrap()
}

fn fill(image: &Image, path: &[u8], bytes: usize, seed: u8) {
    // No two sectors are equal, and none compresses.
    let mut x = u64::from(seed) << 32 | 0x9e37_79b9;
    let data: Vec<u8> = (0..bytes)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect();
    image.write(path, &data).unwrap();
}

/// Goal: every number is that of what the library counts by other means. Method: two subvolumes, snapshots, clones, compressed data; compare with usage, `subvol_sizes` (du --set
/// is the same sums), and the exact sizes of what was written.
#[test]
fn numbers_are_those_of_usage_and_sets() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    image.create_subvol("a").unwrap();
    image.create_dir("a/dir").unwrap();
    fill(&image, b"a/dir/only", 3 << 20, 1);
    fill(&image, b"a/shared", 2 << 20, 2);
    image.sync().unwrap();
    image.snapshot("a", "snap", &SnapshotOptions::default().read_only(true)).unwrap();
    image.remove(&image.top().unwrap(), "a/dir/only", oleo::fs::Depth::One).unwrap();
    fill(&image, b"a/dir/new", 1 << 20, 3);
    image.create_subvol("b").unwrap();
    fill(&image, b"b/original", 4 << 20, 4);
    let (from, to) = (image.find("b/original").unwrap(), image.create_file("a/clone").unwrap());
    image.fs().clone_range(&from, to.inode(), &CloneRange { from: 0, to: 0, len: 0 }).unwrap();
    // Open files keep the image in use.
    drop((from, to));
    image.close().unwrap();

    let map = read(&path, &MapOptions::default());
    assert_eq!((map.notes.as_slice(), map.sample), (&[][..], None));
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    // Usage.
    for group in image.df() {
        let of: Vec<_> = map.groups.iter().filter(|g| g.kind == group.type_name()).collect();
        assert_eq!(of.iter().map(|g| g.len).sum::<u64>(), group.total.0);
        assert_eq!(of.iter().map(|g| g.used.unwrap()).sum::<u64>(), group.used.0);
    }
    let used: u64 = map.groups.iter().map(|g| g.used.unwrap()).sum();
    assert_eq!(map.space.data + map.space.metadata, used);
    assert_eq!(map.space.cells.data.iter().sum::<u64>(), map.space.data);
    assert_eq!(map.space.cells.metadata.iter().sum::<u64>(), map.space.metadata);
    assert_eq!(map.generations.data.iter().sum::<u64>(), map.space.data);
    assert_eq!(map.generations.metadata.iter().sum::<u64>(), map.space.metadata);
    // Sharing.
    let sizes = oleo::layers::jobs::subvol_sizes(image.fs()).unwrap();
    for size in &sizes {
        let subvol = map.sharing.subvol(size.id.0).unwrap();
        assert_eq!((subvol.reached, subvol.alone), (Some(size.rfer), Some(size.excl)), "{}", size.id.0);
        assert_eq!(oleo::layers::jobs::frees(image.fs(), &[size.id]).unwrap(), size.excl);
    }
    let id = |path: &str| image.subvol(path).unwrap().tree().0;
    let place = |id: u64| map.sharing.matrix_of.iter().position(|of| *of == id).unwrap();
    let both = |x: &str, y: &str| map.sharing.matrix[place(id(x)) * map.sharing.matrix_of.len() + place(id(y))];
    assert_eq!((both("a", "b"), both("b", "a")), (4 << 20, 4 << 20));
    assert_eq!(both("snap", "b"), 0);
    assert!(both("a", "snap") >= 2 << 20 && both("a", "snap") < 3 << 20);
    assert_eq!(map.sharing.subvol(id("snap")).unwrap().snapshot_of, Some(id("a")));
    assert_eq!(map.sharing.sets.iter().map(|set| set.bytes).sum::<u64>() + map.sharing.other_sets, {
        let sets: u64 = sizes.iter().map(|size| size.excl).sum();
        sets + map.sharing.sets.iter().filter(|set| set.subvols.len() > 1).map(|set| set.bytes).sum::<u64>()
    });
    // Paths: what was deleted in the one is alone in the other; what is shared is nobody's.
    let bytes: Vec<(String, u64)> =
        map.paths.nodes.iter().enumerate().map(|(at, node)| (map.paths.path(at), node.bytes)).collect();
    let of = |path: &str| bytes.iter().find(|(of, _)| of == path).map(|(_, bytes)| *bytes);
    assert_eq!(
        (of("snap/dir/only"), of("a/dir/new"), of("a/dir"), of("snap")),
        (Some(3 << 20), Some(1 << 20), Some(1 << 20), Some(3 << 20))
    );
    assert_eq!((of("b"), of("a/clone"), of("")), (None, None, Some(4 << 20)));
}

/// Goal: compressed bytes are those on disk, and what they stand for is known.
#[test]
fn compression_is_seen() {
    let scratch = tempfile::tempdir().unwrap();
    let (dir, path) = (scratch.path().join("dir"), scratch.path().join("disk.img"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("zeros"), vec![b'x'; 8 << 20]).unwrap();
    let options = oleo::mkfs::BuildOptions::default()
        .source(oleo::mkfs::Source::Dir(dir))
        .fill(oleo::mkfs::FillOptions::default().compress(parse_compress("zstd:3").unwrap()))
        .mkfs(oleo::mkfs::MkfsOptions::unique());
    oleo::mkfs::build(&[&path], options).unwrap();
    let map = read(&path, &MapOptions::default());
    assert_eq!(map.space.compressed_ram, 8 << 20);
    assert_eq!(map.space.compressed, map.space.data);
    assert!(map.space.compressed > 0 && map.space.compressed < 1 << 20);
    assert_eq!(map.space.cells.compressed.iter().sum::<u64>(), map.space.compressed);
}

/// Goal: with little memory a sample is taken, said in numbers and pictures, and its sums are near the truth. Method: 3000 files of equal size; tables of 64 entries and more.
#[test]
fn little_memory_takes_a_sample() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    image.create_subvol("v").unwrap();
    for n in 0..3000u32 {
        image.write(format!("v/{n}").as_bytes(), &[n as u8; 16384]).unwrap();
    }
    image.snapshot("v", "s", &SnapshotOptions::default()).unwrap();
    image.close().unwrap();
    let exact = read(&path, &MapOptions::default());
    assert_eq!(exact.sample, None);
    let map = read(&path, &MapOptions { table_bytes: 256 << 10, ..MapOptions::default() });
    let sample = map.sample.unwrap();
    assert!(sample.one_in >= 4 && sample.extents <= 512, "{sample:?}");
    // Tree blocks are counted all the same, however few fit: only data is sampled.
    let (near, truth) = (map.sharing.sets[0].bytes as f64, exact.sharing.sets[0].bytes as f64);
    assert_eq!(map.sharing.sets[0].subvols, exact.sharing.sets[0].subvols);
    assert!((near - truth).abs() < truth / 4.0, "{near} {truth}");
    assert_eq!(map.space.data, exact.space.data);
    for text in [to_html(&map), to_svg(&map)] {
        assert!(text.contains(&format!("one of {}", sample.one_in)));
    }
    assert!(serde_json::to_string(&map).unwrap().contains(&format!("\"one_in\":{}", sample.one_in)));
}

/// What stands between angle brackets, and what does not.
fn tags(markup: &str) -> impl Iterator<Item = &str> {
    markup.split('<').skip(1).map(|part| part.split('>').next().unwrap())
}

/// Goal: no name, label, or finding becomes markup. Method: names of all bad kinds as subvolumes, directories, files and labels; every tag of the output is one that the pictures are made of, without
/// attributes that do anything; no control characters are left.
#[test]
fn hostile_names_stay_text() {
    const KNOWN: [&str; 38] = [
        "?xml", "!doctype", "svg", "title", "desc", "style", "text", "rect", "path", "g", "html", "head", "meta",
        "body", "a", "h1", "h2", "p", "ul", "li", "nav", "main", "section", "details", "summary", "div", "table",
        "caption", "thead", "tbody", "tr", "th", "td", "br", "hr", "b", "i", "em",
    ];
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    for (n, name) in NAMES.iter().enumerate() {
        image.create_subvol(*name).unwrap();
        let dir = [name, &b"/"[..], name].concat();
        image.create_dir(&dir[..]).unwrap();
        fill(&image, &[&dir[..], b"/", name].concat(), 1 << 20, n as u8);
        fill(&image, &[name, &b"/"[..], &[b'w'; 255]].concat(), 1 << 20, n as u8 + 100);
    }
    image.close().unwrap();
    let mut map = read(&path, &MapOptions::default());
    map.label = "<script>x</script>".into();
    let hostile = serde_json::json!({"findings": [{"kind": "<img src=x onerror=alert(1)>", "at": 1 << 22, "path": "a\u{1b}\"<b>", "have": "<", "want": ">"}]});
    map.add_findings(Findings::of_json(&hostile.to_string()).unwrap());
    for markup in [to_html(&map), to_svg(&map)] {
        assert!(markup.contains("&lt;script&gt;"));
        assert!(!markup.contains(|c: char| c.is_control() && c != '\n'), "control characters");
        for tag in tags(&markup) {
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
            assert!(KNOWN.contains(&name), "{tag}");
            let attributes = tag.split('"').step_by(2).flat_map(|part| part.split_whitespace());
            assert!(!attributes.clone().any(|part| part.starts_with("on")), "{tag}");
        }
        // Quotes in names are escaped, so that those left come in pairs within each tag.
        assert!(tags(&markup).all(|tag| tag.matches('"').count() % 2 == 0));
    }
    let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&map).unwrap()).unwrap();
    assert_eq!(json["findings"]["list"][0]["path"], "a\\x1b\\\"<b>");
}

/// Goal: a map of a damaged volume says what it could not read, and shows the rest. Method: overwrite a leaf of a subvolume, with all its copies.
#[test]
fn damage_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    image.create_subvol("v").unwrap();
    fill(&image, b"v/file", 1 << 20, 1);
    image.close().unwrap();
    let inspector = Inspector::open(&path, &OpenOptions::default()).unwrap();
    let tree = inspector.trees().unwrap().into_iter().find(|tree| tree.tree.0 == 256).unwrap();
    let chunk = inspector.volume().chunk_of(tree.root).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for stripe in &chunk.stripes {
        let at = stripe.offset.0 + (tree.root.0 - chunk.start.0);
        std::os::unix::fs::FileExt::write_all_at(&file, &[0x5a; 4096], at).unwrap();
    }
    let mut map = read(&path, &MapOptions::default());
    assert!(map.notes.iter().any(|note| note.contains("1 blocks of subvolumes cannot be read")), "{:?}", map.notes);
    assert_eq!(map.space.data, 1 << 20);
    let report = oleo::check::image(&path, &OpenOptions::default(), Default::default(), &Default::default()).unwrap();
    map.add_findings(Findings::of_check(&report));
    assert!(!map.findings.cells.is_empty());
    let (cell, _) = map.findings.cells[0];
    assert!(map.findings.list.iter().any(|finding| finding.cell == Some(cell)));
    let html = to_html(&map);
    assert!(html.contains("class=\"mark\""), "the finding is on the map");
    assert!(html.contains("cannot be read"), "the note is on the page");
    assert!(map.unread > 0);
}

/// A number in the attributes of a tag.
fn attribute(tag: &str, name: &str) -> f64 {
    let (_, rest) = tag.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("{name} in {tag}"));
    rest.split('"').next().unwrap().parse().unwrap()
}

/// Goal: labels lie within their picture and beside each other, names within their rectangle of the treemap, and no bar covers a number.
/// Method: long names, levels, a subvolume that is mostly its own, a snapshot in the last generation; characters as wide as in usual fonts.
#[test]
fn labels_have_room() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    const FIRST: &str = "a subvolume whose name is longer than there is room for it in a row";
    let mut name = String::from(FIRST);
    for level in 0..5 {
        image.create_subvol(name.as_str()).unwrap();
        image.create_dir(format!("{name}/directory").as_str()).unwrap();
        fill(&image, format!("{name}/directory/{}", "file".repeat(50)).as_bytes(), (20 >> level) << 20, level);
        name.push_str("/below");
    }
    image.sync().unwrap();
    image.snapshot(FIRST, "snap", &SnapshotOptions::default().read_only(true)).unwrap();
    image.close().unwrap();
    let html = to_html(&read(&path, &MapOptions::default()));
    let mut seen = 0;
    for section in html.split("<section id=\"").skip(1) {
        let (id, _) = section.split_once('"').unwrap();
        let (_, picture) = section.split_once("<svg viewBox=\"0 0 ").unwrap();
        let (width, picture) = picture.split_once(' ').unwrap();
        let width: f64 = width.parse().unwrap();
        let mut bars: Vec<[f64; 4]> = Vec::new();
        let mut texts: Vec<([f64; 4], &str)> = Vec::new();
        let mut last = [0.0; 4];
        for part in picture.split("</svg>").next().unwrap().split('<') {
            let Some((tag, content)) = part.split_once('>') else { continue };
            if tag.starts_with("rect") {
                let [x, y, w, h] = ["x", "y", "width", "height"].map(|name| attribute(tag, name));
                last = [x, y, x + w, y + h];
                if id == "subvolumes" && h == 16.0 && w > 0.0 {
                    bars.push(last);
                }
            } else if tag.starts_with("text") {
                let class = |name: &str| tag.rsplit('"').nth(1).unwrap().split(' ').any(|class| class == name);
                let size = if class("on") { 11.0 } else { 12.0 };
                let wide = content.chars().count() as f64 * size * 0.55;
                let (x, y) = (attribute(tag, "x"), attribute(tag, "y"));
                let left = if class("e") { x - wide } else { x };
                assert!(left > -1.0 && left + wide < width + 1.0, "{id}: {content}");
                assert!(id != "paths" || left + wide <= last[2], "{content} in {last:?}");
                texts.push(([left, y - 9.0, left + wide, y + 2.0], content));
            }
        }
        let overlap = |a: &[f64; 4], b: &[f64; 4]| a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
        for (n, (text, content)) in texts.iter().enumerate() {
            assert!(!bars.iter().any(|bar| overlap(bar, text)), "{id}: a bar over {content}");
            let other = texts[n + 1..].iter().find(|(other, _)| overlap(other, text));
            assert_eq!(other, None, "{id}: over {content}");
        }
        seen += texts.len();
    }
    assert!(seen > 30, "{seen}");
    // Wide pictures scroll on narrow screens.
    assert!(html.matches("<div class=\"wide\" tabindex=\"0\"").count() >= 6);
}
