//! Situations over which incremental streams have gone wrong, one after another.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use crate::send::common::{History, Sender};
use anyhow::{Context, Result};
use oleo_sim::budget::budget;
use oleo_sim::manifest::set_xattr;
use oleo_sim::oracle::{oracle, run};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Host, Op, Target};
use rustix::fs::{FallocateFlags, RenameFlags};

const S: u64 = 4096;

type Step = fn(&Path) -> Result<()>;

/// A situation: the state before, and the changes.
struct Case {
    name: &'static str,
    before: Step,
    after: Step,
}

fn random(path: &Path, len: u64) -> Result<()> {
    // Unlike any other file's.
    let seed =
        path.as_os_str().as_encoded_bytes().iter().fold(len, |n, b| n.wrapping_mul(31).wrapping_add(u64::from(*b)));
    fs::write(path, Rng::new(seed).bytes(usize::try_from(len)?)).context("write")
}

fn overwrite(path: &Path, at: u64, len: u64, seed: u64) -> Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(&Rng::new(seed).bytes(usize::try_from(len)?), at)?;
    file.sync_all().context("sync")
}

/// By way of the script's host, which checks what the kernel would.
fn clone_range(top: &Path, from: &str, at: u64, len: u64, to: &str, to_at: u64) -> Result<()> {
    File::open(top.join(from))?.sync_all()?;
    if !top.join(to).exists() {
        File::create(top.join(to))?;
    }
    let op = Op::Clone { from: from.into(), at, len, to: to.into(), to_at };
    Host::new(top, S).apply(&op).with_context(|| format!("{op:?}"))
}

fn dirs(top: &Path, paths: &[&str]) -> Result<()> {
    for path in paths {
        fs::create_dir_all(top.join(path))?;
        fs::write(top.join(path).join("in"), path)?;
    }
    Ok(())
}

fn mv(top: &Path, from: &str, to: &str) -> Result<()> {
    fs::rename(top.join(from), top.join(to)).with_context(|| format!("{from} to {to}"))
}

fn exchange(top: &Path, a: &str, b: &str) -> Result<()> {
    let cwd = rustix::fs::CWD;
    rustix::fs::renameat_with(cwd, top.join(a), cwd, top.join(b), RenameFlags::EXCHANGE).context("exchange")
}

fn names(top: &Path) -> Result<()> {
    dirs(
        top,
        &["a/b/c/d", "swap/one", "swap/two", "x", "y", "z", "up/mid/low", "gone", "gone/sub", "kept", "deep/1/2/3/4"],
    )?;
    random(&top.join("file"), 10_000)?;
    random(&top.join("left"), 5000)?;
    random(&top.join("right"), 6000)?;
    random(&top.join("kept/links"), 7000)?;
    fs::hard_link(top.join("kept/links"), top.join("kept/second"))?;
    fs::hard_link(top.join("kept/links"), top.join("x/third"))?;
    random(&top.join("over"), 3000)?;
    random(&top.join("under"), 3001)?;
    symlink("file", top.join("link"))?;
    random(&top.join("was-file"), 100)?;
    dirs(top, &["was-dir/full"])
}

