//! Block stores: files, block devices, memory; batched reads and writes, flush, discard.
