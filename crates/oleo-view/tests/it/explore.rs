//! The explorer over HTTP: what it answers, and what it refuses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use oleo::fs::SetAttr;
use oleo::{Image, SnapshotOptions};
use oleo_sim::rot::Rot;
use serde_json::Value;

use crate::served::{Served, raw};

fn sample(path: &Path) -> Image {
    let image = Image::create(path, 512 << 20).unwrap();
    image.create_subvol("v").unwrap();
    image.create_dir("v/dir").unwrap();
    image.write("v/dir/text", "häuser\n".repeat(20_000).as_bytes()).unwrap();
    image.write("v/dir/bytes", &(0..=255).collect::<Vec<u8>>()).unwrap();
    image.write("v/picture", b"\x89PNG\r\n\x1a\nrest").unwrap();
    image.write("v/evil.html", b"<script>alert(1)</script>").unwrap();
    image.symlink(&image.top().unwrap(), "/etc/passwd", "v/out").unwrap();
    image.symlink(&image.top().unwrap(), "dir", "v/to-dir").unwrap();
    image.write(&b"v/\xff<b>"[..], b"odd").unwrap();
    image
}

/// Goal: everything that must not be answered is not, with the right code, whatever is asked for. Method: requests as bytes.
#[test]
fn refusals() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    sample(&path).close().unwrap();
    let served = Served::new(&path);
    let (at, root) = (served.at(), served.root());
    assert!(at.ip().is_loopback());
    assert_eq!(root.len(), 34, "a token of 128 bits");
    let ask = |method: &str, target: &str, headers: &str| {
        raw(at, &format!("{method} {target} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n")).status
    };
    let host = format!("Host: {at}\r\n");
    let list = format!("{root}api/list?path=v");
    assert_eq!(ask("GET", &list, &host), 200);
    // Methods.
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "MKCOL", "TRACE"] {
        assert_eq!(ask(method, &list, &host), 405, "{method}");
    }
    // Hosts.
    for host in ["", "Host: evil.example\r\n", "Host: 127.0.0.1\r\n", "Host: localhost:1\r\n"] {
        assert!(matches!(ask("GET", &list, host), 400 | 421), "{host}");
    }
    assert!(matches!(ask("GET", &list, &format!("{host}{host}")), 400 | 421));
    assert_eq!(ask("GET", &list, &format!("Host: localhost:{}\r\n", at.port())), 200);
    // Origins.
    for header in
        ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"]
    {
        assert_eq!(ask("GET", &list, &format!("{host}{header}\r\n")), 403, "{header}");
    }
    assert_eq!(ask("GET", &list, &format!("{host}Origin: http://{at}\r\nSec-Fetch-Site: same-origin\r\n")), 200);
    // Tokens.
    for path in
        ["/", "/api/list?path=v", "/app.js", "/00000000000000000000000000000000/", "/favicon.ico", "/../", "//", "*"]
    {
        assert!(matches!(ask("GET", path, &host), 400 | 403 | 405), "{path}");
    }
    assert_eq!(ask("GET", &format!("http://{at}{list}"), &host), 400);
    // Paths that leave, and names that no file has.
    for bad in ["..", "v/../..", "%2e%2e", "v/%2E%2E/", "v/./dir", "v/dir%00"] {
        for what in ["api/list", "file", "tar", "zip", "api/text", "api/hex", "image", "api/search"] {
            assert_eq!(ask("GET", &format!("{root}{what}?name=x&path={bad}"), &host), 400, "{what} {bad}");
        }
    }
    // Links are shown, not followed.
    for (what, path) in [("file", "v/out"), ("api/text", "v/out")] {
        assert_eq!(ask("GET", &format!("{root}{what}?path={path}"), &host), 400, "{what}");
    }
    assert_eq!(ask("GET", &format!("{root}api/list?path=v/to-dir/text"), &host), 404);
    // What is not there, and what makes no sense.
    for (path, status) in [
        ("nothing", 404),
        ("../", 404),
        ("assets/app.js", 404),
        ("api/list?path=nope", 404),
        ("file?path=v", 400),
        ("api/list?path=v&after=x", 400),
        ("api/compare?old=1&new=2", 400),
        ("api/compare?old=999&new=5", 404),
        ("api/search?path=", 400),
        ("image?path=v/evil.html", 400),
    ] {
        assert_eq!(ask("GET", &format!("{root}{path}"), &host), status, "{path}");
    }
    // Heads that are too large or no HTTP end the connection, and the next one is served.
    let mut stream = TcpStream::connect(at).unwrap();
    let mut rest = Vec::new();
    let _ = write!(stream, "GET {list} HTTP/1.1\r\n{host}X: {}\r\n\r\n", "x".repeat(4 << 20));
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&rest));
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n").unwrap();
    rest.clear();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.windows(3).any(|w| w == b"200"));
    assert_eq!(ask("GET", &list, &host), 200);
}

