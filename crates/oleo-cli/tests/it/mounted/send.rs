//! Streams out of a mount, and out of its image.

use std::fs;

use oleo_sim::manifest::{Detail, Ignore, Manifest};

use crate::common::fails_with;
use crate::mounted::{Mount, fails, ok};

/// Goal: a mount's server sends what is asked for, the same stream as offline, whole, incremental, several in one stream; what cannot be
/// sent is said. Method: snapshots on a mount, sent to files and through a pipe; received into another image; the image sent again
/// when nobody serves it; the kernel looks at what was received.
#[test]
fn through_the_server_and_offline() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    ok(&dir, &["subvolume", "create", "m/work"]);
    fs::write(mount.path("work/f"), vec![3; 300_000]).unwrap();
    ok(&dir, &["subvolume", "snapshot", "-r", "m/work", "m/first"]);
    fs::write(mount.path("work/g"), b"more").unwrap();
    fs::rename(mount.path("work/f"), mount.path("work/h")).unwrap();
    ok(&dir, &["subvolume", "snapshot", "-r", "m/work", "m/second"]);

    assert!(fails(&dir, &["send", "-f", "x", "m/work"]).contains("not read-only"));
    assert!(fails(&dir, &["send", "-f", "x", "m/nothing"]).contains("nothing"));
    assert!(fails_with(&dir, 2, &["send", "-f", "x", "i"]).contains("--subvol"));
    ok(&dir, &["send", "-f", "whole", "m/first"]);
    ok(&dir, &["send", "-f", "change", "-p", "m/first", "m/second"]);
    ok(&dir, &["send", "--proto", "2", "-e", "-c", "m/first", "-f", "both", "m/first", "m/second"]);

    ok(&dir, &["mkfs", "--size", "512M", "j"]);
    ok(&dir, &["receive", "-f", "whole", "j"]);
    ok(&dir, &["receive", "-f", "change", "j"]);
    ok(&dir, &["mkfs", "--size", "512M", "k"]);
    ok(&dir, &["receive", "-f", "both", "k"]);

    let want = Manifest::of_dir(&mount.path(""), Detail::default()).unwrap();
    mount.verify(|_| ());
    for (name, args) in [
        ("whole", &["--subvol", "/first"][..]),
        ("change", &["-p", "/first", "--subvol", "/second"]),
        ("both", &["--proto", "2", "-e", "-c", "/first", "--subvol", "/first", "--subvol", "/second"]),
    ] {
        ok(&dir, &[&["send", "-f", "again", "i"][..], args].concat());
        assert!(fs::read(dir.join("again")).unwrap() == fs::read(dir.join(name)).unwrap(), "{name}");
    }
    for image in ["j", "k"] {
        let mounted = mount.oracle.mount(&[dir.join(image)], "").unwrap();
        let have = Manifest::of_dir(mounted.path(), Detail::default()).unwrap();
        for snapshot in [&b"first"[..], b"second"] {
            want.below(snapshot).must_equal(&have.below(snapshot), &Ignore { otime: true, ..Ignore::default() }, image);
        }
        mounted.unmount().unwrap();
        mount.oracle.must_be_sound(&[dir.join(image)], image).unwrap();
    }
}
