//! The commands on a mount.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

use crate::mounted::{Mount, fails, json, ok};

/// Goal: subvolumes are made, snapshotted, shown, made read-only and deleted while the volume is in use, and what the kernel
/// had cached of names is right immediately. Method: each command, a look through the mount before and after, then the image
/// in the kernel.
#[test]
fn subvolumes() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    assert!(!mount.path("v").exists(), "the kernel knows now that there is nothing");
    ok(&dir, &["subvolume", "create", "m/v", "m/w"]);
    fs::write(mount.path("v/file"), "before").unwrap();
    ok(&dir, &["subvolume", "create", "-p", "m/deep/er/u"]);
    assert!(!mount.path("s").exists());
    ok(&dir, &["subvolume", "snapshot", "-r", "m/v", "m/s"]);
    fs::write(mount.path("v/file"), "after").unwrap();
    assert_eq!(fs::read(mount.path("s/file")).unwrap(), b"before", "what was just written is in the snapshot");
    assert!(fs::write(mount.path("s/file"), "x").is_err());
    ok(&dir, &["subvolume", "snapshot", "m/v", "m/w"]);
    assert_eq!(fs::read(mount.path("w/v/file")).unwrap(), b"after", "into a directory that is there");

    let list = ok(&dir, &["subvolume", "list", "m"]);
    let paths: Vec<&str> = list.lines().filter_map(|l| l.rsplit("path ").next()).collect();
    assert_eq!(paths, ["v", "w", "deep/er/u", "s", "w/v"]);
    assert_eq!(ok(&dir, &["subvolume", "list", "m/w"]), list, "any path on the mount will do");
    assert!(ok(&dir, &["subvolume", "list", "-o", "m/w"]).ends_with("path w/v\n"));
    let shown = json(&dir, &["subvolume", "show", "--json", "m/s"]);
    assert_eq!((&shown["read_only"], &shown["path"]), (&true.into(), &"s".into()));
    assert!(ok(&dir, &["subvolume", "show", "m/v"]).contains("\t\t\t\ts\n"));
    assert!(fails(&dir, &["subvolume", "show", "m/deep"]).contains("not a subvolume"));

    assert_eq!(ok(&dir, &["property", "get", "m/s", "ro"]), "ro=true\n");
    ok(&dir, &["property", "set", "m/s", "ro", "false"]);
    fs::write(mount.path("s/file"), "written").unwrap();
    ok(&dir, &["property", "set", "m/s", "ro", "true"]);
    ok(&dir, &["property", "set", "m/v", "compression", "zstd"]);
    assert!(ok(&dir, &["property", "list", "m/v"]).contains("compression"));

    ok(&dir, &["subvolume", "set-default", "m/v"]);
    assert!(ok(&dir, &["subvolume", "get-default", "m"]).ends_with("path v\n"));
    assert!(fails(&dir, &["subvolume", "delete", "m/v"]).contains("default"));
    ok(&dir, &["subvolume", "set-default", "5", "m"]);
    assert_eq!(ok(&dir, &["subvolume", "get-default", "m"]), "ID 5 (FS_TREE)\n");

    assert!(fails(&dir, &["subvolume", "delete", "m/w"]).contains("not empty"));
    let id = json(&dir, &["subvolume", "show", "--json", "m/w/v"])["id"].to_string();
    ok(&dir, &["subvolume", "delete", "-i", &id, "m"]);
    assert!(!mount.path("w/v").exists());
    ok(&dir, &["subvolume", "delete", "-c", "m/w"]);
    assert!(!mount.path("w").exists());
    ok(&dir, &["subvolume", "sync", "m"]);
    assert_eq!(ok(&dir, &["subvolume", "list", "-d", "m"]), "");
    assert!(fails(&dir, &["subvolume", "create", "m/v"]).contains("exists"));

    let since = ok(&dir, &["subvolume", "find-new", "m/v", "0"]);
    assert!(since.contains("v/file") && since.contains("transid marker was "), "{since}");
    mount.verify(|seen| {
        assert_eq!(fs::read(seen.join("v/file")).unwrap(), b"after");
        assert_eq!(fs::read(seen.join("s/file")).unwrap(), b"written");
        assert!(seen.join("deep/er/u").is_dir() && !seen.join("w").exists());
    });
}