/// Goal: contents come as they are, typed so that no browser runs them, and with the headers that keep others out.
#[test]
fn contents_and_headers() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = sample(&path);
    image.create_dir("v/mode").unwrap();
    image.create_dir("v/entries").unwrap();
    image.snapshot("v", "s", &SnapshotOptions::default().read_only(true)).unwrap();
    image.write("v/new", b"1").unwrap();
    image.write("v/dir/bytes", b"changed").unwrap();
    image.remove(&image.top().unwrap(), "v/picture", oleo::fs::Depth::One).unwrap();
    let private = SetAttr::default().mode(Some(0o700));
    image.fs().set_attr(&image.find("v/mode").unwrap(), &private).unwrap();
    image.write("v/mode/entry", b"1").unwrap();
    image.write("v/entries/entry", b"1").unwrap();
    image.close().unwrap();
    let served = Served::new(&path);
    for address in [
        "",
        "app.js",
        "app.css",
        "api/info",
        "api/list",
        "file?path=s/evil.html",
        "image?path=s/picture",
        "map.html",
        "nope",
    ] {
        let answer = served.get(address);
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{address}: {policy}"
        );
        assert!(
            !policy.contains("unsafe-eval") && (!policy.contains("unsafe-inline") || address == "map.html"),
            "{address}"
        );
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{address}");
        }
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    // Lists.
    let list = served.get("api/list?path=v").json();
    let names: Vec<&str> =
        list["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"\\xff<b>") && names.contains(&"new") && !names.contains(&"picture"), "{names:?}");
    let odd = list["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == "\\xff<b>").unwrap()["raw"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(served.get(&format!("file?path=v/{odd}")).body, b"odd");
    let subvolumes = served.get("api/subvolumes").json();
    assert_eq!(subvolumes["subvolumes"][2]["snapshot_of"], 256);
    // Contents.
    let html = served.get("file?path=v/evil.html");
    assert_eq!(
        (html.header("content-type"), &html.body[..]),
        (Some("application/octet-stream"), &b"<script>alert(1)</script>"[..])
    );
    assert_eq!(html.header("content-disposition"), Some("attachment; filename*=UTF-8''evil%2Ehtml"));
    assert!(html.header("content-security-policy").unwrap().starts_with("sandbox"));
    assert_eq!(served.get("image?path=s/picture").header("content-type"), Some("image/png"));
    let text = served.get("api/text?path=v/dir/text").json();
    let (first, next) = (text["text"].as_str().unwrap().to_owned(), text["next"].as_u64().unwrap());
    assert_eq!((first.len() as u64, &text["is_text"]), (next, &Value::Bool(true)));
    let mut all = first;
    let mut at = Some(next);
    while let Some(from) = at {
        let text = served.get(&format!("api/text?path=v/dir/text&at={from}")).json();
        all.push_str(text["text"].as_str().unwrap());
        at = text["next"].as_u64();
    }
    assert_eq!(all, "häuser\n".repeat(20_000));
    let hex = served.get("api/hex?path=s/dir/bytes").json();
    assert_eq!(hex["rows"][15], "000000f0  f0 f1 f2 f3 f4 f5 f6 f7 f8 f9 fa fb fc fd fe ff  ................");
    // Differences.
    let lines = served.get("api/compare?old=257&new=256").lines();
    let told = |change: &str, path: &str| lines.iter().any(|line| line["change"] == change && line["path"] == path);
    assert!(told("added", "v/new") && told("contents", "v/dir/bytes") && told("removed", "s/picture"), "{lines:?}");
    assert!(!lines.iter().any(|line| line["path"] == "v/dir/text"), "{lines:?}");
    // Of a directory with other entries it is told if something else has changed, too.
    assert!(told("attributes", "v/mode") && !lines.iter().any(|line| line["path"] == "v/entries"), "{lines:?}");
    assert_eq!(lines.last().unwrap()["done"], true);
    // Search.
    let lines = served.get("api/search?path=&name=TEX").lines();
    let found: Vec<&str> = lines.iter().filter_map(|line| line["path"].as_str()).collect();
    assert_eq!(found.iter().copied().collect::<std::collections::BTreeSet<_>>(), ["s/dir/text", "v/dir/text"].into());
    // A check.
    let lines = served.get("api/check?data=1").lines();
    assert_eq!((&lines.last().unwrap()["finished"], &lines.last().unwrap()["sound"]), (&true.into(), &true.into()));
    // Maps.
    assert!(String::from_utf8(served.get("map.html").body).unwrap().contains("Space by sharing"));
    assert_eq!(served.get("map.json").json()["format"], 1);
    // HEAD has no body.
    let at = served.at();
    let head =
        raw(at, &format!("HEAD {}file?path=v/new HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n", served.root()));
    assert_eq!((head.status, head.body.len()), (200, 0));
}

/// Goal: archives hold what the directory does, byte for byte. Method: Python reads both kinds.
#[test]
fn archives() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = sample(&path);
    image.write("v/dir/large", &(0..3_000_000u32).map(|n| (n / 7) as u8).collect::<Vec<_>>()).unwrap();
    let want = image.read("v/dir/large").unwrap();
    image.close().unwrap();
    let served = Served::new(&path);
    for kind in ["tar", "zip"] {
        let answer = served.get(&format!("{kind}?path=v/dir"));
        assert_eq!(
            answer.header("content-disposition"),
            Some(format!("attachment; filename*=UTF-8''dir%2E{kind}").as_str())
        );
        let file = scratch.path().join(kind);
        std::fs::write(&file, &answer.body).unwrap();
        let script = "import sys,tarfile,zipfile,hashlib\nk,f=sys.argv[1:]\n\
            if k=='tar':\n a=tarfile.open(f); read=lambda n:a.extractfile(n).read(); names=a.getnames()\n\
            else:\n a=zipfile.ZipFile(f); assert a.testzip() is None; read=a.read; names=[n.rstrip('/') for n in a.namelist()]\n\
            print(sorted(names)); open(f+'.large','wb').write(read('dir/large'))";
        let out = std::process::Command::new("python3").args(["-c", script, kind]).arg(&file).output().unwrap();
        assert!(out.status.success(), "{kind}: {}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(String::from_utf8(out.stdout).unwrap().trim(), "['dir', 'dir/bytes', 'dir/large', 'dir/text']");
        assert!(std::fs::read(format!("{}.large", file.display())).unwrap() == want);
    }
}

/// Goal: a zip archive with a file of nothing but holes ends, and names that file. Method: 1 TiB beside a file of a page.
#[test]
fn holes_in_zip() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = sample(&path);
    image.write("v/dir/holes", b"x").unwrap();
    image.fs().set_attr(&image.find("v/dir/holes").unwrap(), &SetAttr::default().size(Some(1 << 40))).unwrap();
    image.close().unwrap();
    let answer = Served::new(&path).get("zip?path=v/dir");
    let file = scratch.path().join("zip");
    std::fs::write(&file, &answer.body).unwrap();
    let script = "import sys,zipfile\nz=zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\n\
        print(z.namelist(), z.read('LEFT-OUT.txt'))";
    let out = std::process::Command::new("python3").args(["-c", script]).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("dir/bytes") && text.contains("dir/holes (file with large holes"), "{text}");
}

