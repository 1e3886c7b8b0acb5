use std::sync::Arc;

use oleo_device::{Device, MemDevice};

use super::*;
use crate::FeatureSet;

fn memory(lengths: &[u64]) -> Vec<Arc<dyn Device>> {
    lengths.iter().map(|&len| Arc::new(MemDevice::new(len)) as Arc<dyn Device>).collect()
}

/// Goal: same options, same bytes; another seed, other bytes. Method: make twice, compare the first 16 MiB.
#[test]
fn same_input_same_bytes() {
    let image = |seed: u8| {
        let devices = memory(&[256 << 20]);
        make(&devices, &MkfsOptions { seed: [seed; 32], ..MkfsOptions::default() }).unwrap();
        let mut bytes = vec![0; 16 << 20];
        devices[0].read_at(0, &mut bytes).unwrap();
        bytes
    };
    assert!(image(1) == image(1));
    assert!(image(1) != image(2));
}

/// Goal: devices whose bytes cannot be counted together are refused, and nothing is written to them.
#[test]
fn sums_have_a_place() {
    let devices = memory(&[6 << 60, 6 << 60, 6 << 60]);
    let error = make(&devices, &MkfsOptions::default()).unwrap_err().to_string();
    assert!(error.contains("16 EiB"), "{error}");
}

/// Goal: earlier contents of a device are not found again. Method: fill the places of superblocks and the start with
/// junk, make, and read.
#[test]
fn leftovers_are_cleared() {
    let devices = memory(&[128 << 20]);
    devices[0].write_at(0, &[0x55; 1 << 20]).unwrap();
    devices[0].write_at(64 << 20, &[0x55; 4096]).unwrap();
    make(&devices, &MkfsOptions::default()).unwrap();
    let mut start = vec![1; 64 << 10];
    devices[0].read_at(0, &mut start).unwrap();
    assert!(start.iter().all(|&b| b == 0));
    let mut bytes = vec![0; 4096];
    for offset in [64 << 10, 64 << 20] {
        devices[0].read_at(offset, &mut bytes).unwrap();
        let sb = SuperBlock::read(&bytes).unwrap();
        assert_eq!(sb.bytenr.get(), offset);
    }
}

/// Goal: every node size, profile and feature gives trees that settle and fit. Method: all of them.
#[test]
fn everything_fits() {
    for nodesize in [4096, 8192, 16384, 32768, 65536] {
        for profile in Profile::ALL {
            for (free_space_tree, block_group_tree) in [(false, false), (true, false), (true, true)] {
                let skinny_metadata = block_group_tree == (nodesize > 8192);
                let features =
                    FeatureSet { free_space_tree, block_group_tree, skinny_metadata, ..FeatureSet::default() };
                let options = MkfsOptions {
                    nodesize: Some(nodesize),
                    features,
                    data: Some(profile),
                    metadata: Some(profile),
                    ..MkfsOptions::default()
                };
                make(&memory(&[64 << 20; 4]), &options).unwrap();
            }
        }
    }
}
