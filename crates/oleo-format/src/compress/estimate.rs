//! Estimates whether data compresses before compressing it: most data that does not shrink is recognised here, in a
//! twentieth of the time that zstd at its default level would take.
//!
//! A sample of the data is counted. Two bytes picked at random are equal with probability 1/256 in noise and more often
//! in anything that an entropy coder can shorten; the count of equal pairs measures that in integers, so that the
//! result is the same on every machine. Data whose bytes look like noise may still repeat: equal words in the sample
//! show that.

/// Bytes of the sample from one place.
const RUN_LEN: usize = 16;
/// The distance between places.
const STEP_LEN: usize = 128;
/// Data with more equal pairs than one in this many is compressible. Noise has 1 in 256, and its spread over a sample of one
/// sector is 5 %; 7.4 bits per byte is 1 in about 170.
const PAIRS_PER_EQUAL_MAX: u64 = 180;
/// If one word in this many occurred before, the data repeats.
const WORDS_PER_REPEAT_MAX: u32 = 16;
/// The base-2 logarithm of the slots for words: as many as the largest sample has. Clearing them is most of the cost.
const WORD_BITS: u32 = 10;

/// Whether it is worth trying to compress `data`. Errs on the side of trying.
pub fn looks_compressible(data: &[u8]) -> bool {
    // A sample this small shows little, and trying costs little.
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

/// Whether words of the sample repeat.
fn repeats(data: &[u8], step: usize) -> bool {
    let mut seen = [0u32; 1 << WORD_BITS];
    let (mut words, mut again) = (0u32, 0u32);
    for run in data.chunks(step) {
        let Some(word) = run.first_chunk::<8>() else { continue };
        let hash = u64::from_le_bytes(*word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The slot is made of the highest bits; those below them are compared.
        let [.., a, b, c, d, _] = hash.to_le_bytes();
        let slot = usize::try_from(hash >> (u64::BITS - WORD_BITS)).unwrap_or(0);
        let tag = u32::from_le_bytes([a, b, c, d]);
        again += u32::from(seen[slot] == tag);
        seen[slot] = tag;
        words += 1;
    }
    again * WORDS_PER_REPEAT_MAX > words
}
