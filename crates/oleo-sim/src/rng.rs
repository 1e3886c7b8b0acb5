//! Seeded numbers. They are not good randomness, but the same on every machine and in every version of this crate, so
//! that the seed in a failure message reproduces the failure.

/// A splitmix64 generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole future follows from `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0. (The bias of the remainder does not matter for tests.)
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the elements, or none of an empty slice.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let len = u64::try_from(from.len()).unwrap_or(u64::MAX);
        from.get(usize::try_from(self.below(len)).unwrap_or(0))
    }

    /// A length that is small most of the time and has no preferred size: uniform in its logarithm, up to `max`.
    pub fn length(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(64 - max.leading_zeros()) + 1);
        self.below((1u64 << bits.min(63)).min(max) + 1)
    }

    /// Fills the buffer with bytes that do not compress.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }

    /// `len` bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.fill(&mut out);
        out
    }

    /// `len` bytes of lines that look like a log: they shrink to about a quarter.
    pub fn text(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 12] =
            ["extent", "chunk", "leaf", "node", "commit", "of", "the", "generation", "moved", "to", "block", "group"];
        let mut out = Vec::with_capacity(len + 64);
        while out.len() < len {
            let word = WORDS[self.below(12) as usize];
            out.extend_from_slice(word.as_bytes());
            if self.one_in(9) {
                out.extend_from_slice(format!(" {}\n", self.below(100_000)).as_bytes());
            } else {
                out.push(b' ');
            }
        }
        out.truncate(len);
        out
    }

    /// A generator for a sub-task, so that tasks do not shift each other's numbers.
    pub fn fork(&mut self) -> Rng {
        Rng(self.next_u64())
    }
}
