//! `oleo restore`

use std::path::PathBuf;

use oleo::restore::{RestoreOptions, restore_to_dir, restore_to_tar};
use oleo::{Error, ErrorKind};

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::{Out, Said, failure, human};

/// Copy files out of an image, into a directory or as a tar archive
///
/// An entry that cannot be restored is reported on standard error, and the rest is restored. Bytes of a file that cannot be read are
/// zeros.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 everything was restored, possibly with warnings; 3 some entries were not, or not whole; others, as in oleo --help: the restore was not completed."
)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// Directory, empty or to be created; - writes a tar archive (pax) to standard output.
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Copy only this file or directory, with everything below it.
    #[arg(long, value_name = "PATH", default_value = "/", hide_default_value = true)]
    path: InPath,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Leave nested subvolumes out.
    #[arg(long)]
    one_subvol: bool,
    /// Keep modes regardless of the umask; always so for root and in a tar archive.
    #[arg(short, long)]
    preserve_permissions: bool,
    /// Create no device nodes, and no files with set-user-ID or set-group-ID bits.
    #[arg(long)]
    no_special: bool,
    /// Threads [default: one per core].
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let from = image.resolve(&self.subvol.start(&image)?, &self.path.0)?;
        let name = self.path.0.rsplit(|&b| b == b'/').find(|part| !part.is_empty()).unwrap_or_default();
        let progress = out.progress("restoring");
        let options = RestoreOptions::default()
            .one_subvol(self.one_subvol)
            .exact_modes(self.preserve_permissions)
            .no_special(self.no_special)
            .threads(self.threads)
            .on_progress(progress.callback())
            .on_failure(Some(Box::new(failure)));
        let restored = if self.dest.as_os_str() == "-" {
            restore_to_tar(&image, &from, name, std::io::stdout(), &options)
        } else {
            restore_to_dir(&image, &from, name, &self.dest, &options)
        };
        drop(progress);
        let report = match restored {
            Err(Error::Incomplete { report, .. }) => *report,
            other => other?,
        };
        out.warnings(&report.warnings);
        if report.owners_lost > 0 {
            out.warnings(&[format!(
                "{} entries belong to you now: only root can give them away (set-ID bits are dropped)",
                report.owners_lost
            )]);
        }
        if self.dest.as_os_str() != "-" {
            let done = &report.done;
            let entries = done.files + done.dirs + done.links + done.others;
            out.note(format!("{}: {entries} entries with {} of data", self.dest.display(), human(done.data_bytes)));
        }
        if report.failed > 0 {
            let text = format!("{} entries were not restored, or not whole", report.failed);
            return Err(Said(ErrorKind::Corruption, text).into());
        }
        Ok(())
    }
}
