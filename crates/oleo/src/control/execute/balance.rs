//! Requests about the balance.

use oleo_jobs::Balancer;

use crate::control::error::Error;
use crate::control::reply::Reply;
use crate::control::request::BalanceChange;

/// Carries a change out, or leaves it to whoever runs balances.
pub(super) fn change(balancer: &Balancer, change: BalanceChange) -> Result<Reply, Error> {
    match change {
        BalanceChange::Start { args } => Ok(Reply::Number(balancer.start(*args)?)),
        BalanceChange::Resume => Ok(Reply::Number(balancer.resume()?)),
        BalanceChange::Pause => Ok(balancer.pause().map(|()| Reply::Done)?),
        BalanceChange::Cancel => Ok(balancer.cancel().map(|()| Reply::Done)?),
    }
}
