//! POSIX ACLs, as far as new files and changes of mode need them: what a default ACL hands down, and what a new mode
//! does to an access ACL.
//!
//! On disk an ACL is the value of an attribute in the kernel's form: a version, then entries of tag, permissions and
//! id. Values that do not parse are kept as they are and hand down nothing.

/// The attribute that holds the access ACL.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds a directory's default ACL.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// `POSIX_ACL_XATTR_VERSION`.
const VERSION: u32 = 2;
const VERSION_LEN: usize = 4;
const ENTRY_LEN: usize = 8;

const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
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
    let says_more = entries.iter().any(|e| !matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER));
    (mode, says_more.then(|| encode(&entries)))
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
