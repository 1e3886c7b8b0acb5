//! What stands behind the question mark: names and values, percent-encoded. Paths are bytes.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::refused::{Refused, wrong};

/// Directories in a path, at most.
const DEPTH_MAX: usize = 4096;

/// The question of a request.
pub struct Query<'a>(pub &'a str);

impl Query<'_> {
    /// The value of a name, as bytes.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let mut pairs = self.0.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(known, _)| *known == name)?.1;
        Some(percent_decode_str(value).collect())
    }

    /// A number; `or` if it is not there.
    pub fn number(&self, name: &str, or: u64) -> Result<u64, Refused> {
        let Some(bytes) = self.bytes(name) else { return Ok(or) };
        let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
        number.ok_or_else(|| wrong(format!("{name} is no number")))
    }

    /// The names on a path from the top level. None of them leads out of it: `.` and `..` are refused, and so is what no name can have.
    pub fn path(&self) -> Result<Vec<Vec<u8>>, Refused> {
        let bytes = self.bytes("path").unwrap_or_default();
        let names: Vec<Vec<u8>> =
            bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
        if names.iter().any(|name| name == b"." || name == b".." || name.contains(&0) || name.len() > 255) {
            return Err(wrong("the path has a name that no file has"));
        }
        if names.len() > DEPTH_MAX {
            return Err(wrong("the path is too deep"));
        }
        Ok(names)
    }
}

/// Bytes as they stand in a question.
pub fn encoded(bytes: &[u8]) -> String {
    percent_encode(bytes, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: any bytes come through, and no path leaves the volume, however it is written.
    #[test]
    fn paths() {
        let all: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let text = format!("x=1&path=%2Fa%2f{}&y=2", encoded(&all));
        assert_eq!(Query(&text).path().unwrap(), vec![b"a".to_vec(), all]);
        assert!(Query("").path().unwrap().is_empty());
        assert!(Query("path=///").path().unwrap().is_empty());
        for bad in ["..", "a/../b", "%2e%2e/etc", "a/%2E%2e", ".", "a%00b", &"n".repeat(256)] {
            assert_eq!(Query(&format!("path={bad}")).path().unwrap_err().status, 400, "{bad}");
        }
        assert!(Query(&format!("path={}", "a/".repeat(5000))).path().is_err());
        assert_eq!(Query("after=12&limit=x").number("after", 0).unwrap(), 12);
        assert!(Query("after=12&limit=x").number("limit", 0).is_err());
    }
}
