//! Shortens a script that fails.

use super::Op;

/// Removes operations as long as the script still fails, in ever smaller stretches; runs it at most `tries_max` times.
/// A script stays meaningful whatever is removed: operations that then miss something fail on both targets alike.
pub fn shrink(script: &[Op], tries_max: usize, mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut best = script.to_vec();
    let mut tries = 0;
    let mut step = best.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shorter = false;
        while at < best.len() && tries < tries_max {
            let mut trial = best.clone();
            trial.drain(at..(at + step).min(best.len()));
            tries += 1;
            if fails(&trial) {
                best = trial;
                shorter = true;
            } else {
                at += step;
            }
        }
        if tries >= tries_max || (step == 1 && !shorter) {
            return best;
        }
        step = step.div_ceil(2).min(best.len()).max(1);
    }
}
