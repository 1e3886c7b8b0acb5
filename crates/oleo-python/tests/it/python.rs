//! The package as Python sees it: what cargo has built for this test is put beside the sources of the package, and Python runs its tests.
//! `scripts/test` installs what they need below `target/venv`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use oleo_sim::oracle::oracle;

/// A test that hangs must not hang everything else: all of them take half a minute.
const LIMIT: Duration = Duration::from_secs(600);

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn venv(program: &str) -> PathBuf {
    let path = crate_dir().join("../../target/venv/bin").join(program);
    assert!(path.exists(), "{} is missing (scripts/test installs what tests need)", path.display());
    path
}

/// A directory as packages are installed in, with ours.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("oleo");
        std::fs::create_dir(&package).unwrap();
        for file in std::fs::read_dir(crate_dir().join("python/oleo")).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), package.join(file.file_name())).unwrap();
            }
        }
        let built = std::env::current_exe().unwrap().with_file_name("lib_oleo.so");
        std::fs::copy(&built, package.join("_oleo.abi3.so")).unwrap_or_else(|e| panic!("{}: {e}", built.display()));
        // What the wheel says of itself, entry points included, by the tool that makes it.
        let site = Site { dir };
        let mut maturin = Command::new(venv("maturin"));
        maturin.args(["pep517", "write-dist-info", "--interpreter"]).arg(venv("python"));
        maturin.arg("--metadata-directory").arg(site.dir.path()).current_dir(crate_dir());
        site.run(maturin);
        site
    }

    fn run(&self, mut command: Command) -> String {
        command.env("PYTHONPATH", self.dir.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        let done = command.output().unwrap();
        let out = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{command:?}: {}\n{out}", done.status);
        out
    }

    fn python(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg(LIMIT.as_secs().to_string()).arg(venv("python")).args(args);
        command.current_dir(self.dir.path());
        command
    }
}

