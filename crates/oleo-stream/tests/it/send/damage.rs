//! Sending from damaged images: a typed error or a stream, no panic, no endless loop, no memory beyond the image's means.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use oleo::{Image, OpenOptions};
use oleo_sim::oracle::oracle;
use oleo_sim::rng::Rng;
use oleo_sim::rot::Rot;
use oleo_sim::script::Mix;
use oleo_stream::{SendOptions, send};

use crate::send::common::{History, id_of};

/// A send that takes longer counts as an endless loop; sound images take a hundredth of a second.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Bytes of a stream that no round comes near.
const STREAM_MAX: usize = 256 << 20;

/// Counts what is written, and refuses more than there can be.
struct Sink(usize);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        if self.0 > STREAM_MAX { Err(std::io::Error::other("far more than there is")) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sends everything possible, in each way; returns how much was written, and whether all of it was.
fn send_all(path: &Path) -> (usize, bool) {
    let Ok(image) = Image::open(path, &OpenOptions::default()) else { return (0, false) };
    let mut sink = Sink(0);
    let mut all = true;
    let names = ["s0", "s1", "s2"];
    for (number, name) in names.iter().enumerate() {
        let Ok(id) = id_of(&image, name) else {
            all = false;
            continue;
        };
        let others: Vec<_> = names[..number].iter().filter_map(|name| id_of(&image, name).ok()).collect();
        for options in [
            SendOptions::default(),
            SendOptions::default().version(2).compressed(true).parent(others.last().copied()),
            SendOptions::default().version(3).clone_sources(others.clone()),
        ] {
            all &= send(image.fs(), &[id], &options, &mut sink).is_ok();
        }
    }
    (sink.0, all)
}

/// Goal: sending from a damaged image returns an error or a stream, soon. Method: an image with three snapshots, bytes
/// of its blocks changed with checksums corrected, sent whole, on a parent and with clone sources, in all versions,
/// each time.
#[test]
fn of_the_image() {
    let Some(oracle) = oracle() else { return };
    let mix = Mix { subvolumes: false, steps: 900, moves: 20, file_len_max: 200_000, ..Mix::default() };
    let history = History::make(oracle, 51, &mix, 3).unwrap();
    let (sound, all) = send_all(&history.image);
    assert!(all && sound > 1 << 20, "the image is sound at first");
    let rot = Rot::survey(&history.image).unwrap();
    let mut rng = Rng::new(52);
    let mut noticed = 0;
    for round in 0..250 {
        let damage = rot.random(&mut rng).unwrap();
        let inflicted = rot.inflict(&damage).unwrap();
        let (tell, reported) = mpsc::channel();
        let path = history.image.clone();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(send_all(&path));
        });
        match reported.recv_timeout(TIME_MAX) {
            Ok((_, all)) => noticed += usize::from(!all),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("round {round}: no end: {damage:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("round {round}: it panicked: {damage:?}"),
        }
        thread.join().unwrap();
        drop(inflicted);
    }
    assert!(noticed > 40, "only {noticed} of 250 were noticed");
    assert_eq!(send_all(&history.image), (sound, true), "the image is sound again");
}
