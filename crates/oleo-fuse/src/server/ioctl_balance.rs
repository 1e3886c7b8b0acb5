//! The ioctls of btrfs about the balance: starting and resuming one, which wait for its end, and querying its progress.
//!
//! `BTRFS_IOC_BALANCE_CTL` (pause, cancel) passes a number although its own number declares a pointer, so the kernel
//! fails it with EFAULT before a FUSE server sees it. The control socket offers this instead.

use oleo::balance::{BalanceArgs, Balancer};
use oleo::control::{BalanceChange, BalanceEnd, BalanceState, BalanceStatus, Reply, Request};
use oleo_format::BalanceItem;
use zerocopy::{FromZeros, IntoBytes};

use super::Errno;
use super::ioctl_btrfs::{Answered, Call, take};
use super::ioctl_numbers::*;

impl Call<'_> {
    /// Begins a balance, or resumes one, and waits for its end.
    pub(super) fn balance(&self) -> Result<Answered, Errno> {
        same_order()?;
        let given: Balance = take(self.data, 0)?;
        let change = if given.flags & BALANCE_RESUME != 0 {
            BalanceChange::Resume
        } else {
            BalanceChange::Start { args: Box::new(args_of(&given)?) }
        };
        let Reply::Number(number) = self.reply(Request::Balance { change })? else { return Err(Errno::EIO) };
        let balancer: &Balancer = self.server.image().balancer();
        let status = balancer.wait_end(number);
        let mut reported = reported(&status);
        let result = match &status.end {
            Some(BalanceEnd::Paused) => {
                reported.state = BALANCE_PAUSE_REQ;
                -oleo_fs::errno::ECANCELED
            }
            Some(BalanceEnd::Cancelled) => {
                reported.state = BALANCE_CANCEL_REQ;
                -oleo_fs::errno::ECANCELED
            }
            Some(BalanceEnd::Failed { errno, .. }) => -errno,
            Some(BalanceEnd::Done) | None => 0,
        };
        Ok(Answered { result, bytes: reported.as_bytes().to_vec() })
    }

    /// How far the balance is.
    pub(super) fn balance_progress(&self) -> Result<Answered, Errno> {
        same_order()?;
        let Reply::Balance(status) = self.reply(Request::BalanceStatus)? else { return Err(Errno::EIO) };
        if status.state == BalanceState::Idle {
            return Err(Errno(oleo_fs::errno::ENOTCONN));
        }
        Ok(reported(&status).as_bytes().to_vec().into())
    }
}

/// The arguments are laid out as in the item on disk, but in the machine's byte order. Big-endian machines are not
/// supported.
fn same_order() -> Result<(), Errno> {
    if cfg!(target_endian = "little") { Ok(()) } else { Err(Errno::ENOTTY) }
}

fn args_of(given: &Balance) -> Result<BalanceArgs, Errno> {
    let mut item = BalanceItem::new_zeroed();
    item.flags = given.flags.into();
    for (to, from) in [(&mut item.data, &given.data), (&mut item.meta, &given.meta), (&mut item.sys, &given.sys)] {
        to.as_mut_bytes().copy_from_slice(from);
    }
    BalanceArgs::from_item(&item).map_err(|_| Errno::EINVAL)
}

fn reported(status: &BalanceStatus) -> Balance {
    let mut reported = Balance::new_zeroed();
    if let Some(args) = &status.args {
        let item = args.to_item();
        reported.flags = item.flags.get();
        for (to, from) in
            [(&mut reported.data, &item.data), (&mut reported.meta, &item.meta), (&mut reported.sys, &item.sys)]
        {
            to.copy_from_slice(from.as_bytes());
        }
    }
    reported.state = if status.state == BalanceState::Running { BALANCE_RUNNING } else { 0 };
    (reported.expected, reported.considered) = (status.progress.expected, status.progress.considered);
    reported.completed = status.progress.completed;
    reported
}
