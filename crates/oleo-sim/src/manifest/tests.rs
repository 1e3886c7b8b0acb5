use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

use super::host::set_xattr;
use super::*;
use crate::oracle::{Scratch, oracle, run};

/// Goal: each thing that can be different is reported, and only that.
/// Method: two equal trees; change one thing at a time in the second.
#[test]
fn each_difference_is_named() {
    let scratch = Scratch::new().unwrap();
    let make = |name: &str| {
        let top = scratch.dir(name).unwrap();
        fs::create_dir(top.join("dir")).unwrap();
        fs::write(top.join("dir/file"), vec![1; 200_000]).unwrap();
        fs::hard_link(top.join("dir/file"), top.join("link")).unwrap();
        symlink("target", top.join("symlink")).unwrap();
        set_xattr(&top.join("dir"), b"user.x", b"1").unwrap();
        top
    };
    type Break = fn(&std::path::Path);
    let cases: [(Break, &str); 7] = [
        (|t| fs::set_permissions(t.join("dir/file"), fs::Permissions::from_mode(0o4711)).unwrap(), "mode"),
        (
            |t| File::options().write(true).open(t.join("link")).unwrap().write_all_at(b"x", 70_000).unwrap(),
            "content differs in 1 of 4",
        ),
        (
            |t| {
                fs::remove_file(t.join("symlink")).unwrap();
                symlink("other", t.join("symlink")).unwrap()
            },
            "target",
        ),
        (
            |t| {
                fs::remove_file(t.join("link")).unwrap();
                fs::copy(t.join("dir/file"), t.join("link")).unwrap();
            },
            "same inode as",
        ),
        (|t| set_xattr(&t.join("dir"), b"user.x", b"2").unwrap(), "xattr user.x"),
        (|t| fs::remove_file(t.join("link")).unwrap(), "missing"),
        (|t| fs::write(t.join("more"), b"").unwrap(), "not expected"),
    ];
    let want = Manifest::of_dir(&make("want"), Detail::default()).unwrap();
    let ignore = Ignore { times: true, top: true, dir_sizes: true, ..Ignore::default() };
    for (i, (change, expect)) in cases.into_iter().enumerate() {
        let top = make(&format!("have{i}"));
        want.must_equal(&Manifest::of_dir(&top, Detail::default()).unwrap(), &ignore, "unchanged");
        change(&top);
        let found = want.differences(&Manifest::of_dir(&top, Detail::default()).unwrap(), &ignore);
        assert!(found.iter().any(|l| l.contains(expect)), "{expect}: {found:?}");
    }
}

/// Goal: sharing is described without addresses: equal for equal sharing on different file systems, different
/// otherwise.
#[test]
fn sharing_is_reported_by_names() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let manifest = |name: &str, reflink: &str| {
        let image = scratch.image(name, 200 << 20).unwrap();
        oracle.mkfs(&["-d", "single"], &[&image]).unwrap();
        let mounted = oracle.mount(&[&image], "").unwrap();
        if name == "second" {
            fs::write(mounted.path().join("shift"), vec![9; 40_000]).unwrap();
            mounted.sync().unwrap();
        }
        fs::write(mounted.path().join("a"), vec![1; 100_000]).unwrap();
        mounted.sync().unwrap();
        run("cp", [reflink.as_ref(), mounted.path().join("a").as_os_str(), mounted.path().join("b").as_os_str()])
            .unwrap();
        let _ = fs::remove_file(mounted.path().join("shift"));
        mounted.sync().unwrap();
        Manifest::of_dir(mounted.path(), Detail { sharing: true, holes: true, ..Detail::default() }).unwrap()
    };
    let ignore = Ignore { times: true, ..Ignore::default() };
    let first = manifest("first", "--reflink=always");
    first.must_equal(&manifest("second", "--reflink=always"), &ignore, "same sharing");
    let found = first.differences(&manifest("third", "--reflink=never"), &ignore);
    assert!(found.iter().any(|l| l.contains("extent 0 of 1")), "{found:?}");
}

/// One file that claims a size, and its data ranges; a directory that is its own child, if requested.
struct Claims {
    size: u64,
    data: Vec<(u64, u64)>,
    circle: bool,
}

impl TreeView for Claims {
    type Node = u64;

    fn root(&self) -> Result<u64> {
        Ok(256)
    }

    fn list(&self, _: &u64) -> Result<Vec<(Vec<u8>, u64)>> {
        Ok(vec![if self.circle { (b"again".to_vec(), 256) } else { (b"file".to_vec(), 257) }])
    }

    fn attr(&self, node: &u64) -> Result<Attr> {
        let never = Time { sec: 0, nsec: 0 };
        Ok(Attr {
            kind: if *node == 256 { Kind::Dir } else { Kind::File },
            mode: 0o600,
            uid: 0,
            gid: 0,
            size: self.size,
            nlink: 1,
            rdev: (0, 0),
            ino: *node,
            tree: 5,
            atime: never,
            mtime: never,
            ctime: never,
            otime: None,
            empty_subvol_dir: false,
        })
    }

    fn read(&self, _: &u64, at: u64, buf: &mut [u8]) -> Result<usize> {
        let got = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX).min(buf.len());
        buf[..got].fill(1);
        Ok(got)
    }

    fn read_link(&self, _: &u64) -> Result<Vec<u8>> {
        anyhow::bail!("there is none")
    }

    fn xattrs(&self, _: &u64) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        Ok(BTreeMap::new())
    }

    fn data_runs(&self, _: &u64, _: u64) -> Result<Vec<(u64, u64)>> {
        Ok(self.data.clone())
    }

    fn pieces(&self, _: &u64) -> Result<Vec<Piece>> {
        Ok(Vec::new())
    }
}

/// Goal: of a file of any size only the data is read; data without end and directories in circles are reported.
#[test]
fn what_has_no_end_is_reported() {
    const HUGE: u64 = 1 << 62;
    let walk = |size, data: &[(u64, u64)], circle| {
        Manifest::of(&Claims { size, data: data.to_vec(), circle }, Detail::default())
    };
    let content = |size, data: &[(u64, u64)]| walk(size, data, false).unwrap().entries[&b"file"[..]].content.clone();
    assert_eq!(content(HUGE, &[(1 << 40, 100_000)]).unwrap().len(), 2 + 2);
    assert_ne!(content(HUGE, &[(1 << 40, 100_000)]), content(HUGE, &[(1 << 41, 100_000)]));
    assert_ne!(content(HUGE, &[(1 << 40, 100_000)]), content(HUGE, &[(1 << 40, 99_999)]));
    assert!(walk(HUGE, &[(0, HUGE)], false).unwrap_err().is::<Endless>());
    assert!(walk(0, &[], true).unwrap_err().to_string().contains("two names"));
    let damaged =
        || Manifest::of_damaged(&Claims { size: HUGE, data: vec![(0, HUGE)], circle: false }, Detail::default());
    assert!(std::panic::catch_unwind(|| damaged().is_ok()).is_err());
}
