//! The crates that this library is made of, whole. Whatever a signature or an error leads to has a name below here, for the version
//! that this library was built with. What they offer beyond the other modules may change with any version.

pub use oleo_check as check;
pub use oleo_device as device;
pub use oleo_format as format;
pub use oleo_fs as fs;
pub use oleo_jobs as jobs;
pub use oleo_mkfs as mkfs;
#[cfg(feature = "nbd")]
pub use oleo_nbd as nbd;
pub use oleo_space as space;
pub use oleo_stream as stream;
pub use oleo_tree as tree;
pub use oleo_txn as txn;
pub use oleo_volume as volume;
