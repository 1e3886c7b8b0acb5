//! Copies a subvolume from one volume to another by streams, as `btrfs send` and `btrfs receive` do: all of it first, then only
//! what changed. The stream runs through a pipe, so neither side holds all of it.
//!
//! `cargo run --release -p oleo --example receive_stream`

use std::error::Error;
use std::io::BufWriter;

use oleo::receive::Receive;
use oleo::send::SendOptions;
use oleo::{Image, SnapshotOptions, TreeId};

fn volume() -> oleo::Result<Image> {
    Image::create_in_memory(256 << 20)
}

/// Sends from one thread and receives in another; returns how many bytes went through the pipe.
pub fn transfer(
    from: &Image,
    snapshot: TreeId,
    parent: Option<TreeId>,
    to: &Image,
) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let (reader, writer) = std::io::pipe()?;
    let options = SendOptions::default().parent(parent).version(2);
    // All or nothing: a stream that is cut off leaves nothing behind.
    let how = Receive::default().atomic(true);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| from.send(&[snapshot], &options, &mut BufWriter::new(writer)));
        let received = to.receive(reader, &how);
        let sent = sender.join().expect("sending does not panic");
        // If receiving fails, sending fails too, since nobody reads: the first is the reason.
        received?;
        Ok(sent?.bytes)
    })
}

/// Runs the example; fails if what it shows is not so.
pub fn main() -> Result<(), Box<dyn Error>> {
    let (from, to) = (volume()?, volume()?);
    let read_only = SnapshotOptions::default().read_only(true);
    from.create_subvol("data")?;
    for n in 0..100u8 {
        from.write(format!("data/{n}"), &[n; 20_000])?;
    }
    let monday = from.snapshot("data", "monday", &read_only)?;
    from.write("data/7", b"changed on tuesday")?;
    let tuesday = from.snapshot("data", "tuesday", &read_only)?;

    let all = transfer(&from, monday, None, &to).map_err(|e| e.to_string())?;
    let change = transfer(&from, tuesday, Some(monday), &to).map_err(|e| e.to_string())?;
    println!("monday: {all} bytes; tuesday, as a change: {change} bytes");

    if to.read("tuesday/7")? != b"changed on tuesday" || to.read("tuesday/8")? != [8; 20_000] || change * 100 > all {
        return Err("what was received is not what was sent".into());
    }
    Ok(())
}
