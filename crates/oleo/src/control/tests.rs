//! Requests through the socket and on an image in memory.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use oleo_format::{Ino, TreeId};

use super::*;
use crate::device::MemDevice;
use crate::mkfs::MkfsOptions;
use crate::{Device, Image, OpenOptions};

fn image() -> Image {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemDevice::new(256 << 20))];
    crate::mkfs::make(&devices, &MkfsOptions::default().seed([9; 32])).unwrap();
    Image::from_devices(devices, &OpenOptions::writing()).unwrap()
}

fn ask(image: &Image, caller: &Caller, request: Request) -> Result<Reply, Error> {
    execute(image, caller, request).map(|done| done.0)
}

fn create(at: Location) -> Request {
    Request::SubvolCreate { at, parents: false, groups: vec![] }
}

fn user(uid: u32) -> Caller {
    Caller {
        uid,
        gid: uid,
        privileged: false,
        is_owner: false,
        resolved: false,
        user_subvol_rm_allowed: false,
        ..Caller::owner()
    }
}

/// Goal: any bytes survive the way through JSON. Method: all 256 of them.
#[test]
fn bytes_as_text() {
    let all = Bytes((0..=255).collect());
    let text = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), all);
    assert!(serde_json::from_str::<Bytes>("\"\u{100}\"").is_err());
}

/// Goal: a request and its answer, and a refusal with its errno and words, survive the socket, and the server knows who
/// asks. Method: a server in a thread over an image in memory; this process as the client.
#[test]
fn round_trip() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let image = image();
    std::thread::scope(|threads| {
        let server = threads.spawn(|| {
            serve(&listener, |caller, request| {
                assert_eq!(caller.uid, rustix::process::getuid().as_raw());
                ask(&image, &Caller::owner(), request)
            })
        });
        let mut client = Client::connect(&path).unwrap();
        let name = b"sub\xffvol".to_vec();
        let made = client.ask(&create(Location::top(name.clone()))).unwrap();
        assert_eq!(made, Reply::Made(TreeId(256)));
        let Reply::Subvols(list) = client.ask(&Request::SubvolList).unwrap() else { panic!("another reply") };
        assert_eq!(list.last().unwrap().path, Bytes(name.clone()));
        let error = client.ask(&create(Location::top(name))).unwrap_err();
        assert_eq!((error.errno(), error.to_string()), (17, "exists already".into()));
        assert_eq!(error.hint(), Some(crate::Hint::ChooseOtherName));
        stop(&listener).unwrap();
        server.join().unwrap().unwrap();
        assert!(client.ask(&Request::SubvolList).is_err(), "nobody answers any more");
    });
}

/// Goal: messages that lie about their length, or are no requests, cost one connection and nothing else. Method: raw
/// bytes, then a sound request.
#[test]
fn bad_messages() {
    use std::io::{Read, Write};
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|threads| {
        let server = threads.spawn(|| serve(&listener, |_, _| Ok(Reply::Done)));
        for bytes in [&[0xff; 8][..], &[4, 0, 0, 0, b'j', b'u', b'n', b'k'], &[2, 0]] {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            let _reset = stream.read_to_end(&mut answer);
            assert!(answer.is_empty());
        }
        assert_eq!(Client::connect(&path).unwrap().ask(&Request::Sync).unwrap(), Reply::Done);
        stop(&listener).unwrap();
        server.join().unwrap().unwrap();
    });
}

