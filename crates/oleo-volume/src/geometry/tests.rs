//! The geometry, compared with the definitions of the profiles.

use std::collections::{HashMap, HashSet};

use super::*;

fn chunk(profile: Profile, stripes: usize, len: u64) -> ChunkMap {
    let stripes = (0..stripes as u64)
        .map(|i| StripeAt {
            devid: DevId(if profile == Profile::Dup { 1 } else { i + 1 }),
            dev_uuid: Uuid::from_u128(i.into()),
            offset: Physical((1 << 20) + if profile == Profile::Dup { i << 40 } else { i << 16 }),
        })
        .collect();
    let flags = BlockGroupFlags::DATA | profile.bits();
    let map = ChunkMap {
        start: Logical(1 << 30),
        len: ByteLen(len),
        flags,
        profile,
        stripes,
        hints: Hints::new(profile, 4096),
    };
    map.check(4096).expect("sound");
    map
}

/// Every profile with every number of stripes up to six that it can have.
fn every_shape() -> impl Iterator<Item = (Profile, usize)> {
    Profile::ALL.into_iter().flat_map(|p| {
        let shape = p.shape();
        (1..=6usize).filter_map(move |devices| {
            let fits = devices >= shape.devices_min.into()
                && shape.devices_max.is_none_or(|max| devices <= max.into())
                && devices.is_multiple_of(shape.devices_step.into());
            fits.then_some((p, devices * usize::from(shape.stripes_per_device)))
        })
    })
}

/// Goal: every logical byte has as many places as the profile has copies, all on different stripes; no place serves two
/// bytes or lies outside; the inverse leads back. Method: every shape, a chunk of a few rows, sampled at sector
/// granularity, places kept in a map.
#[test]
fn every_byte_has_its_own_places() {
    for (profile, stripes) in every_shape() {
        let data = profile.data_stripes(stripes as u64);
        let map = chunk(profile, stripes, 7 * STRIPE_LEN * data);
        let mut seen = HashMap::new();
        for at in (0..map.len.0).step_by(4096) {
            let piece = map.piece(at, 4096);
            assert_eq!(piece.len, 4096);
            assert_eq!(piece.copies, usize::from(profile.shape().copies));
            for stripe in piece.stripe..piece.stripe + piece.copies {
                assert!(piece.offset < map.stripe_bytes().0, "{profile} {stripes} at {at}");
                assert_eq!(map.logical_of(stripe, piece.offset), Some(at), "{profile} {stripes}");
                assert_eq!(seen.insert((stripe, piece.offset), at), None, "{profile} {stripes} at {at}");
            }
        }
        let places = map.stripe_bytes().0 / 4096 * stripes as u64;
        let parity = places * u64::from(profile.shape().parities) / stripes as u64;
        assert_eq!(seen.len() as u64 + parity, places, "{profile} {stripes}: nothing is left over");
    }
}

/// Goal: the units of each row of a parity chunk are on different stripes, and each stripe takes turns with parity.
#[test]
fn parity_rotates() {
    for (profile, stripes) in every_shape().filter(|(p, _)| p.has_parity()) {
        let map = chunk(profile, stripes, STRIPE_LEN * profile.data_stripes(stripes as u64) * 12);
        let mut holders = HashSet::new();
        for row in 0..stripes as u64 {
            let places: HashSet<_> = (0..stripes).map(|i| map.rotated(row, i)).collect();
            assert_eq!(places.len(), stripes);
            for i in 0..stripes {
                assert_eq!(map.unit_of(map.rotated(row, i), row * STRIPE_LEN + 5), i);
            }
            holders.insert(map.rotated(row, stripes - 1));
        }
        assert_eq!(holders.len(), stripes);
    }
}

