//! Every object written and read again, and read with anything wrong about it.

use std::sync::Arc;

use oleo_sim::rng::Rng;
use zeroize::Zeroizing;

use super::head::{Head, Origin};
use super::map::{self, MapObject, Root, Row, Run};
use super::packing::{Coder, Packed};
use super::pins::{Pin, PinKind, Pins};
use super::segment::{
    Bound, Change, DirectorySeal, Entry, PayloadSum, close_frame, close_segment, frame_len, parse_directory,
    parse_footer, parse_frame, parse_tail,
};
use super::*;
use crate::seal::Key;

const UUID: [u8; 16] = [7; 16];

/// The frames of some changes, as they are in a segment, and the directory's entries.
fn frames(id: ObjectId, changes: &[Change], position: u64) -> (Vec<u8>, Vec<Entry>) {
    let (mut bytes, mut entries) = (Vec::new(), Vec::new());
    for (n, &change) in changes.iter().enumerate() {
        let entry = Entry { off: bytes.len() as u32, change, codec: 0 };
        let payload = match change {
            Change::Data { stored, .. } => vec![n as u8 + 1; stored as usize],
            _ => Vec::new(),
        };
        let sum = PayloadSum::of(&payload);
        bytes.resize(entry.off as usize + segment::FRAME_HEADER_LEN, 0);
        bytes.extend(&payload);
        bytes.resize(entry.off as usize + frame_len(change), 0);
        let bound = Bound { uuid: UUID, id };
        close_frame(&mut bytes[entry.off as usize..], &entry, position + n as u64, sum, &bound, None);
        entries.push(entry);
    }
    (bytes, entries)
}

fn changes() -> Vec<Change> {
    vec![
        Change::Data { first: 62, blocks: 2, stored: 8192, moved: false },
        Change::Zeros { first: 5, count: 1 << 30 },
        Change::Len { len: 12345 },
        Change::Data { first: 1 << 40, blocks: 1, stored: 4096, moved: true },
    ]
}

fn head() -> Head {
    let id = ObjectId::segment(3, 9);
    let (tail, _) = frames(id, &changes(), 40);
    let segment = |n| SegmentRef { id: ObjectId::segment(2, n), len: 48 + 32 + 64, dir_off: 48, frames: 1, dir_xxh: n };
    let at = ObjectRef { id: ObjectId::map(1, 5), off: 0, len: 72, xxh: 99 };
    let origin = Origin { uuid: [1; 16], pin: "a".into(), prefix: "memory://x/y".into() };
    Head {
        uuid: UUID,
        epoch: 3,
        claim: 60,
        released: true,
        branch: false,
        sequence: 12,
        commit: [1; 16],
        predecessor: [2; 16],
        device_len: 1 << 40,
        next_n: 10,
        root: Some(at),
        segments: vec![segment(1), segment(0)],
        graves: vec![Grave { id: ObjectId::map(1, 2), born: 3, died: 9 }],
        origins: vec![origin],
        owner: "host, pid 7".into(),
        codec: 0,
        horizon: 4,
        oldest: 6,
        position: 44,
        tail_id: id,
        tail,
        key: None,
    }
}

/// Goal: the layouts are those of the document. Method: a head's bytes at the places that it gives.
#[test]
fn layout() {
    let bytes = head().encode();
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
    assert_eq!(&bytes[..12], b"OLEOHEAD\x01\x00\x02\x00");
    assert_eq!(u32_at(12) as usize, bytes.len());
    assert_eq!((u32_at(32), u32_at(36), u64_at(40)), (3, 60, 12));
    assert_eq!((u64_at(80), u64_at(88), u64_at(160), u64_at(168)), (1 << 40, 10, 4, 44));
    assert_eq!((u32_at(96 + 4), u32_at(96 + 20)), (1, 72), "epoch and length of the root");
    assert_eq!((u32_at(128), u32_at(132), u32_at(136), u32_at(140)), (2, 1, 1, 11));
    assert_eq!((u32_at(176 + 4), u64_at(176 + 8), u64_at(192)), (3, 9, 6), "the tail's segment, and the oldest");
    assert_eq!(u64_at(248), xxh64(&bytes[..248]));
    assert_eq!(u64_at(240), xxh64(&bytes[256..]));
    assert_eq!(
        ObjectId::segment(1, 0xabc).key(),
        ObjectId::of_key(&ObjectId::segment(1, 0xabc).key()).expect("a key").key()
    );
    assert!(ObjectId::map(0xffff_ffff, 1).key().ends_with("/ffffffff-000000000001"));
    for bad in ["seg/00", "seg/00/1-1", "pin/a", "seg/zz/00000001-000000000abc", "map/0/00000001-1000000000000"] {
        assert_eq!(ObjectId::of_key(bad), None, "{bad}");
    }
}

