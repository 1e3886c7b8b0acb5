//! Subvolumes: creating, snapshotting, deleting, listing, the default one, and the UUID tree.
//!
//! A subvolume's place is recorded three times: as an entry in a directory of its parent, and as ROOT_REF and
//! ROOT_BACKREF in the root tree. An entry that the ROOT_REF does not confirm (as a snapshot has them for its source's
//! nested subvolumes) stands for an empty directory.
//!
//! Normal path of create, snapshot and delete: (1) reserve; (2) `Engine::stage` brings all changes into the trees and
//! keeps others out; (3) look whether the names allow it; (4) the engine makes, copies or condemns the tree; (5) the
//! entry, the references and the UUID items go into the delta of the same transaction.
//!
//! Items of the root tree and the UUID tree are kept like those of inodes, as objects of these trees; their locks are
//! leaves.
//! Crash: all of one call is in one transaction.

mod create;
mod delete;
mod info;
mod properties;
mod root_refs;
mod stage;
mod uuids;

pub use create::{NewSubvol, SnapshotOptions};
pub use info::SubvolInfo;
pub use properties::{ReadOnly, Received};
pub use root_refs::RootPlace;
pub use uuids::UuidKind;