/// Goal: pieces cover a range exactly, in order. Method: odd ranges over every shape.
#[test]
fn pieces_cover_ranges() {
    for (profile, stripes) in every_shape() {
        let map = chunk(profile, stripes, 5 * STRIPE_LEN * profile.data_stripes(stripes as u64));
        for (at, len) in [(0, map.len.0), (4096, 3 * STRIPE_LEN), (STRIPE_LEN - 1, 2), (map.len.0 - 1, 1), (77, 0)] {
            let mut next = at;
            for piece in map.pieces(at, len) {
                assert!(piece.at == next && piece.len > 0);
                next += piece.len;
            }
            assert_eq!(next, at + len);
        }
    }
}

/// Goal: encoded items are parsed again, and wrong ones are refused.
#[test]
fn items_go_there_and_back() {
    for (profile, stripes) in every_shape() {
        let map = chunk(profile, stripes, 4 * STRIPE_LEN * profile.data_stripes(stripes as u64));
        let bytes = map.chunk().encode();
        assert_eq!(ChunkMap::parse(map.start, &bytes, 4096).expect("sound"), map);
        assert!(ChunkMap::parse(map.start, &bytes[..bytes.len() - 1], 4096).is_err());
        assert!(ChunkMap::parse(Logical(5), &bytes, 4096).is_err());
        assert!(ChunkMap::parse(Logical(u64::MAX - 4095), &bytes, 4096).is_err());
        for byte in 0..48 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bent = bytes.clone();
                bent[byte] = value;
                if let Ok(map) = ChunkMap::parse(map.start, &bent, 4096) {
                    map.piece(map.len.0 - 1, 1);
                    map.withheld_ranges();
                }
            }
        }
    }
}

/// Goal: super mirrors inside a chunk are excluded in units of 64 KiB, once for all copies.
#[test]
fn superblocks_are_left_alone() {
    let at = |offset: u64, stripes: u64, profile: Profile, len: u64| {
        let mut map = chunk(profile, stripes as usize, len);
        for s in &mut map.stripes {
            s.offset = Physical(offset);
        }
        map.super_ranges().iter().map(|(l, n)| (l.0 - map.start.0, n.0)).collect::<Vec<_>>()
    };
    let mib = 1u64 << 20;
    assert_eq!(at(mib, 1, Profile::Single, 128 * mib), [(63 * mib, 65536)]);
    assert_eq!(at(mib, 2, Profile::Raid1, 128 * mib), [(63 * mib, 65536)]);
    assert_eq!(at(65 * mib, 1, Profile::Single, 128 * mib), []);
    assert_eq!(at(mib, 2, Profile::Raid0, 256 * mib), [(126 * mib, 65536), (126 * mib + 65536, 65536)]);
    assert_eq!(at(mib, 4, Profile::Raid10, 256 * mib), [(126 * mib, 65536), (126 * mib + 65536, 65536)]);
    assert_eq!(at(mib, 3, Profile::Raid5, 256 * mib), [(126 * mib, 131072)]);
}

/// Goal: of a chunk that begins before the first superblock's address, the part before it is withheld, once.
#[test]
fn the_first_addresses_are_left_alone() {
    let mib = 1u64 << 20;
    let at = |start: u64, offset: u64, len: u64| {
        let mut map = chunk(Profile::Single, 1, len);
        map.start = Logical(start);
        map.stripes[0].offset = Physical(offset);
        map.withheld_ranges().iter().map(|(l, n)| (l.0, n.0)).collect::<Vec<_>>()
    };
    // As in old volumes: the first superblock lies behind what is withheld, in a unit of its own.
    assert_eq!(at(0, 0, 4 * mib), [(0, 65536), (65536, 65536)]);
    assert_eq!(at(0, mib, 4 * mib), [(0, 65536)]);
    assert_eq!(at(0, 65536, 4 * mib), [(0, 65536)]);
    assert_eq!(at(16384, mib, 4 * mib), [(16384, 49152)]);
    assert_eq!(at(65536, mib, 4 * mib), []);
    assert_eq!(at(0, mib, 65536), [(0, 65536)]);
}