/// Goal: quota on a mount: turned on while in use, limits refuse at the call with EDQUOT and let go after a delete, a count
/// beside a writer ends right; the kernel reads and counts the same. Method: a limit on a subvolume, writes around it.
#[test]
fn quota() {
    const EDQUOT: i32 = 122;
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    ok(&dir, &["subvolume", "create", "m/v"]);
    fs::write(mount.path("v/before"), vec![1; 1 << 20]).unwrap();
    ok(&dir, &["quota", "enable", "m"]);
    ok(&dir, &["qgroup", "create", "1/0", "m"]);
    ok(&dir, &["qgroup", "assign", "0/256", "1/0", "m"]);
    ok(&dir, &["qgroup", "limit", "3M", "m/v"]);
    let over = fs::write(mount.path("v/over"), vec![2; 3 << 20]);
    assert_eq!(over.unwrap_err().raw_os_error(), Some(EDQUOT));
    fs::remove_file(mount.path("v/over")).unwrap();
    fs::write(mount.path("v/fits"), vec![3; 1 << 20]).unwrap();
    fs::write(mount.path("elsewhere"), vec![4; 4 << 20]).unwrap();
    let over = fs::OpenOptions::new().write(true).open(mount.path("v/fits")).unwrap();
    assert_eq!(over.write_all_at(&vec![5; 2 << 20], 1 << 20).unwrap_err().raw_os_error(), Some(EDQUOT));
    drop(over);
    ok(&dir, &["subvolume", "snapshot", "-i", "1/0", "m/v", "m/s"]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200 {
                fs::write(mount.path(&format!("v/small{n}")), [n as u8; 100]).unwrap();
            }
        });
        for _ in 0..3 {
            ok(&dir, &["quota", "rescan", "-w", "m"]);
        }
    });
    let groups = json(&dir, &["qgroup", "show", "--json", "--sync", "-F", "m/v"]);
    let ids: Vec<&str> = groups.as_array().unwrap().iter().filter_map(|g| g["qgroupid"].as_str()).collect();
    assert_eq!(ids, ["0/256", "1/0"]);
    ok(&dir, &["filesystem", "sync", "m"]);
    let rows = |text: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().take(3).map(str::to_owned).collect();
        text.lines().filter(|line| line.contains('/') && !line.contains("---")).map(words).collect()
    };
    let ours = rows(&ok(&dir, &["qgroup", "show", "--raw", "m"]));
    mount.verify(|seen| {
        let at = seen.display().to_string();
        let kernel = || rows(&oleo_sim::oracle::run("btrfs", ["qgroup", "show", "--raw", &at]).unwrap());
        assert_eq!(kernel(), ours, "as the kernel reads them");
    });
}

/// Goal: simple quotas on a mount: turned on while in use, they count what is written from then on, for who wrote it first; limits refuse at
/// the call with EDQUOT and let go after a delete; the checker and the kernel have the same numbers.
/// Method: a limit on a subvolume, writes around it, a clone into another one that does not count there.
#[test]
fn simple_quota() {
    const EDQUOT: i32 = 122;
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    ok(&dir, &["subvolume", "create", "m/v"]);
    fs::write(mount.path("v/before"), vec![1; 1 << 20]).unwrap();
    ok(&dir, &["filesystem", "sync", "m"]);
    ok(&dir, &["quota", "enable", "--simple", "m"]);
    let status = json(&dir, &["quota", "status", "--json", "m"]);
    assert!(status["mode"].as_str().unwrap().contains("squota"), "{status}");
    ok(&dir, &["subvolume", "create", "m/w"]);
    ok(&dir, &["qgroup", "limit", "3M", "m/v"]);
    fs::write(mount.path("v/fits"), vec![3; 2 << 20]).unwrap();
    let over = fs::write(mount.path("v/over"), vec![2; 2 << 20]);
    assert_eq!(over.unwrap_err().raw_os_error(), Some(EDQUOT));
    fs::remove_file(mount.path("v/over")).unwrap();
    fs::write(mount.path("w/elsewhere"), vec![4; 4 << 20]).unwrap();
    ok(&dir, &["filesystem", "sync", "m"]);
    // It goes on counting for who wrote it, where it is cloned to as where it was.
    ok(&dir, &["subvolume", "snapshot", "m/w", "m/s"]);
    let rows = |text: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().take(3).map(str::to_owned).collect();
        text.lines().filter(|line| line.contains('/') && !line.contains("---")).map(words).collect()
    };
    let show = || rows(&ok(&dir, &["qgroup", "show", "--raw", "--sync", "m"]));
    let rfer = |id: &str| show().iter().find(|row| row[0] == id).map(|row| row[1].parse::<u64>().unwrap()).unwrap();
    // What was there before does not count, and blocks of trees are few.
    assert!((2 << 20..(2 << 20) + (1 << 18)).contains(&rfer("0/256")), "{:?}", show());
    assert!((4 << 20..(4 << 20) + (1 << 18)).contains(&rfer("0/257")), "{:?}", show());
    assert!(rfer("0/258") < 1 << 18, "{:?}", show());
    fs::remove_file(mount.path("v/fits")).unwrap();
    ok(&dir, &["filesystem", "sync", "m"]);
    fs::write(mount.path("v/again"), vec![5; 2 << 20]).unwrap();
    let ours = show();
    mount.unmount();
    ok(&dir, &["check", "i"]);
    let image = dir.join("i");
    let seen = mount.oracle.mount(&[&image], "ro,subvolid=5").unwrap();
    let kernels =
        oleo_sim::oracle::run("btrfs", ["qgroup", "show", "--raw", &seen.path().display().to_string()]).unwrap();
    assert_eq!(rows(&kernels), ours, "as the kernel reads them");
    assert!(fs::read(seen.path().join("v/again")).unwrap() == vec![5; 2 << 20]);
    seen.unmount().unwrap();
}