/// Goal: what is written is read the same. Method: one of each, compared.
#[test]
fn written_and_read() {
    let head = head();
    assert_eq!(Head::parse(&head.encode()).expect("a head"), head);
    assert_eq!(head.encode().len(), head.len());

    let id = ObjectId::segment(3, 4);
    let (mut segment, entries) = frames(id, &changes(), 100);
    let bound = Bound { uuid: UUID, id };
    let tail = parse_tail(&segment, &bound, 104).expect("a tail");
    assert_eq!(tail.iter().map(|f| f.entry).collect::<Vec<_>>(), entries);
    assert_eq!((tail[0].payload, tail[3].position), (&[1; 8192][..], 103));
    let (end, known) = close_segment(id, &entries, segment.len() as u32, 100, None);
    segment.extend(end);
    assert_eq!(parse_footer(&segment).expect("a footer"), (known, 100));
    let dir = &segment[known.dir_off as usize..][..entries.len() * segment::ENTRY_LEN];
    assert_eq!(parse_directory(dir, &known, UUID, None).expect("a directory"), entries);
    // A frame is of one place, one segment, one volume; in a branch the same segment has an origin.
    let at = entries[3].off;
    parse_frame(&segment[at as usize..], at, &bound).expect("a frame");
    parse_frame(&segment[at as usize..], at, &Bound { id: ObjectId { origin: 3, ..id }, ..bound })
        .expect("of an origin");
    parse_frame(&segment[at as usize..], at + 16, &bound).expect_err("another place");
    parse_frame(&segment[at as usize..], at, &Bound { id: ObjectId::segment(3, 5), ..bound })
        .expect_err("another segment");
    parse_frame(&segment[at as usize..], at, &Bound { uuid: [8; 16], id }).expect_err("another volume");

    for bytes in pages().0 {
        read_page(&bytes).expect("a page");
    }
    let mut pins = pins();
    assert_eq!(Pins::parse(&pins.encode()).expect("pins"), pins);
    let plain = pins.pins[0].clone();
    pins.pins[0].seal(&Key::new([1; 16], Zeroizing::new([1; 32])), UUID, &[2; 24]);
    assert_eq!(Pins::parse(&pins.encode()).expect("pins"), pins);
    sealed_entry(&plain, &pins.pins[0]);
}

/// The seal of an entry is that of its key, its volume and its head.
fn sealed_entry(plain: &Pin, sealed: &Pin) {
    let opened = |entry: &Pin, byte, volume| {
        let mut entry = entry.clone();
        entry.unseal(&Key::new([byte; 16], Zeroizing::new([byte; 32])), volume).map(|()| entry)
    };
    assert!(sealed.by.is_empty());
    assert_eq!(&opened(sealed, 1, UUID).expect("opened"), plain);
    opened(sealed, 2, UUID).expect_err("another key");
    opened(sealed, 1, [0; 16]).expect_err("another volume");
    let text = || Some("00".to_owned());
    for other in [
        Pin { name: "v2".into(), ..sealed.clone() },
        Pin { id: "0b".into(), ..sealed.clone() },
        Pin { commit: "01".into(), ..sealed.clone() },
        Pin { sequence: 4, ..sealed.clone() },
        Pin { epoch: 2, ..sealed.clone() },
        Pin { kind: PinKind::Branch, ..sealed.clone() },
        Pin { sealed: text(), ..sealed.clone() },
        Pin { sealed: text().map(|_| "\u{e4}0".into()), ..sealed.clone() },
        plain.clone(),
    ] {
        opened(&other, 1, UUID).expect_err("another entry");
    }
}

fn sealing(byte: u8, codec: u8) -> Coder {
    let key = (byte > 0).then(|| Arc::new(Key::new([byte; 16], Zeroizing::new([byte; 32]))));
    Coder::of(&Head { uuid: UUID, codec, key, ..Head::default() })
}

/// A frame as it is stored at a place.
fn placed(coder: &Coder, first: u64, blocks: &[u8], off: u32, bound: &Bound) -> Vec<u8> {
    let change =
        Change::Data { first, blocks: (blocks.len() / BLOCK_LEN) as u8, stored: blocks.len() as u32, moved: false };
    let Packed { change, codec, mut bytes, sum, .. } = coder.pack(change, &[&blocks[..5], &blocks[5..]], || [9; 24]);
    close_frame(&mut bytes, &Entry { off, change, codec }, 70, sum, bound, coder.key());
    bytes
}

