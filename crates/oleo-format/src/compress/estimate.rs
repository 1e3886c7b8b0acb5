//! A quick look at data before compressing it: most of what does not shrink is found here for a hundredth of the cost.
//!
//! A sample of the data is counted. Two bytes picked at random are equal with probability 1/256 in noise and more often in
//! anything that an entropy coder can shorten; the count of equal pairs measures that in integers, so that the answer is
//! the same on every machine. Data whose bytes look like noise may still repeat: equal words in the sample show that.

/// The bytes looked at in one place.
const RUN_LEN: usize = 16;
/// The distance between places.
const STEP_LEN: usize = 128;
/// Data with more equal pairs than one in this many is compressible. Noise has 1 in 256, and its spread over a sample of one
/// sector is 5 %; 7.4 bits per byte is 1 in about 170.
const PAIRS_PER_EQUAL_MAX: u64 = 180;
/// One in this many words being seen before says that the data repeats.
const WORDS_PER_REPEAT_MAX: u32 = 16;
/// Slots of the table of words, twice what the largest sample has.
const WORD_SLOTS: usize = 4096;

/// Whether it is worth trying to compress `data`. Errs on the side of trying.
pub fn looks_compressible(data: &[u8]) -> bool {
    // A sample this small says little, and trying costs little.
    const LEN_MIN: usize = 512;
    if data.len() < LEN_MIN {
        return true;
    }
    let step = if data.len() <= 4 * super::EXTENT_LEN_MAX / 32 { RUN_LEN } else { STEP_LEN };
    let mut counts = [0u32; 256];
    let mut total = 0u64;
    for run in data.chunks(step) {
        let run = &run[..run.len().min(RUN_LEN)];
        run.iter().for_each(|&b| counts[usize::from(b)] += 1);
        total += run.len() as u64;
    }
    let equal: u64 = counts.iter().map(|&c| u64::from(c) * u64::from(c.saturating_sub(1))).sum();
    let pairs = total * (total - 1);
    equal * PAIRS_PER_EQUAL_MAX > pairs || repeats(data, step)
}

/// Whether words of the sample come again.
fn repeats(data: &[u8], step: usize) -> bool {
    let mut seen = [0u64; WORD_SLOTS];
    let (mut words, mut again) = (0u32, 0u32);
    for run in data.chunks(step) {
        let Some(word) = run.first_chunk::<8>() else { continue };
        let word = u64::from_le_bytes(*word);
        let slot = usize::try_from(word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52).unwrap_or(0);
        if seen[slot] == word {
            again += 1;
        }
        seen[slot] = word;
        words += 1;
    }
    again * WORDS_PER_REPEAT_MAX > words
}
