//! What is decoded of any bytes is encoded as the same again.

use oleo_nbd::wire::option::{
    Info, InfoRequest, MetaQuery, OptionHeader, OptionReply, context_data, context_of, server_data, server_of,
};
use oleo_nbd::wire::reply::{Chunk, ChunkError, ERROR, ERROR_OFFSET, SimpleReply, status_data, status_of};
use oleo_nbd::wire::{Request, shown};

/// Whether anything accepted it.
pub fn body(data: &[u8]) -> bool {
    let mut taken = false;
    let mut same = |again: Option<Vec<u8>>| {
        if let Some(again) = again {
            assert!(data.starts_with(&again), "{again:02x?}");
            taken = true;
        }
    };
    same(InfoRequest::decode(data).map(|request| request.encode()));
    same(MetaQuery::decode(data).map(|query| query.encode()));
    same(server_of(data).map(|(name, text)| server_data(&name, &text)));
    same(context_of(data).map(|(id, name)| context_data(id, &name)));
    same(status_of(data).map(|(id, extents)| status_data(id, &extents)));
    same(Info::decode(data).map(|info| info.encode()));
    same(data.first_chunk().and_then(Request::decode).map(|r| r.encode().to_vec()));
    same(data.first_chunk().and_then(OptionHeader::decode).map(|r| r.encode().to_vec()));
    same(data.first_chunk().and_then(OptionReply::decode).map(|r| r.encode().to_vec()));
    same(data.first_chunk().and_then(SimpleReply::decode).map(|r| r.encode().to_vec()));
    same(data.first_chunk().and_then(Chunk::decode).map(|r| r.encode().to_vec()));
    for kind in [ERROR, ERROR_OFFSET, 0x8003] {
        taken |= ChunkError::decode(kind, data).is_some();
    }
    assert!(shown(data).chars().all(|c| !c.is_control()));
    taken
}