/// Goal of each: see its name.
const CASES: &[Case] = &[
    Case { name: "a file is renamed", before: names, after: |t| mv(t, "file", "x/renamed") },
    Case { name: "one file takes the place of another", before: names, after: |t| mv(t, "over", "under") },
    Case { name: "two directories swap names", before: names, after: |t| exchange(t, "swap/one", "swap/two") },
    Case { name: "two files swap names", before: names, after: |t| exchange(t, "left", "right") },
    Case { name: "a file and a directory swap names", before: names, after: |t| exchange(t, "left", "a/b") },
    Case {
        name: "three directories go round",
        before: names,
        after: |t| {
            mv(t, "x", "tmp")?;
            mv(t, "y", "x")?;
            mv(t, "z", "y")?;
            mv(t, "tmp", "z")
        },
    },
    Case {
        name: "a child goes above its ancestor",
        before: names,
        after: |t| {
            mv(t, "up/mid/low", "low")?;
            mv(t, "up", "low/up")
        },
    },
    Case {
        name: "a chain of directories is turned over",
        before: names,
        after: |t| {
            mv(t, "deep/1/2/3/4", "deep/4")?;
            mv(t, "deep/1/2/3", "deep/4/3")?;
            mv(t, "deep/1/2", "deep/4/3/2")?;
            mv(t, "deep/1", "deep/4/3/2/1")
        },
    },
    Case {
        name: "two directories change places in the tree, with those in between",
        before: names,
        after: |t| {
            mv(t, "a/b/c", "x/c")?;
            mv(t, "a/b", "x/c/b")?;
            mv(t, "a", "x/c/b/a")?;
            mv(t, "x/c/d", "a")
        },
    },
    Case {
        name: "a directory goes into a new one that takes its name",
        before: names,
        after: |t| {
            mv(t, "kept", "tmp")?;
            fs::create_dir(t.join("kept"))?;
            mv(t, "tmp", "kept/kept")?;
            random(&t.join("kept/new"), 123)
        },
    },
    Case {
        name: "a directory is deleted, what was in it is elsewhere",
        before: names,
        after: |t| {
            mv(t, "gone/sub", "sub")?;
            mv(t, "gone/in", "sub/out")?;
            fs::remove_dir(t.join("gone")).context("rmdir")
        },
    },
    Case {
        name: "a directory is deleted and made anew, and gets its child back",
        before: names,
        after: |t| {
            mv(t, "gone/sub", "sub")?;
            fs::remove_dir_all(t.join("gone"))?;
            fs::create_dir(t.join("gone"))?;
            mv(t, "sub", "gone/sub")?;
            random(&t.join("gone/in"), 50)
        },
    },
    Case {
        name: "names are taken by other kinds",
        before: names,
        after: |t| {
            fs::remove_file(t.join("was-file"))?;
            dirs(t, &["was-file/inside"])?;
            fs::remove_dir_all(t.join("was-dir"))?;
            random(&t.join("was-dir"), 200)?;
            fs::remove_file(t.join("link"))?;
            symlink("elsewhere", t.join("link")).context("symlink")
        },
    },
    Case {
        name: "a deleted directory's name goes to one that was below it",
        before: names,
        after: |t| {
            mv(t, "a/b/c", "c")?;
            fs::remove_dir_all(t.join("a"))?;
            mv(t, "c", "a")
        },
    },
    Case {
        name: "hard links come and go",
        before: names,
        after: |t| {
            fs::remove_file(t.join("kept/links"))?;
            fs::hard_link(t.join("x/third"), t.join("y/fourth"))?;
            fs::remove_file(t.join("x/third"))?;
            fs::hard_link(t.join("file"), t.join("z/file"))?;
            mv(t, "kept/second", "z/fifth")
        },
    },
    Case {
        name: "the name of a hard link goes to another file, in a directory that moves",
        before: names,
        after: |t| {
            fs::remove_file(t.join("kept/links"))?;
            mv(t, "file", "kept/links")?;
            mv(t, "kept", "y/kept")?;
            mv(t, "x", "kept")
        },
    },
    Case {
        name: "links of two files are crossed",
        before: names,
        after: |t| {
            exchange(t, "kept/second", "left")?;
            exchange(t, "x/third", "right")
        },
    },
    Case {
        name: "a name like those in between is taken",
        before: |t| {
            names(t)?;
            for ino in 257..300 {
                fs::create_dir(t.join(format!("o{ino}-9-0")))?;
            }
            Ok(())
        },
        after: |t| exchange(t, "swap/one", "swap/two"),
    },
    Case {
        name: "everything goes but one",
        before: names,
        after: |t| {
            mv(t, "deep/1/2/3/4/in", "survivor")?;
            for name in ["a", "swap", "x", "y", "z", "up", "gone", "kept", "deep", "was-dir"] {
                fs::remove_dir_all(t.join(name))?;
            }
            for name in ["file", "left", "right", "over", "under", "link", "was-file"] {
                fs::remove_file(t.join(name))?;
            }
            Ok(())
        },
    },
    Case {
        name: "three hundred links",
        before: |t| {
            random(&t.join("f"), 5000)?;
            fs::create_dir(t.join("d"))?;
            for n in 0..300 {
                fs::hard_link(t.join("f"), t.join("d").join(format!("a-long-enough-name-for-many-references-{n}")))?;
            }
            Ok(())
        },
        after: |t| {
            for n in 100..200 {
                fs::remove_file(t.join("d").join(format!("a-long-enough-name-for-many-references-{n}")))?;
                fs::hard_link(t.join("f"), t.join(format!("new-{n}")))?;
            }
            mv(t, "d", "e")
        },
    },
    Case {
        name: "names of any bytes",
        before: |t| {
            use std::os::unix::ffi::OsStrExt;
            random(&t.join(std::ffi::OsStr::from_bytes(b"\xff\xfe \n\\")), 10)?;
            random(&t.join("n".repeat(255)), 11)
        },
        after: |t| {
            use std::os::unix::ffi::OsStrExt;
            fs::create_dir(t.join("d"))?;
            fs::rename(
                t.join(std::ffi::OsStr::from_bytes(b"\xff\xfe \n\\")),
                t.join("d").join(std::ffi::OsStr::from_bytes(b"\x01")),
            )?;
            fs::rename(t.join("n".repeat(255)), t.join("d").join("m".repeat(255))).context("rename")
        },
    },
    Case {
        name: "the number of a deleted inode is another's",
        before: |t| {
            random(&t.join("stays"), 10)?;
            random(&t.join("dies"), 20_000)
        },
        after: |t| {
            fs::remove_file(t.join("dies"))?;
            random(&t.join("born"), 9000)
        },
    },
    Case {
        name: "the number of a deleted directory is another's, of the same name, with the same children",
        before: |t| {
            random(&t.join("child"), 10)?;
            fs::hard_link(t.join("child"), t.join("other"))?;
            fs::create_dir(t.join("dir"))?;
            mv(t, "child", "dir/child")
        },
        after: |t| {
            mv(t, "dir/child", "child")?;
            fs::remove_dir(t.join("dir"))?;
            fs::create_dir(t.join("dir"))?;
            mv(t, "child", "dir/child")
        },
    },
    Case {
        name: "files shrink and grow",
        before: |t| {
            for name in ["down", "up", "down-up", "nothing", "to-inline", "from-inline", "unaligned"] {
                random(&t.join(name), if name == "from-inline" { 500 } else { 100_001 })?;
            }
            Ok(())
        },
        after: |t| {
            let set = |name: &str, len| OpenOptions::new().write(true).open(t.join(name))?.set_len(len);
            set("down", 50_000)?;
            set("up", 300_000)?;
            set("down-up", 10_000)?;
            set("down-up", 90_000)?;
            set("nothing", 0)?;
            set("unaligned", 100_000)?;
            fs::write(t.join("to-inline"), "short")?;
            random(&t.join("from-inline"), 20_000)
        },
    },
    Case {
        name: "holes come and go",
        before: |t| {
            for name in ["middle", "end", "all", "beyond"] {
                random(&t.join(name), 40 * S + 7)?;
            }
            let file = File::create(t.join("sparse"))?;
            file.set_len(1 << 30)?;
            file.write_all_at(&[7; 5000], 500 << 20).context("write")
        },
        after: |t| {
            let punch = |name: &str, at, len| -> Result<()> {
                let file = OpenOptions::new().write(true).open(t.join(name))?;
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, mode, at, len).context("punch")
            };
            punch("middle", 10 * S + 100, 5 * S)?;
            punch("end", 30 * S, 20 * S)?;
            punch("all", 0, 50 * S)?;
            OpenOptions::new().write(true).open(t.join("beyond"))?.set_len(80 * S)?;
            overwrite(&t.join("beyond"), 70 * S, 2 * S, 5)?;
            overwrite(&t.join("sparse"), 100 << 20, 3 * S, 6)?;
            punch("sparse", 500 << 20, 2 * S)
        },
    },
    Case {
        name: "preallocated space is written, given back, and comes",
        before: |t| {
            for name in ["written", "punched", "beyond"] {
                random(&t.join(name), 3 * S)?;
                let file = OpenOptions::new().write(true).open(t.join(name))?;
                rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 3 * S, 64 * S)?;
            }
            random(&t.join("data"), 20 * S)
        },
        after: |t| {
            overwrite(&t.join("written"), 10 * S, 5 * S, 8)?;
            let file = OpenOptions::new().write(true).open(t.join("punched"))?;
            rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 100 * S)?;
            let file = OpenOptions::new().write(true).open(t.join("data"))?;
            rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 5 * S, 5 * S)?;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 20 * S, 10 * S).context("fallocate")
        },
    },
    Case {
        name: "attributes, capabilities and modes",
        before: |t| {
            for name in ["caps", "caps-owner", "caps-written", "suid", "plain", "attrs"] {
                random(&t.join(name), 5000)?;
                if name.starts_with("caps") {
                    set_xattr(&t.join(name), b"security.capability", &CAPABILITY)?;
                }
            }
            // So small that it is inline.
            random(&t.join("caps-small"), 300)?;
            set_xattr(&t.join("caps-small"), b"security.capability", &CAPABILITY)?;
            fs::set_permissions(t.join("suid"), fs::Permissions::from_mode(0o6755))?;
            set_xattr(&t.join("attrs"), b"user.one", b"1")?;
            set_xattr(&t.join("attrs"), b"user.two", &[2; 2000])?;
            symlink("nowhere", t.join("link"))?;
            set_xattr(&t.join("link"), b"trusted.of-a-link", b"").context("xattr")
        },
        after: |t| {
            std::os::unix::fs::chown(t.join("caps-owner"), Some(1000), Some(1001))?;
            set_xattr(&t.join("caps-owner"), b"security.capability", &CAPABILITY)?;
            overwrite(&t.join("caps-written"), 100, 200, 9)?;
            set_xattr(&t.join("caps-written"), b"security.capability", &CAPABILITY)?;
            overwrite(&t.join("caps-small"), 0, 100, 9)?;
            set_xattr(&t.join("caps-small"), b"security.capability", &CAPABILITY)?;
            std::os::unix::fs::chown(t.join("suid"), Some(7), None)?;
            overwrite(&t.join("suid"), 100, 200, 9)?;
            fs::set_permissions(t.join("suid"), fs::Permissions::from_mode(0o6711))?;
            std::os::unix::fs::lchown(t.join("link"), Some(5), Some(6))?;
            rustix::fs::removexattr(t.join("attrs"), "user.one")?;
            set_xattr(&t.join("attrs"), b"user.two", b"other")?;
            set_xattr(&t.join("plain"), b"user.empty", b"")?;
            run("touch", ["-h", "-d", "1960-01-01 00:00:00.123456789", path_text(&t.join("plain"))?])?;
            run("touch", ["-h", "-d", "2100-01-01 00:00:00.5", path_text(&t.join("link"))?]).map(|_| ())
        },
    },
    Case {
        // The receiver's own changes take the capabilities away, too.
        name: "capabilities are lost",
        before: |t| {
            for name in ["owner", "written", "truncated", "cloned", "removed", "small"] {
                random(&t.join(name), if name == "small" { 300 } else { 5000 })?;
                set_xattr(&t.join(name), b"security.capability", &CAPABILITY)?;
                set_xattr(&t.join(name), b"user.other", b"1")?;
            }
            random(&t.join("source"), 8192)
        },
        after: |t| {
            std::os::unix::fs::chown(t.join("owner"), Some(1000), Some(1001))?;
            overwrite(&t.join("written"), 100, 200, 9)?;
            overwrite(&t.join("small"), 0, 100, 9)?;
            OpenOptions::new().write(true).open(t.join("truncated"))?.set_len(100)?;
            clone_range(t, "source", 0, 4096, "cloned", 0)?;
            rustix::fs::removexattr(t.join("removed"), "security.capability")?;
            std::os::unix::fs::chown(t.join("removed"), Some(1000), Some(1001))?;
            for name in ["owner", "written", "truncated", "cloned", "removed", "small"] {
                let left = rustix::fs::getxattr(t.join(name), "security.capability", &mut [0u8; 64]);
                anyhow::ensure!(left == Err(rustix::io::Errno::NODATA), "{name}: {left:?}");
                rustix::fs::removexattr(t.join(name), "user.other")?;
            }
            Ok(())
        },
    },
    Case {
        name: "what a directory hands down is not for those that came otherwise",
        before: |t| {
            fs::create_dir(t.join("acl"))?;
            set_xattr(&t.join("acl"), b"system.posix_acl_default", &ACL)?;
            fs::create_dir(t.join("zstd"))?;
            set_xattr(&t.join("zstd"), b"btrfs.compression", b"zstd")?;
            random(&t.join("plain"), 300).context("plain")
        },
        after: |t| {
            // Made elsewhere, so that they inherit nothing, and moved.
            for dir in ["acl", "zstd"] {
                fs::create_dir(t.join("new"))?;
                random(&t.join("file"), 3000)?;
                mv(t, "new", &format!("{dir}/new"))?;
                mv(t, "file", &format!("{dir}/file"))?;
                random(&t.join(dir).join("heir"), 5000)?;
                fs::create_dir(t.join(dir).join("heirs"))?;
            }
            Ok(())
        },
    },
    Case {
        name: "special files are replaced",
        before: |t| special(t, "0", 0o644),
        after: |t| {
            for name in ["fifo", "null", "block"] {
                fs::remove_file(t.join(name))?;
            }
            fs::remove_file(t.join("socket"))?;
            special(t, "1000", 0o600)
        },
    },
    Case {
        name: "clone sources are truncated, deleted, overwritten and renamed in the same stream",
        before: |t| {
            for name in ["truncated", "deleted", "overwritten", "renamed"] {
                random(&t.join(name), 64 * S + 77)?;
            }
            Ok(())
        },
        after: |t| {
            for name in ["truncated", "deleted", "overwritten", "renamed"] {
                clone_range(t, name, 0, 64 * S + 77, &format!("of-{name}"), 0)?;
                clone_range(t, name, 8 * S, 16 * S, &format!("part-of-{name}"), 4 * S)?;
            }
            OpenOptions::new().write(true).open(t.join("truncated"))?.set_len(S)?;
            fs::remove_file(t.join("deleted"))?;
            overwrite(&t.join("overwritten"), 0, 64 * S, 4)?;
            mv(t, "renamed", "deleted")
        },
    },
    Case {
        name: "clones of clones within one file, shifted",
        before: |t| random(&t.join("f"), 32 * S),
        after: |t| {
            clone_range(t, "f", 0, 16 * S, "f", 32 * S)?;
            clone_range(t, "f", 32 * S, 8 * S, "f", 64 * S)?;
            overwrite(&t.join("f"), 4 * S, 4 * S, 11)?;
            clone_range(t, "f", 2 * S, 8 * S, "f", 20 * S)?;
            clone_range(t, "f", 0, 72 * S, "g", 0)
        },
    },
    Case {
        name: "one sector at offset 0 is shared",
        before: |t| random(&t.join("a"), S),
        after: |t| {
            clone_range(t, "a", 0, S, "b", 0)?;
            clone_range(t, "a", 0, S, "c", 7 * S)?;
            random(&t.join("d"), S)?;
            clone_range(t, "d", 0, S, "e", 0)
        },
    },
    Case {
        name: "the ends of clones",
        before: |t| random(&t.join("a"), 10 * S + 1000),
        after: |t| {
            clone_range(t, "a", 0, 10 * S + 1000, "same-end", 0)?;
            clone_range(t, "a", 8 * S, 2 * S + 1000, "moved-end", 3 * S)?;
            clone_range(t, "a", 0, 10 * S + 1000, "longer", 0)?;
            overwrite(&t.join("longer"), 12 * S, S, 3)?;
            clone_range(t, "a", 0, 10 * S + 1000, "cut", 0)?;
            OpenOptions::new().write(true).open(t.join("cut"))?.set_len(10 * S + 500)?;
            clone_range(t, "a", 4 * S, S, "a", 20 * S).context("clone")
        },
    },
    Case {
        name: "compressed extents, whole, in part, and with an offset",
        before: |t| {
            fs::create_dir(t.join("z"))?;
            set_xattr(&t.join("z"), b"btrfs.compression", b"zstd")?;
            for name in ["a", "b", "c"] {
                compressible(&t.join("z").join(name), 600_000, name.as_bytes()[0])?;
            }
            compressible(&t.join("z/inline"), 1500, 3)
        },
        after: |t| {
            clone_range(t, "z/a", 0, 600_000, "z/whole", 0)?;
            clone_range(t, "z/a", 10 * S, 50 * S, "z/part", 0)?;
            clone_range(t, "z/a", 31 * S, 2 * S, "z/across", S)?;
            overwrite(&t.join("z/b"), 20 * S, 3 * S, 12)?;
            clone_range(t, "z/b", 15 * S, 20 * S, "z/after", 0)?;
            compressible(&t.join("z/new"), 300_000, 9)?;
            clone_range(t, "z/new", 33 * S, 10 * S, "z/of-new", 2 * S)?;
            OpenOptions::new().write(true).open(t.join("z/c"))?.set_len(300_001)?;
            clone_range(t, "z/c", 40 * S, 10 * S, "plain", 0)
        },
    },
    Case {
        name: "files without checksums",
        before: |t| {
            fs::create_dir(t.join("nocow"))?;
            run("chattr", ["+C", path_text(&t.join("nocow"))?])?;
            random(&t.join("nocow/a"), 40 * S)?;
            random(&t.join("nocow/b"), 10 * S)
        },
        after: |t| {
            overwrite(&t.join("nocow/a"), 3 * S, 2 * S, 77)?;
            clone_range(t, "nocow/a", 0, 20 * S, "nocow/c", 0)?;
            random(&t.join("nocow/d"), 3 * S)
        },
    },
    Case {
        name: "files that may not change",
        before: |t| {
            dirs(t, &["fixed"])?;
            random(&t.join("fixed/a"), 2 * S)?;
            random(&t.join("b"), 2 * S)?;
            run("chattr", ["+i", path_text(&t.join("fixed/a"))?, path_text(&t.join("b"))?])?;
            run("chattr", ["+a", path_text(&t.join("fixed"))?]).map(|_| ())
        },
        after: |t| {
            let paths = [t.join("fixed"), t.join("fixed/a"), t.join("b")];
            for path in &paths {
                run("chattr", ["-i", "-a", path_text(path)?])?;
            }
            overwrite(&t.join("fixed/a"), 0, S, 5)?;
            mv(t, "fixed/a", "fixed/c")?;
            fs::remove_file(t.join("b"))?;
            run("chattr", ["+i", path_text(&t.join("fixed/c"))?])?;
            run("chattr", ["+a", path_text(&t.join("fixed"))?]).map(|_| ())
        },
    },
];

