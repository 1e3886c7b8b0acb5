//! Bytes as text for people.

/// Whether a character must not be shown as it is: what a terminal obeys, what turns the order of letters around, and what is not seen at all.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// A name or path as text: as it is, or, where it is no text or has characters that are not to be shown, with all such bytes escaped (`\xff`, `\n`).
pub fn name_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(is_hidden) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names that are text stay, all others are escaped, and nothing invisible is left.
    #[test]
    fn names() {
        assert_eq!(name_text("größe <b>&'\"".as_bytes()), "größe <b>&'\"");
        assert_eq!(name_text(b"a\xffb\n"), "a\\xffb\\n");
        for c in ['\u{202e}', '\u{7}', '\u{200b}', '\u{feff}', '\u{85}'] {
            let shown = name_text(format!("a{c}b").as_bytes());
            assert!(shown.is_ascii() && !shown.contains(char::is_control), "{shown:?}");
        }
    }
}
