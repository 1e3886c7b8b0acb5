//! `oleo cat`

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::print_or_end;

/// Bytes of each read.
const STEP_BYTES: usize = 1 << 20;

/// Write the contents of a file to standard output
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// File in the image.
    #[arg(value_name = "PATH")]
    path: InPath,
    #[command(flatten)]
    subvol: SubvolArg,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let file = image.open_file_at(&self.subvol.start(&image)?, &self.path.0)?;
        let mut buffer = vec![0; STEP_BYTES];
        let mut at = 0;
        loop {
            let n = file.read_at(&mut buffer, at)?;
            if n == 0 {
                return Ok(());
            }
            print_or_end(&buffer[..n]);
            at += n as u64;
        }
    }
}
