//! Exit codes: 0 done, 1 refused or interrupted, 2 wrong usage, 3 the image is damaged, 4 a device failed; for every command.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{ok, run};
use oleo_sim::oracle::Scratch;

/// Every command that works on an image, with what it takes; `IMG` is the image.
const COMMANDS: &str = "
    mount IMG m
    ls IMG
    cat IMG f
    restore IMG out
    put IMG src /n
    send IMG --subvol v -f s
    receive IMG -f stream
    mkdir IMG d
    rm IMG f
    mv IMG f g
    ln IMG f h
    cp IMG f c
    subvolume list IMG
    subvolume show IMG v
    subvolume create IMG w
    subvolume snapshot IMG v w
    subvolume delete IMG v
    subvolume set-default IMG v
    subvolume get-default IMG
    subvolume find-new IMG v 1
    subvolume sync IMG
    filesystem show IMG
    filesystem df IMG
    filesystem du IMG
    filesystem usage IMG
    filesystem stats IMG
    filesystem sync IMG
    filesystem label IMG
    filesystem resize max IMG
    filesystem reclaim IMG
    filesystem defragment IMG f
    filesystem trim IMG
    device add new IMG
    device remove 1 IMG
    device ready IMG
    device stats IMG
    device usage IMG
    inspect dump-super IMG
    inspect dump-tree IMG
    inspect tree-stats IMG
    inspect inode-resolve 257 IMG
    inspect logical-resolve 13631488 IMG
    inspect subvolid-resolve 256 IMG
    inspect rootid IMG f
    balance start IMG
    balance pause IMG
    balance cancel IMG
    balance resume IMG
    balance status IMG
    scrub start IMG
    scrub cancel IMG
    scrub resume IMG
    scrub status IMG
    scrub limit IMG
    replace start 1 new IMG
    replace status IMG
    replace cancel IMG
    replace resume IMG
    quota enable IMG
    quota disable IMG
    quota rescan IMG
    quota status IMG
    qgroup show IMG
    qgroup create 1/1 IMG
    qgroup destroy 1/1 IMG
    qgroup assign 0/256 1/1 IMG
    qgroup remove 0/256 1/1 IMG
    qgroup limit 1G 0/256 IMG
    qgroup clear-stale IMG
    check IMG
    map IMG -o out.html
    explore IMG
    property get IMG f
    property set IMG f compression zstd
    property list IMG f
    rescue zero-log IMG
";
/// These have no image that they could not read; of `serve nbd`, see the tests of network block devices.
const OTHERS: [&str; 29] = [
    "device scan",
    "mkfs",
    "unmount",
    "serve nbd",
    "copy",
    "remote show",
    "remote pin",
    "remote unpin",
    "remote branch",
    "remote detach",
    "remote gc",
    "remote verify",
    "remote probe",
    "remote bench",
    "remote key list",
    "remote key add",
    "remote key remove",
    "remote streams list",
    "remote streams verify",
    "remote streams prune",
    "remote streams repack",
    "remote streams gc",
    "remote streams get",
    "remote streams ls",
    "remote streams cat",
    "remote streams restore",
    "generate completions",
    "generate man",
    "version",
];

