//! Attributes: what is known of a file beside its content, and what they forbid.

pub(crate) mod acl;
mod attr;
mod privileges;
pub(crate) mod rules;
mod setattr;
mod verity;
pub(crate) mod xattr;

pub use attr::{Attr, FileKind, NewInode, NewKind, Rdev, SetAttr, Times};

pub(crate) use attr::MODE_SETGID;
pub use privileges::{AtimePolicy, Strip};
pub use verity::Verity;
pub use xattr::{COMPRESSION, NameValue, XATTR_NAME_MAX, XATTR_SIZE_MAX, XattrMode};
