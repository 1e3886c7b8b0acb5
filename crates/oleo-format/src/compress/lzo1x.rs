//! An LZO1X compressor: greedy, one candidate per hash, made for segments of one sector.
//!
//! The stream is a sequence of instructions. Each copies from earlier output, and the lowest two bits of its
//! last-but-one byte are the number of literals (up to 3) that follow it; longer runs of literals have an instruction
//! of their own:
//!
//! | first byte | what | length | distance |
//! |---|---|---|---|
//! | `0000LLLL` | literals | L + 3 | |
//! | `LLLDDDSS`, LLL ≥ 2 | near match, one more byte | LLL + 1, 3 to 8 | up to 2 KiB |
//! | `001LLLLL` | middle match, two more bytes | L + 2 | up to 16 KiB |
//! | `0001HLLL` | far match, two more bytes | L + 2 | 16 KiB + 1 up to 48 KiB |
//!
//! If L is zero, the length continues in the bytes that follow: 255 for each zero byte, and the first that is not zero.
//! The first instruction may be a byte above 17: that many literals less 17. A far match of distance 16 KiB ends the
//! stream. Another library decompresses (`lzokay`), so that neither hides the other's mistakes.

/// The shortest match that is looked for; the hash covers as many bytes.
const MATCH_LEN_MIN: usize = 4;
/// The base-2 logarithm of the number of slots.
const HASH_BITS: u32 = 12;
/// The furthest that a match reaches back.
const DISTANCE_MAX: usize = 0xbfff;
/// The near and middle distances' ends, and the longest near match.
const NEAR: (usize, usize, usize) = (0x800, 0x4000, 8);
/// After this many literals the step between tries grows by one.
const STEP_LITERALS: usize = 32;

/// The last position of each hash, plus 1.
pub(super) type Table = [u16; 1 << HASH_BITS];

fn word_at(src: &[u8], at: usize) -> Option<u32> {
    src.get(at..at + MATCH_LEN_MIN)?.first_chunk::<4>().map(|b| u32::from_le_bytes(*b))
}

fn slot(word: u32) -> usize {
    (word.wrapping_mul(0x9e37_79b1) >> (u32::BITS - HASH_BITS)) as usize
}

/// Appends the compressed form of `src`, which is at most 65535 bytes.
pub(super) fn compress(src: &[u8], table: &mut Table, out: &mut Vec<u8>) {
    assert!(src.len() <= usize::from(u16::MAX) + 1, "a segment is at most a sector");
    table.fill(0);
    let base = out.len();
    let (mut at, mut literals_from) = (0, 0);
    while let Some(word) = word_at(src, at) {
        let seen = std::mem::replace(&mut table[slot(word)], u16::try_from(at + 1).unwrap_or(0));
        let from = usize::from(seen).wrapping_sub(1);
        if seen == 0 || at - from > DISTANCE_MAX || word_at(src, from) != Some(word) {
            at += 1 + (at - literals_from) / STEP_LITERALS;
            continue;
        }
        let (mut start, mut source) = (at, from);
        while start > literals_from && source > 0 && src[start - 1] == src[source - 1] {
            start -= 1;
            source -= 1;
        }
        let ahead = src[at + MATCH_LEN_MIN..].iter().zip(&src[from + MATCH_LEN_MIN..]);
        let end = at + MATCH_LEN_MIN + ahead.take_while(|(a, b)| a == b).count();
        literals(&src[literals_from..start], out.len() == base, out);
        copy(end - start, start - source, out);
        // One position inside the match keeps chains of matches together.
        if let Some(word) = word_at(src, end - 2) {
            table[slot(word)] = u16::try_from(end - 1).unwrap_or(0);
        }
        (at, literals_from) = (end, end);
    }
    literals(&src[literals_from..], out.len() == base, out);
    out.extend([0x11, 0, 0]);
}

/// The rest of a length after the instruction's own part.
fn long(mut rest: usize, out: &mut Vec<u8>) {
    while rest > 255 {
        out.push(0);
        rest -= 255;
    }
    out.push(low_byte(rest));
}

fn low_byte(n: usize) -> u8 {
    u8::try_from(n & 0xff).unwrap_or(0)
}

fn literals(bytes: &[u8], is_first: bool, out: &mut Vec<u8>) {
    match bytes.len() {
        0 => return,
        n @ 1..=238 if is_first => out.push(low_byte(n + 17)),
        n @ 1..=3 => {
            let state = out.len() - 2;
            out[state] |= low_byte(n);
        }
        n @ 4..=18 => out.push(low_byte(n - 3)),
        n => {
            out.push(0);
            long(n - 18, out);
        }
    }
    out.extend_from_slice(bytes);
}

fn copy(len: usize, distance: usize, out: &mut Vec<u8>) {
    let (near, middle, near_len) = NEAR;
    if distance <= near && len <= near_len {
        let d = distance - 1;
        out.extend([low_byte((len - 1) << 5 | (d & 7) << 2), low_byte(d >> 3)]);
        return;
    }
    let (first, len_max, d) = if distance <= middle {
        (0x20, 33, distance - 1)
    } else {
        let d = distance - middle;
        (0x10 | (d >> 14) << 3, 9, d & 0x3fff)
    };
    if len <= len_max {
        out.push(low_byte(first | (len - 2)));
    } else {
        out.push(low_byte(first));
        long(len - len_max, out);
    }
    out.extend([low_byte(d << 2), low_byte(d >> 6)]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        /// Goal: another library's decompressor reads what was written, whatever the mix of literals, distances and
        /// lengths.
        #[test]
        fn round_trip(parts in prop::collection::vec((any::<u8>(), 1usize..3000, 0u8..4), 1..40), seed: u64) {
            let mut data: Vec<u8> = Vec::new();
            let mut state = seed;
            for (byte, len, kind) in parts {
                match kind {
                    0 => data.resize(data.len() + len, byte),
                    1 if !data.is_empty() => {
                        let from = usize::from(byte) * 131 % data.len();
                        let end = (from + len).min(data.len());
                        data.extend_from_within(from..end);
                    }
                    _ => data.extend((0..len / 20).map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (state >> 56) as u8
                    })),
                }
            }
            data.truncate(65536);
            let mut packed = Vec::new();
            compress(&data, &mut [0; 1 << HASH_BITS], &mut packed);
            let mut back = vec![0; data.len()];
            prop_assert_eq!(lzokay::decompress::decompress(&packed, &mut back), Ok(data.len()));
            prop_assert_eq!(back, data);
        }
    }
}
