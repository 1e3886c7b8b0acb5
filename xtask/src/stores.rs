//! `cargo xtask stores [versitygw] [radosgw] [rbd] [azurite]`: volumes on servers that are too large for CI: the tests of volumes on
//! stores over versitygw, over the gateway of Ceph and over Azurite, which stands for Azure; and network block devices over images of
//! Ceph.
//!
//! Each server is brought up below `target/stores`, by itself, and ended afterwards; nothing of it stays but what was installed.
//! versitygw is built by Go from its module (some minutes the first time), Azurite comes from npm; Ceph's programs are Debian's, and
//! are installed when this runs as root. What cannot be had is a failure, by name; the others still run.
//!
//! Nothing stands for Google: no emulator takes conditional uploads of its XML API, which volumes use (docs/testing.md).

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::tools::{install, must};

/// What is built of versitygw.
const VERSITYGW: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
/// What npm installs.
const AZURITE: &str = "azurite@3.35.0";
/// Programs of Ceph and their packages.
const CEPH: [(&str, &str); 5] = [
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("ceph", "ceph-common"),
    ("radosgw", "radosgw"),
    ("qemu-nbd", "qemu-utils"),
];
/// What qemu-nbd needs to open images of Ceph, and its package.
const RBD: (&str, &str) = ("/usr/lib/x86_64-linux-gnu/qemu/block-rbd.so", "qemu-block-extra");
/// Keys and the bucket that the tests use (`oleo_sim::moto`).
const KEY: &str = "testing";
/// The same as Azure's keys are told.
const KEY_BASE64: &str = "dGVzdGluZw==";
const BUCKET: &str = "bucket";
/// The cluster's name for itself.
const FSID: &str = "11111111-2222-3333-4444-555555555555";
/// Bytes that the store of the cluster may take in memory.
const OSD_BYTES: u64 = 4 << 30;
/// After so many seconds somebody who was killed has an image no more; 30 without being told.
const OSD_WATCH: u64 = 10;
/// Bytes of an image of Ceph.
const RBD_SIZE: &str = "2G";
/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(200);

const ALL: [&str; 4] = ["versitygw", "radosgw", "rbd", "azurite"];