/// Goal: an ordinary user may do what btrfs lets one do and no more. Method: two users, a directory of one of them,
/// another that nobody else may search; each rule once on either side.
#[test]
fn permissions() {
    let image = image();
    let (root, ann, bob) = (Caller::owner(), user(1000), user(1001));
    let fs = image.fs();
    let owned = |name: &str, mode: u32| {
        let dir = image.create_dir(name).unwrap();
        let set = crate::fs::SetAttr::default().uid(Some(1000)).gid(Some(1000)).mode(Some(mode));
        fs.set_attr(&dir, &set).unwrap();
        dir
    };
    let home = owned("home", 0o755);
    let secret = owned("secret", 0o700);
    let below = |dir: &crate::fs::InodeRef, name: &str| Location::below(dir.tree(), dir.ino(), name.as_bytes());

    assert_eq!(ask(&image, &bob, create(below(&home, "b"))).unwrap_err().errno, 13);
    assert_eq!(ask(&image, &bob, create(Location::top(&b"b"[..]))).unwrap_err().errno, 13);
    assert_eq!(ask(&image, &ann, create(below(&home, "x/y"))).unwrap_err().errno, 22);
    let Reply::Made(id) = ask(&image, &ann, create(below(&home, "a"))).unwrap() else { panic!("another reply") };
    let made = fs.root(id).unwrap();
    assert_eq!((fs.attr(&made).uid, fs.attr(&made).mode & 0o7777), (1000, 0o755));

    let snapshot = |name: &str| Request::Snapshot {
        source: SubvolRef::At(Location::inode(id, Ino::ROOT_DIR)),
        at: below(&home, name),
        read_only: true,
        into: false,
        groups: vec![],
    };
    assert_eq!(ask(&image, &bob, snapshot("s")).unwrap_err().errno, 1);
    ask(&image, &ann, snapshot("s")).unwrap();

    let delete = || Request::SubvolDelete { which: SubvolRef::At(below(&home, "s")), recursive: false };
    assert_eq!(ask(&image, &ann, delete()).unwrap_err().errno, 1);
    let allowed = |c: &Caller| Caller { user_subvol_rm_allowed: true, ..c.clone() };
    assert_eq!(ask(&image, &allowed(&bob), delete()).unwrap_err().errno, 13);
    assert_eq!(ask(&image, &allowed(&ann), delete()).unwrap_err().errno, 30, "it is read-only");
    let writable = Property { name: "ro".into(), value: "false".into() };
    let may_write = Request::PropertySet { at: below(&home, "s"), property: writable, force: false };
    ask(&image, &ann, may_write).unwrap();
    ask(&image, &allowed(&ann), delete()).unwrap();

    // Numbers do not open what paths do not.
    let Reply::Made(hidden) = ask(&image, &ann, create(below(&secret, "h"))).unwrap() else { panic!("another reply") };
    let show = |id| Request::SubvolShow { which: SubvolRef::At(Location::inode(id, Ino::ROOT_DIR)) };
    assert_eq!(ask(&image, &bob, show(hidden)).unwrap_err().errno, 13);
    ask(&image, &ann, show(hidden)).unwrap();
    ask(&image, &bob, show(id)).unwrap();

    for request in [
        Request::SubvolList,
        Request::GetDefault,
        Request::SetDefault { which: SubvolRef::At(Location::inode(id, Ino::ROOT_DIR)) },
        Request::SetLabel { label: Bytes(b"x".to_vec()) },
        Request::SubvolPath { id },
        Request::SubvolShow { which: SubvolRef::Id(id) },
    ] {
        assert_eq!(ask(&image, &ann, request.clone()).unwrap_err().errno, 1, "{request:?}");
        ask(&image, &root, request).unwrap();
    }
    let ro = |value: &str| Request::PropertySet {
        at: Location::inode(id, Ino::ROOT_DIR),
        property: Property { name: "ro".into(), value: value.into() },
        force: false,
    };
    assert_eq!(ask(&image, &bob, ro("true")).unwrap_err().errno, 1);
    ask(&image, &ann, ro("true")).unwrap();
    image.close().unwrap();
}

/// Goal: who is not privileged sees nothing of what is outside of the mount, and no names of what he has not named. Method: a mount of
/// one subvolume, and inodes by number inside and outside of it; each request that tells names.
#[test]
fn outside_of_the_mount() {
    let image = image();
    let root = Caller::owner();
    let fs = image.fs();
    let Reply::Made(shown) = ask(&image, &root, create(Location::top(&b"shown"[..]))).unwrap() else {
        panic!("another reply")
    };
    let open = crate::fs::SetAttr::default().mode(Some(0o777));
    fs.set_attr(&fs.root(shown).unwrap(), &open).unwrap();
    let outside = image.create_dir("outside").unwrap();
    fs.set_attr(&outside, &open).unwrap();
    let ann = Caller { keep: Some(shown), ..user(1000) };
    let inside = Location::below(shown, Ino::ROOT_DIR, &b"v"[..]);
    ask(&image, &ann, create(inside)).unwrap();
    let beside = || Location::below(outside.tree(), outside.ino(), &b"v"[..]);
    assert_eq!(ask(&image, &ann, create(beside())).unwrap_err().errno, 13);
    assert_eq!(ask(&image, &ann, Request::PropertyGet { at: beside(), name: None }).unwrap_err().errno, 13);
    ask(&image, &Caller { keep: Some(TreeId::FS), ..user(1000) }, create(beside())).unwrap();

    let show = Request::SubvolShow { which: SubvolRef::At(Location::below(shown, Ino::ROOT_DIR, &b"v"[..])) };
    let reported = |caller| match ask(&image, caller, show.clone()).unwrap() {
        Reply::Subvol(found) => found.subvol.path,
        _ => panic!("another reply"),
    };
    assert_eq!((reported(&root), reported(&ann)), (Bytes(b"shown/v".to_vec()), Bytes(b"v".to_vec())));
    assert_eq!(ask(&image, &ann, Request::Quota).unwrap_err().errno, 1);
    assert_eq!(ask(&image, &ann, Request::SubvolPending { ids: vec![] }).unwrap_err().errno, 1);
    ask(&image, &ann, Request::SubvolPending { ids: vec![shown] }).unwrap();
    image.close().unwrap();
}

