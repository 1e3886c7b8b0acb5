//! Volumes on several devices, which benchmarks of scrub, replacing and parity share.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oleo_sim::oracle::{Loop, Oracle, ReadOnly};
use oleo_sim::rng::Rng;

const FILE_LEN: u64 = 64 << 20;

/// Sparse files of this length.
pub fn images(dir: &Path, count: usize, len: u64) -> Result<Vec<PathBuf>> {
    let made = |nth: usize| {
        let path = dir.join(format!("d{nth}"));
        File::create(&path)?.set_len(len)?;
        Ok(path)
    };
    (0..count).map(made).collect()
}

/// Loop devices over files, with their paths.
pub fn attach(images: &[PathBuf]) -> Result<(Vec<Loop>, Vec<PathBuf>)> {
    let loops: Vec<Loop> = images.iter().map(|image| Loop::attach(image, ReadOnly::No)).collect::<Result<_>>()?;
    let paths = loops.iter().map(|device| device.path().to_owned()).collect();
    Ok((loops, paths))
}

/// A volume that the kernel has filled with files that do not compress.
pub fn fill(oracle: &Oracle, images: &[PathBuf], data: &str, len: u64) -> Result<()> {
    oracle.mkfs(&["-d", data, "-m", "raid1"], images)?;
    let mounted = oracle.mount(images, "")?;
    let mut rng = Rng::new(1);
    let mut bytes = rng.bytes(usize::try_from(FILE_LEN)?);
    for nth in 0..len / FILE_LEN {
        bytes[..8].copy_from_slice(&nth.to_le_bytes());
        std::fs::write(mounted.path().join(format!("f{nth}")), &bytes)?;
    }
    mounted.unmount()
}

/// The end of what each device has in chunks: behind it there is nothing to be read.
pub fn ends(images: &[PathBuf]) -> Result<Vec<u64>> {
    let options = oleo::OpenOptions::default().devices(images[1..].to_vec());
    let image = oleo::Image::open(&images[0], &options)?;
    let mut ends = vec![0; images.len()];
    for chunk in image.volume().chunks() {
        for stripe in &chunk.stripes {
            let end = ends.get_mut(usize::try_from(stripe.devid.0)? - 1).context("a device of another number")?;
            *end = stripe.offset.0.saturating_add(chunk.stripe_bytes().0).max(*end);
        }
    }
    Ok(ends)
}

/// The arguments that name a volume for a command of ours.
pub fn named(images: &[PathBuf]) -> Vec<String> {
    let mut args = vec![images[0].display().to_string()];
    images[1..].iter().for_each(|other| args.extend(["--device".into(), other.display().to_string()]));
    args
}