/// Requests that a sound image refuses.
const REFUSED: &str = "
    mkfs good
    mkfs --size 64K tiny
    mount good nodir
    unmount m
    ls good nope
    cat good v
    restore good src
    restore good --path nope out
    put good nope /x
    copy missing out
    copy good src
    remote show file:///no-such-directory/volume
    remote pin file:///no-such-directory/volume name
    remote unpin file:///no-such-directory/volume name
    remote detach file:///no-such-directory/volume
    remote gc file:///no-such-directory/volume
    remote verify file:///no-such-directory/volume
    remote streams list file:///no-such-directory/backups
    remote streams verify file:///no-such-directory/backups
    remote streams prune file:///no-such-directory/backups --keep-last 1
    remote streams repack file:///no-such-directory/backups
    remote streams gc file:///no-such-directory/backups
    remote streams get file:///no-such-directory/backups -f s
    remote streams ls file:///no-such-directory/backups
    remote streams cat file:///no-such-directory/backups f
    remote streams restore file:///no-such-directory/backups f out
    receive good -f file:///no-such-directory/backups
    send good --subvol nope -f s
    send good --subvol f -f s
    receive good -f stream
    receive good -f src
    mkdir good v
    rm good nope
    rm good v
    mv good nope x
    ln good nope x
    cp good nope x
    subvolume show good nope
    subvolume create good v
    subvolume snapshot good nope w
    subvolume delete good nope
    subvolume set-default good nope
    subvolume find-new good nope 1
    device scan no-such-directory
    device add good good
    device remove 1 good
    device remove 9 good
    device remove missing good
    device remove cancel good
    replace start 9 no-such-file good
    replace cancel good
    replace resume good
    filesystem resize 1M good
    filesystem defragment good nope
    inspect inode-resolve 99999 good
    inspect logical-resolve 99 good
    inspect subvolid-resolve 999 good
    inspect rootid good nope
    scrub start good --devid 7
    scrub start good --limit 7:1M
    scrub start good --from nope
    balance pause good
    balance cancel good
    balance resume good
    quota disable good
    quota rescan good
    quota status --is-enabled good
    qgroup show good
    qgroup create 1/1 good
    qgroup destroy 1/1 good
    qgroup assign 0/256 1/1 good
    qgroup remove 0/256 1/1 good
    qgroup limit 1G 0/256 good
    property get good nope
    property set good nope compression zstd
    property list good nope
    ls ext4
    check ext4
    map ext4
    map good -o no-such-directory/map.html
    explore ext4
";
/// Arguments that mean nothing, found out before or behind the parser of options.
const MISUSED: &str = "
    mkfs
    mkfs --size many new
    copy good
    remote show
    remote pin file:///no-such-directory/volume
    remote show good
    remote streams list
    remote streams list good
    remote streams list file:///no-such-directory/backups?pin=a
    remote streams prune file:///no-such-directory/backups
    remote streams cat file:///no-such-directory/backups
    send good --subvol v --incremental -f s
    send good --subvol v --incremental --parent v -f file:///no-such-directory/backups
    send good --subvol v --no-data -f file:///no-such-directory/backups
    send good --subvol v -f file:///no-such-directory/backups?snapshot=a
    receive good -e -f file:///no-such-directory/backups
    mkfs --size 300M --top-owner x new
    mkfs --size 300M --top-mode 9 new
    mkfs --size 300M --nodesize 8G new
    mount good
    mount good m -o foo
    mount good m --no-log-replay
    ls
    send good
    receive
    subvolume snapshot good
    subvolume list
    subvolume list -G x good
    subvolume list --sort size good
    filesystem df -k -m good
    re
    inspect dump-tree -t foo good
    inspect logical-resolve here good
    device add good
    device remove good
    device remove cancel 1 good
    replace start 1 good
    balance start good -dfoo
    balance start good -d foo
    balance start -dusage=5
    balance start
    balance start good -s
    balance start good -d --background
    scrub start
    scrub start good --limit much
    scrub start good --limit some:1M
    scrub start good --devid x
    scrub cancel good
    scrub resume good
    scrub limit good --limit 1M
    scrub limit good --devid 1
    qgroup limit many 0/256 good
    qgroup limit 1G x good
    qgroup limit 1G good
    subvolume create good
    subvolume delete good
    subvolume show good v --rootid 256
    subvolume show good v v
    subvolume set-default good
    subvolume find-new good v
    filesystem defragment good
    filesystem du --set v good f
    property get good
    property set good v ro
    check -s 3 good
    map good -o picture
    map good --findings src
    map good --memory much
    explore good --port 70000
    property set good v ro maybe
    property set good f compression foo
    property set good f nothing x
    generate completions foo
    nothing