/// Goal: blocks come back from a frame whether it is compressed or sealed or both; a sealed one opens at its own place only.
/// Method: whoever has no key can make all checksums right, so the frame is moved with a header made anew for the new place.
#[test]
fn packed_and_sealed() {
    let id = ObjectId::segment(3, 4);
    let bound = Bound { uuid: UUID, id };
    let blocks: Vec<u8> = (0..3 * BLOCK_LEN).map(|n| (n / 100) as u8).collect();
    for (byte, codec) in [(0, 0), (0, 1), (5, 0), (5, 1)] {
        let coder = sealing(byte, codec);
        let bytes = placed(&coder, 60, &blocks, 4096, &bound);
        assert_eq!(bytes.len() < blocks.len() / 2, codec == 1);
        let frame = parse_frame(&bytes, 4096, &bound).expect("a frame");
        assert_eq!(coder.unpack(&frame, &bound).expect("blocks"), blocks);
        let branch = Bound { id: ObjectId { origin: 2, ..id }, ..bound };
        assert_eq!(coder.unpack(&frame, &branch).expect("of an origin"), blocks);
        if byte == 0 {
            continue;
        }
        sealing(6, codec).unpack(&frame, &bound).expect_err("another key");
        sealing(0, codec).unpack(&frame, &bound).expect_err("no key");
        let Change::Data { stored, .. } = frame.entry.change else { panic!("no blocks") };
        let moved = |first: u64, count: u8, codec: u8, off: u32, position: u64, to: &Bound| {
            let (mut bytes, change) = (bytes.clone(), Change::Data { first, blocks: count, stored, moved: false });
            let sum = PayloadSum::of(&bytes[segment::FRAME_HEADER_LEN..][..stored as usize]);
            close_frame(&mut bytes, &Entry { off, change, codec }, position, sum, to, None);
            let frame = parse_frame(&bytes, off, to).expect("its checksum is right");
            coder.unpack(&frame, to).map(|blocks| blocks.into_owned())
        };
        assert_eq!(moved(60, 3, frame.entry.codec, 4096, 70, &bound).expect("the same"), blocks);
        moved(61, 3, frame.entry.codec, 4096, 70, &bound).expect_err("other blocks");
        moved(60, 3, frame.entry.codec, 8192, 70, &bound).expect_err("another offset");
        moved(60, 3, frame.entry.codec, 4096, 71, &bound).expect_err("another position");
        let other = Bound { id: ObjectId::segment(3, 5), ..bound };
        moved(60, 3, frame.entry.codec, 4096, 70, &other).expect_err("another segment");
        moved(60, 3, frame.entry.codec, 4096, 70, &Bound { uuid: [8; 16], id }).expect_err("another volume");
    }
    // What does not become shorter stays as it is.
    let noise = Rng::new(2).bytes(2 * BLOCK_LEN);
    let bytes = placed(&sealing(0, 1), 0, &noise, 0, &bound);
    assert_eq!(parse_frame(&bytes, 0, &bound).expect("a frame").entry.codec, 0);
}

