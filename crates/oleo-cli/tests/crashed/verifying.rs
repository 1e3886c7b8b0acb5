//! What a crash of a mount may leave, and what must not be found there.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oleo::balance::BalanceState;
use oleo::check::{CheckOptions, Kind, volume};
use oleo::fs::Follow;
use oleo::{Device, Image, OpenOptions};
use oleo_format::SuperBlock;
use oleo_sim::crash::model::verify;
use oleo_sim::crash::pages::{Contents, Overlay};
use oleo_sim::crash::record::Event;
use oleo_sim::crash::seen::Seen;
use oleo_sim::crash::states::{Cut, Kinds, Maker, Progress, cuts};
use oleo_sim::crash::tally::{Failure, Tally, in_parallel};
use oleo_sim::rng::Rng;

use crate::load::{Load, STRIDE};
use crate::ours::OleoTree;

const KINDS: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 3, torn: 3 };
/// Parts of a run that are verified in parallel.
const PARTS: usize = 8;

fn failure(state: String, wrong: Vec<String>) -> Failure {
    Failure { wrong, state, script: Vec::new() }
}

/// How a state was.
struct Verdict {
    log: bool,
    balance: bool,
    wrong: Vec<String>,
}

fn options(write: bool) -> OpenOptions {
    OpenOptions::default().access(if write { oleo::Access::Write } else { oleo::Access::ReadOnly }).cache_bytes(8 << 20)
}

fn check(image: &Image) -> Result<()> {
    let how = CheckOptions::default().threads(1).data(true);
    let report = volume(image.volume(), &how)?;
    // A copy of the superblock may be torn or old: that is a crash's good right.
    let counts = report.findings.iter().filter(|f| !matches!(f.kind, Kind::SuperMirror | Kind::SuperStale));
    let found: Vec<_> = counts.collect();
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}

fn has_log(state: &[Contents]) -> bool {
    const PLACES: [u64; 2] = [64 << 10, 64 << 20];
    let read = |disk: &Contents, at| {
        let mut bytes = [0; 4096];
        disk.read(at, &mut bytes);
        SuperBlock::read(&bytes).ok()
    };
    let of_disk = |disk: &Contents| PLACES.iter().find_map(|at| read(disk, *at));
    let newest = state.iter().filter_map(of_disk).max_by_key(|sb| sb.generation.get());
    newest.is_some_and(|sb| sb.log_root.get() != 0)
}

impl Load {
    /// How far each worker had come.
    fn progress(&self, at: usize) -> Vec<Progress> {
        let mut out = vec![(0, 0); self.histories.len()];
        for event in &self.events[..at] {
            match event {
                Event::Begin(id) => out[id / STRIDE].0 += 1,
                Event::End(id) => out[id / STRIDE].1 += 1,
                _ => {}
            }
        }
        out.into_iter().map(|(begun, done)| Progress { done, begun: begun > done }).collect()
    }

    /// Verifies about so many states.
    pub fn verify_some(&self, seed: u64, states: usize) -> Tally {
        let mut rng = Rng::new(seed);
        let mut all = cuts(&self.events, &KINDS, &mut rng);
        let mut kept = vec![true; all.len()];
        let mut left = all.len();
        // Not the last: that is what the last steps have promised.
        while left > states.max(1) {
            let i = usize::try_from(rng.below(all.len() as u64 - 1)).unwrap_or(0);
            left -= usize::from(std::mem::replace(&mut kept[i], false));
        }
        let mut kept = kept.into_iter();
        all.retain(|_| kept.next().unwrap_or(true));
        let promises =
            |h: &oleo_sim::crash::model::History| h.steps.iter().filter(|s| s.promise.is_some()).count() as u64;
        let mut tally = Tally {
            runs: 1,
            promises: self.histories.iter().map(promises).sum(),
            commits: self.commits,
            snapshots: self.snapshots,
            balances: self.balances,
            failures: self
                .refused
                .iter()
                .map(|what| failure(format!("seed {seed}"), vec![format!("refused: {what}")]))
                .collect(),
            ..Tally::default()
        };
        let parts: Vec<&[Cut]> = all.chunks(all.len().div_ceil(PARTS).max(1)).collect();
        tally.add(in_parallel(parts.len(), |part| self.verify_part(parts[part], seed)));
        tally
    }

    fn verify_part(&self, part: &[Cut], seed: u64) -> Tally {
        let mut maker = Maker::new(&self.base, &self.events);
        let mut tally = Tally::default();
        for cut in part {
            let state = maker.make(cut);
            let write = cut.at % 4 != 0;
            let verdict = self.verify(cut, &state, write);
            tally.states += 1;
            tally.with_log += u64::from(verdict.log);
            tally.resumed += u64::from(verdict.balance);
            if !verdict.wrong.is_empty() {
                let how = if write { "writing" } else { "reading" };
                tally.failures.push(failure(format!("seed {seed}, opened for {how}, {cut:?}"), verdict.wrong));
            }
        }
        tally
    }

    fn verify(&self, cut: &Cut, state: &[Contents], write: bool) -> Verdict {
        let mut verdict = Verdict { log: has_log(state), balance: false, wrong: Vec::new() };
        match self.found(state, write) {
            Ok((found, balance)) => {
                verdict.balance = balance;
                for (number, (found, progress)) in found.iter().zip(self.progress(cut.at)).enumerate() {
                    let wrong = verify(&self.histories[number], progress, None, found);
                    let steps = &self.histories[number].steps;
                    let last = &steps[progress.done.min(steps.len() - 1)].label;
                    verdict.wrong.extend(wrong.iter().map(|w| format!("worker {number}: {w} at {progress:?}, {last}")));
                }
            }
            Err(e) => verdict.wrong.push(format!("{e:#}")),
        }
        verdict
    }

    /// What is in each worker's directory, and whether there is a balance to be carried on.
    fn found(&self, state: &[Contents], write: bool) -> Result<(Vec<Seen>, bool)> {
        let make = if write { Overlay::new } else { Overlay::read_only };
        let disks: Vec<Arc<dyn Device>> =
            state.iter().map(|c| Arc::new(make("disk", c.clone())) as Arc<dyn Device>).collect();
        let raw = options(false).no_log_replay(true);
        let image = Image::from_devices(disks.clone(), &raw).context("it does not open without its log")?;
        check(&image).context("check, before the log is applied")?;
        drop(image);
        let image = Image::from_devices(disks.clone(), &options(write)).context("it does not open")?;
        let mut found = Vec::new();
        for (number, history) in self.histories.iter().enumerate() {
            let top = image.fs().resolve(&image.top()?, format!("work/w{number}").as_bytes(), Follow::No);
            let top = top.with_context(|| format!("the directory of worker {number}"))?;
            found.push(Seen::of(&OleoTree::below(&image, top), history.moments.last())?);
        }
        check(&image).context("check")?;
        let balance = write && image.balance_status().state == BalanceState::Paused;
        if write {
            // Whoever opens it next takes apart what was deleted.
            image.clean().context("cleaning")?;
            image.close().context("closing")?;
            check(&Image::from_devices(disks, &options(false))?).context("check, after cleaning and closing")?;
        }
        Ok((found, balance))
    }
}
