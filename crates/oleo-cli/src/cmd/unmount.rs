//! `oleo unmount`

use std::path::PathBuf;

use oleo_fuse::{UnmountOptions, Unmounted, unmount};

use crate::out::Out;

/// Unmount a volume that `oleo mount` serves, and wait until everything is on disk
///
/// If something cannot be written (the file system below the image is full, say), it is reported and nothing is unmounted; make space
/// and repeat the command. The command also reaches a server that could not write everything before umount(8) removed its mount.
/// The exit code is 0 if everything is on disk.
///
/// Bytes that cannot be written because the rest of their sector cannot be read do not prevent unmounting: everything else is
/// written, the volume is unmounted, these bytes are lost and reported, and the exit code is 3.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory where the volume is, or was, mounted.
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Unmount even if the mount is in use: it disappears from the directory tree, and the command does not wait for its users.
    #[arg(long, short)]
    lazy: bool,
    /// Unmount even if not everything can be written; what is not on disk is lost.
    #[arg(long, short, conflicts_with = "save_to")]
    force: bool,
    /// If not everything can be written, copy all files of all subvolumes, as they are now, to this directory (new or empty) and
    /// unmount. The image keeps the state of its last commit.
    #[arg(long, value_name = "DIR")]
    save_to: Option<PathBuf>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let options = UnmountOptions::default().lazy(self.lazy).force(self.force).save_to(self.save_to);
        for dir in &self.dirs {
            let done = unmount(dir, &options).map_err(|error| error.at(dir.display()))?;
            let dir = dir.display();
            match done {
                Unmounted::Complete | Unmounted::NotWaited => out.note(format!("{dir}: unmounted")),
                Unmounted::Saved(count) => out.note(format!(
                    "{dir}: unmounted; {count} files and directories were saved, the image has the state of its last commit"
                )),
                Unmounted::GivenUp => {
                    out.note(format!("{dir}: unmounted; the image has the state of its last commit"));
                }
                Unmounted::StillMounted(Some(at)) => {
                    out.note(format!(
                        "{dir}: unmounted; it is still mounted on {} and served there",
                        at.display()
                    ));
                }
                Unmounted::StillMounted(None) => {
                    out.note(format!("{dir}: unmounted; it is still mounted in another namespace and served there"));
                }
            }
        }
        Ok(())
    }
}