/// Goal: the file system as a whole: label, usage, sync, size; files are defragmented while somebody writes to them, and no
/// write is lost. Method: a writer that goes round and round through a file while it is defragmented again and again.
#[test]
fn the_whole() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    assert_eq!(ok(&dir, &["filesystem", "label", "m"]), "first\n");
    ok(&dir, &["filesystem", "label", "m", "second"]);
    assert_eq!(ok(&dir, &["filesystem", "label", "m"]), "second\n");
    assert!(ok(&dir, &["filesystem", "df", "m"]).contains("Metadata, DUP"));
    assert!(ok(&dir, &["filesystem", "show", "m"]).starts_with("Label: 'second'  uuid: "));
    let size = json(&dir, &["filesystem", "usage", "--json", "m"])["device_size"].as_u64().unwrap();
    assert_eq!(size, 512 << 20);
    ok(&dir, &["filesystem", "resize", "+128M", "m"]);
    assert_eq!(json(&dir, &["filesystem", "usage", "--json", "m"])["device_size"], 640 << 20);
    assert!(fails(&dir, &["filesystem", "resize", "3M", "m"]).contains("no room"));

    const SECTORS: u64 = 64;
    let file = fs::File::create(mount.path("f")).unwrap();
    let write = |round: u64| {
        for sector in (0..SECTORS).rev() {
            let byte = (round * 7 + sector) as u8;
            file.write_all_at(&[byte; 4096], sector * 4096).unwrap();
            if sector % 8 == 0 {
                file.sync_data().unwrap();
            }
        }
    };
    write(0);
    let rounds = std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            let end = std::time::Instant::now() + std::time::Duration::from_secs(3);
            let mut round = 0;
            while std::time::Instant::now() < end {
                round += 1;
                write(round);
            }
            round
        });
        while !writer.is_finished() {
            ok(&dir, &["filesystem", "defragment", "-c", "zstd", "m/f"]);
            ok(&dir, &["filesystem", "defragment", "m/f"]);
        }
        writer.join().unwrap()
    });
    let want: Vec<u8> = (0..SECTORS).flat_map(|sector| [(rounds * 7 + sector) as u8; 4096]).collect();
    assert_eq!(fs::read(mount.path("f")).unwrap(), want);
    ok(&dir, &["filesystem", "sync", "m"]);
    ok(&dir, &["filesystem", "trim", "m"]);
    let du = json(&dir, &["filesystem", "du", "-s", "--json", "m/f"]);
    assert_eq!(du[0]["total"], SECTORS * 4096);
    drop(file);
    mount.verify(|seen| assert_eq!(fs::read(seen.join("f")).unwrap(), want));
    assert_eq!(fs::metadata(dir.join("i")).unwrap().len(), 640 << 20);
}

