//! Volumes whose devices come, go, fail and come back, beside the kernel.

mod changed;
mod lost;
mod replaced;

use std::fs::File;
use std::path::{Path, PathBuf};

/// The command that is tested.
const PROGRAM: &str = env!("CARGO_BIN_EXE_oleo");

/// Bytes that no other name and length has.
fn noise(name: &str, len: usize) -> Vec<u8> {
    let mut state =
        name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| byte()).collect()
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
