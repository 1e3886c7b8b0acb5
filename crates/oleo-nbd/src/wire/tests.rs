//! Every header and every piece of data, there and back; random bytes.

use proptest::prelude::*;

use super::option::{
    BlockSizes, Info, InfoRequest, MetaQuery, OptionHeader, OptionReply, context_data, context_of, server_data,
    server_of,
};
use super::reply::{Chunk, ChunkError, ERROR, ERROR_OFFSET, SimpleReply, StatusExtent, status_data, status_of};
use super::*;

proptest! {
    /// Goal: what is encoded is decoded the same. Method: random fields.
    #[test]
    fn round_trip(flags: u16, command: u16, cookie: u64, offset: u64, len: u32, kind: u32, name in "[^\0]{0,40}", more in "[^\0]{0,40}") {
        let request = Request { flags: CommandFlags::from_bits_retain(flags), command, cookie, offset, len };
        prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        let option = OptionHeader { option: kind, len };
        prop_assert_eq!(OptionHeader::decode(&option.encode()), Some(option));
        let reply = OptionReply { option: kind, kind: len, len: kind };
        prop_assert_eq!(OptionReply::decode(&reply.encode()), Some(reply));
        let simple = SimpleReply { error: len, cookie };
        prop_assert_eq!(SimpleReply::decode(&simple.encode()), Some(simple));
        let chunk = Chunk { flags: ChunkFlags::from_bits_retain(flags), kind: command, cookie, len };
        prop_assert_eq!(Chunk::decode(&chunk.encode()), Some(chunk));
        let infos = InfoRequest { name: name.clone(), infos: vec![3, 0, command.max(4)] };
        prop_assert_eq!(InfoRequest::decode(&infos.encode()), Some(infos));
        let queries = MetaQuery { name: name.clone(), queries: vec![more.clone(), name.clone()] };
        prop_assert_eq!(MetaQuery::decode(&queries.encode()), Some(queries));
        prop_assert_eq!(server_of(&server_data(&name, &more)), Some((name.clone(), more.clone())));
        prop_assert_eq!(context_of(&context_data(len, &name)), Some((len, name.clone())));
        for info in [
            Info::Export { size: offset, flags: TransmissionFlags::from_bits_retain(flags) },
            Info::Name(name.clone()),
            Info::Description(more.clone()),
            Info::BlockSize(BlockSizes { min: len, preferred: kind, max: len }),
        ] {
            prop_assert_eq!(Info::decode(&info.encode()), Some(info));
        }
        for error in ReplyError::ALL {
            prop_assert_eq!(ReplyError::of(error.number()), Some(error));
            for at in [None, Some(offset)] {
                let (kind, payload) = ChunkError::encode(error, &more, at);
                let want = ChunkError { error: error.number(), text: more.clone().into_bytes(), offset: at };
                prop_assert_eq!(ChunkError::decode(kind, &payload), Some(want));
            }
        }
        let extents = [StatusExtent { len: len.max(1), flags: AllocationFlags::from_bits_retain(kind) }; 3];
        prop_assert_eq!(status_of(&status_data(kind, &extents)), Some((kind, extents.to_vec())));
    }

    /// Goal: no bytes make decoding panic, and no wrong magic is taken. Method: random bytes, some behind a plausible length.
    #[test]
    fn any_bytes(mut data in proptest::collection::vec(any::<u8>(), 0..200), short: bool) {
        if short && data.len() >= 4 {
            data[..3].fill(0);
            data[3] %= 20;
        }
        let _ = (InfoRequest::decode(&data), MetaQuery::decode(&data), Info::decode(&data));
        let _ = (server_of(&data), context_of(&data), status_of(&data));
        let _ = (ChunkError::decode(ERROR, &data), ChunkError::decode(ERROR_OFFSET, &data), ChunkError::decode(0x8003, &data));
        prop_assert!(shown(&data).chars().all(|c| !c.is_control()));
        if let Some(bytes) = data.first_chunk() {
            let magic = bytes[..4] == REQUEST_MAGIC.to_be_bytes();
            prop_assert_eq!(Request::decode(bytes).is_some(), magic);
        }
    }
}

/// Goal: what contradicts itself is refused. Method: a table.
#[test]
fn contradictions_are_refused() {
    let infos = |data: &[u8]| InfoRequest::decode(data);
    assert!(infos(b"\0\0\0\x01a\0\0").is_some());
    assert!(infos(b"\0\0\0\x02a\0\0").is_none(), "the name is longer than the data");
    assert!(infos(b"\0\0\0\x01a\0\x01").is_none(), "one number is missing");
    assert!(infos(b"\0\0\0\x01a\0\x02\0\x03\0\x03").is_none(), "one number twice");
    assert!(infos(b"\0\0\0\x01\0\0\0").is_none(), "a NUL in the name");
    assert!(infos(b"\0\0\0\x01\xff\0\0").is_none(), "no UTF-8");
    assert!(MetaQuery::decode(b"\0\0\0\0\xff\xff\xff\xff").is_none(), "endless queries");
    assert!(MetaQuery::decode(b"\0\0\0\0\0\0\0\0x").is_none(), "bytes are left");
    assert!(status_of(b"\0\0\0\x01").is_none(), "no extent");
    assert!(status_of(b"\0\0\0\x01\0\0\0\0\0\0\0\0").is_none(), "an empty extent");
    assert!(ChunkError::decode(ERROR, b"\0\0\0\0\0\0").is_none(), "an error that is none");
    assert!(string(&[b'a'; STRING_LEN_MAX + 1]).is_none());
    for (min, preferred, max, sound) in
        [(1, 4096, 1 << 25, true), (1, 512, u32::MAX, true), (3, 4096, 1 << 25, false), (4096, 512, 1 << 25, false)]
    {
        assert_eq!(BlockSizes { min, preferred, max }.are_sound(), sound, "{min} {preferred} {max}");
    }
    assert!(!BlockSizes { min: 0, preferred: 0, max: 0 }.are_sound());
}