/// Goal: a client without the token gets one answer, and then the connection ends, so that it keeps no place. Method: requests sent at
/// once, without and with the token.
#[test]
fn strangers_ask_once() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    sample(&path).close().unwrap();
    let served = Served::new(&path);
    let request = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", served.at());
    let began = Instant::now();
    let answer = raw(served.at(), &request("/").repeat(50));
    assert_eq!(answer.status, 403);
    // A head may take ten seconds.
    assert!(began.elapsed() < Duration::from_secs(10), "it does not wait for the next head");
    assert!(!String::from_utf8_lossy(&answer.body).contains("HTTP/1.1"), "one answer");
    // Of the user.
    let good = request(&format!("{}api/list?path=v", served.root()));
    let answer = raw(served.at(), &[&good[..], &good, &request("/")].concat());
    assert_eq!(String::from_utf8_lossy(&answer.body).matches("HTTP/1.1 ").count(), 2);
}

/// Goal: an archive of a directory that leads to itself ends, and says that it is not whole. Method: an entry that claims to be a file is led to the directory above, behind sound checksums.
#[test]
fn archives_in_circles() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    image.create_dirs(&image.top().unwrap(), b"outer/inner").unwrap();
    image.write("outer/inner/leads back", b"").unwrap();
    let to = image.find("outer").unwrap().ino().0;
    image.close().unwrap();
    let rot = Rot::survey(&path).unwrap();
    let mut led = 0;
    let _damage: Vec<_> = (0..rot.blocks())
        .filter_map(|index| {
            let mut bytes = rot.block(index).unwrap();
            let name = b"leads back";
            // The item of an entry: the key that it leads to, 13 bytes, the name.
            let ats: Vec<usize> = (130..bytes.len() - name.len())
                .filter(|at| bytes[*at..].starts_with(name) && bytes[at - 1] == 1 && bytes[at - 22] == 1)
                .collect();
            ats.iter().for_each(|at| bytes[at - 30..at - 22].copy_from_slice(&to.to_le_bytes()));
            led += ats.len();
            (!ats.is_empty()).then(|| rot.inflict(&rot.replace(index, &bytes)).unwrap())
        })
        .collect();
    assert!(led >= 2, "an entry by name and one by number");
    let served = Served::new(&path);
    let at = served.at();
    for kind in ["tar", "zip"] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {}{kind}?path=outer HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n", served.root())
            .unwrap();
        let mut got = Vec::new();
        let _cut = stream.take(8 << 20).read_to_end(&mut got);
        // What fails before the first piece is said instead.
        let told = got.starts_with(b"HTTP/1.1 500");
        assert!((told || got.starts_with(b"HTTP/1.1 200")) && got.len() < 1 << 20, "{kind}: {}", got.len());
        assert!(told || !got.ends_with(b"\r\n0\r\n\r\n"), "{kind}: it ends as if it were whole");
    }
}

