//! Balance by library.

use crate::{Image, Result};

pub use oleo_jobs::{
    BalanceArgs, BalanceEnd, BalanceProgress, BalanceState, BalanceStatus, Balancer, Filters, JobError, Reclaimed,
};
pub use oleo_txn::Moved;

impl Image {
    /// Starts a balance and runs it to the end, or until [`Balancer::pause`](oleo_jobs::Balancer::pause) or
    /// [`Image::balance_cancel`] in another thread. [`Image::balance_status`] returns the progress meanwhile.
    ///
    /// # Errors
    /// A balance is running or paused already, or the arguments contradict each other. Later failures are in the returned end.
    pub fn balance(&self, args: BalanceArgs) -> Result<BalanceEnd> {
        let number = self.balancer().start(args)?;
        Ok(self.run_balance(number))
    }

    /// Resumes a balance that was interrupted, by Oleo or by the kernel.
    ///
    /// # Errors
    /// There is none, or it cannot be done here.
    pub fn balance_resume(&self) -> Result<BalanceEnd> {
        let number = self.balancer().resume()?;
        Ok(self.run_balance(number))
    }

    /// Does what was asked for; or waits for whoever does it already ([`Image::start_background`]).
    fn run_balance(&self, number: u64) -> BalanceEnd {
        let here = self.balancer().run();
        here.or_else(|| self.balancer().wait_end(number).end).unwrap_or(BalanceEnd::Done)
    }

    /// Cancels a running or interrupted balance; block groups that were moved stay where they are.
    ///
    /// # Errors
    /// There is none.
    pub fn balance_cancel(&self) -> Result<()> {
        Ok(self.balancer().cancel()?)
    }

    /// State and progress of the balance.
    pub fn balance_status(&self) -> BalanceStatus {
        self.balancer().status()
    }

    /// Frees block groups of which less than `percent` is used, as far as other groups have space for their contents.
    ///
    /// # Errors
    /// A balance is under way, or the image is damaged.
    pub fn reclaim(&self, percent: u64) -> Result<Reclaimed> {
        Ok(oleo_jobs::reclaim(self.fs(), self.balancer(), percent)?)
    }
}
