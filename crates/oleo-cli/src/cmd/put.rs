//! `oleo put`

use std::path::PathBuf;

use oleo::fs::{NewInode, NewKind};
use oleo::mkfs::FillOptions;

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::cmd::mkfs::under_fakeroot;
use crate::out::{Out, human, warn};

/// Copy a file or directory of the host into an image
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// File or directory of the host; - reads standard input.
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// New path in the image, or an existing directory to copy into.
    #[arg(value_name = "DEST")]
    dest: InPath,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Compress data: zlib[:1-9], lzo, zstd[:1-15].
    #[arg(long, value_name = "ALGO[:LEVEL]")]
    compress: Option<String>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let start = self.subvol.start(&image)?;
        let bytes = if self.source.as_os_str() == "-" {
            image.put_stream(&start, std::io::stdin(), &self.dest.0, &NewInode::new(NewKind::File, 0o644))?
        } else {
            if under_fakeroot() {
                warn("fakeroot has no effect: files get the owners that they have without it");
            }
            let progress = out.progress("copying");
            let options = FillOptions::default()
                .compress(self.compress.as_deref().map(oleo::fs::parse_compress).transpose()?.flatten())
                .on_progress(progress.callback());
            let report = image.put(&start, &self.source, &self.dest.0, &options)?;
            drop(progress);
            out.warnings(&report.warnings);
            report.done.data_bytes
        };
        image.close()?;
        out.note(format!("{}: {} written", self.dest.shown().display(), human(bytes)));
        Ok(())
    }
}