/// Runs those that are named, or all.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    if let Some(odd) = args.iter().find(|arg| !ALL.contains(&arg.as_str())) {
        bail!("no store {odd}; usage: cargo xtask stores [{}]", ALL.join("] ["));
    }
    let mut failed = Vec::new();
    for name in ALL.iter().filter(|name| args.is_empty() || args.iter().any(|arg| arg == *name)) {
        println!("== {name}");
        let done = match *name {
            "versitygw" => versitygw(root),
            "radosgw" => radosgw(root),
            "rbd" => rbd(root),
            _ => azurite(root),
        };
        match done {
            Ok(()) => println!("== {name}: ok"),
            Err(e) => {
                println!("== {name}: FAILED: {e:#}");
                failed.push(*name);
            }
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// A process that ends with this.
struct Server(Child);

impl Server {
    fn start(command: &mut Command, log: &Path) -> Result<Server> {
        let out = File::create(log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        Ok(Server(command.spawn().with_context(|| format!("cannot run {}", command.get_program().display()))?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _dead = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn versitygw(root: &Path) -> Result<()> {
    let dir = fresh(root, "versitygw")?;
    let bin = root.join("target/stores/bin");
    let program = bin.join("versitygw");
    if !program.exists() {
        fs::create_dir_all(&bin)?;
        let mut go = Command::new("go");
        go.args(["install", VERSITYGW]).env("GOBIN", &bin).env("GOFLAGS", "-p=2");
        go.env("GOPATH", root.join("target/stores/go")).env("GOCACHE", root.join("target/stores/go-cache"));
        must(go.current_dir(&dir)).context("versitygw is built by Go, which is missing or could not")?;
    }
    fs::create_dir_all(dir.join("data").join(BUCKET))?;
    let port = free_port()?;
    let mut command = Command::new(program);
    command.args(["--access", KEY, "--secret", KEY, "--region", "us-east-1", "--port"]);
    command.arg(format!("127.0.0.1:{port}")).arg("posix").arg(dir.join("data"));
    let _server = Server::start(&mut command, &dir.join("log"))?;
    answers(port, &dir.join("log"))?;
    volumes(root, &format!("s3://127.0.0.1:{port}"))
}

fn azurite(root: &Path) -> Result<()> {
    let dir = fresh(root, "azurite")?;
    let own = root.join("target/stores/npm");
    let program = own.join("node_modules/.bin/azurite-blob");
    if !program.exists() {
        fs::create_dir_all(&own)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(&own).arg(AZURITE);
        must(npm.current_dir(&own)).context("Azurite is installed by npm, which is missing or could not")?;
    }
    let port = free_port()?;
    let mut command = Command::new(program);
    command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string(), "--inMemoryPersistence", "--silent"]);
    command.args(["--disableTelemetry", "--skipApiVersionCheck"]).current_dir(&dir);
    command.env("AZURITE_ACCOUNTS", format!("{KEY}:{KEY_BASE64}"));
    let _server = Server::start(&mut command, &dir.join("log"))?;
    answers(port, &dir.join("log"))?;
    container(port)?;
    let keys = format!("AZURE_STORAGE_ACCOUNT_NAME={KEY},AZURE_STORAGE_ACCOUNT_KEY={KEY_BASE64}");
    volumes(root, &format!("az://127.0.0.1:{port}/{KEY},{keys}"))
}

/// Makes a container, signed with the account's key: port, account, key, name.
const CONTAINER_OF_AZURE: &str = r#"
import base64, email.utils, hashlib, hmac, sys, urllib.request
port, account, key, name = sys.argv[1:]
headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
lines = "".join(f"{word}:{value}\n" for word, value in headers.items())
text = "PUT" + "\n" * 12 + lines + f"/{account}/{account}/{name}\nrestype:container"
signed = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
headers |= {"Authorization": f"SharedKey {account}:{signed}", "Content-Length": "0"}
url = f"http://127.0.0.1:{port}/{account}/{name}?restype=container"
urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))
"#;

fn container(port: u16) -> Result<()> {
    must(Command::new("python3").args(["-c", CONTAINER_OF_AZURE, &port.to_string(), KEY, KEY_BASE64, BUCKET]))
}

fn radosgw(root: &Path) -> Result<()> {
    let ceph = Ceph::start(root)?;
    let port = free_port()?;
    let mut command = ceph.command("radosgw");
    command.args(["-f", "-n", "client.rgw"]).arg(format!("--rgw_frontends=beast endpoint=127.0.0.1:{port}"));
    let log = ceph.dir.join("rgw.out");
    let _server = Server::start(&mut command, &log)?;
    answers(port, &log)?;
    let mut user = ceph.command("radosgw-admin");
    user.args(["-n", "client.admin", "user", "create", "--uid=oleo", "--display-name=oleo"]);
    must(user.args([format!("--access-key={KEY}"), format!("--secret-key={KEY}")]).stdout(Stdio::null()))?;
    bucket(root, port)?;
    // Its conditions compare names of contents with what was sent, quotation marks and all.
    volumes(root, &format!("s3://127.0.0.1:{port},bare-etags"))
}

fn rbd(root: &Path) -> Result<()> {
    install(&[("qemu-nbd", "qemu-utils"), RBD])?;
    let ceph = Ceph::start(root)?;
    must(ceph.command("ceph").args(["osd", "pool", "create", "rbd", "8"]))?;
    must(ceph.command("rbd").args(["create", "--size", RBD_SIZE, "rbd/volume"]))?;
    let image = format!("rbd:rbd/volume:conf={}", ceph.conf().display());
    test(root, &["--test=it", "--", "--ignored", "--exact", "nbd::named::over_ceph"], ("OLEO_TEST_RBD", &image))
}

/// Ceph with one monitor and one store in memory, without passwords, on this machine alone.
struct Ceph {
    dir: PathBuf,
    _mon: Server,
    _osd: Server,
}

impl Ceph {
    fn start(root: &Path) -> Result<Ceph> {
        install(&CEPH)?;
        let dir = fresh(root, "ceph")?;
        let (two, one) = (free_port()?, free_port()?);
        let at = format!("[v2:127.0.0.1:{two},v1:127.0.0.1:{one}]");
        let own = dir.display();
        let conf = format!(
            "[global]\nfsid = {FSID}\nmon_host = {at}\nauth_cluster_required = none\nauth_service_required = none\n\
             auth_client_required = none\nms_mon_client_mode = crc\nms_client_mode = crc\nrun_dir = {own}\n\
             admin_socket = {own}/$name.$pid.asok\nlog_file = {own}/$name.log\npid_file =\nkeyring = {own}/keyring\n\
             osd_pool_default_size = 1\nosd_pool_default_min_size = 1\nosd_pool_default_pg_num = 8\n\
             osd_pool_default_pg_autoscale_mode = off\nmon_allow_pool_size_one = true\nmon_max_pg_per_osd = 1000\n\
             mon_data = {own}/mon\nosd_data = {own}/osd\nosd_objectstore = memstore\n\
             memstore_device_bytes = {OSD_BYTES}\nosd_crush_chooseleaf_type = 0\nosd_class_load_list = *\n\
             osd_class_default_list = *\nosd_client_watch_timeout = {OSD_WATCH}\nrgw_data = {own}/rgw\nrgw_dns_name = 127.0.0.1\n"
        );
        fs::write(dir.join("ceph.conf"), conf)?;
        fs::create_dir_all(dir.join("osd"))?;
        let plain = |program: &str| {
            let mut command = Command::new(program);
            command.env("CEPH_CONF", dir.join("ceph.conf")).current_dir(&dir).stdin(Stdio::null());
            command
        };
        must(plain("monmaptool").args(["--create", "--fsid", FSID, "--addv", "a", &at, "monmap"]))?;
        must(plain("ceph-mon").args(["--mkfs", "-i", "a", "--monmap", "monmap"]))?;
        let mon = Server::start(plain("ceph-mon").args(["-f", "-i", "a"]), &dir.join("mon.out"))?;
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        must(plain("timeout").args(["60", "ceph", "osd", "new", uuid.trim()]))?;
        must(plain("ceph-osd").args(["-i", "0", "--mkfs", "--osd-uuid", uuid.trim()]))?;
        must(plain("ceph").args(["osd", "crush", "add", "osd.0", "1.0", "root=default"]))?;
        let osd = Server::start(plain("ceph-osd").args(["-f", "-i", "0"]), &dir.join("osd.out"))?;
        let ceph = Ceph { dir, _mon: mon, _osd: osd };
        let begun = Instant::now();
        loop {
            let said = ceph.command("ceph").args(["osd", "stat"]).output()?;
            if String::from_utf8_lossy(&said.stdout).contains("1 up") {
                return Ok(ceph);
            }
            ensure!(begun.elapsed() < LIMIT, "Ceph does not come up: see {}", ceph.dir.display());
            std::thread::sleep(POLL);
        }
    }

    fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("CEPH_CONF", self.conf()).current_dir(&self.dir).stdin(Stdio::null());
        command
    }
}

/// What stores must do, and the tests of volumes on them, over a server.
fn volumes(root: &Path, server: &str) -> Result<()> {
    let server = ("OLEO_TEST_STORE", server);
    test(root, &["--lib", "--", "--exact", "store::tests::s3_conforms"], server)?;
    test(root, &["--test=it", "--", "remote::", "--test-threads=2"], server)
}

/// Runs tests of the two packages that have them, both named each time so that they are built once, with the same features. A name that
/// no test has is a failure.
fn test(root: &Path, args: &[&str], (name, value): (&str, &str)) -> Result<()> {
    let mut command = crate::cargo(root);
    command
        .args(["test", "-p", "oleo-cli", "-p", "oleo-remote", "--locked", "--no-fail-fast"])
        .args(args)
        .stdout(Stdio::piped());
    command.env(name, value).env("OLEO_DEMAND_ORACLE", "1");
    let mut running = command.spawn().context("cannot run cargo")?;
    let out = running.stdout.take().context("cargo has no output")?;
    let mut passed = 0;
    for line in BufReader::new(out).lines() {
        let line = line?;
        passed += usize::from(line.starts_with("test ") && line.ends_with(" ... ok"));
        println!("{line}");
    }
    ensure!(running.wait()?.success(), "cargo test {} failed", args.join(" "));
    ensure!(passed > 0, "cargo test {} ran nothing", args.join(" "));
    Ok(())
}

/// Makes the bucket, which such a server makes for those only who have signed for it.
fn bucket(root: &Path, port: u16) -> Result<()> {
    let python = root.join("target/venv/bin/python");
    ensure!(python.exists(), "{} is missing (scripts/test installs it)", python.display());
    let script = format!(
        "import boto3; boto3.client('s3', endpoint_url='http://127.0.0.1:{port}', aws_access_key_id='{KEY}', \
         aws_secret_access_key='{KEY}', region_name='us-east-1').create_bucket(Bucket='{BUCKET}')"
    );
    must(Command::new(python).args(["-c", &script]))
}

/// An empty directory of its own.
fn fresh(root: &Path, name: &str) -> Result<PathBuf> {
    let dir = root.join("target/stores").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn answers(port: u16, log: &Path) -> Result<()> {
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(begun.elapsed() < LIMIT, "it does not answer: {}", fs::read_to_string(log).unwrap_or_default());
        std::thread::sleep(POLL);
    }
    Ok(())
}