/// Goal: a sealed head, directory, page and key object are read with their key, and without it only what is for everybody.
#[test]
fn sealed_objects() {
    let coder = sealing(5, 0);
    let (key, other) = (coder.key.as_ref().expect("a key"), sealing(6, 0));
    let segment =
        SegmentRef { id: ObjectId::segment(2, 1), len: 48 + 32 + 40 + 64, dir_off: 48, frames: 1, dir_xxh: 1 };
    let mine = Head { key: Some(key.clone()), segments: vec![segment], ..head() };
    let bytes = mine.encode();
    assert_eq!((bytes.len(), &bytes), (mine.len(), &mine.encode()));
    assert_eq!(Head::open(&bytes, Some(key)).expect("a head"), mine);
    Head::parse(&bytes).expect_err("no key");
    Head::open(&bytes, other.key.as_ref()).expect_err("another key");
    let outline = Head::outline(&bytes).expect("an outline");
    assert_eq!((outline.epoch, outline.commit, outline.sealed), (3, [1; 16], true));
    assert!(!Head::outline(&head().encode()).expect("an outline").sealed);
    // A header that was changed, with its checksum put right: the device would be shorter.
    let mut changed = bytes.clone();
    changed[80] ^= 1;
    let sum = xxh64(&changed[..248]).to_le_bytes();
    changed[248..256].copy_from_slice(&sum);
    Head::outline(&changed).expect("its checksums are right");
    Head::open(&changed, Some(key)).expect_err("another header");

    let id = ObjectId::segment(3, 4);
    let (body, entries) = frames(id, &changes(), 100);
    let seal = DirectorySeal { key, uuid: UUID, nonce: [3; 24] };
    let (end, known) = close_segment(id, &entries, body.len() as u32, 100, Some(seal));
    let dir = &end[..known.dir_len() as usize];
    assert_eq!(parse_directory(dir, &known, UUID, Some(key)).expect("a directory"), entries);
    parse_directory(dir, &known, UUID, None).expect_err("no key");
    parse_directory(dir, &known, UUID, other.key()).expect_err("another key");
    let elsewhere = SegmentRef { id: ObjectId::segment(3, 5), ..known };
    parse_directory(dir, &elsewhere, UUID, Some(key)).expect_err("another segment");
    let whole = [body, end].concat();
    assert_eq!(parse_footer(&whole).expect("a footer"), (known, 100));

    let page = coder.pack_page(vec![7; 100], id, 32, || [1; 24]);
    assert_eq!(coder.unpack_page(&page, UUID, id, 32).expect("a page"), vec![7; 100]);
    coder.unpack_page(&page, UUID, id, 64).expect_err("another place");
    other.unpack_page(&page, UUID, id, 32).expect_err("another key");

    let slot = |opener| key::Slot { opener, salt: [1; 16], nonce: [2; 24], wrapped: [3; 48], id: [4; 16] };
    let phrase = key::Opener::Passphrase { memory: 64, passes: 3, lanes: 2 };
    let slots = vec![slot(key::Opener::File), slot(phrase)];
    let object = key::KeyObject { id: [5; 16], commit: [6; 16], slots };
    let bytes = object.encode();
    assert_eq!(key::KeyObject::parse(&bytes).expect("a key"), object);
    // The cost of a passphrase is bounded, whatever the store says.
    let costing = |memory, passes, lanes| {
        let slots = vec![slot(key::Opener::Passphrase { memory, passes, lanes })];
        key::KeyObject::parse(&key::KeyObject { slots, ..object.clone() }.encode())
    };
    costing(256 << 10, 4, 4).expect("the most");
    for (memory, passes, lanes) in [((256 << 10) + 1, 4, 4), (256 << 10, 5, 4), (256 << 10, 4, 5)] {
        costing(memory, passes, lanes).expect_err("more than that");
    }
    let mut rng = Rng::new(3);
    for _ in 0..20_000 {
        let mut bytes = mutated(&mut rng, &bytes);
        if bytes.len() >= 8 {
            let at = bytes.len() - 8;
            let sum = xxh64(&bytes[..at]).to_le_bytes();
            bytes[at..].copy_from_slice(&sum);
        }
        if let Ok(object) = key::KeyObject::parse(&bytes) {
            assert_eq!(object.encode(), bytes);
        }
    }
}

fn pins() -> Pins {
    let pin = |kind, expires| Pin {
        name: "v1".into(),
        id: "0a".into(),
        sequence: 3,
        epoch: 1,
        commit: "00".into(),
        kind,
        by: "me \u{1f980}".into(),
        made: 7,
        expires,
        sealed: None,
    };
    let pins = vec![pin(PinKind::Pin, None), pin(PinKind::Lease, Some(9)), pin(PinKind::Branch, None)];
    Pins { version: 1, uuid: "07".into(), commit: "1".into(), pins }
}

/// A page of each kind, and where each one's kind is.
fn pages() -> (Vec<Vec<u8>>, usize) {
    let run = |start, blocks, skip| Run { start, blocks, skip, row: 7, off: 4096, stored: 64 << 12 };
    let runs = [run(0, 64, 0), run(64, 1, 3), run(REGION_BLOCKS as u32 - 1, 1, 63)];
    let at = |n| ObjectRef { id: ObjectId::map(1, n), off: 32, len: 100, xxh: n };
    let row = Row { id: ObjectId::segment(1, 2), len: 1 << 20, live: 3, total: 4, born: 5 };
    let object = |n| MapObject { id: ObjectId::map(1, n), len: 500, live: 400, born: 1 };
    let root = Root {
        device_len: 1 << 41,
        position: 77,
        index: vec![(0, at(1)), (1, at(2))],
        table: vec![(0, at(3))],
        graves: vec![(0, at(4))],
        objects: vec![object(1), object(2)],
    };
    let mut out = vec![Vec::new(); 5];
    map::encode_region(&mut out[0], 1, 5, runs.iter().copied());
    map::encode_index(&mut out[1], 1, 5, &[(1024, at(1)), (1026, at(2))]);
    map::encode_table(&mut out[2], 1, 5, &[Some(row), None]);
    map::encode_graves(&mut out[3], 1, 5, &[Grave { id: ObjectId::segment(1, 2), born: 3, died: 4 }]);
    root.encode(&mut out[4]);
    (out, 4)
}

