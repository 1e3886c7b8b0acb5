//! Bytes that are nearly right: sound inputs, changed, for readers that must take anything. Fuzz targets that have no fuzzer at
//! hand are fed with them ([`feed`]).

use std::time::{Duration, Instant};

use crate::rng::Rng;

/// Changes at most, in one input.
const CHANGES_MAX: u64 = 4;
/// Fewer inputs may all be sound.
const FEW: u64 = 50;
/// Bytes that are put in or taken out at a time, at most.
const PIECE_LEN_MAX: u64 = 40;
/// Numbers at which readers go wrong.
const NUMBERS: [u64; 10] = [0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 63, u64::MAX];

/// Changes bytes in some of the ways in which they go wrong: bits, numbers of any width, pieces cut out, put in, and moved.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(CHANGES_MAX) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        let piece = (1 + rng.below(PIECE_LEN_MAX)) as usize;
        let end = (at + piece).min(bytes.len());
        match rng.below(8) {
            0..3 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
            }
            3 => {
                let number = rng.pick(&NUMBERS).copied().unwrap_or(0);
                let number = if rng.one_in(2) { number.to_be_bytes() } else { number.to_le_bytes() };
                let (width, skip) = (1 << rng.below(4), rng.below(2) as usize);
                let part = if skip == 0 { &number[..width] } else { &number[8 - width..] };
                bytes.iter_mut().skip(at).zip(part).for_each(|(byte, new)| *byte = *new);
            }
            4 => bytes.truncate(at.max(1)),
            5 => drop(bytes.drain(at..end)),
            6 => {
                let random = rng.bytes(piece);
                bytes.splice(at..at, random);
            }
            _ => {
                let copied = bytes[at..end].to_vec();
                let to = rng.below(bytes.len() as u64 + 1) as usize;
                bytes.splice(to..to, copied);
            }
        }
    }
}

/// Prints an input at which its reader panics.
struct Shown<'a>(&'a str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("{} fails with {hex}", self.0);
        }
    }
}

/// Feeds a reader with sound inputs, each as it is and then changed again and again, for some time. `body` says whether it took
/// the input; each of `sound` must be taken, and of many changed ones not all. Returns how many there were.
///
/// # Panics
/// If that is not so.
pub fn feed(name: &str, sound: &[Vec<u8>], seed: u64, time: Duration, body: impl Fn(&[u8]) -> bool) -> u64 {
    let one = |bytes: &[u8]| {
        let _shown = Shown(name, bytes);
        body(bytes)
    };
    assert!(!sound.is_empty(), "{name} has no inputs");
    for bytes in sound {
        let _shown = Shown(name, bytes);
        assert!(body(bytes), "{name}: a sound input is refused");
    }
    let (mut rng, begun) = (Rng::new(seed), Instant::now());
    let (mut fed, mut taken) = (0, 0);
    while begun.elapsed() < time {
        let mut bytes = rng.pick(sound).cloned().unwrap_or_default();
        mutate(&mut rng, &mut bytes);
        fed += 1;
        taken += u64::from(one(&bytes));
    }
    assert!(taken < fed || fed < FEW, "{name} took all of {fed} inputs");
    fed
}
