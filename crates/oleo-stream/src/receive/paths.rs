//! Which paths a stream may contain.

/// The longest name.
const NAME_LEN_MAX: usize = oleo_format::NAME_LEN_MAX;

/// Whether the empty path, the subvolume's root, will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Root {
    Allowed,
    Refused,
}

/// Fails unless the path is made of names that can be looked up one after another below a root.
pub(super) fn check(path: &[u8], root: Root) -> Result<(), String> {
    if path.is_empty() {
        return match root {
            Root::Allowed => Ok(()),
            Root::Refused => Err("the path is empty".into()),
        };
    }
    let shown = || path.escape_ascii().to_string();
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" => return Err(format!("the path {} has an empty name", shown())),
            b"." | b".." => return Err(format!("the path {} has the name {}", shown(), name.escape_ascii())),
            _ if name.len() > NAME_LEN_MAX => {
                return Err(format!("a name of the path is {} bytes long, at most {NAME_LEN_MAX}", name.len()));
            }
            _ if name.contains(&0) => return Err(format!("the path {} has a zero byte", shown())),
            _ => {}
        }
    }
    Ok(())
}

/// The directory part and the last name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (&[], path),
    }
}

/// Whether `path` is `dir` or below it.
pub(super) fn is_within(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only paths that stay inside are taken.
    #[test]
    fn only_paths_that_stay_inside() {
        for good in [&b"a"[..], b"a/b", b"...", b"a b", b"\xff", &[b'x'; 255]] {
            assert_eq!(check(good, Root::Refused), Ok(()));
        }
        let bad =
            [&b"/"[..], b"/a", b"a/", b"a//b", b".", b"..", b"a/../b", b"../a", b"a/.", b"a\0b", &[b'x'; 256], b""];
        for path in bad {
            assert!(check(path, Root::Refused).is_err(), "{}", path.escape_ascii());
        }
        assert_eq!(check(b"", Root::Allowed), Ok(()));
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
        assert!(is_within(b"a/b", b"a") && is_within(b"a", b"a") && !is_within(b"ab", b"a"));
    }
}
