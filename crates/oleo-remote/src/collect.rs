//! What a volume does not need any more goes: segments of which nothing lives, and what writers left that were lost.
//!
//! (1) A checkpoint gives those their graves that no head names from then on (`checkpoint`, `state::graves`). (2) After a time
//! of grace what no pin needs is deleted (`graves`). (3) Segments of which little lives are emptied: what lives is appended
//! again (`repack`), and with the next checkpoint they die. (4) Objects that no head has ever named are found by listing
//! (`orphans`); nothing that was ever part of the volume is deleted because of a listing.
//!
//! Only the writer does this. That another may overtake it at any moment does no harm: what has a grave in a published head
//! is dead in everything that follows that head.

mod graves;
mod orphans;
mod repack;

pub use graves::Deleted;
pub(crate) use graves::delete_dead;
pub use orphans::Orphans;
pub(crate) use orphans::remove_orphans;
pub(crate) use repack::{Wanted, repack};
