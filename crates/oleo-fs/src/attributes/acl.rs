//! POSIX ACLs, as far as new files and changes of mode need them: what a default ACL hands down, what a new mode does to
//! an access ACL, and what a new access ACL makes of the mode.
//!
//! On disk an ACL is the value of an attribute in the kernel's form: a version, then entries of tag, permissions and
//! id. Values on disk that do not parse are kept as they are and hand down nothing; new ones are refused.

use crate::object::InodeFields;
use crate::{FileKind, FsError};

/// The attribute that holds the access ACL.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds a directory's default ACL.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// `POSIX_ACL_XATTR_VERSION`.
const VERSION: u32 = 2;
const VERSION_LEN: usize = 4;
const ENTRY_LEN: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

fn parse(value: &[u8]) -> Option<Vec<Entry>> {
    let (version, rest) = value.split_at_checked(VERSION_LEN)?;
    if version != VERSION.to_le_bytes() || rest.len() % ENTRY_LEN != 0 {
        return None;
    }
    let entries = rest.chunks_exact(ENTRY_LEN).map(|e| Entry {
        tag: u16::from_le_bytes([e[0], e[1]]),
        perm: u16::from_le_bytes([e[2], e[3]]),
        id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
    });
    Some(entries.collect())
}

fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for e in entries {
        value.extend_from_slice(&e.tag.to_le_bytes());
        value.extend_from_slice(&e.perm.to_le_bytes());
        value.extend_from_slice(&e.id.to_le_bytes());
    }
    value
}

/// What setting an ACL does beside storing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewAcl {
    /// The inode's mode from now on.
    pub(crate) mode: u32,
    /// The mode says all of it: nothing is stored.
    pub(crate) says_nothing_more: bool,
}

/// Looks at an attribute that is to be set; `None` if it is no ACL.
pub(crate) fn checked(fields: &InodeFields, name: &[u8], value: &[u8]) -> Result<Option<NewAcl>, FsError> {
    if name != ACCESS && name != DEFAULT {
        return Ok(None);
    }
    if fields.kind() == FileKind::Symlink {
        return Err(FsError::NotSupported("ACLs of symbolic links"));
    }
    if name == DEFAULT && fields.kind() != FileKind::Dir {
        return Err(FsError::Invalid("only directories have a default ACL"));
    }
    let entries = parse(value).filter(|e| is_sound(e)).ok_or(FsError::Invalid("not a POSIX ACL"))?;
    if name == DEFAULT {
        return Ok(Some(NewAcl { mode: fields.mode, says_nothing_more: false }));
    }
    let has_mask = entries.iter().any(|e| e.tag == MASK);
    let mut mode = fields.mode;
    for e in &entries {
        if let Some(shift) = shift_of(e.tag, has_mask) {
            mode = mode & !(7 << shift) | u32::from(e.perm) << shift;
        }
    }
    Ok(Some(NewAcl { mode, says_nothing_more: !entries.iter().any(says_more) }))
}

/// Owner, group and others once each, a mask once if anybody is named, permissions of three bits.
fn is_sound(entries: &[Entry]) -> bool {
    let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
    let named = count(USER) + count(GROUP);
    let known = count(USER_OBJ) + count(GROUP_OBJ) + count(OTHER) + count(MASK) + named;
    known == entries.len()
        && [USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(|tag| count(tag) == 1)
        && count(MASK) <= 1
        && (named == 0 || count(MASK) == 1)
        && entries.iter().all(|e| e.perm <= 7)
}

/// Whether an entry is more than a mode can say.
fn says_more(e: &Entry) -> bool {
    !matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER)
}

/// The permission bits of a mode that an entry stands for, as a shift.
fn shift_of(tag: u16, has_mask: bool) -> Option<u32> {
    match tag {
        USER_OBJ => Some(6),
        GROUP_OBJ if !has_mask => Some(3),
        MASK => Some(3),
        OTHER => Some(0),
        _ => None,
    }
}

/// What a new inode of this mode gets from a default ACL: its mode, and its access ACL unless the mode says it all.
pub(crate) fn inherit(default: &[u8], mode: u32) -> (u32, Option<Vec<u8>>) {
    let Some(mut entries) = parse(default) else { return (mode, None) };
    let has_mask = entries.iter().any(|e| e.tag == MASK);
    let mut mode = mode;
    for e in &mut entries {
        if let Some(shift) = shift_of(e.tag, has_mask) {
            e.perm &= (mode >> shift & 7) as u16;
            mode = mode & !(7 << shift) | u32::from(e.perm) << shift;
        }
    }
    let stored = entries.iter().any(says_more);
    (mode, stored.then(|| encode(&entries)))
}

/// An access ACL after its file's mode was set.
pub(crate) fn chmod(access: &[u8], mode: u32) -> Option<Vec<u8>> {
    let mut entries = parse(access)?;
    let has_mask = entries.iter().any(|e| e.tag == MASK);
    for e in &mut entries {
        if let Some(shift) = shift_of(e.tag, has_mask) {
            e.perm = (mode >> shift & 7) as u16;
        }
    }
    Some(encode(&entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: inheritance and chmod follow acl(5).
    /// Method: a default ACL with a named user and a mask, and one that a mode can say.
    #[test]
    fn modes_and_masks() {
        let entry = |tag, perm, id| Entry { tag, perm, id };
        let none = u32::MAX;
        let default = encode(&[
            entry(USER_OBJ, 7, none),
            entry(2, 6, 1000),
            entry(GROUP_OBJ, 5, none),
            entry(MASK, 7, none),
            entry(OTHER, 5, none),
        ]);
        let (mode, access) = inherit(&default, 0o640);
        assert_eq!(mode, 0o640);
        let access = parse(&access.unwrap()).unwrap();
        assert_eq!(access.iter().map(|e| e.perm).collect::<Vec<_>>(), [6, 6, 5, 4, 0]);
        let plain = encode(&[entry(USER_OBJ, 7, none), entry(GROUP_OBJ, 0, none), entry(OTHER, 0, none)]);
        assert_eq!(inherit(&plain, 0o666), (0o600, None));
        let changed = parse(&chmod(&default, 0o751).unwrap()).unwrap();
        assert_eq!(changed.iter().map(|e| e.perm).collect::<Vec<_>>(), [7, 6, 5, 5, 1]);
    }
}
