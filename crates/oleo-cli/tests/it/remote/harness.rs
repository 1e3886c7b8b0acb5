//! Volumes on stores, and the command on them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use oleo_sim::moto::Moto;
use oleo_sim::proxy::{Faults, Proxy};
use oleo_sim::served::{Limits, Served};

/// The command.
pub const OLEO: &str = env!("CARGO_BIN_EXE_oleo");

/// Whoever has a volume keeps it until somebody takes over, so that no test hangs on a time.
const HELD: &str = "claim=0";

/// A store with room for volumes.
pub struct Store {
    base: String,
    remote: String,
    pub proxy: Option<Proxy>,
    _moto: Option<Moto>,
}

impl Store {
    /// A directory of the host.
    pub fn directory(dir: &Path) -> Store {
        Store { base: format!("file://{}", dir.display()), remote: HELD.into(), proxy: None, _moto: None }
    }

    /// A server, reached directly or through a proxy.
    pub fn s3(faults: Option<Faults>) -> Store {
        let moto = Moto::start().unwrap();
        let proxy = faults.map(|faults| Proxy::start(moto.address(), faults, 7).unwrap());
        let at = proxy.as_ref().map_or(moto.address(), Proxy::address);
        Store {
            base: moto.base().to_owned(),
            remote: format!("{HELD},{}", Moto::options(at)),
            proxy,
            _moto: Some(moto),
        }
    }

    /// One that is far away and not always good.
    pub fn far() -> Store {
        Store::s3(Some(Faults { delay: Duration::from_millis(20), lost_requests: 40, lost_answers: 40 }))
    }

    /// A volume on it.
    pub fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = Command::new(OLEO);
        command.current_dir(dir).env("OLEO_REMOTE", &self.remote);
        for name in ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ENDPOINT_URL"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the command.
    pub fn run(&self, dir: &Path, args: &[&str]) -> Output {
        self.command(dir).args(args).output().unwrap()
    }

    /// The same where it must succeed; its standard output.
    pub fn ok(&self, dir: &Path, args: &[&str]) -> String {
        let output = self.run(dir, args);
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{args:?}: {}{}", said(&output.stdout), said(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same where it must fail with this code; its one line of complaint.
    pub fn fails_with(&self, dir: &Path, code: i32, args: &[&str]) -> String {
        let output = self.run(dir, args);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {} {line}", String::from_utf8_lossy(&output.stdout));
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    /// Mounts.
    pub fn mount(&self, url: &str, options: &str) -> Served {
        let mut command = self.command(Path::new("/"));
        command.args(["mount", "--foreground", url]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        Served::start(command, vec![OLEO.into(), "unmount".into()], Limits::default()).unwrap()
    }

    /// A process of the command that goes on.
    pub fn spawn(&self, dir: &Path, args: &[&str]) -> std::process::Child {
        self.command(dir).args(args).stdout(std::process::Stdio::null()).spawn().unwrap()
    }
}

/// A directory with a tree to fill in.
pub fn source(dir: &Path) -> PathBuf {
    let src = dir.join("src");
    std::fs::create_dir_all(src.join("sub/deep")).unwrap();
    std::fs::write(src.join("small"), "small").unwrap();
    let large: Vec<u8> = oleo_sim::rng::Rng::new(1).bytes(3 << 20);
    std::fs::write(src.join("sub/large"), large).unwrap();
    for i in 0..100 {
        std::fs::write(src.join(format!("sub/deep/{i}")), vec![i as u8; 10 + i * 97]).unwrap();
    }
    src
}

/// Whether two files hold the same.
pub fn same(a: &Path, b: &Path) -> bool {
    std::fs::read(a).unwrap() == std::fs::read(b).unwrap()
}
