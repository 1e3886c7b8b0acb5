//! What a check finds: how bad, what kind, where, what there is and what there should be.

use std::fmt;

use oleo_format::{Key, Logical, TreeId};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Allowed, or of no consequence, but not as it should be.
    Warning,
    /// The volume contradicts itself: data or space is lost, or will be.
    Error,
}

/// Where something was found: as much as is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The tree.
    pub tree: Option<TreeId>,
    /// The tree block, or the extent.
    pub block: Option<Logical>,
    /// The item's key.
    pub key: Option<Key>,
    /// A device's number, for what lies outside of trees.
    pub device: Option<u64>,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What kind.
    pub kind: Kind,
    /// Where.
    pub at: Place,
    /// What is there.
    pub have: String,
    /// What should be there.
    pub want: String,
}

/// Every kind of finding, grouped by the structure it is about.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What kind of finding; [`name`](Kind::name) is stable.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Kind { $($(#[$doc])* $variant,)* }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$variant,)*];

            /// The name that scripts see.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }
        }
    };
}

kinds! {
    /// A tree block that no copy gives whole: checksum, owner, level, order of keys, parent's key or generation.
    Block = "block",
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
