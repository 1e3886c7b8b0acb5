//! Balance by library.

use oleo_jobs::{BalanceArgs, BalanceEnd, BalanceStatus, Reclaimed};

use crate::{Image, Result};

impl Image {
    /// Begins a balance and does it, to the end or until [`Balancer::pause`](oleo_jobs::Balancer::pause) or another thread's
    /// [`Image::balance_cancel`]. How far it is, [`Image::balance_status`] tells meanwhile.
    ///
    /// # Errors
    /// There is one already, or it cannot be as asked. What goes wrong on the way is in the answer.
    pub fn balance(&self, args: BalanceArgs) -> Result<BalanceEnd> {
        self.balancer().start(args)?;
        Ok(self.balancer().run().unwrap_or(BalanceEnd::Done))
    }

    /// Goes on with a balance that was interrupted, by Oleo or by the kernel.
    ///
    /// # Errors
    /// There is none, or it cannot be done here.
    pub fn balance_resume(&self) -> Result<BalanceEnd> {
        self.balancer().resume()?;
        Ok(self.balancer().run().unwrap_or(BalanceEnd::Done))
    }

    /// Ends a balance, under way or interrupted; what was moved stays where it is.
    ///
    /// # Errors
    /// There is none.
    pub fn balance_cancel(&self) -> Result<()> {
        Ok(self.balancer().cancel()?)
    }

    /// The balance as it is.
    pub fn balance_status(&self) -> BalanceStatus {
        self.balancer().status()
    }

    /// Gives back block groups of which less than `percent` is used, as far as others have room.
    ///
    /// # Errors
    /// A balance is under way, or the image is damaged.
    pub fn reclaim(&self, percent: u64) -> Result<Reclaimed> {
        Ok(oleo_jobs::reclaim(self.fs(), self.balancer(), percent)?)
    }
}
