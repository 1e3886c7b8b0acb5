//! What is read while a mount commits.

use std::os::unix::fs::FileExt;
use std::path::Path;

use oleo::fs::Depth;
use oleo::inspect::Inspector;
use oleo::{Image, OpenOptions};
use serde_json::Value;

use super::super::body::Answer;
use super::super::routes::answer;
use super::super::target::Target as Explored;
use super::*;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Opened as a mount that has just been looked at, so that whatever is committed next comes as a surprise.
fn surprised(path: &Path) -> Arc<Current> {
    let mount: crate::explore::Ask = Box::new(|_| Err(oleo::Error::Request("a test".into())));
    let image = path.to_owned();
    let target = Explored { image, options: OpenOptions::default(), mount: Some(mount), map_bytes: 1 << 20 };
    let current = Current::open(target).unwrap();
    current.never_look();
    Arc::new(current)
}

/// Overwrites what is at these addresses, all copies.
fn overwrite(path: &Path, at: &[(u64, usize)]) {
    let inspector = Inspector::open(path, &OpenOptions::default()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for &(at, len) in at {
        let chunk = inspector.volume().chunk_of(oleo::format::Logical(at)).unwrap();
        for stripe in &chunk.stripes {
            file.write_all_at(&vec![0x5a; len], stripe.offset.0 + (at - chunk.start.0)).unwrap();
        }
    }
}

fn body(reply: Reply) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    match runtime.block_on(reply.start(&hyper::Method::GET)).unwrap().into_body() {
        Answer::Whole(bytes) => serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        Answer::Pieces(..) => Value::Null,
    }
}

/// Goal: whatever begins with a path or a place of a file is read again when a commit came between and the old blocks are used for something else; what has vanished meanwhile is not there. Method: an
/// explorer that does not look for commits; change everything, commit, overwrite the old blocks; ask.
#[test]
fn commits_between() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("disk.img");
    let old: Vec<u8> = [PNG, &[b'a'; 100_000]].concat();
    let new: Vec<u8> = [PNG, &[b'b'; 100_000]].concat();
    let image = Image::create(&path, 512 << 20).unwrap();
    image.create_subvol("v").unwrap();
    image.create_subvol("w").unwrap();
    image.create_dir("v/dir").unwrap();
    image.write("v/file", &old).unwrap();
    image.sync().unwrap();
    let extents = image.fs().extents(&image.find("v/file").unwrap(), 0, u64::MAX).unwrap();
    let mut stale: Vec<(u64, usize)> =
        extents.iter().map(|extent| (extent.disk.unwrap().0, usize::try_from(extent.len).unwrap())).collect();
    image.close().unwrap();
    let root = || {
        let trees = Inspector::open(&path, &OpenOptions::default()).unwrap().trees().unwrap();
        trees.into_iter().find(|tree| tree.tree.0 == 256).unwrap().root.0
    };
    // Blocks that were read before are known; so each question has an explorer of its own.
    let names =
        ["text", "hex", "picture", "list", "is a file", "vanished", "tar", "zip", "search", "compare", "download"];
    stale.push((root(), 16384));
    // Whoever writes has the image locked, as a mount has.
    let image = Image::open(&path, &OpenOptions::writing()).unwrap();
    let explorers = names.map(|name| (name, surprised(&path)));
    image.remove(&image.top().unwrap(), "v/dir", Depth::Tree).unwrap();
    image.write("v/file", &new).unwrap();
    image.close().unwrap();
    overwrite(&path, &stale);
    // What is written piece by piece is begun there.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    for (name, volume) in explorers {
        let question = match name {
            "list" => "api/list?path=v",
            "vanished" => "api/list?path=v/dir",
            "is a file" => "api/list?path=v/file",
            "text" => "api/text?path=v/file",
            "hex" => "api/hex?path=v/file",
            "picture" => "image?path=v/file",
            "tar" => "tar?path=v/file",
            "zip" => "zip?path=v/file",
            "search" => "api/search?path=v&name=f",
            "compare" => "api/compare?old=257&new=256",
            _ => "file?path=v/file",
        };
        let (path, query) = question.split_once('?').unwrap();
        let answered = answer(&volume, path, query);
        if name == "vanished" {
            assert_eq!(answered.map(|_| ()).unwrap_err().status, 404);
            continue;
        }
        let said = body(answered.unwrap_or_else(|refused| panic!("{name}: {refused:?}")));
        match name {
            // The beginning of a PNG is no text.
            "text" => assert_eq!(said["size"], new.len()),
            "hex" => assert!(said["rows"][1].as_str().unwrap().ends_with("bbbbbbbbbbbbbbbb"), "{said}"),
            "list" => assert_eq!(said["entries"].as_array().unwrap().len(), 1, "{said}"),
            _ => {}
        }
    }
}
