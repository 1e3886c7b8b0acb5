//! Maps and the explorer on a mount, while it is in use.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::fails_with;
use crate::mounted::{Mount, fails, json, ok};

/// A running explorer, ended with the guard.
struct Explorer {
    child: Child,
    host: String,
    root: String,
}

impl Explorer {
    fn start(mount: &Mount, what: &str) -> Explorer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oleo"));
        let mut child =
            command.current_dir(mount.dir()).args(["explore", what]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (host, token) = line.trim().strip_prefix("http://").expect("an address").split_once('/').unwrap();
        Explorer { host: host.to_owned(), root: format!("/{token}"), child }
    }

    /// What comes until the connection ends; all of it, unless it is cut.
    fn get(&self, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        write!(stream, "GET {}{path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.root, self.host).unwrap();
        let mut bytes = Vec::new();
        let _cut = stream.read_to_end(&mut bytes);
        let head = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
        assert!(bytes.starts_with(b"HTTP/1.0 200"), "{path}: {}", String::from_utf8_lossy(&bytes));
        bytes.split_off(head)
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.get(path)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let list = self.json("api/list?path=");
        list["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Explorer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Goal: on a mount the map has the numbers of `filesystem usage` and `du --set`, a check of it is refused with what to do instead, and the explorer
/// shows what is there, also what comes later and while a balance moves everything. Method: files, a map, an explorer; more files; a balance, with downloads and maps meanwhile, compared with what was written.
#[test]
fn live() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    ok(&dir, &["subvolume", "create", "m/v"]);
    let bytes: Vec<u8> = (0..24_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    fs::write(mount.path("v/data"), &bytes).unwrap();
    ok(&dir, &["subvolume", "snapshot", "m/v", "m/s"]);
    fs::write(mount.path("v/more"), &bytes[..1 << 20]).unwrap();
    let map = json(&dir, &["map", "--json", "m"]);
    let usage = json(&dir, &["filesystem", "usage", "--json", "m"]);
    for group in usage["groups"].as_array().unwrap() {
        let of: Vec<&Value> =
            map["groups"].as_array().unwrap().iter().filter(|of| of["type"] == group["type"]).collect();
        let sum = |field: &str| of.iter().map(|of| of[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!(
            (sum("len"), sum("used")),
            (group["total"].as_u64().unwrap(), group["used"].as_u64().unwrap()),
            "{group}"
        );
    }
    let frees = json(&dir, &["filesystem", "du", "--json", "--set", "m/v", "m"])["frees"].as_u64().unwrap();
    let refused = fails(&dir, &["map", "--check", "m"]);
    assert!(refused.contains("in use cannot be checked") && refused.contains("oleo scrub start"), "{refused}");
    let subvols = map["sharing"]["subvols"].as_array().unwrap();
    let v = subvols.iter().find(|subvol| subvol["path"] == "v").unwrap();
    assert_eq!(v["alone"].as_u64(), Some(frees));

    let explorer = Explorer::start(&mount, "m/v");
    assert_eq!(explorer.json("api/info")["mounted"], true);
    assert_eq!(explorer.names(), ["v", "s"]);
    fs::write(mount.path("later"), "later").unwrap();
    ok(&dir, &["filesystem", "sync", "m"]);
    let began = Instant::now();
    while !explorer.names().contains(&"later".to_owned()) {
        assert!(began.elapsed() < Duration::from_secs(30), "what was committed is not shown");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(explorer.get("file?path=later"), b"later");
    let before = explorer.json("api/live");
    let balanced = std::thread::spawn({
        let dir = dir.clone();
        move || ok(&dir, &["balance", "start", "--full-balance", "m"])
    });
    let mut read = 0;
    while !balanced.is_finished() || read < 2 {
        // What moves away while it is read is an error, never wrong bytes; then it is asked for again.
        let state = explorer.json("api/live");
        assert_eq!(state["mounted"], true);
        assert!(!state["balance"].is_null(), "{state}");
        assert_eq!(explorer.json("map.json")["format"], 1);
        let got = explorer.get("file?path=s/data");
        assert!(got == bytes || (got.len() < bytes.len() && bytes.starts_with(&got)), "wrong bytes");
        read += usize::from(got == bytes);
        assert!(began.elapsed() < Duration::from_secs(300), "{read}");
    }
    balanced.join().unwrap();
    assert_eq!(
        before["errors"],
        explorer.json("api/live")["errors"],
        "reading beside a mount is no error of its devices"
    );
    // It ends when it is told to, and as a success.
    ok(&dir, &["version"]);
    let mut explorer = explorer;
    let pid = rustix::process::Pid::from_child(&explorer.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(explorer.child.wait().unwrap().success());
    mount.unmount();
}

/// Goal: what the last scrub of a mount could not heal is on its map, with the file and the place, also in the explorer; a mount that was not scrubbed has no findings. Method: a file with one bad byte on a
/// volume without copies.
#[test]
fn what_a_scrub_found() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    fs::write(mount.path("lost"), [0xa5; 70_000]).unwrap();
    mount.unmount();
    let mut bytes = fs::read(dir.join("i")).unwrap();
    let sector = bytes.chunks_mut(4096).find(|sector| sector.iter().all(|byte| *byte == 0xa5)).unwrap();
    sector[200] ^= 1;
    fs::write(dir.join("i"), bytes).unwrap();
    mount.mount("");
    assert_eq!(json(&dir, &["map", "--json", "m"])["findings"]["list"], serde_json::json!([]));
    fails_with(&dir, 3, &["scrub", "start", "-B", "m"]);
    let explorer = Explorer::start(&mount, "m");
    for map in [json(&dir, &["map", "--json", "m"]), explorer.json("map.json")] {
        let findings = &map["findings"];
        assert_eq!(findings["of"], serde_json::json!(["scrub"]));
        assert_eq!(findings["list"].as_array().map(Vec::len), Some(1), "{findings}");
        let one = &findings["list"][0];
        assert_eq!((&one["kind"], &one["path"], &one["device"]), (&"unhealed data".into(), &"lost".into(), &1.into()));
        assert!(one["cell"].is_u64() && one["at"].is_u64(), "{one}");
    }
    drop(explorer);
    mount.unmount();
}
