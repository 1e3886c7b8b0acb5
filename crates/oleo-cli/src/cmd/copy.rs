//! `oleo copy`

use std::path::PathBuf;
use std::sync::Arc;

use oleo::copy::{CopyOptions, copy};

use crate::args::{StoreArgs, size};
use crate::out::{Out, human};

/// Copy an image from one place to another
///
/// Its bytes are copied as they are: from an object store to a file that can be mounted, from a file to a store, from or to a
/// network block device. Nobody may change the source meanwhile, unless it is on an object store: of those, the last state that
/// was stored is copied.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    oleo copy s3://bucket/volume disk.img\n  \
    oleo copy disk.img file:///mnt/share/volume")]
pub(crate) struct Args {
    /// The image: a file, a block device, or a name of another place.
    #[arg(value_name = "IMG")]
    from: PathBuf,
    /// Where it goes: files and volumes on object stores are created.
    #[arg(value_name = "TARGET")]
    to: PathBuf,
    /// Overwrite what is there.
    #[arg(long, short)]
    force: bool,
    /// Offset of the image in the source file, in bytes.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true)]
    offset: u64,
    #[command(flatten)]
    store: StoreArgs,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let progress = Arc::new(out.progress("copy"));
        let mut options = CopyOptions::default().force(self.force).offset(self.offset).places(self.store.places()?);
        if progress.is_shown() {
            let progress = progress.clone();
            let told = move |at: u64, of: u64| progress.show(format!("{} of {}", human(at), human(of)));
            options = options.on_copied(Some(Box::new(told)));
        }
        let copied = copy(&self.from, &self.to, &options)?;
        drop(options);
        drop(progress);
        let (len, written) = (human(copied.len), human(copied.written));
        out.note(format!("{}: {len}, of which {written} are no holes", self.to.display()));
        Ok(())
    }
}
