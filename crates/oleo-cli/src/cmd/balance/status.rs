//! `oleo balance status`

use oleo::control::{BalanceState, BalanceStatus};

use super::look;
use crate::out::{Out, human, json, println_or_end};
use crate::target::{Access, VolumeArg};

/// Show the running or paused balance
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArg,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let target = self.on.open(Access::Read)?;
        let status = look(&self.on, &target)?;
        if self.json {
            json(&serde_json::to_value(&status)?);
            return Ok(());
        }
        let path = self.on.path.display();
        let state = match status.state {
            BalanceState::Idle => {
                println_or_end(&format!("No balance found on '{path}'"));
                return Ok(());
            }
            BalanceState::Running => "running",
            BalanceState::Paused => "paused",
        };
        println_or_end(&format!("Balance on '{path}' is {state}"));
        print_status(&status);
        if out.verbose > 0 {
            let args = status.args.unwrap_or_default();
            for (what, filters) in [("data", args.data), ("metadata", args.metadata), ("system", args.system)] {
                let Some(filters) = filters.map(|f| f.to_string()) else { continue };
                println_or_end(format!("  {what}: {}", if filters.is_empty() { "all" } else { &filters }).as_str());
            }
        }
        Ok(())
    }
}

/// The lines that btrfs shows, and an estimate.
fn print_status(status: &BalanceStatus) {
    let p = &status.progress;
    // Nothing is known of one that was found paused.
    if p.expected == 0 {
        return;
    }
    let left = 100 - 100 * p.completed.min(p.expected) / p.expected;
    println_or_end(&format!(
        "{} out of about {} chunks balanced ({} considered), {left:3}% left",
        p.completed, p.expected, p.considered
    ));
    let (done, all) = (human(p.bytes_done), human(p.bytes_expected));
    match p.remaining_ms {
        Some(ms) => println_or_end(&format!("{done} of {all} moved, about {} s left", ms.div_ceil(1000))),
        None => println_or_end(&format!("{done} of {all} moved")),
    }
}