";

fn lines(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).filter(|words| !words.is_empty())
}

/// A command's code, and what it said.
fn code(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = run(dir, args);
    let _ = std::fs::remove_dir_all(dir.join("out"));
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&[output.stderr, output.stdout].concat()).into_owned())
}

/// An image with a file and a subvolume, one without superblocks, one without root tree; an ext4 image; a stream, a file.
fn prepare(dir: &Path) {
    ok(dir, &["mkfs", "--size", "300M", "-m", "single", "good"]);
    std::fs::write(dir.join("src"), "hi\n").unwrap();
    ok(dir, &["put", "good", "src", "/f"]);
    ok(dir, &["subvolume", "create", "good", "v"]);
    ok(dir, &["property", "set", "good", "v", "ro", "true"]);
    ok(dir, &["send", "good", "--subvol", "v", "-f", "stream"]);
    std::fs::create_dir(dir.join("m")).unwrap();
    for name in ["blank", "torn"] {
        std::fs::copy(dir.join("good"), dir.join(name)).unwrap();
    }
    let file = |name: &str| OpenOptions::new().read(true).write(true).open(dir.join(name)).unwrap();
    for place in [64 << 10, 64 << 20] {
        file("blank").write_all_at(&[0xff; 64], place).unwrap();
    }
    // Of the newest root tree the only copy: a header has the address at 48, the generation at 80, the owner at 88.
    let image = std::fs::read(dir.join("good")).unwrap();
    let number = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let blocks = (1 << 20..image.len()).step_by(16384).filter(|at| number(at + 88) == 1 && number(at + 48) > 1 << 20);
    let root = blocks.max_by_key(|at| number(at + 80)).unwrap();
    file("torn").write_all_at(&[0; 512], root as u64).unwrap();
    let ext4 = File::create(dir.join("ext4")).unwrap();
    ext4.set_len(1 << 20).unwrap();
    ext4.write_all_at(b"\x53\xef", 0x438).unwrap();
}

/// Goal: the exit code says what became of it, whatever the command. Method: each command with an option that nobody has, with an
/// image that is not there, with two that are damaged; tables of requests that are refused and of arguments that mean nothing;
/// the tables hold all commands that the help has.
#[test]
fn codes() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    prepare(dir);
    let mut wrong = Vec::new();
    let mut expect = |args: &[&str], want: i32| {
        let (have, text) = code(dir, args);
        if have != want || (want != 0 && text.is_empty()) {
            wrong.push(format!("oleo {}: {have}, not {want}: {text}", args.join(" ")));
        }
    };
    let names = |words: &[&str]| {
        let with_sub = [
            "subvolume",
            "filesystem",
            "device",
            "inspect",
            "balance",
            "scrub",
            "replace",
            "quota",
            "qgroup",
            "property",
            "rescue",
        ];
        words[..1 + usize::from(with_sub.contains(&words[0]))].join(" ")
    };
    for words in lines(COMMANDS) {
        let on = |image| words.iter().map(|word| if *word == "IMG" { image } else { *word }).collect::<Vec<_>>();
        let name = names(&words);
        expect(&name.split(' ').chain(["--no-such-option"]).collect::<Vec<_>>(), 2);
        expect(&on("missing"), 1);
        expect(&on("blank"), 3);
        // These need no tree.
        let needs_none = ["filesystem show", "device ready", "inspect dump-super", "rescue zero-log"].contains(&&*name);
        expect(&on("torn"), if needs_none { 0 } else { 3 });
    }
    for name in OTHERS {
        expect(&name.split(' ').chain(["--no-such-option"]).collect::<Vec<_>>(), 2);
    }
    lines(REFUSED).for_each(|words| expect(&words, 1));
    lines(MISUSED).for_each(|words| expect(&words, 2));
    expect(&["check", "good"], 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let listed: BTreeSet<String> =
        lines(COMMANDS).map(|words| names(&words)).chain(OTHERS.map(str::to_owned)).collect();
    let help = include_str!("../help.txt");
    let all: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("=== oleo ")).collect();
    let leaves = all.iter().filter(|name| !all.iter().any(|other| other.starts_with(&format!("{name} "))));
    let unlisted: Vec<_> = leaves.filter(|name| !listed.contains(**name)).collect();
    assert!(unlisted.is_empty(), "no exit code is tested of {unlisted:?}");
}

