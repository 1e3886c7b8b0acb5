//! Programs in C, compiled by the system's compiler against what `scripts/install-c` installs, and run under valgrind.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use oleo_sim::oracle::{oracle, run};

/// What is installed, and where programs are made.
struct Installed {
    scratch: tempfile::TempDir,
}

impl Installed {
    /// Installs the libraries that cargo has built for this test.
    fn new() -> Installed {
        let scratch = tempfile::tempdir().unwrap();
        let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let done = Command::new(root.join("scripts/install-c"))
            .env("BUILT", built)
            .env("PREFIX", scratch.path().join("usr"))
            .env_remove("LIBDIR")
            .env_remove("DESTDIR")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Installed { scratch }
    }

    fn lib(&self) -> PathBuf {
        self.scratch.path().join("usr/lib")
    }

    fn pkg_config(&self, how: &[&str]) -> Vec<String> {
        let found = Command::new("pkg-config")
            .args(how)
            .arg("oleo")
            .env("PKG_CONFIG_PATH", self.lib().join("pkgconfig"))
            .output()
            .unwrap();
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        String::from_utf8(found.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program as its users would.
    fn compile(&self, compiler: &str, source: &str, libs: &[String]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let program = self.scratch.path().join(format!("{compiler}-{}", source.file_stem().unwrap().display()));
        let mut args: Vec<String> =
            ["-Wall", "-Wextra", "-Werror", "-g", "-pthread"].into_iter().map(str::to_owned).collect();
        args.extend([source.display().to_string(), "-o".into(), program.display().to_string()]);
        args.extend(self.pkg_config(&["--cflags"]));
        args.extend_from_slice(libs);
        run(compiler, &args).unwrap();
        program
    }

    /// What a program prints; it must end well.
    fn output(&self, command: &mut Command) -> String {
        let done = command.env("LD_LIBRARY_PATH", self.lib()).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{command:?}: {}\n{out}\n{err}", done.status);
        out.into_owned()
    }

    fn image(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

fn valgrind(program: &Path, image: &Path) -> Command {
    let mut command = Command::new("valgrind");
    // What the runtime keeps to the end of the process (thread pools) is no leak; memory that nothing points to any more is.
    let leaks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    command.args(["--quiet", "--error-exitcode=9"]).args(leaks);
    command.arg(program).arg(image);
    command
}

const SHOWN: &str = "\
label tour, blocks of 16384 bytes
subvolume 5: /
subvolume 256: /home
subvolume 257: /monday, read-only
/home: subvolume
/monday: subvolume
home/letters/sent: file
monday/letters/first: file
home/latest: 1048584 bytes
Dear reader
32 bytes read
extent at 0 of 4096 bytes
extent at 1048576 of 4096 bytes
errno 2: no/such/file: not found
";

/// Goal: the example compiles with what pkg-config says, shows what it should, and leaves an image that the kernel reads; linked with the
/// static library it does the same.
#[test]
fn the_example() {
    let installed = Installed::new();
    let libs = installed.pkg_config(&["--libs"]);
    let tour = installed.compile("gcc", "examples/tour.c", &libs);
    let image = installed.image("disk.img");
    assert_eq!(installed.output(Command::new(&tour).arg(&image)), SHOWN);

    let mut fixed = vec![installed.lib().join("liboleo.a").display().to_string()];
    fixed.extend(installed.pkg_config(&["--static", "--libs-only-l"]).into_iter().filter(|lib| lib != "-loleo"));
    let fixed = installed.compile("gcc", "examples/tour.c", &fixed);
    assert_eq!(installed.output(Command::new(&fixed).arg(installed.image("fixed.img"))), SHOWN);

    let Some(oracle) = oracle() else { return };
    oracle.must_be_sound(&[&image], "what the example made").unwrap();
    let mounted = oracle.mount(&[&image], "ro").unwrap();
    let mut wanted = b"Dear reader\n".to_vec();
    wanted.resize(1 << 20, 0);
    wanted.extend_from_slice(b"far away");
    assert_eq!(std::fs::read(mounted.path().join("home/latest")).unwrap(), wanted);
    assert_eq!(std::fs::read(mounted.path().join("monday/letters/first")).unwrap(), wanted);
}

/// Goal: neither the example nor what callers do wrong makes valgrind complain; what is done wrong is refused with the right errno.
#[test]
fn under_valgrind() {
    let installed = Installed::new();
    let libs = installed.pkg_config(&["--libs"]);
    let abuse = installed.compile("gcc", "tests/abuse.c", &libs);
    assert_eq!(installed.output(&mut valgrind(&abuse, &installed.image("abuse.img"))), "sound\n");
    let tour = installed.compile("gcc", "examples/tour.c", &libs);
    assert_eq!(installed.output(&mut valgrind(&tour, &installed.image("tour.img"))), SHOWN);
}

/// Goal: the header is one for C++, too.
#[test]
fn in_cpp() {
    let installed = Installed::new();
    let source = installed.image("version.cpp");
    let text = "#include <oleo.h>\n#include <cstdio>\nint main() { std::puts(oleo_version()); }\n";
    std::fs::write(&source, text).unwrap();
    let source = source.display().to_string();
    let program = installed.compile("g++", &source, &installed.pkg_config(&["--libs"]));
    assert_eq!(installed.output(&mut Command::new(program)).trim_end(), env!("CARGO_PKG_VERSION"));
}

/// Goal: an installation as root has the cache of the dynamic linker made anew, if that searches the directory; a package does not.
/// Method: a program in place of ldconfig that searches one directory and writes down its calls.
#[test]
fn programs_find_it() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let shown = |name: &str| dir.join(name).display().to_string();
    for library in ["liboleo_c.so", "liboleo_c.a"] {
        std::fs::write(dir.join(library), "").unwrap();
    }
    let calls = dir.join("calls");
    let program =
        format!("#!/bin/sh\necho \"called $*\" >>{}\necho \"{}: (by default)\"\n", calls.display(), shown("usr/lib"));
    std::fs::write(dir.join("ldconfig"), program).unwrap();
    std::fs::set_permissions(dir.join("ldconfig"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let installed = |more: &[(&str, String)]| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install-c");
        let mut command = Command::new(script);
        command.env("BUILT", dir).env("PREFIX", shown("usr")).env("PATH", &path).env_remove("LIBDIR");
        let done = command.env_remove("DESTDIR").envs(more.iter().cloned()).output().unwrap();
        let complaints = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{complaints}");
        let called = std::fs::read_to_string(&calls).unwrap_or_default();
        let _ = std::fs::remove_file(&calls);
        (called.lines().any(|line| line == "called "), complaints)
    };
    let (called, complaints) = installed(&[]);
    let is_root = dir.metadata().unwrap().uid() == 0;
    assert!(called == is_root && complaints.is_empty() == is_root, "{complaints}");
    let (called, complaints) = installed(&[("LIBDIR", shown("elsewhere"))]);
    assert!(!called && complaints.contains("does not search"), "{complaints}");
    assert_eq!(installed(&[("DESTDIR", shown("package"))]), (false, String::new()));
}