/// Goal: links are followed for whoever has opened the image, and for nobody who asks from elsewhere. Method: a link to a
/// subvolume, to be deleted.
#[test]
fn links_from_elsewhere() {
    let image = image();
    let owner = Caller::owner();
    ask(&image, &owner, create(Location::top(&b"v"[..]))).unwrap();
    image.symlink(&image.top().unwrap(), b"v", b"link").unwrap();
    let delete = Request::SubvolDelete { which: SubvolRef::At(Location::top(&b"link"[..])), recursive: false };
    let root = Caller { is_owner: false, ..Caller::owner() };
    assert_eq!(ask(&image, &root, delete.clone()).unwrap_err().errno, 22);
    ask(&image, &owner, delete).unwrap();
    image.close().unwrap();
}

/// Goal: an access ACL decides for those it names, and its mask limits it. Method: a directory whose mode lets the group
/// write, and an ACL that lets one user write, and later masks it.
#[test]
fn acl_decides() {
    let image = image();
    let dir = image.create_dir("d").unwrap();
    let set = crate::fs::SetAttr::default().mode(Some(0o770));
    image.fs().set_attr(&dir, &set).unwrap();
    let acl = |mask: u16| {
        let entries = [(1u16, 7u16, u32::MAX), (2, 7, 1000), (4, 0, u32::MAX), (16, mask, u32::MAX), (32, 0, u32::MAX)];
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            value.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        value
    };
    let attribute = b"system.posix_acl_access";
    image.fs().xattr_set(&dir, attribute, &acl(7), crate::fs::XattrMode::Any).unwrap();
    let at = |name: &str| create(Location::below(dir.tree(), dir.ino(), name.as_bytes()));
    ask(&image, &user(1000), at("a")).unwrap();
    assert_eq!(ask(&image, &user(1001), at("b")).unwrap_err().errno, 13);
    image.fs().xattr_set(&dir, attribute, &acl(5), crate::fs::XattrMode::Any).unwrap();
    assert_eq!(ask(&image, &user(1000), at("c")).unwrap_err().errno, 13);
}

/// Goal: deleting with what is inside takes all of it, inner ones first, and tells the kernel what to forget; without
/// `recursive` it is refused. Method: three nested subvolumes.
#[test]
fn recursive_delete() {
    let image = image();
    let root = Caller::owner();
    for path in ["a", "a/b", "a/b/c"] {
        ask(&image, &root, create(Location::top(path.as_bytes()))).unwrap();
    }
    let delete = |recursive| Request::SubvolDelete { which: SubvolRef::At(Location::top(&b"a"[..])), recursive };
    assert_eq!(ask(&image, &root, delete(false)).unwrap_err().errno, 39);
    let (reply, invalid) = execute(&image, &root, delete(true)).unwrap();
    assert_eq!(reply, Reply::Made(TreeId(256)));
    let gone: Vec<_> = invalid.iter().filter(|i| matches!(i, Invalidation::Subtree { .. })).collect();
    assert_eq!(gone.len(), 3);
    let entry = Invalidation::Entry { tree: TreeId::FS, dir: Ino::ROOT_DIR, name: b"a".to_vec() };
    assert!(invalid.contains(&entry));
    image.sync().unwrap();
    let pending = ask(&image, &root, Request::SubvolPending { ids: vec![] }).unwrap();
    assert_eq!(pending, Reply::Subvolumes(vec![TreeId(256), TreeId(257), TreeId(258)]));
    image.clean().unwrap();
    let pending = ask(&image, &root, Request::SubvolPending { ids: vec![] }).unwrap();
    assert_eq!(pending, Reply::Subvolumes(vec![]));
}

/// Goal: paths of an inode name every hard link, through subvolumes. Method: a file with two names in a subvolume that
/// lies in a directory.
#[test]
fn paths_of_an_inode() {
    let image = image();
    image.create_dir("d").unwrap();
    image.create_subvol("d/v").unwrap();
    image.create_dir("d/v/e").unwrap();
    image.write("d/v/f", b"x").unwrap();
    image.hard_link(&image.top().unwrap(), b"d/v/f", b"d/v/e/g").unwrap();
    let attr = image.attr("d/v/f").unwrap();
    let request = Request::InodeResolve { tree: attr.subvol, ino: attr.ino };
    let Reply::Paths(mut paths) = ask(&image, &Caller::owner(), request).unwrap() else { panic!("another reply") };
    paths.sort();
    assert_eq!(paths, [Bytes(b"d/v/e/g".to_vec()), Bytes(b"d/v/f".to_vec())]);
}