/// Version 2, permitted: CAP_NET_RAW.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Version 2; owner rwx, user 1000 r-x, group r-x, mask r-x, others none.
const ACL: [u8; 44] = [
    2, 0, 0, 0, //
    1, 0, 7, 0, 255, 255, 255, 255, //
    2, 0, 5, 0, 232, 3, 0, 0, //
    4, 0, 5, 0, 255, 255, 255, 255, //
    16, 0, 5, 0, 255, 255, 255, 255, //
    32, 0, 0, 0, 255, 255, 255, 255,
];

fn path_text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}

fn compressible(path: &Path, len: usize, with: u8) -> Result<()> {
    let bytes: Vec<u8> = (0..len).map(|n| if n % 64 < 48 { with } else { (n / 64) as u8 ^ (n >> 12) as u8 }).collect();
    fs::write(path, bytes)?;
    File::open(path)?.sync_all().context("sync")
}

fn special(top: &Path, minor: &str, mode: u32) -> Result<()> {
    let at = |name: &str| top.join(name);
    run("mkfifo", [path_text(&at("fifo"))?])?;
    run("mknod", [path_text(&at("null"))?, "c", "1", minor])?;
    run("mknod", [path_text(&at("block"))?, "b", "300", minor])?;
    drop(std::os::unix::net::UnixListener::bind(at("socket"))?);
    for name in ["fifo", "null", "block", "socket"] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Goal: each situation arrives. Method: all of them in one history, each in a directory of its own; to the kernel and to
/// ourselves, in versions 1 and 2: two of three forms of the stream in CI.
#[test]
fn each_situation_arrives() {
    let Some(oracle) = oracle() else { return };
    let history = History::with(oracle, 0, 2, |work, number| {
        for (index, case) in CASES.iter().enumerate() {
            let top = work.join(format!("case-{index:02}"));
            if number == 0 {
                fs::create_dir(&top)?;
            }
            let step = if number == 0 { case.before } else { case.after };
            step(&top).with_context(|| format!("{}, step {number}", case.name))?;
        }
        Ok(Vec::new())
    })
    .unwrap();
    for (version, compressed) in budget().sample(vec![(1, false), (2, false), (2, true)], 2) {
        let sender = Sender { version, compressed, ..Sender::default() };
        history.to_the_kernel(oracle, &sender).unwrap();
        history.to_us(oracle, &sender).unwrap();
    }
}

/// Goal: the last inodes of a subvolume, whose numbers are used again, are distinguished. Method: those cases whose
/// last inodes die, each in a history of its own, whose numbers begin anew with the mount between the steps.
#[test]
fn numbers_are_given_out_again() {
    let Some(oracle) = oracle() else { return };
    for name in ["names are taken by other kinds", "the number of a deleted inode is another's"]
        .into_iter()
        .chain(CASES.iter().map(|case| case.name).filter(|name| name.contains("another's, of the same name")))
    {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        let history = History::with(oracle, 0, 2, |work, number| {
            let step = if number == 0 { case.before } else { case.after };
            step(work).context(case.name)?;
            Ok(Vec::new())
        })
        .unwrap();
        history.to_the_kernel(oracle, &Sender::default()).unwrap();
    }
}

/// Goal: a file that was deleted but is still open when the snapshot is made is not there; one that got its first name later
/// is new. Method: `O_TMPFILE` and unlinked files held open over snapshots.
#[test]
fn files_without_names() {
    let Some(oracle) = oracle() else { return };
    let history = History::with(oracle, 0, 3, |work, number| {
        let open =
            |name: &str| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(work.join(name));
        match number {
            0 => {
                random(&work.join("unlinked"), 9000)?;
                random(&work.join("later"), 9001)?;
                let held = open("unlinked")?;
                fs::remove_file(work.join("unlinked"))?;
                Ok(vec![held])
            }
            1 => {
                let held = open("later")?;
                fs::remove_file(work.join("later"))?;
                random(&work.join("unlinked"), 100)?;
                Ok(vec![held])
            }
            _ => Ok(Vec::new()),
        }
    })
    .unwrap();
    history.to_the_kernel(oracle, &Sender::default()).unwrap();
}

/// Goal: contents that did not change are not sent again, wherever they are by now. Method: files of many extents, defragmented
/// and balanced between two snapshots; no data in the second stream, and the receiver's copies stay shared.
#[test]
fn defragmented_and_balanced() {
    let Some(oracle) = oracle() else { return };
    let history = History::with(oracle, 0, 2, |work, number| {
        let path = work.join("f");
        if number == 0 {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
            for at in (0..64).rev() {
                file.write_all_at(&Rng::new(at).bytes(4096), at * S)?;
                file.sync_all()?;
            }
            random(&work.join("g"), 1 << 20)?;
        } else {
            run("btrfs", ["filesystem", "defragment", path_text(&path)?])?;
            run("btrfs", ["filesystem", "sync", path_text(work)?])?;
            run("btrfs", ["balance", "start", "--full-balance", path_text(work)?])?;
        }
        Ok(Vec::new())
    })
    .unwrap();
    let image = history.open().unwrap();
    let (_, sent) = Sender::default().send(&image, "s1", Some("s0"), &[]).unwrap();
    assert_eq!((sent.data_bytes, sent.same_bytes), (0, 64 * S), "{sent:?}");
    drop(image);
    let received = history.received(oracle, &Sender::default()).unwrap();
    let first = received.entries[&b"s0/f"[..]].shares.clone();
    assert_eq!(received.entries[&b"s1/f"[..]].shares, first);
}

/// Goal: contents that were only compressed, packed otherwise or unpacked are not sent again; of those that changed besides, just what
/// changed. Method: files defragmented to and from compression between snapshots, one of them with a sector written over in the
/// middle, one longer by an odd end; streams of all forms are received by the kernel and by us.
#[test]
fn compressed_in_between() {
    let Some(oracle) = oracle() else { return };
    let mut history = History::with(oracle, 0, 3, |work, number| {
        let (plain, changed, longer) = (work.join("plain"), work.join("changed"), work.join("longer"));
        let files = [&plain, &changed, &longer];
        if number == 0 {
            for (with, path) in files.iter().enumerate() {
                compressible(path, 300 * S as usize + 77, b'a' + with as u8)?;
            }
            return Ok(Vec::new());
        }
        let algorithm = if number == 1 { "-czstd" } else { "-clzo" };
        for path in files {
            run("btrfs", ["filesystem", "defragment", algorithm, path_text(path)?])?;
        }
        run("btrfs", ["filesystem", "sync", path_text(work)?])?;
        overwrite(&changed, 100 * S, S, number as u64)?;
        let file = OpenOptions::new().append(true).open(&longer)?;
        std::io::Write::write_all(&mut &file, &[number as u8; 10])?;
        file.sync_all()?;
        Ok(Vec::new())
    })
    .unwrap();
    history.packed = true;
    let image = history.open().unwrap();
    for (snapshot, parent) in [("s1", "s0"), ("s2", "s1")] {
        for version in [1, 2] {
            let sender = Sender { version, ..Sender::default() };
            let (_, sent) = sender.send(&image, snapshot, Some(parent), &[]).unwrap();
            // The sector, and the last one of the file that grew.
            assert!(sent.data_bytes >= S + 10 && sent.data_bytes <= 2 * S, "{snapshot}, version {version}: {sent:?}");
            assert!(sent.same_bytes >= 890 * S, "{snapshot}, version {version}: {sent:?}");
        }
        let sender = Sender { version: 2, compressed: true, ..Sender::default() };
        let (_, sent) = sender.send(&image, snapshot, Some(parent), &[]).unwrap();
        // Compressed extents go whole: 128 KiB each.
        assert!(sent.same_bytes >= 800 * S, "{snapshot}, compressed: {sent:?}");
    }
    drop(image);
    for (version, compressed) in [(1, false), (2, false), (2, true)] {
        let sender = Sender { version, compressed, ..Sender::default() };
        history.to_the_kernel(oracle, &sender).unwrap();
        history.to_us(oracle, &sender).unwrap();
    }
}