/// Runs pytest on files of `tests/py`; returns how many tests passed. A warning is a failure.
fn pytest(site: &Site, args: &[String]) -> usize {
    let mut pytest = site.python(&["-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]);
    pytest.args(args);
    if oracle().is_some() {
        pytest.env("OLEO_KERNEL", "1");
    }
    let shown = site.run(pytest);
    let passed = shown.lines().find_map(|line| line.strip_prefix("pytest: ")?.strip_suffix(" passed"));
    passed.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
}

/// The tests that need more than `scripts/test` installs without `--all`.
const FRAMEWORKS: &str = "test_frameworks.py";

/// Goal: everything that the tests in `tests/py` say: results, exceptions, hostile names and images, the kernel's reading, examples in
/// the documentation.
#[test]
fn suite() {
    let tests = crate_dir().join("tests/py");
    let without = format!("--ignore={}", tests.join(FRAMEWORKS).display());
    let passed = pytest(&Site::new(), &[tests.display().to_string(), without]);
    assert!(passed >= 57, "{passed}");
}

/// Goal: pandas, zarr and dask read and write files in images.
#[test]
fn frameworks() {
    let tests = crate_dir().join("tests/py").join(FRAMEWORKS);
    assert_eq!(pytest(&Site::new(), &[tests.display().to_string()]), 3);
}

/// Goal: the annotations of the package are right in themselves, and the stub of the part in Rust is what that part is.
#[test]
fn types() {
    let site = Site::new();
    let config = crate_dir().join("pyproject.toml").display().to_string();
    site.run(site.python(&["-m", "mypy", "--config-file", &config, "--cache-dir=/dev/null", "-p", "oleo"]));
    site.run(site.python(&["-m", "mypy.stubtest", "oleo._oleo"]));
}

/// Goal: the wheel that users install has everything. Method: pip makes it of the sources, as `pip install` does, and a new environment
/// with nothing else runs it. It is built for release, which takes minutes.
#[test]
#[ignore = "minutes: cargo test -p oleo-python --test it -- --ignored python::wheel"]
fn wheel() {
    let scratch = tempfile::tempdir().unwrap();
    let run = |command: &mut Command| {
        let done = command.output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{command:?}: {}\n{err}", done.status);
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    run(Command::new(venv("pip")).args(["wheel", "--no-deps", "-w"]).arg(scratch.path()).arg(crate_dir()));
    let wheels: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [wheel] = &wheels[..] else { panic!("{wheels:?}") };
    let name = wheel.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("oleo-") && name.contains("-cp311-abi3-"), "{name}");
    let env = scratch.path().join("env");
    run(Command::new("python3").args(["-m", "venv"]).arg(&env));
    run(Command::new(env.join("bin/pip")).args(["install", "--no-index"]).arg(wheel));
    let program = "import oleo, importlib.resources as r; i = oleo.create_in_memory(1 << 28); i.write('a', b'b'); \
                   print(i.read('a'), (r.files('oleo') / 'py.typed').is_file(), (r.files('oleo') / '_oleo.pyi').is_file())";
    assert_eq!(run(Command::new(env.join("bin/python")).args(["-c", program])), "b'b' True True\n");
}

/// Bytes in the files of the image that is read for `speed`.
const READ_BYTES: u64 = 1 << 30;
/// How often each side reads it; the fastest counts.
const ROUNDS: usize = 5;
/// How much slower than the library Python may be.
const SLOWER_MAX: f64 = 1.3;

/// Everything in an image, read by the library as the script reads it: path by path, on one thread.
fn read_all(path: &Path) -> (u64, f64) {
    let begin = std::time::Instant::now();
    let image = oleo::Image::open(path, &oleo::OpenOptions::default()).unwrap();
    let (mut count, mut dirs) = (0, vec![String::new()]);
    while let Some(dir) = dirs.pop() {
        for entry in image.list(&dir).unwrap() {
            let path = format!("{dir}/{}", String::from_utf8(entry.name).unwrap());
            match entry.kind {
                oleo::fs::FileKind::Dir => dirs.push(path),
                _ => count += image.read(&path).unwrap().len() as u64,
            }
        }
    }
    image.close().unwrap();
    (count, begin.elapsed().as_secs_f64())
}

/// Goal: reading all of a gibibyte by Python takes at most 1.3 times as long as by the library. Method: files of 8 MiB, 256 KiB and 8 KiB,
/// a third of the bytes each in the first two, on a disk in memory; both sides read it in turns.
#[test]
#[ignore = "speed: cargo test --release -p oleo-python --test it -- --ignored --nocapture python::speed"]
fn speed() {
    let scratch = oleo_sim::oracle::Scratch::new().unwrap();
    let path = scratch.path().join("disk.img");
    let image = oleo::Image::create(&path, READ_BYTES + (512 << 20)).unwrap();
    let (mut left, mut number, mut seed) = (READ_BYTES, 0u64, 1u64);
    let mut block = vec![0u8; 8 << 20];
    while left > 0 {
        let len = match (left > READ_BYTES / 3 * 2, left > READ_BYTES / 16) {
            (true, _) => 8 << 20,
            (_, true) => 256 << 10,
            _ => 8 << 10,
        }
        .min(left);
        for chunk in block[..usize::try_from(len).unwrap()].chunks_mut(8) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            chunk.copy_from_slice(&(seed ^ seed >> 29).to_le_bytes()[..chunk.len()]);
        }
        if number % 500 == 0 {
            image.create_dir(format!("{}", number / 500)).unwrap();
            image.sync().unwrap();
        }
        let name = format!("{}/{number}", number / 500);
        image.write(&name, &block[..usize::try_from(len).unwrap()]).unwrap();
        (left, number) = (left - len, number + 1);
    }
    image.close().unwrap();

    let site = Site::new();
    let script = crate_dir().join("tests/speed.py").display().to_string();
    let disk = path.display().to_string();
    let (mut library, mut python) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let (count, seconds) = read_all(&path);
        assert_eq!(count, READ_BYTES);
        library = library.min(seconds);
        let shown = site.run(site.python(&[&script, &disk]));
        let (count, seconds) = shown.trim().split_once(' ').unwrap();
        assert_eq!(count, READ_BYTES.to_string());
        python = python.min(seconds.parse().unwrap());
    }
    let ratio = python / library;
    println!("{number} files, 1 GiB: library {library:.3} s, Python {python:.3} s, {ratio:.2} times as long");
    assert!(ratio <= SLOWER_MAX, "{ratio:.2} is more than {SLOWER_MAX}");
}