/// Goal: names in zip archives have no backslashes, which some programs take for slashes.
#[test]
fn backslashes_in_zip() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    image.create_dir(&b"d\\e"[..]).unwrap();
    image.write(&b"d\\e/..\\..\\up"[..], b"1").unwrap();
    image.close().unwrap();
    let served = Served::new(&path);
    let file = scratch.path().join("a.zip");
    std::fs::write(&file, served.get("zip?path=d%5Ce").body).unwrap();
    let script = "import sys,zipfile\nprint([i.orig_filename for i in zipfile.ZipFile(sys.argv[1]).infolist()])";
    let out = std::process::Command::new("python3").args(["-c", script]).arg(&file).output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap().trim(), "['d_e/', 'd_e/.._.._up']");
}

/// Goal: what is mounted is not checked from outside, where half of what is read has been overwritten; the answer says what does it.
#[test]
fn mounts_are_scrubbed() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    sample(&path).close().unwrap();
    let served = Served::of(&path, Some(Box::new(|_| Err(oleo::Error::Request("a test".into())))));
    assert_eq!(served.get("api/info").json()["mounted"], true);
    let answer = served.get("api/check");
    let text = String::from_utf8(answer.body).unwrap();
    assert!(answer.status == 409 && text.contains("oleo scrub"), "{} {text}", answer.status);
}

