use std::process::Command;

use super::*;

/// The contents of an archive, as text.
fn transcript(bytes: Vec<u8>) -> Vec<String> {
    let read = read_tar(Box::new(io::Cursor::new(bytes)), 2, 1 << 20, Ok).unwrap();
    let data = |piece: Piece<UnpreparedPiece>| {
        let piece = piece.take().unwrap().pop().unwrap();
        format!(
            "data {} {} {}",
            piece.offset,
            piece.bytes.len(),
            piece.bytes.iter().map(|&b| u64::from(b)).sum::<u64>()
        )
    };
    let mut reported = Vec::new();
    for event in &read.events {
        match event.unwrap() {
            Event::Warning(text) => reported.push(text),
            Event::More(piece) => reported.push(data(piece)),
            Event::Member(member) => {
                let path = shown(&member.path).display().to_string();
                let (what, first) = match member.body {
                    MemberBody::Dir => ("dir".into(), None),
                    MemberBody::File { size, first } => (format!("file {size}"), first),
                    MemberBody::HardLink(to) => (format!("link {}", shown(&to).display()), None),
                    MemberBody::Symlink(to) => (format!("-> {}", to.escape_ascii()), None),
                    MemberBody::Node { major, minor } => (format!("node {major} {minor}"), None),
                };
                let m = &member.meta;
                let time = m.times.modify;
                reported.push(format!(
                    "{path} {:o} {}:{} {}.{:09} {what}",
                    m.mode, m.uid, m.gid, time.seconds, time.nanoseconds
                ));
                reported.extend(m.xattrs.iter().map(|(k, v)| format!("{} = {}", k.escape_ascii(), v.escape_ascii())));
                reported.extend(first.map(data));
            }
        }
    }
    reported
}

/// Goal: what GNU tar writes, in each of its formats and compressed, is read alike. Method: a tree with long names,
/// links, holes, a fifo and an attribute with a line feed; tar it; compare.
#[test]
fn gnu_tar_archives() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let top = dir.path().join("t");
    let long = "n".repeat(120);
    std::fs::create_dir_all(top.join(&long)).unwrap();
    std::fs::write(top.join(&long).join("file"), vec![1; 1000]).unwrap();
    std::fs::hard_link(top.join(&long).join("file"), top.join("zlink")).unwrap();
    std::os::unix::fs::symlink("x".repeat(150), top.join("symlink")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, top.join("zfifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let sparse = std::fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    for i in 0..40 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[2; 4096], i << 20).unwrap();
    }
    rustix::fs::setxattr(top.join("sparse"), c"user.n", b"a\nb\0", rustix::fs::XattrFlags::empty()).ok();
    let stamp = |options: &[&str], file: &str| {
        let status = Command::new("tar")
            .args(["--sort=name", "--mtime=@1700000000.5", "--owner=7", "--group=8", "--mode=u=rw,go="])
            .args(options)
            .arg("-cSf")
            .arg(dir.path().join(file))
            .arg("-C")
            .arg(dir.path())
            .arg("t")
            .status()
            .unwrap();
        assert!(status.success());
        std::fs::read(dir.path().join(file)).unwrap()
    };
    let pax = transcript(stamp(&["--format=pax", "--xattrs"], "pax.tar"));
    let names: Vec<&str> = pax.iter().filter(|l| l.starts_with('t')).map(|l| l.split(' ').next().unwrap()).collect();
    let want = ["t", &format!("t/{long}"), &format!("t/{long}/file"), "t/sparse", "t/symlink", "t/zfifo", "t/zlink"];
    assert_eq!(names, want);
    assert!(pax.contains(&"t/sparse 100600 7:8 1700000000.500000000 file 1073741824".into()), "{pax:#?}");
    assert_eq!(pax.iter().filter(|l| l.ends_with(" 4096 8192")).count(), 40, "{pax:#?}");
    assert!(pax.contains(&format!("t/zlink 100600 7:8 1700000000.500000000 link t/{long}/file")));
    if rustix::fs::getxattr(top.join("sparse"), c"user.n", &mut [0u8; 9][..]).is_ok() {
        assert!(pax.contains(&"user.n = a\\nb\\x00".into()), "{pax:#?}");
    }
    let seconds = |lines: &[String]| -> Vec<String> {
        lines.iter().filter(|l| !l.starts_with("user.")).map(|l| l.replace(".500000000", ".000000000")).collect()
    };
    for format in ["--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1"] {
        let options = [if format.starts_with("--s") { "--format=pax" } else { format }, format];
        let other = transcript(stamp(&options, "o.tar"));
        assert_eq!(seconds(&other), seconds(&pax), "{format}");
    }
    for (compress, file) in [("-z", "c.gz"), ("--zstd", "c.zst")] {
        assert_eq!(transcript(stamp(&["--format=pax", "--xattrs", compress], file)), pax, "{compress}");
    }
}

/// Goal: a path that leaves the top is refused, an archive cut short is an error.
#[test]
fn hostile_paths_and_short_archives_are_refused() {
    assert!(names(b"a/../../b").is_err());
    assert_eq!(names(b"./a//b/").unwrap(), [b"a".to_vec(), b"b".to_vec()]);
    let mut header = tar::Header::new_ustar();
    header.set_path("f").unwrap();
    header.set_size(100_000);
    header.set_mode(0o644);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(&[0; 5000]);
    let read = read_tar(Box::new(io::Cursor::new(bytes)), 1, 1 << 20, Ok).unwrap();
    assert!(read.events.iter().any(|event| event.is_err()));
}
