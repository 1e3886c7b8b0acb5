//! Volumes whose devices come, go, fail and come back, beside the kernel.

mod changed;
mod lost;
mod replaced;

use std::fs::File;
use std::path::{Path, PathBuf};

use oleo_sim::rng::Rng;

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_oleo");

/// Bytes that no other name and length has.
fn noise(name: &str, len: usize) -> Vec<u8> {
    Rng::new(name.bytes().fold(0_u64, |seed, byte| seed.rotate_left(8) ^ u64::from(byte))).bytes(len)
}

/// Sparse files of a length.
fn files(dir: &Path, names: &[&str], len: u64) -> Vec<PathBuf> {
    let make = |name: &&str| {
        let path = dir.join(name);
        File::create(&path).and_then(|file| file.set_len(len)).unwrap();
        path
    };
    names.iter().map(make).collect()
}

/// The arguments that name a volume: the first device, and the others.
fn volume<'a>(devices: &[&'a str]) -> Vec<&'a str> {
    let (first, others) = devices.split_first().unwrap();
    let mut args = vec![*first];
    others.iter().for_each(|other| args.extend(["--device", other]));
    args
}
