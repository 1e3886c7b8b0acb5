//! `oleo device remove`

use oleo::control::{DeviceChange, DeviceJob, Reply, Request, WhichDevice};

use crate::cmd::interruptible::{end_by_signal, interruptible};
use crate::out::{Out, Progress, misuse};
use crate::redundancy::{self, RedundancyArg};
use crate::target::{Access, Target, VolumeArg, answer};

/// Move everything away from devices and remove them from the volume
///
/// An interruption (Ctrl-C) on an image, and `oleo device remove cancel PATH` on a mount, leave the device in the volume; what was moved
/// stays moved.
///
/// Block groups that were written while a device was missing may be less redundant than others, and stay so. The command names them,
/// and the balance that converts them.
#[derive(clap::Args)]
#[command(
    override_usage = "oleo device remove [OPTIONS] DEVICE|DEVID|missing... IMG|PATH\n       oleo device remove cancel PATH"
)]
pub(crate) struct Args {
    /// Paths or numbers of devices; missing for one that is not there; cancel ends the removal that a mount has under way.
    #[arg(value_name = "DEVICE|DEVID|missing|cancel", required = true, num_args = 1..)]
    which: Vec<String>,
    #[command(flatten)]
    on: VolumeArg,
    /// Read what is on the devices from other copies, where there are some.
    #[arg(long)]
    avoid_reading: bool,
    #[command(flatten)]
    redundancy: RedundancyArg,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let path = self.on.path.display();
        if self.which.iter().any(|which| which == "cancel") {
            if self.which.len() > 1 {
                return Err(misuse!("cancel stands alone"));
            }
            return self.on.change(out, Request::Device { change: DeviceChange::CancelRemoval }, "cancelled");
        }
        let target = self.on.open(Access::Write)?;
        for which in &self.which {
            let which = WhichDevice::parse(which).absolute()?;
            let change = DeviceChange::Remove { which, avoid_reading: self.avoid_reading };
            let removed = self.follow(&target, out, Request::Device { change })?;
            let removed = answer!(removed, Reply::DeviceRemoved(removed) => removed)?;
            let (devid, groups) = (removed.devid, removed.groups);
            out.note(format!("{path}: device {devid} is removed, {groups} block groups moved"));
        }
        let reduced = redundancy::look(&target)?;
        target.close()?;
        self.redundancy.report(reduced, &self.on, out)
    }

    /// Has it done and shows the progress. A signal ends what this process does itself.
    fn follow(&self, target: &Target, out: &Out, request: Request) -> anyhow::Result<Reply> {
        let progress = out.progress("remove");
        let Target::Image { image, .. } = target else { return self.watch(target, &progress, request) };
        let shown = || show(&progress, image.members().status());
        Ok(interruptible(&progress, || image.members().interrupt(), shown, || target.ask(request))??)
    }
}

impl Args {
    /// Waits while a mount does it, and shows the progress. Another connection asks the mount for it.
    fn watch(&self, target: &Target, progress: &Progress, request: Request) -> anyhow::Result<Reply> {
        let path = self.on.path.display();
        let continues = format!("the mount continues the removal: `oleo device remove cancel {path}` ends it");
        let other = progress.is_shown().then(|| self.on.open(Access::Read)).transpose()?;
        let shown = || {
            if let Some(Ok(Reply::DeviceJob(job))) = other.as_ref().map(|other| other.ask(Request::DeviceJob)) {
                show(progress, job);
            }
        };
        Ok(interruptible(progress, || end_by_signal(&continues), shown, || target.ask(request))??)
    }
}

fn show(progress: &Progress, job: DeviceJob) {
    progress.show(format!("{} block groups moved, {} left", job.done, job.left));
}
