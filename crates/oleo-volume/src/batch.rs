//! Reads of several devices: one batch of requests for each, devices in parallel if there is much to be read.

use std::collections::BTreeMap;
use std::sync::Arc;

use oleo_device::{Device, DeviceError, Op, ReadReq};

use crate::member::Member;
use crate::parallel::{PARALLEL_BYTES_MIN, each};

/// Reads of many devices, one batch for each.
#[derive(Default)]
pub(crate) struct Batch<'a> {
    by_device: BTreeMap<u64, DeviceReads<'a>>,
}

/// The reads of one device and the caller's tag of each.
struct DeviceReads<'a> {
    member: Arc<Member>,
    reqs: Vec<ReadReq<'a>>,
    tags: Vec<usize>,
}

impl<'a> Batch<'a> {
    /// `tag` comes back with the result.
    pub fn add(&mut self, member: &Arc<Member>, offset: u64, buf: &'a mut [u8], tag: usize) {
        let new = || DeviceReads { member: member.clone(), reqs: Vec::new(), tags: Vec::new() };
        let reads = self.by_device.entry(member.devid.0).or_insert_with(new);
        reads.reqs.push(ReadReq::new(offset, buf));
        reads.tags.push(tag);
    }

    pub fn run(self) -> Vec<(usize, Result<(), DeviceError>)> {
        let one = |mut reads: DeviceReads<'a>| {
            match reads.member.device() {
                Some(device) => device.read_batch(&mut reads.reqs),
                // It failed a moment ago.
                None => reads.reqs.iter_mut().for_each(|req| req.result = Err(gone(&reads.member, req))),
            }
            let results = reads.reqs.into_iter().map(|r| r.result);
            reads.tags.into_iter().zip(results).collect::<Vec<_>>()
        };
        let bytes: u64 = self.by_device.values().flat_map(|r| &r.reqs).map(|r| r.buf.len() as u64).sum();
        let devices: Vec<_> = self.by_device.into_values().collect();
        each(devices, bytes >= PARALLEL_BYTES_MIN, one).into_iter().flatten().collect()
    }
}

fn gone(member: &Member, req: &ReadReq<'_>) -> DeviceError {
    DeviceError::Io {
        name: member.any_device().map(|device| device.name()).unwrap_or_default().into(),
        op: Op::Read,
        offset: req.offset,
        len: req.buf.len() as u64,
        source: Arc::new(std::io::Error::other("the device is not used any more")),
    }
}
