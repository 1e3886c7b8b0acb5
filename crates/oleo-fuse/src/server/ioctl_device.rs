//! The ioctls of btrfs about devices: which a volume has, their errors, their replacement, and how far a scrub is.
//!
//! `btrfs` asks statfs(2) before it calls any of them, and refuses a FUSE mount; they are for programs that call them by themselves.
//! `BTRFS_IOC_SCRUB` is not among them: it lasts as long as the scrub of one device, and here a scrub is one job for all.

use std::time::Duration;

use oleo::control::{DeviceChange, ReplaceState, ReplaceStatus, Reply, Request, ScrubChange, WhichDevice};
use oleo_format::DevId;
use zerocopy::IntoBytes;

use super::Errno;
use super::ioctl_btrfs::{Answered, Call, take, text};
use super::ioctl_numbers::*;

/// How often whoever waits for the end of a replacement looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Call<'_> {
    pub(super) fn answer_devices(&self, cmd: u32) -> Result<Answered, Errno> {
        match cmd {
            ADD_DEV => {
                // Programs look what is on a device before they call; the kernel does not, either.
                let change = DeviceChange::Add { place: self.place(NAME_AT)?, force: true, discard: false };
                self.ask(Request::Device { change })
            }
            RM_DEV => self.remove(NAME_AT),
            RM_DEV_V2 => match take::<u64>(self.data, FLAGS_AT_V2)? {
                0 => self.remove(NAME_AT_V2),
                DEVICE_SPEC_BY_ID => {
                    let devid = DevId(take(self.data, NAME_AT_V2)?);
                    self.ask(removal(WhichDevice::Number(devid)))
                }
                _ => Err(Errno::EOPNOTSUPP),
            },
            GET_DEV_STATS => self.dev_stats(take(self.data, 0)?),
            DEV_REPLACE => self.dev_replace(take(self.data, 0)?),
            SCRUB_CANCEL => self.ask(Request::Scrub { change: ScrubChange::Cancel }),
            SCRUB_PROGRESS => self.scrub_progress(take(self.data, 0)?),
            _ => Err(Errno::ENOTTY),
        }
    }

    /// The path of a device. The server has another working directory than the caller.
    fn place(&self, at: usize) -> Result<String, Errno> {
        let place = std::str::from_utf8(text(self.data, at)?).map_err(|_| Errno::EINVAL)?;
        if place.starts_with('/') { Ok(place.to_owned()) } else { Err(Errno::EINVAL) }
    }

    fn remove(&self, name_at: usize) -> Result<Answered, Errno> {
        match text(self.data, name_at)? {
            b"cancel" => self.ask(Request::Device { change: DeviceChange::CancelRemoval }),
            b"missing" => self.ask(removal(WhichDevice::Missing)),
            _ => self.ask(removal(WhichDevice::Place(self.place(name_at)?))),
        }
    }

    /// The counters of a device, which are set to zero if that is asked for.
    fn dev_stats(&self, mut args: DevStats) -> Result<Answered, Errno> {
        let reset = args.flags & DEV_STATS_RESET != 0;
        let request = Request::DeviceErrors { reset, only: Some(DevId(args.devid)) };
        let Reply::DeviceErrors(found) = self.reply(request)? else { return Err(Errno::EIO) };
        let found = found.first().ok_or(Errno(oleo_fs::errno::ENODEV))?;
        args.values = [found.write, found.read, found.flush, found.corruption, found.generation];
        args.nr_items = args.nr_items.min(args.values.len() as u64);
        Ok(args.as_bytes().to_vec().into())
    }

    fn dev_replace(&self, args: DevReplace) -> Result<Answered, Errno> {
        self.must_be_privileged()?;
        match args.cmd {
            REPLACE_STATUS => {
                let status = self.replace_status()?;
                Ok(reported(args, &status).as_bytes().to_vec().into())
            }
            REPLACE_CANCEL => self.replaced(args, self.reply(cancel_replace())),
            REPLACE_START => {
                let begun = self.reply(Request::Device { change: self.replacement(&args)? });
                let is_begun = begun.is_ok();
                let answered = self.replaced(args, begun)?;
                if is_begun { self.wait_replaced().map(|()| answered) } else { Ok(answered) }
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// What is to be replaced by what: in place of the status there are a number, the mode, and two names.
    fn replacement(&self, args: &DevReplace) -> Result<DeviceChange, Errno> {
        let (devid, mode) = (args.state, args.progress_1000);
        let source = match devid {
            0 => WhichDevice::Place(self.place(REPLACE_SOURCE_AT)?),
            devid => WhichDevice::Number(DevId(devid)),
        };
        let place = self.place(REPLACE_TARGET_AT)?;
        let avoid_reading = mode == REPLACE_AVOID_READING;
        Ok(DeviceChange::Replace { source, place, force: true, discard: false, avoid_reading })
    }

    /// What stands in the way is told in the result, as by the kernel.
    fn replaced(&self, mut args: DevReplace, done: Result<Reply, Errno>) -> Result<Answered, Errno> {
        args.result = match done {
            Ok(_) => 0,
            Err(Errno(oleo_fs::errno::ENOTCONN)) => REPLACE_NOT_STARTED,
            Err(Errno(oleo_fs::errno::EINPROGRESS)) if self.server.image().scrubber().status().running => {
                REPLACE_SCRUB_IN_PROGRESS
            }
            Err(Errno(oleo_fs::errno::EINPROGRESS)) => REPLACE_ALREADY_STARTED,
            Err(error) => return Err(error),
        };
        Ok(args.as_bytes().to_vec().into())
    }

    /// Waits for the end of the replacement that was begun, as the kernel does.
    fn wait_replaced(&self) -> Result<(), Errno> {
        loop {
            match self.replace_status()?.state {
                ReplaceState::Started => std::thread::sleep(LOOK_EVERY),
                ReplaceState::Cancelled => return Err(Errno(oleo_fs::errno::ECANCELED)),
                // It failed, or the mount is about to end.
                ReplaceState::Suspended => return Err(Errno::EIO),
                ReplaceState::Finished | ReplaceState::Never => return Ok(()),
            }
        }
    }

    fn replace_status(&self) -> Result<ReplaceStatus, Errno> {
        let Reply::Replace(status) = self.reply(Request::ReplaceStatus)? else { return Err(Errno::EIO) };
        Ok(*status)
    }

    /// How far the scrub of a device is that is under way.
    fn scrub_progress(&self, mut args: ScrubArgs) -> Result<Answered, Errno> {
        let Reply::Scrub(shown) = self.reply(Request::ScrubStatus { files: false })? else { return Err(Errno::EIO) };
        let devid = DevId(args.devid);
        if !shown.paths.iter().any(|(known, _)| *known == devid) {
            return Err(Errno(oleo_fs::errno::ENODEV));
        }
        let found = shown.status.devices.get(&devid).filter(|found| shown.status.running && !found.finished);
        let found = found.ok_or(Errno(oleo_fs::errno::ENOTCONN))?;
        (args.data_extents, args.tree_extents) = (found.data_extents_scrubbed, found.tree_extents_scrubbed);
        (args.data_bytes, args.tree_bytes) = (found.data_bytes_scrubbed, found.tree_bytes_scrubbed);
        (args.read_errors, args.csum_errors) = (found.read_errors, found.csum_errors);
        (args.verify_errors, args.no_csum) = (found.verify_errors, found.no_csum);
        (args.csum_discards, args.malloc_errors) = (found.csum_discards, found.malloc_errors);
        (args.super_errors, args.last_physical) = (found.super_errors, found.last_physical);
        (args.uncorrectable_errors, args.corrected_errors) = (found.uncorrectable_errors, found.corrected_errors);
        args.unverified_errors = 0;
        Ok(args.as_bytes().to_vec().into())
    }
}

fn removal(which: WhichDevice) -> Request {
    Request::Device { change: DeviceChange::Remove { which, avoid_reading: false } }
}

fn cancel_replace() -> Request {
    Request::Device { change: DeviceChange::CancelReplace }
}

fn reported(args: DevReplace, status: &ReplaceStatus) -> DevReplace {
    let part = if status.all > 0 { u128::from(status.done) * 1000 / u128::from(status.all) } else { 0 };
    let (state, progress) = match status.state {
        ReplaceState::Never => (0, 0),
        ReplaceState::Started => (REPLACE_IS_STARTED, part),
        ReplaceState::Finished => (REPLACE_IS_FINISHED, 1000),
        ReplaceState::Cancelled => (REPLACE_IS_CANCELED, 0),
        ReplaceState::Suspended => (REPLACE_IS_SUSPENDED, part),
    };
    DevReplace {
        result: 0,
        state,
        progress_1000: u64::try_from(progress).unwrap_or(1000),
        time_started: status.started,
        time_stopped: status.stopped,
        num_write_errors: status.write_errors,
        num_uncorrectable_read_errors: status.unreadable,
        ..args
    }
}
