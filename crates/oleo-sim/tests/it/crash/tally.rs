//! Running a script, and verifying states of it.

use std::time::Instant;

use oleo_sim::crash::record::Event;
use oleo_sim::crash::states::{Kinds, Maker};
pub use oleo_sim::crash::tally::{Failure, Tally, in_parallel, say};
use oleo_sim::rng::Rng;
use oleo_sim::script::Op;

use crate::crash::run::{Base, Way, Wrong};

/// Runs a script and verifies states of it; if `most` is given, at most that many, chosen by the seed.
pub fn verify_script(base: &Base, script: &[Op], kinds: &Kinds, seed: u64, most: Option<usize>) -> Tally {
    verify_wrong(base, script, kinds, seed, most, None)
}

/// The same, with something wrong: there should be failures.
pub fn verify_wrong(
    base: &Base,
    script: &[Op],
    kinds: &Kinds,
    seed: u64,
    most: Option<usize>,
    wrong: Option<Wrong>,
) -> Tally {
    let mut tally = Tally { runs: 1, ..Tally::default() };
    let mut rng = Rng::new(seed);
    let begin = Instant::now();
    let run = base.run(script, wrong);
    tally.time_running = begin.elapsed();
    if let Some(broken) = &run.broken {
        let (wrong, script) = (vec![format!("while running: {broken}")], script.to_vec());
        tally.failures.push(Failure { wrong, state: format!("seed {seed}"), script });
        return tally;
    }
    let mut all = run.cuts(kinds, &mut rng);
    if let Some(most) = most {
        while all.len() > most {
            // Not the last: that is what the last step has promised.
            all.remove(usize::try_from(rng.below(all.len() as u64 - 1)).unwrap_or(0));
        }
    }
    let begin = Instant::now();
    let mut maker = Maker::new(&run.base, &run.events);
    for cut in &all {
        let state = maker.make(cut);
        let way = match rng.below(8) {
            0..2 => Way::Read,
            2 => Way::GoOn,
            _ => Way::Write,
        };
        tally.states += 1;
        tally.with_log += u64::from(crate::crash::run::super_block(&state).is_some_and(|sb| sb.log_root.get() != 0));
        let wrong = run.verify(cut, &state, way);
        if !wrong.is_empty() {
            let state = format!("seed {seed}, {cut:?}, {:?}, opened to {way:?}", run.progress(cut));
            tally.failures.push(Failure { wrong, state, script: script.to_vec() });
        }
    }
    tally.time_verifying = begin.elapsed();
    tally.promises = all.iter().map(|cut| run.promises(cut)).max().unwrap_or(0);
    tally.discards = run.count(|e| matches!(e, Event::Discard { .. }));
    tally.lengths = run.count(|e| matches!(e, Event::SetLen { .. }));
    tally.resumed = run.resumed.load(std::sync::atomic::Ordering::Relaxed);
    tally
}
