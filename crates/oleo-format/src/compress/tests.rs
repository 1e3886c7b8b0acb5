use proptest::prelude::*;

use super::*;

const ALGOS: [Compression; 3] = [Compression::Zlib, Compression::Lzo, Compression::Zstd];

/// Noise from a fixed recurrence, the same everywhere.
fn noise(len: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn text(len: usize) -> Vec<u8> {
    b"the quick brown fox jumps over the lazy dog, ".iter().copied().cycle().take(len).collect()
}

/// Some of each: parts that shrink and parts that do not, so that LZO segments have every length and hit every padding.
fn mixed(len: usize, seed: u64) -> Vec<u8> {
    let mut data = noise(len, seed);
    for (i, part) in data.chunks_mut(97).enumerate() {
        if (i as u64 ^ seed).is_multiple_of(3) {
            part.fill(i as u8);
        }
    }
    data
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Goal: what was compressed comes back, whole and in part, with every kind, level and sector size.
    #[test]
    fn round_trip(algo in 0usize..3, level in -15i32..16, len in 0usize..=EXTENT_LEN_MAX, seed: u64, big_sector: bool, cut in 0usize..EXTENT_LEN_MAX) {
        let sectorsize = if big_sector { 16384 } else { 4096 };
        let data = mixed(len, seed);
        if let Some(packed) = compress(ALGOS[algo], level, &data, sectorsize) {
            prop_assert_eq!(packed.len() % sectorsize as usize, 0);
            prop_assert!(packed.len() + sectorsize as usize <= len.next_multiple_of(sectorsize as usize));
            prop_assert_eq!(&decompress(ALGOS[algo], &packed, len, sectorsize).unwrap(), &data);
            let cut = cut.min(len);
            prop_assert_eq!(&decompress(ALGOS[algo], &packed, cut, sectorsize).unwrap(), &data[..cut]);
            let long = decompress(ALGOS[algo], &packed, len + 5000, sectorsize).unwrap();
            prop_assert_eq!(&long[..len], &data[..]);
            prop_assert!(long[len..].iter().all(|&b| b == 0));
        }
        let small = &data[..len.min(4096)];
        if let Some(packed) = compress_inline(ALGOS[algo], level, small, 4096) {
            prop_assert!(packed.len() < small.len());
            prop_assert_eq!(&decompress_inline(ALGOS[algo], &packed, small.len(), 4096).unwrap(), small);
        }
    }

    /// Goal: nothing that a broken image holds makes decompression panic. Method: damage real streams, and plain noise.
    #[test]
    fn damage_is_an_error_or_data(algo in 0usize..3, seed: u64, at in 0usize..8192, bit in 0u8..8, out_len in 0usize..200_000) {
        let mut packed = compress(ALGOS[algo], 3, &mixed(20_000, seed), 4096).unwrap_or_else(|| noise(8192, seed));
        let at = at % packed.len();
        packed[at] ^= 1 << bit;
        let _ = decompress(ALGOS[algo], &packed, out_len, 4096);
        let _ = decompress_inline(ALGOS[algo], &packed, out_len, 4096);
        let _ = decompress(ALGOS[algo], &noise(at, seed), out_len, 4096);
        let _ = decompress_inline(ALGOS[algo], &noise(at, seed), out_len, 4096);
    }
}

/// Goal: text, zeros and program-like data pass, noise does not, repeated noise does.
#[test]
fn the_estimate_passes_what_shrinks() {
    for len in [600, 4096, 20_000, EXTENT_LEN_MAX] {
        assert!(looks_compressible(&text(len)), "text of {len}");
        assert!(looks_compressible(&vec![0; len]), "zeros of {len}");
        assert!(looks_compressible(&noise(len, 5).iter().map(|b| b & 0x3f).collect::<Vec<_>>()), "6 bits of {len}");
    }
    for len in [4096, 20_000, EXTENT_LEN_MAX] {
        for seed in 0..20 {
            assert!(!looks_compressible(&noise(len, seed)), "noise of {len}, seed {seed}");
        }
    }
    let repeated: Vec<u8> = noise(4096, 9).into_iter().cycle().take(EXTENT_LEN_MAX).collect();
    assert!(looks_compressible(&repeated));
}

/// Goal: what does not save a sector is refused.
#[test]
fn noise_stays() {
    for algo in ALGOS {
        assert_eq!(compress(algo, 0, &noise(EXTENT_LEN_MAX, 3), 4096), None);
        assert_eq!(compress(algo, 0, &text(4096), 4096), None, "one sector cannot become fewer");
        assert_eq!(compress_inline(algo, 0, &noise(300, 3), 4096), None);
        assert!(compress(algo, 0, &text(8192), 4096).is_some_and(|p| p.len() == 4096));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Goal: what reads zstd in WebAssembly reads the same as the reference implementation, whole, in part and beyond the end, and damage neither makes it panic nor read more than it may.
    #[test]
    fn zstd_without_c(level in -15i32..16, len in 1usize..=EXTENT_LEN_MAX, seed: u64, cut in 0usize..EXTENT_LEN_MAX, at in 0usize..EXTENT_LEN_MAX, bit in 0u8..8) {
        let data = mixed(len, seed);
        if let Some(mut packed) = compress(Compression::Zstd, level, &data, 4096) {
            let mut whole = vec![1; len + 5000];
            prop_assert_eq!(zstd_reader::decompress(&packed, &mut whole), Ok(len));
            prop_assert_eq!(&whole[..len], &data[..]);
            let mut part = vec![1; cut.min(len)];
            prop_assert_eq!(zstd_reader::decompress(&packed, &mut part), Ok(part.len()));
            prop_assert_eq!(&part[..], &data[..part.len()]);
            let at = at % packed.len();
            packed[at] ^= 1 << bit;
            let mut damaged = vec![1; len];
            let _ = zstd_reader::decompress(&packed, &mut damaged);
        }
    }
}

/// Goal: a frame whose window is larger than the kernel takes is refused, by both.
#[test]
fn large_windows_are_refused() {
    // Magic, a descriptor without a single segment, a window of 2^18 bytes, one empty last block (RFC 8878).
    let frame = |window_log: u8| [0x28, 0xb5, 0x2f, 0xfd, 0x00, (window_log - 10) << 3, 0x01, 0x00, 0x00];
    let mut out = [0; 16];
    assert_eq!((zstd_reader::decompress(&frame(17), &mut out), zstd::decompress(&frame(17), &mut out)), (Ok(0), Ok(0)));
    assert!(zstd_reader::decompress(&frame(18), &mut out).is_err());
}
