//! `scripts/install`, as a packager calls it, and the manual that it installs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use oleo_sim::oracle::Scratch;

/// Goal: all that belongs to a package is at its place below DESTDIR, and nowhere else. Method: into a temporary directory with the
/// command that was built for this test; then a look at modes, the link, completions, and that no page refers to one of ours that is not there.
#[test]
fn into_a_directory() {
    let scratch = Scratch::new().unwrap();
    let dest = scratch.path().join("dest");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install");
    let output = Command::new(script)
        .env("DESTDIR", &dest)
        .env("PREFIX", "/usr")
        .env("OLEO", env!("CARGO_BIN_EXE_oleo"))
        .env("TMPDIR", scratch.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left: Vec<_> = fs::read_dir(scratch.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["dest"], "nothing is left beside it");

    let command = dest.join("usr/bin/oleo");
    assert_eq!(fs::metadata(&command).unwrap().permissions().mode() & 0o777, 0o755);
    let version = Command::new(&command).arg("--version").output().unwrap();
    assert!(version.status.success() && version.stdout.starts_with(b"oleo "));
    assert_eq!(fs::read_link(dest.join("sbin/mount.fuse.oleo")).unwrap(), Path::new("/usr/bin/oleo"));
    for file in ["bash-completion/completions/oleo", "zsh/site-functions/_oleo", "fish/vendor_completions.d/oleo.fish"]
    {
        let text = fs::read_to_string(dest.join("usr/share").join(file)).unwrap();
        assert!(text.contains("subvolume") && text.contains("rootdir"), "{file}");
    }
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(dest.join("usr/share/doc/oleo").join(file).is_file(), "{file}");
    }
    manual(&dest.join("usr/share/man/man8"));
}

/// Every page has what a manual has; those of ours that it refers to are there.
fn manual(dir: &Path) {
    let names: BTreeSet<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    for name in ["oleo.8", "mount.fuse.oleo.8", "oleo-mkfs.8", "oleo-subvolume-snapshot.8", "oleo-check.8"] {
        assert!(names.contains(name), "{name} is not there");
    }
    for name in &names {
        let page = fs::read_to_string(dir.join(name)).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "\"EXIT STATUS\"", "\"SEE ALSO\""] {
            let has = page
                .lines()
                .any(|l| l.strip_prefix(".SH ").is_some_and(|s| s.trim_matches('"') == section.trim_matches('"')));
            assert!(has, "{name} has no {section}");
        }
        let see = page.rsplit_once("SEE ALSO").unwrap().1.replace("\\-", "-");
        let ours = see.split([',', '\n', ' ']).filter(|w| w.starts_with("oleo") || w.starts_with("mount.fuse"));
        let missing: Vec<&str> = ours.filter(|w| !names.contains(&w.replace("(8)", ".8"))).collect();
        assert_eq!(missing, [""; 0], "{name} refers to pages that are not there");
    }
    for name in ["oleo.8", "mount.fuse.oleo.8", "oleo-mkfs.8"] {
        assert!(fs::read_to_string(dir.join(name)).unwrap().contains(".SH \"EXAMPLES\""), "{name} has no examples");
    }
}