/// Reads a page by the kind it says it has; what is accepted is written again as the same bytes.
fn read_page(bytes: &[u8]) -> Result<(), Corruption> {
    let mut again = Vec::new();
    match bytes.get(4) {
        Some(1) => map::encode_region(&mut again, 1, 5, map::parse_region(bytes, 1)?.into_iter()),
        Some(2) => map::encode_index(&mut again, 1, 5, &map::parse_index(bytes, 1)?),
        Some(3) => map::encode_table(&mut again, 1, 5, &map::parse_table(bytes, 1)?),
        Some(4) => map::encode_graves(&mut again, 1, 5, &map::parse_graves(bytes, 1)?),
        _ => Root::parse(bytes)?.encode(&mut again),
    }
    // The position is not checked by those who read a page; it is not what this is about.
    if again.len() == bytes.len() && again[16..24] == bytes[16..24] {
        assert_eq!(again, bytes);
    }
    Ok(())
}

/// Goal: nothing that is read panics or is taken for something else, whatever its bytes are.
/// Method: objects with bytes changed, cut, lengthened, and their checksums put right, so that the checks behind are reached;
/// what is accepted must be written as the same bytes.
#[test]
fn anything() {
    let mut rng = Rng::new(17);
    let (head, (pages, _)) = (head().encode(), pages());
    let id = ObjectId::segment(3, 4);
    let (segment, entries) = frames(id, &changes()[1..3], 100);
    let (end, known) = close_segment(id, &entries, segment.len() as u32, 100, None);
    let json = pins().encode();
    let mut accepted = [0; 5];
    for _ in 0..60_000 {
        let mut bytes = mutated(&mut rng, &head);
        if bytes.len() >= 256 && !rng.one_in(8) {
            let sum = xxh64(&bytes[256..]).to_le_bytes();
            bytes[240..248].copy_from_slice(&sum);
            let len = (bytes.len() as u32).to_le_bytes();
            bytes[12..16].copy_from_slice(&len);
            let sum = xxh64(&bytes[..248]).to_le_bytes();
            bytes[248..256].copy_from_slice(&sum);
        }
        if let Ok(head) = Head::parse(&bytes) {
            assert_eq!(head.encode(), bytes);
            accepted[0] += 1;
        }
        let page = rng.pick(&pages).expect("a page");
        let mut bytes = mutated(&mut rng, page);
        if bytes.len() >= 32 && !rng.one_in(8) {
            let sum = Sum::new().add(&bytes[..24]).add(&bytes[32..]).get().to_le_bytes();
            bytes[24..32].copy_from_slice(&sum);
        }
        accepted[1] += usize::from(read_page(&bytes).is_ok());
        let bytes = mutated(&mut rng, &segment);
        accepted[2] += usize::from(parse_tail(&bytes, &Bound { uuid: UUID, id }, 102).is_ok());
        let bytes = mutated(&mut rng, &end);
        let dir = &bytes[..bytes.len().min(64)];
        accepted[3] +=
            usize::from(parse_directory(dir, &SegmentRef { dir_xxh: xxh64(dir), ..known }, UUID, None).is_ok());
        let _ = parse_footer(&bytes);
        accepted[4] += usize::from(Pins::parse(&mutated(&mut rng, &json)).is_ok());
    }
    assert!(accepted.iter().all(|&n| n > 100), "the checks behind the checksums are reached: {accepted:?}");
}

/// With some bytes changed, and sometimes another length.
fn mutated(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..rng.below(4) {
        let front = if rng.one_in(2) { out.len().min(300) } else { out.len() };
        let at = rng.below(front as u64) as usize;
        if let Some(byte) = out.get_mut(at) {
            *byte = match rng.below(3) {
                0 => *byte ^ (1 << rng.below(8)),
                1 => [0, 1, 0x7f, 0xff][rng.below(4) as usize],
                _ => rng.next_u64() as u8,
            };
        }
    }
    match rng.below(12) {
        0 => out.truncate(rng.below(out.len() as u64 + 1) as usize),
        1 => {
            let more = rng.below(100) as usize;
            out.extend(rng.bytes(more));
        }
        _ => {}
    }
    out
}
