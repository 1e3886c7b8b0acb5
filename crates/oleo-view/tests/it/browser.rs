//! Maps and the explorer in a real browser: what is seen, read out, reached by keyboard, and never run.

mod chromium;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::served::Served;
use chromium::Chromium;
use oleo::inspect::Inspector;
use oleo::{Image, OpenOptions, SnapshotOptions};
use oleo_sim::oracle;
use oleo_view::explore::{Explorer, Target};
use oleo_view::{Map, MapOptions, to_html, to_svg};

/// Names that would run if they were markup.
const NAMES: [&[u8]; 4] =
    [b"<img src=x onerror=alert(1)>", b"\"><script>alert(1)<", b"javascript:alert(1)", b"\xff\x1b]0;x\x07<b>"];

fn has_browser() -> bool {
    let found = std::process::Command::new("chromium").arg("--version").output().is_ok_and(|out| out.status.success());
    if !found {
        oracle::skip("there is no chromium (scripts/test installs it)");
    }
    found
}

fn made(path: &Path) {
    let image = Image::create(path, 512 << 20).unwrap();
    image.create_subvol("v").unwrap();
    image.create_dir("v/dir").unwrap();
    for name in NAMES {
        image.write(&[b"v/dir/", name].concat()[..], b"<script>alert(1)</script>").unwrap();
    }
    let data: Vec<u8> = (0..2_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    image.write("v/data", &data).unwrap();
    image.write("v/text", "line of text\n".repeat(10_000).as_bytes()).unwrap();
    // One point, white.
    let png = [
        137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0, 58, 126,
        155, 85, 0, 0, 0, 10, 73, 68, 65, 84, 120, 156, 99, 248, 15, 0, 1, 1, 1, 0, 27, 182, 238, 86, 0, 0, 0, 0, 73,
        69, 78, 68, 174, 66, 96, 130,
    ];
    image.write("v/point.png", &png).unwrap();
    for (name, count) in [("many", 450), ("more than a page shows", 2100)] {
        let dir = image.create_dir(name).unwrap();
        for n in 0..count {
            let new = oleo::fs::NewInode::new(oleo::fs::NewKind::File, 0o644);
            image.fs().create(&dir, format!("f{n}").as_bytes(), &new).unwrap();
        }
    }
    // Its letters turn around what follows.
    image.write("more than a page shows/\u{202e}cod.exe", b"1").unwrap();
    image.snapshot("v", "s", &SnapshotOptions::default().read_only(true)).unwrap();
    image.write("v/added", b"1").unwrap();
    image.close().unwrap();
}

/// Goal: a map is whole without a network or scripts: every picture has a name for screen readers and a table behind it, contrasts hold in light and dark, nothing overflows at two widths, details open by
/// keyboard. Method: open the file, ask the browser's accessibility tree and styles.
#[test]
fn maps() {
    if !has_browser() {
        return;
    }
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    made(&path);
    let map = Map::read(&Inspector::open(&path, &OpenOptions::default()).unwrap(), &MapOptions::default()).unwrap();
    let (html, svg) = (scratch.path().join("map.html"), scratch.path().join("map.svg"));
    std::fs::write(&html, to_html(&map)).unwrap();
    std::fs::write(&svg, to_svg(&map)).unwrap();
    let mut browser = Chromium::start(scratch.path());
    browser.open(&format!("file://{}", html.display()));
    browser.wait("document.readyState === 'complete' && document.querySelectorAll('section').length >= 10");
    assert_eq!(browser.eval("performance.getEntriesByType('resource').length"), 0, "nothing else is loaded");
    assert_eq!(browser.eval("document.querySelectorAll('script,img,iframe,object,link').length"), 0);
    // Names for those who do not see: each picture is an image with name and description, all different.
    let tree = browser.call("Accessibility.getFullAXTree", serde_json::json!({}));
    let images: Vec<(String, String)> = tree["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node["role"]["value"] == "image" || node["role"]["value"] == "img")
        .map(|node| {
            (
                node["name"]["value"].as_str().unwrap_or("").into(),
                node["description"]["value"].as_str().unwrap_or("").into(),
            )
        })
        .collect();
    let names: std::collections::BTreeSet<&String> = images.iter().map(|image| &image.0).collect();
    assert!(
        images.len() >= 10 && names.len() == images.len() && images.iter().all(|image| !image.0.is_empty()),
        "{images:?}"
    );
    assert!(images.iter().any(|image| image.0.contains("Space by type")));
    assert_eq!(
        browser.eval("[...document.querySelectorAll('table')].every(t => t.caption && t.tHead && t.tBodies[0])"),
        true
    );
    // Contrast of text and background: 7 to 1 at least, 4.5 for what is said beside.
    let contrast = "(() => { const lum = c => { const [r, g, b] = c.match(/[0-9.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };\
        const back = lum(getComputedStyle(document.body).backgroundColor); const of = s => { const e = document.querySelector(s), st = getComputedStyle(e), l = lum(e instanceof SVGElement ? st.fill : st.color); return (Math.max(l, back) + 0.05) / (Math.min(l, back) + 0.05); };\
        return [of('h1'), of('p'), of('text:not(.on)')]; })()";
    // The smallest text on the screen, in pixels; texts of the subvolumes that a bar covers.
    let smallest = "Math.min(...[...document.querySelectorAll('section svg text')].map(t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a))";
    let covered = "(() => { const bars = [...document.querySelectorAll('#subvolumes rect')].map(r => r.getBBox()).filter(b => b.height === 16 && b.width > 0); \
        return [...document.querySelectorAll('#subvolumes text')].filter(t => { const a = t.getBBox(); return bars.some(b => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height); }).map(t => t.textContent); })()";
    for dark in [false, true] {
        for width in [1200, 400] {
            let (wide, high) = browser.size_at(width, dark);
            assert!(wide <= f64::from(width), "{wide} at {width}");
            assert!(high > 2000.0);
            assert!(browser.eval(smallest).as_f64().unwrap() > 8.0, "at {width}");
        }
        let covered = browser.eval(covered);
        assert_eq!(covered, serde_json::json!([]), "bars over numbers");
        let ratios = browser.eval(contrast);
        let at_least = |n: usize, least: f64| ratios[n].as_f64().unwrap() >= least;
        assert!(at_least(0, 7.0) && at_least(1, 4.5) && at_least(2, 7.0), "{dark}: {ratios}");
    }
    // By keyboard: the first stop leads past the list, and tables open.
    browser.press("Tab");
    assert_eq!(browser.eval("document.activeElement.className"), "skip");
    browser.eval("document.querySelector('#devices summary').focus()");
    browser.press("Enter");
    browser.wait("document.querySelector('#devices details').open");
    browser.open(&format!("file://{}", svg.display()));
    browser.wait("document.documentElement.nodeName === 'svg' && document.querySelectorAll('svg svg').length >= 10");
    assert_eq!(browser.eval("document.querySelectorAll('script,a,image,use,foreignObject').length"), 0);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// What an expression is in the tab that a link to a map opens, by keyboard.
fn map_tab(browser: &mut Chromium, index: usize, expression: &str) -> serde_json::Value {
    browser.eval(&format!("document.querySelectorAll('#maps a')[{index}].focus()"));
    browser.press("Enter");
    browser.in_tab("blob:", |tab| tab.eval(expression))
}

/// A file that was saved, when it is there: browsers write under another name first.
fn downloaded(browser: &mut Chromium, path: &Path) -> Vec<u8> {
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "the download does not come");
        browser.eval("1");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::read(path).unwrap()
}

/// Goal: a reader browses, previews, downloads, searches, compares and checks; names never run; paging works; a browser hands nothing to another page. Method: click through as a reader does.
#[test]
fn explorer() {
    if !has_browser() {
        return;
    }
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    made(&path);
    let want = Image::open(&path, &OpenOptions::default()).unwrap().read("v/data").unwrap();
    let target = Target { image: path, options: OpenOptions::default(), mount: None, map_bytes: 64 << 20 };
    let explorer = Explorer::start(target, 0).unwrap();
    let mut browser = Chromium::start(scratch.path());
    browser.open(&explorer.url());
    browser.wait("document.querySelectorAll('#rows tr').length === 4 && document.querySelectorAll('#subvolumes li').length === 3");
    // By keyboard: the first stop leads past the subvolumes, and nowhere else.
    browser.press("Tab");
    assert_eq!(browser.eval("document.activeElement.className"), "skip");
    browser.press("Enter");
    browser.wait("document.activeElement === document.querySelector('main')");
    assert_eq!(
        browser.eval("[location.hash, document.querySelectorAll('#rows tr').length]"),
        serde_json::json!(["", 4])
    );
    // A link from elsewhere: the way shows no character that the server hides in names.
    browser.eval("location.hash = '#more%20than%20a%20page%20shows/%E2%80%AEcod%2Eexe'");
    browser.wait("/cod.*exe$/.test(document.querySelector('#way').textContent)");
    assert_eq!(browser.eval("/[\\u200b-\\u202e]/.test(document.querySelector('#way').textContent)"), false);
    browser.eval("location.hash = '#'");
    browser.wait("document.querySelectorAll('#rows tr').length === 4");
    let go =
        |text: &str| format!("[...document.querySelectorAll('#rows a')].find(a => a.textContent === {text:?}).click()");
    // Browse.
    browser.eval(&go("v"));
    browser.wait("document.querySelector('#way').textContent.endsWith('/ v') && document.querySelectorAll('#rows tr').length === 5");
    browser.eval(&go("dir"));
    browser.wait("document.querySelectorAll('#rows tr').length === 4 && location.hash === '#v/dir'");
    let shown = browser.eval("[...document.querySelectorAll('#rows a')].map(a => a.textContent)");
    assert!(shown.as_array().unwrap().iter().any(|name| name == "<img src=x onerror=alert(1)>"), "{shown}");
    assert_eq!(browser.eval("document.querySelectorAll('#rows img, #rows script, #rows b').length"), 0);
    // A name that is no text opens, and contents are text.
    browser.eval("[...document.querySelectorAll('#rows a')].find(a => a.textContent.startsWith('\\\\xff')).click()");
    browser.wait("!document.querySelector('#content').hidden");
    assert_eq!(browser.eval("document.querySelector('#content').textContent"), "<script>alert(1)</script>");
    // Text in pages, then bytes.
    browser.eval("location.hash = '#v/text'");
    browser.wait("document.querySelector('#content').textContent.length === 65536");
    browser.eval("document.querySelector('#content-more').click()");
    browser.wait("document.querySelector('#content').textContent.length === 130000 && document.querySelector('#content-more').hidden");
    browser
        .eval("[...document.querySelectorAll('#file-actions button')].find(b => b.textContent === 'As hex').click()");
    browser.wait("document.querySelector('#content').textContent.startsWith('00000000  6c 69 6e 65')");
    // A picture.
    browser.eval("location.hash = '#v/point%2Epng'");
    browser.wait("!document.querySelector('#picture').hidden && document.querySelector('#picture').naturalWidth === 1");
    // A download, as a click saves it.
    browser.eval("location.hash = '#v/data'");
    browser.wait(
        "document.querySelector('#file-actions a') && document.querySelector('#file-title').textContent === 'data'",
    );
    browser.eval("document.querySelector('#file-actions a').click()");
    assert!(downloaded(&mut browser, &scratch.path().join("data")) == want);
    // Pages of a large directory.
    browser.eval("location.hash = '#many'");
    browser.wait("document.querySelectorAll('#rows tr').length === 200");
    for rows in [400, 450] {
        browser.eval("document.querySelector('#more').click()");
        browser.wait(&format!("document.querySelectorAll('#rows tr').length === {rows}"));
    }
    assert_eq!(browser.eval("document.querySelector('#more').hidden"), true);
    // Search, by keyboard; the find leads there.
    browser.eval("location.hash = '#'");
    browser.wait("document.querySelector('#status').textContent === '4 entries'");
    browser.eval("document.querySelector('#name').value = 'POINT'; document.querySelector('#name').focus()");
    browser.press("Enter");
    browser.wait("document.querySelectorAll('#found-list a').length === 2 && document.querySelector('#status').textContent.includes('that is all')");
    browser.eval("document.querySelector('#found-list a').click()");
    browser.wait("document.querySelector('#file-title').textContent === 'point.png'");
    // Compare and check.
    browser.eval("document.querySelector('#old').value = '257'; document.querySelector('#new').value = '256'; document.querySelector('#compare button').click()");
    browser.wait("[...document.querySelectorAll('#found-list li')].some(li => li.textContent === 'added: v/added')");
    // More than a page shows.
    browser.eval("document.querySelector('#new').value = '5'; document.querySelector('#compare button').click()");
    browser.wait("document.querySelectorAll('#found-list li').length === 2000 && document.querySelector('#status').textContent.includes('cut')");
    browser.eval("document.querySelector('#check-data').click()");
    browser.wait("document.querySelector('#status').textContent === 'sound, 0 findings'");
    for width in [1200, 400] {
        let (wide, _) = browser.size_at(width, true);
        assert!(wide <= f64::from(width), "{wide} at {width}");
        let above = browser.eval("document.querySelector('#way').getBoundingClientRect().top + scrollY");
        assert!(above.as_f64().unwrap() < 480.0, "{above} of controls above the files at {width}");
    }
    // Whoever does not see has names for everything that can be used.
    let unnamed = "[...document.querySelectorAll('input,select,button,a')].filter(e => !e.textContent.trim() && !(e.labels && e.labels.length)).length";
    assert_eq!(browser.eval(unnamed), 0);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    // A page from elsewhere gets nothing, by what browsers themselves forbid: reading without permission (CORS), and, by a header of ours, embedding (Cross-Origin-Resource-Policy). That the server
    // refuses such requests, too, is what `refusals` in tests/explore.rs shows.
    let page = scratch.path().join("other.html");
    std::fs::write(&page, "<!doctype html><title>other</title>").unwrap();
    browser.open(&format!("file://{}", page.display()));
    browser.wait("document.title === 'other'");
    let address = format!("{}api/list", explorer.url());
    assert_eq!(browser.eval(&format!("fetch({address:?}).then(() => 'read', () => 'refused')")), "refused");
    assert_eq!(
        browser.eval(&format!("fetch({address:?}, {{mode: 'no-cors'}}).then(() => 'read', () => 'refused')")),
        "refused"
    );
    explorer.stop();
}

/// Goal: the page that is alone does what the explorer does, without a server: an image is dropped on it, browsed, searched, compared, and what is downloaded is what the kernel reads; names never run, and nothing can
/// leave. Method: as a reader does it, from a file.
#[test]
fn alone() {
    if !has_browser() {
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/web/oleo.html");
    if !page.exists() {
        return oracle::skip("the page is not made (cargo xtask web)");
    }
    let scratch = oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    made(&path);
    let mut browser = Chromium::start(scratch.path());
    browser.open(&format!("file://{}", page.canonicalize().unwrap().display()));
    browser.wait("document.readyState === 'complete'");
    // What is no volume is said, and there is nothing to look at.
    let junk = scratch.path().join("<b>junk");
    std::fs::write(&junk, [7; 1 << 20]).unwrap();
    browser.choose_files("#files", &[&junk]);
    browser
        .wait("document.querySelector('#choose-status').textContent.startsWith('<b>junk: no valid btrfs superblock')");
    assert_eq!(browser.eval("document.querySelector('main').hidden"), true);
    browser.drop_files(&[&path]);
    browser.wait("document.querySelectorAll('#rows tr').length === 4 && document.querySelectorAll('#subvolumes li').length === 3");
    assert_eq!(
        browser.eval("document.querySelector('#maps').hidden || document.querySelector('#damage').hidden"),
        false
    );
    let go =
        |text: &str| format!("[...document.querySelectorAll('#rows a')].find(a => a.textContent === {text:?}).click()");
    browser.eval(&go("v"));
    browser.wait("document.querySelectorAll('#rows tr').length === 5");
    browser.eval(&go("text"));
    browser.wait("document.querySelector('#content').textContent.startsWith('line of text\\n')");
    browser.eval("location.hash = '#v/point.png'");
    browser.wait("document.querySelector('#picture').naturalWidth === 1");
    browser.eval("location.hash = '#v/dir'");
    browser.wait("document.querySelectorAll('#rows tr').length === 4");
    for index in 0..NAMES.len() {
        browser.eval(&format!("document.querySelectorAll('#rows a')[{index}].click()"));
        browser.wait("document.querySelector('#content').textContent === '<script>alert(1)</script>'");
        browser.eval("history.back()");
        browser
            .wait("document.querySelectorAll('#rows tr').length === 4 && !document.querySelector('#entries').hidden");
    }
    browser.eval("location.hash = '#'");
    browser.wait("document.querySelector('#status').textContent === '4 entries'");
    browser.eval("document.querySelector('#name').value = 'POINT'; document.querySelector('#search button').click()");
    browser.wait("document.querySelectorAll('#found-list a').length === 2 && document.querySelector('#status').textContent.includes('that is all')");
    browser.eval("document.querySelector('#old').value = '257'; document.querySelector('#new').value = '256'; document.querySelector('#compare button').click()");
    browser.wait("[...document.querySelectorAll('#found-list li')].some(li => li.textContent === 'added: v/added')");
    // What is cut is asked for no longer, and what is asked next is answered.
    browser.eval("document.querySelector('#new').value = '5'; document.querySelector('#compare button').click()");
    browser.wait("document.querySelectorAll('#found-list li').length === 2000 && document.querySelector('#status').textContent.includes('cut')");
    // What a comparison told of keeps its name.
    browser.eval("location.hash = '#many'");
    browser.wait("document.querySelectorAll('#rows tr').length === 200");
    assert_eq!(browser.eval("document.querySelector('#way').lastElementChild.textContent"), "many");
    // Downloads.
    browser.eval("location.hash = '#v/data'");
    browser.wait("document.querySelector('#file-title').textContent === 'data' && [...document.querySelectorAll('#file-actions a')].length === 1");
    // By keyboard, as a person: browsers hold back what a page saves by itself.
    browser.eval("document.querySelector('#file-actions a').focus()");
    browser.press("Enter");
    let saved = downloaded(&mut browser, &scratch.path().join("data"));
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    assert!(saved == image.read("v/data").unwrap());
    drop(image);
    if let Some(oracle) = oracle::oracle() {
        let mounted = oracle.mount(&[&path], "ro").unwrap();
        assert!(saved == std::fs::read(mounted.path().join("v/data")).unwrap(), "the kernel reads something else");
        mounted.unmount().unwrap();
    }
    browser.eval("location.hash = '#v/dir'");
    browser.wait("!document.querySelector('#entries').hidden && [...document.querySelectorAll('#rows a')].some(a => a.textContent === 'javascript:alert(1)')");
    assert_eq!(browser.eval("document.querySelector('#actions').textContent"), "Download as tar · as zip");
    for (index, name) in ["dir.tar", "dir.zip"].iter().enumerate() {
        browser.eval(&format!("document.querySelectorAll('#actions a')[{index}].focus()"));
        browser.press("Enter");
        downloaded(&mut browser, &scratch.path().join(name));
    }
    assert!(std::fs::read(scratch.path().join("dir.zip")).unwrap().starts_with(b"PK"));
    // An archive is what a server gives.
    let served = Served::new(&path);
    assert!(std::fs::read(scratch.path().join("dir.tar")).unwrap() == served.get("tar?path=v/dir").body);
    // A check, and the maps with what it found, in tabs of their own that look as they should and run nothing.
    browser.eval("document.querySelector('#check-data').click()");
    browser.wait("document.querySelector('#status').textContent === 'sound, 0 findings'");
    // Files are looked at while many checks wait for each other; what is not wanted any more ends, and the next is answered.
    let beside = "(async () => { let ended = 0; const check = async () => { await (await oleo.fetch('api/check?data=1')).text(); ended += 1; }; \
        const checks = Promise.all(Array.from({ length: 30 }, check)); const list = await (await oleo.fetch('api/list?path=v')).json(); const was_ended = ended === 30; await checks; \
        const left = new AbortController(); const gone = oleo.fetch('api/check?data=1', { signal: left.signal }).catch((error) => error.name); left.abort(); \
        const map = await (await oleo.fetch('map.json')).json(); return [list.entries.length, was_ended, await gone, map.format]; })()";
    assert_eq!(browser.eval(beside), serde_json::json!([5, false, "AbortError", 1]));
    browser.eval("document.querySelector('#check-data').click()");
    browser.wait("document.querySelector('#status').textContent === 'sound, 0 findings'");
    assert_eq!(served.get("api/check?data=1").status, 200);
    let fill = "getComputedStyle(document.querySelector('.data')).fill";
    let page = format!(
        "[document.querySelectorAll('section > svg').length, getComputedStyle(document.body).maxWidth, {fill}, document.querySelectorAll('script').length]"
    );
    let mut shown = map_tab(&mut browser, 0, &page);
    let maps = shown[0].take().as_u64().unwrap();
    assert!(maps >= 10, "{maps} maps");
    assert_eq!(shown, serde_json::json!([null, "1180px", "rgb(0, 114, 178)", 0]));
    let picture = format!("[document.documentElement.nodeName, {fill}]");
    assert_eq!(map_tab(&mut browser, 1, &picture), serde_json::json!(["svg", "rgb(0, 114, 178)"]));
    let numbers = |text: &str| -> serde_json::Value {
        let mut map: serde_json::Value = serde_json::from_str(text).unwrap();
        map["devices"][0]["name"] = "disk.img".into();
        map
    };
    let shown = map_tab(&mut browser, 2, "document.body.innerText");
    assert_eq!(numbers(shown.as_str().unwrap()), numbers(std::str::from_utf8(&served.get("map.json").body).unwrap()));
    drop(served);
    for width in [1200, 400] {
        let (wide, _) = browser.size_at(width, false);
        assert!(wide <= f64::from(width), "{wide} at {width}");
    }
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    // Nothing was asked of anybody, and nothing can be.
    assert_eq!(
        browser.eval("performance.getEntriesByType('resource').filter(e => !e.name.startsWith('blob:')).length"),
        0
    );
    let refused = "fetch('https://127.0.0.1:1/').then(() => false, () => true)";
    assert_eq!(browser.eval(refused), true);
    assert!(browser.complaints.iter().any(|said| said.contains("Content Security Policy")), "{:?}", browser.complaints);
    let runs = "(() => { const script = document.createElement('script'); script.textContent = 'window.ran = true'; document.body.append(script); return window.ran === true; })()";
    assert_eq!(map_tab(&mut browser, 0, runs), false);
    assert_eq!(map_tab(&mut browser, 0, refused), true);
}