/// Goal: numbers are turned into names on a mount, also where a subvolume is shown as its root, which cannot be deleted then.
/// Method: a file with two names, a pipe, which cannot be asked itself.
#[test]
fn resolving() {
    let Some(mut mount) = Mount::new("") else { return };
    let dir = mount.dir().to_owned();
    ok(&dir, &["subvolume", "create", "m/v"]);
    fs::write(mount.path("v/f"), vec![5; 100_000]).unwrap();
    fs::hard_link(mount.path("v/f"), mount.path("v/g")).unwrap();
    let id = ok(&dir, &["inspect", "rootid", "m/v/f"]);
    assert_eq!(ok(&dir, &["inspect", "subvolid-resolve", id.trim(), "m"]), "v\n");
    let found = json(&dir, &["subvolume", "find-new", "--json", "m/v", "0"]);
    let (inode, logical) = (found["extents"][0]["inode"].to_string(), found["extents"][0]["disk_start"].to_string());
    let names = ok(&dir, &["inspect", "inode-resolve", &inode, "m/v"]);
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["v/f", "v/g"]);
    let places = json(&dir, &["inspect", "logical-resolve", "--json", &logical, "m"]);
    assert_eq!(places[0]["paths"].as_array().unwrap().len(), 2);
    mount.unmount();
    mount.mount("subvol=v");
    assert_eq!(ok(&dir, &["inspect", "rootid", "m/f"]), id);
    assert!(fails(&dir, &["subvolume", "delete", "-i", id.trim(), "m"]).contains("root of this mount"));
    assert!(Command::new("mkfifo").arg(mount.path("pipe")).status().unwrap().success());
    assert_eq!(ok(&dir, &["inspect", "rootid", "m/pipe"]), id);
    mount.verify(|_| {});
}

