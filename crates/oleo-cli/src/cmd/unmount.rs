//! `oleo unmount`

use std::path::PathBuf;

use oleo_fuse::{UnmountOptions, Unmounted, unmount};

use crate::out::Out;

/// Unmount a volume that `oleo mount` serves, and wait until everything is on disk
///
/// What cannot be written (the file system below the image is full, say) is reported; then nothing is unmounted, and after room
/// was made the command can be given again. This also reaches a server whose mount was taken away by umount(8) and which could
/// not write everything. The exit code is 0 when everything is on disk.
///
/// Bytes that cannot be written because the rest of their sector cannot be read are no reason to stay mounted: all else is
/// written, it is unmounted, they are lost and reported, and the exit code is 3.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where it is, or was, mounted.
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Also where it is in use: nobody new finds it then. Does not wait for those who use it.
    #[arg(long, short)]
    lazy: bool,
    /// Also where not everything can be written: what is not on disk is lost.
    #[arg(long, short, conflicts_with = "save_to")]
    force: bool,
    /// Where not everything can be written, write all files of all subvolumes, as they are now, to this directory (new or empty),
    /// and unmount. The image stays as of its last commit.
    #[arg(long, value_name = "DIR")]
    save_to: Option<PathBuf>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let options = UnmountOptions { lazy: self.lazy, force: self.force, save_to: self.save_to };
        for dir in &self.dirs {
            let done = unmount(dir, &options).map_err(|error| error.at(dir.display()))?;
            let dir = dir.display();
            match done {
                Unmounted::Complete | Unmounted::NotWaited => out.note(format!("{dir}: unmounted")),
                Unmounted::Saved(count) => out.note(format!(
                    "{dir}: unmounted; {count} files and directories were saved, the image is as of its last commit"
                )),
                Unmounted::GivenUp => {
                    out.note(format!("{dir}: unmounted; the image is as of its last commit, if that was not its end"));
                }
                Unmounted::StillMounted(Some(at)) => {
                    out.note(format!(
                        "{dir}: unmounted; it is still mounted on {}, and goes on being served",
                        at.display()
                    ));
                }
                Unmounted::StillMounted(None) => {
                    out.note(format!("{dir}: unmounted; it is mounted in another namespace, and goes on being served"));
                }
            }
        }
        Ok(())
    }
}