/// Goal: the explorer ends immediately when all places are taken, too. Method: more connections than places, all of which wait with their requests.
#[test]
fn ends_while_full() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    sample(&path).close().unwrap();
    let served = Served::new(&path);
    let held: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut stream = TcpStream::connect(served.at()).unwrap();
            stream.write_all(b"GET /").unwrap();
            stream
        })
        .collect();
    // Whoever comes now has to wait.
    let mut late = TcpStream::connect(served.at()).unwrap();
    late.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    late.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(late.read(&mut [0; 1]).is_err(), "not all places are taken");
    let began = Instant::now();
    drop(served);
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    drop(held);
}

/// Goal: directories come in pages, however large they are, each name once; damage ends a download by cutting the connection, not as a short file; damaged files are named.
#[test]
fn pages_and_damage() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let image = Image::create(&path, 512 << 20).unwrap();
    let top = image.create_dir("many").unwrap();
    for n in 0..3000u32 {
        let new = oleo::fs::NewInode::new(oleo::fs::NewKind::File, 0o644);
        image.fs().create(&top, format!("entry number {n}").as_bytes(), &new).unwrap();
    }
    let data: Vec<u8> = (0..4_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    drop(top);
    image.write("file", &data).unwrap();
    image.write("broken", &data[..20_000]).unwrap();
    image.sync().unwrap();
    // Bytes on the disk of every copy of a place in a file.
    let places = |name: &str, inside: fn(&oleo::fs::ExtentInfo) -> u64| -> Vec<u64> {
        let extents = image.fs().extents(&image.find(name).unwrap(), 0, u64::MAX).unwrap();
        let last = extents.last().unwrap();
        let disk = last.disk.unwrap();
        let chunk = image.volume().chunk_of(disk).unwrap();
        chunk.stripes.iter().map(|stripe| stripe.offset.0 + (disk.0 - chunk.start.0) + inside(last)).collect()
    };
    let mut at = places("file", |extent| extent.len / 2 / 4096 * 4096);
    at.extend(places("broken", |_| 0));
    image.close().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in at {
        std::os::unix::fs::FileExt::write_all_at(&file, &[0xee; 4096], at).unwrap();
    }
    let served = Served::new(&path);
    // Of what fails at its beginning the reason is told, with the right code.
    for what in ["file", "tar", "zip"] {
        let answer = served.get(&format!("{what}?path=broken"));
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == 500 && text.contains("logical address"), "{what}: {} {text}", answer.status);
        assert!(
            answer.header("content-disposition").is_none() && !answer.head.contains("chunked"),
            "{what}: {}",
            answer.head
        );
    }
    let (mut after, mut names) = (0, std::collections::BTreeSet::new());
    loop {
        let began = Instant::now();
        let page = served.get(&format!("api/list?path=many&limit=500&after={after}")).json();
        assert!(began.elapsed() < Duration::from_secs(30));
        let entries = page["entries"].as_array().unwrap();
        assert!(entries.len() <= 500);
        for entry in entries {
            assert!(names.insert(entry["name"].as_str().unwrap().to_owned()));
        }
        match page["next"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(names.len(), 3000);
    // The length was promised and is not kept: curl and browsers call that a failed transfer.
    let at = served.at();
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {}file?path=file HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n", served.root()).unwrap();
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(got.starts_with(b"HTTP/1.1 200") && got.len() < data.len());
    let lines = served.get("api/check?data=1").lines();
    let of = |path: &str| {
        lines.iter().find(|line| line["kind"] == "data-checksum" && line["paths"] == serde_json::json!([path]))
    };
    assert!(of("file").is_some() && of("broken").is_some(), "{lines:?}");
    assert_eq!(lines.last().unwrap()["sound"], false);
    // It is on the map, too.
    let map = served.get("map.json").json();
    assert_eq!(map["findings"]["list"][0]["kind"], "data-checksum");
    assert!(map["findings"]["list"][0]["cell"].is_u64());
}