/// Goal: commands can be shortened as with btrfs, and subvolumes listed, filtered and sorted as with it; sizes in the unit asked for.
#[test]
fn as_with_btrfs() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    for name in ["b", "c", "a"] {
        ok(dir, &["sub", "cr", "i", name]);
    }
    let paths = |args: &[&str]| -> Vec<String> {
        let shown = ok(dir, &[&["sub", "li"], args, &["i"]].concat());
        shown.lines().map(|line| line.rsplit([' ', '\t']).next().unwrap().to_owned()).collect()
    };
    assert_eq!(paths(&["-a", "-g"]), ["b", "c", "a"]);
    assert_eq!(paths(&["--sort", "path"]), ["a", "b", "c"]);
    assert_eq!(paths(&["--sort=-rootid"]), ["a", "c", "b"]);
    assert_eq!(paths(&["-t"]), ["path", "----", "b", "c", "a"]);
    let created = |name: &str| {
        let line = ok(dir, &["sub", "li", "-c", "i"]).lines().find(|l| l.ends_with(name)).unwrap().to_owned();
        line.split(' ').skip_while(|word| *word != "cgen").nth(1).unwrap().to_owned()
    };
    let of_c = created("path c");
    assert_eq!(paths(&["-C", &of_c]), ["c"]);
    assert_eq!(paths(&["-C", &format!("+{of_c}")]), ["c", "a"]);
    assert_eq!(paths(&["-C", &format!("-{of_c}")]), ["b", "c"]);
    assert!(ok(dir, &["fi", "df", "-k", "i"]).contains("KiB") && ok(dir, &["fi", "us", "--si", "i"]).contains("MB"));
    assert_eq!(ok(dir, &["version"]), ok(dir, &["--version"]));
}

/// Goal: a balance that meets bytes which do not match their checksums says that they are damaged.
#[test]
fn a_balance_over_damage() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n >> 9) as u8 ^ n as u8).collect();
    std::fs::write(dir.join("src"), &bytes).unwrap();
    ok(dir, &["put", "i", "src", "/f"]);
    let image = std::fs::read(dir.join("i")).unwrap();
    let at = (1 << 20..image.len()).step_by(4096).find(|at| image[*at..].starts_with(&bytes[..4096])).unwrap();
    let file = OpenOptions::new().write(true).open(dir.join("i")).unwrap();
    file.write_all_at(b"other bytes", at as u64).unwrap();
    drop(file);
    let (have, text) = code(dir, &["balance", "start", "-d", "i"]);
    assert_eq!(have, 3, "{text}");
    assert_eq!(code(dir, &["balance", "start", "-m", "i"]).0, 0);
}

/// Goal: an output that cannot be written is a failure of a device; a reader that has seen enough is none.
#[test]
fn outputs() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    std::fs::write(dir.join("src"), vec![7; 1 << 20]).unwrap();
    ok(dir, &["put", "i", "src", "/f"]);
    ok(dir, &["subvolume", "create", "i", "v"]);
    ok(dir, &["property", "set", "i", "v", "ro", "true"]);
    let oleo = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oleo"));
        command.current_dir(dir).args(args).stderr(Stdio::piped());
        command
    };
    for args in [&["cat", "i", "f"][..], &["restore", "i", "-"], &["ls", "i"], &["send", "i", "--subvol", "v"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = oleo(args).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for args in [&["cat", "i", "f"][..], &["restore", "i", "-"]] {
        let mut child = oleo(args).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &*text), (Some(0), ""), "{args:?}");
    }
}
