//! What preparing makes of bytes.

use oleo_format::{decompress, decompress_inline};

use super::*;

const SECTOR: u64 = 4096;

fn policy(compress: Option<Compression>, threads: bool) -> Policy {
    Policy {
        sectorsize: SECTOR as u32,
        csum: Some(CsumType::Crc32c),
        compress: compress.map(|algorithm| Compress { algorithm, level: 0, force: false }),
        inline_max: 2048,
        threads,
    }
}

/// Bytes that compress in some places and not in others.
fn mixed(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if (i / 200_000) % 2 == 0 { b"all work and no play "[i % 21] } else { (state >> 32) as u8 }
        })
        .collect()
}

/// What a reader would see, sector by sector with its checksums compared.
fn unpack(prepared: &Prepared<'_>, policy: &Policy) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in &prepared.pieces {
        assert_eq!(piece.at, prepared.at + out.len() as u64, "pieces follow each other");
        match &piece.body {
            Body::Inline { compression, data } => {
                assert!(piece.csums.is_empty() && prepared.pieces.len() == 1);
                match compression {
                    Compression::None => out.extend_from_slice(data),
                    c => out.extend(decompress_inline(*c, data, piece.len as usize, policy.sectorsize).unwrap()),
                }
            }
            body => {
                assert!(piece.len.is_multiple_of(SECTOR) && piece.len <= EXTENT_LEN_MAX);
                let disk_len = match body {
                    Body::Compressed { data, .. } => data.len() as u64,
                    _ => piece.len,
                };
                // Also in two halves, as fragmented space would have it.
                let half = disk_len / 2 / SECTOR * SECTOR;
                let mut bytes = Vec::new();
                for (skip, len) in [(0, half), (half, disk_len - half)] {
                    let before = bytes.len();
                    prepared.disk_bytes(piece, skip, len, |part| bytes.extend_from_slice(part));
                    assert_eq!((bytes.len() - before) as u64, len);
                }
                let mut sums = Vec::new();
                CsumType::Crc32c.csum_sectors(&bytes, policy.sectorsize, &mut sums);
                assert_eq!(sums, piece.csums);
                match body {
                    Body::Compressed { compression, .. } => {
                        assert!(disk_len < piece.len && piece.len <= COMPRESSED_LEN_MAX as u64);
                        out.extend(decompress(*compression, &bytes, piece.len as usize, policy.sectorsize).unwrap());
                    }
                    _ => out.extend(bytes),
                }
            }
        }
    }
    out
}

/// Goal: what comes out is what went in, filled up with zeros. Method: many lengths, all algorithms, with and without threads,
/// which must agree.
#[test]
fn comes_back() {
    let mut kinds = [0usize; 2];
    for (n, len) in
        [1, 100, 2048, 2049, 4095, 4096, 4097, 131_072, 131_073, 1_000_000, 1_200_001].into_iter().enumerate()
    {
        let data = mixed(len, n as u64);
        for compress in [None, Some(Compression::Zlib), Some(Compression::Lzo), Some(Compression::Zstd)] {
            for whole in [Whole::File, Whole::Part] {
                let one = Prepared::new(&data[..], 0, whole, &policy(compress, false));
                let many = Prepared::new(data.clone(), 0, whole, &policy(compress, true));
                let out = unpack(&one, &policy(compress, false));
                assert!(out == unpack(&many, &policy(compress, true)));
                assert_eq!(one.pieces.len(), many.pieces.len());
                assert!(out.len() >= len && out.len() < len + SECTOR as usize);
                assert!(out[..len] == data && out[len..].iter().all(|b| *b == 0), "length {len}, {compress:?}");
                for piece in &one.pieces {
                    match piece.body {
                        Body::Plain { .. } => kinds[0] += 1,
                        Body::Compressed { .. } => kinds[1] += 1,
                        Body::Inline { .. } => {
                            assert!(whole == Whole::File && len <= SECTOR as usize);
                            assert_eq!(piece.len, len as u64);
                        }
                    }
                }
                if whole == Whole::File && len <= 2048 {
                    assert!(matches!(one.pieces[0].body, Body::Inline { .. }));
                }
            }
        }
    }
    assert!(kinds.iter().all(|k| *k > 10), "{kinds:?}");
}

/// Goal: a full sector is inline only when compressed; nothing is inline beyond the maximum. Method: the edge lengths.
#[test]
fn inline_edges() {
    let text = mixed(4096, 3);
    let zstd = policy(Some(Compression::Zstd), false);
    assert!(matches!(
        Prepared::new(&text[..], 0, Whole::File, &zstd).pieces[0].body,
        Body::Inline { compression: Compression::Zstd, .. }
    ));
    let plain = Policy { inline_max: 4095, ..policy(None, false) };
    assert!(matches!(Prepared::new(&text[..], 0, Whole::File, &plain).pieces[0].body, Body::Plain { .. }));
    assert!(matches!(Prepared::new(&text[..4095], 0, Whole::File, &plain).pieces[0].body, Body::Inline { .. }));
    let none = Policy { inline_max: 0, ..zstd };
    assert!(matches!(Prepared::new(&text[..10], 0, Whole::File, &none).pieces[0].body, Body::Plain { .. }));
    assert!(Prepared::new(&[][..], 0, Whole::File, &zstd).is_empty());
}

/// Goal: bytes in several places of memory are prepared like the same bytes in one. Method: cut at sectors and within them, with
/// and without compression, short and long, ends inside a sector.
#[test]
fn gathered() {
    for compress in [None, Some(Compression::Zstd)] {
        let policy = policy(compress, false);
        for (lens, whole) in [
            (&[8192usize, 49_152, 5000][..], Whole::File),
            (&[4096, 100], Whole::File),
            (&[4096, 4096], Whole::Part),
            (&[5000, 4096, 4096], Whole::Part),
            (&[100, 200], Whole::File),
            (&[300_000 / 4096 * 4096, 0, 200_001], Whole::File),
            (&[70_000], Whole::File),
            (&[], Whole::Part),
        ] {
            let data = mixed(lens.iter().sum(), 3);
            let mut rest = &data[..];
            let parts = lens.iter().map(|len| rest.split_off(..*len).unwrap()).collect();
            let gathered = Prepared::gathered(parts, 8192 * u64::from(whole == Whole::Part), whole, &policy);
            let one = Prepared::new(&data, gathered.at, whole, &policy);
            assert_eq!((gathered.len(), gathered.disk_len()), (one.len(), one.disk_len()), "{lens:?}");
            let shape = |p: &Prepared<'_>| {
                p.pieces.iter().map(|piece| (piece.at, piece.len, piece.csums.clone())).collect::<Vec<_>>()
            };
            assert_eq!(shape(&gathered), shape(&one), "{lens:?}");
            assert_eq!(unpack(&gathered, &policy), unpack(&one, &policy), "{lens:?}");
        }
    }
}