/// Goal: asking for deleted subvolumes while they are taken apart does not bring one back. Method: two hundred of
/// them with a file each; one thread cleans, others ask without a pause; in the end the root tree has no item of any.
#[test]
fn asking_while_cleaning() {
    use oleo_format::{ItemType, Key};
    use std::sync::atomic::{AtomicBool, Ordering};

    let image = image();
    let root = Caller::owner();
    let names: Vec<String> = (0..200).map(|n| format!("v{n}")).collect();
    for name in &names {
        ask(&image, &root, create(Location::top(name.as_bytes()))).unwrap();
        image.write(format!("{name}/f"), &[7; 3000]).unwrap();
    }
    image.sync().unwrap();
    for name in &names {
        let which = SubvolRef::At(Location::top(name.as_bytes()));
        ask(&image, &root, Request::SubvolDelete { which, recursive: false }).unwrap();
    }
    image.sync().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                ask(&image, &root, Request::SubvolPending { ids: vec![] }).unwrap();
            }
        });
        for _ in 0..2 {
            threads.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for id in 256..456 {
                        image.fs().engine().root_item(TreeId(id)).unwrap();
                    }
                }
            });
        }
        image.clean().unwrap();
        done.store(true, Ordering::Relaxed);
    });
    image.sync().unwrap();
    let engine = image.fs().engine();
    let tree = engine.root(TreeId::ROOT).unwrap().unwrap();
    let mut cursor = engine.blocks().cursor(&tree);
    let mut there = cursor.seek(&Key::new(256, ItemType(0), 0)).unwrap();
    while there && let Some(key) = cursor.key() {
        assert!(key.item_type != ItemType::ROOT_ITEM || key.objectid >= 456, "{key:?} is there again");
        there = cursor.next().unwrap();
    }
}

/// Goal: a send says how far it is, if asked to; a client that reads neither news nor stream costs a bounded time. Method: a
/// subvolume of some thousand files, sent with somebody watching; then to sockets that nobody reads.
#[test]
fn send_tells() {
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};
    let image = image();
    ask(&image, &Caller::owner(), create(Location::top(b"live".to_vec()))).unwrap();
    for n in 0..3000 {
        image.write(format!("live/f{n}"), b"some contents").unwrap();
    }
    let options = crate::SnapshotOptions::default().read_only(true);
    let snapshot = image.snapshot("live", "first", &options).unwrap();
    let me = Caller { uid: rustix::process::getuid().as_raw(), ..Caller::owner() };
    let request = |feed: &Feed, progress: Option<&Feed>| Request::Send {
        subvols: vec![SubvolRef::Id(snapshot)],
        parent: None,
        clone_sources: vec![],
        feed: feed.name(),
        how: SendHow {
            version: 1,
            compressed: false,
            no_data: false,
            one_end: false,
            memory_bytes: 64 << 20,
            progress: progress.map(Feed::name),
        },
    };

    let (feed, collected) = Feed::collect(Box::new(std::io::sink())).unwrap();
    let (reported, heard) = std::sync::mpsc::channel();
    let (news, watched) = Feed::watch(move |now| reported.send(now).unwrap()).unwrap();
    let Reply::Sent(sent) = ask(&image, &me, request(&feed, Some(&news))).unwrap() else { panic!("another reply") };
    collected.join().unwrap().unwrap();
    watched.join().unwrap();
    let heard: Vec<_> = heard.iter().collect();
    let first = heard.first().expect("there was news");
    assert!(first.inodes > 0 && first.last_inode > 3000 && first.at_inode <= first.last_inode, "{first:?}");
    assert!(heard.iter().all(|now| now.bytes <= sent.bytes) && heard.is_sorted_by_key(|now| now.inodes));

    // Nobody reads the news: it comes to an end all the same.
    let (silent, _listener) = Feed::listen().unwrap();
    let (feed, collected) = Feed::collect(Box::new(std::io::sink())).unwrap();
    ask(&image, &me, request(&feed, Some(&silent))).unwrap();
    collected.join().unwrap().unwrap();

    // Nobody takes or gives the stream: that ends, too.
    let stall = Duration::from_millis(100);
    let mut socket = super::feed::connect_for(&me, &silent.name(), stall).unwrap();
    let begun = Instant::now();
    assert!(socket.read(&mut [0]).is_err());
    assert!(socket.write_all(&vec![0; 16 << 20]).is_err());
    assert!(begun.elapsed() < Duration::from_secs(60));
}