/// Goal: other users may do what they may do with the kernel, no more. Method: the command as user 1000 on a mount of root's.
#[test]
fn other_users() {
    let Some(mut mount) = Mount::new("user_subvol_rm_allowed") else { return };
    let dir = mount.dir().to_owned();
    // So that the user reaches the program and the mount.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.join("oleo");
    oleo_sim::oracle::copy_program(std::path::Path::new(env!("CARGO_BIN_EXE_oleo")), &program).unwrap();
    fs::create_dir(mount.path("mine")).unwrap();
    std::os::unix::fs::chown(mount.path("mine"), Some(1000), Some(1000)).unwrap();
    let user = |args: &[&str]| {
        let output = Command::new("setpriv")
            .args(["--reuid", "1000", "--regid", "1000", "--clear-groups"])
            .arg(&program)
            .args(args)
            .current_dir(&dir)
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let done = (true, String::new());
    assert_eq!(user(&["subvolume", "create", "m/mine/a"]), done);
    let made = fs::metadata(mount.path("mine/a")).unwrap();
    assert_eq!((made.uid(), made.gid()), (1000, 1000));
    assert!(user(&["subvolume", "create", "m/b"]).1.contains("permission denied"));
    ok(&dir, &["subvolume", "create", "m/roots"]);
    assert!(user(&["subvolume", "snapshot", "m/roots", "m/mine/s"]).1.contains("owner"));
    assert_eq!(user(&["subvolume", "snapshot", "m/mine/a", "m/mine/s"]), done);
    assert!(user(&["subvolume", "list", "m"]).1.contains("root"));
    assert!(user(&["filesystem", "label", "m", "mine"]).1.contains("root"));
    assert!(user(&["subvolume", "delete", "m/roots"]).1.contains("permission denied"));
    assert_eq!(user(&["subvolume", "delete", "m/mine/s"]), done);
    assert_eq!(user(&["filesystem", "usage", "m"]), done);
    mount.verify(|seen| assert!(seen.join("mine/a").is_dir() && !seen.join("mine/s").exists()));
}

/// Goal: what is no image and on no mount is refused by name. Method: a directory elsewhere.
#[test]
fn elsewhere() {
    let scratch = oleo_sim::oracle::Scratch::new().unwrap();
    let complaint = fails(scratch.path(), &["subvolume", "list", "."]);
    assert!(complaint.contains("neither an image nor on a mount of oleo"), "{complaint}");
}

/// Goal: rows with parity are counted. Method: a file of many rows, and small ones, on RAID5 of three devices; a volume without parity has no such counters.
#[test]
fn rows_with_parity_are_counted() {
    let how = ["--size", "512M", "-d", "raid5", "-m", "raid5", "i", "b", "c"];
    let Some(mount) = Mount::made(&how, "rw,device=b,device=c") else { return };
    let dir = mount.dir();
    fs::write(mount.path("large"), vec![1; 8 << 20]).unwrap();
    ok(dir, &["filesystem", "sync", "m"]);
    fs::write(mount.path("small"), "a few bytes, not in the item: ".repeat(200)).unwrap();
    ok(dir, &["filesystem", "sync", "m"]);
    let rows = json(dir, &["filesystem", "stats", "--json", "m"])["rows"].clone();
    let count = |name: &str| rows[name].as_u64().unwrap();
    assert!(count("whole") >= 56 && count("parts") > 0 && count("parity_bytes") > 0, "{rows}");
    assert_eq!((count("unrecorded"), count("misfits"), count("lost")), (0, 0, 0), "{rows}");
    let text = ok(dir, &["filesystem", "stats", "m"]);
    let line = text.lines().find_map(|l| l.strip_prefix("rows written whole")).unwrap();
    assert_eq!(line.trim(), count("whole").to_string());
    let Some(plain) = Mount::new("") else { return };
    assert!(json(plain.dir(), &["filesystem", "stats", "--json", "m"])["rows"].is_null());
}

/// Goal: what fsync costs is counted, and link and rename make no commit of any kind. Method: new files, each synced, then
/// renamed and linked; the counters before and after.
#[test]
fn stats() {
    const FILES: u64 = 20;
    let Some(mut mount) = Mount::new("commit=300") else { return };
    let dir = mount.dir().to_owned();
    fs::write(mount.path("first"), vec![1; 100_000]).unwrap();
    ok(&dir, &["filesystem", "sync", "m"]);
    let counted = || json(&dir, &["filesystem", "stats", "--json", "m"])["log"].clone();
    let before = counted();
    for n in 0..FILES {
        let (path, new) = (mount.path(&format!("f{n}")), mount.path(&format!("g{n}")));
        fs::write(&path, format!("content {n}")).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        fs::rename(&path, &new).unwrap();
        fs::hard_link(&new, mount.path(&format!("h{n}"))).unwrap();
    }
    let after = counted();
    let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    assert_eq!((grown("fsyncs"), grown("log_commits"), grown("full_commits")), (FILES, FILES, 0), "{after}");
    assert!(grown("log_bytes") >= FILES * 4096, "{after}");
    assert_eq!(after["commits_by_link_rename"], 0);
    let latency = |name: &str| after[name].as_u64().unwrap();
    assert!(latency("latency_p50") > 0 && latency("latency_p50") <= latency("latency_max"), "{after}");
    let text = ok(&dir, &["filesystem", "stats", "m"]);
    let line = text.lines().find_map(|l| l.strip_prefix("commits by link and rename")).unwrap();
    assert_eq!(line.trim(), "0");
    mount.verify(|seen| {
        for n in 0..FILES {
            assert_eq!(fs::read(seen.join(format!("g{n}"))).unwrap(), format!("content {n}").as_bytes());
            assert_eq!(fs::metadata(seen.join(format!("h{n}"))).unwrap().nlink(), 2);
        }
    });
}

/// Goal: a mount that is busy is left alone, the message names who uses it, and the exit code is that of a refusal, as where nothing is
/// mounted. Options of btrfs that mean nothing here are reported and do not stop a mount. Method: a program with its directory there.
#[test]
fn busy_mounts_are_named() {
    let Some(mut mount) = Mount::new("ssd,autodefrag") else { return };
    let dir = mount.dir().to_owned();
    let mut user = Command::new("sleep").arg("60").current_dir(mount.path("")).spawn().unwrap();
    let said = fails(&dir, &["unmount", "m"]);
    user.kill().unwrap();
    user.wait().unwrap();
    assert!(said.contains(&format!("in use by sleep (process {})", user.id())), "{said}");
    mount.unmount();
    assert!(fails(&dir, &["unmount", "m"]).contains("nothing is mounted"));
    let output = crate::common::run(&dir, &["mount", "-o", "ssd,noacl", "i", "m"]);
    ok(&dir, &["unmount", "m"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("ssd,noacl"), "{said}");
}
