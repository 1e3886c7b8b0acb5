//! Numbers as text for people.

use oleo::layers::format::print::calendar;

/// The beginning of a text, of at most so many characters, with an ellipsis where something is left out.
pub(crate) fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
}

/// Bytes with a unit, at most two decimals.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.checked_ilog2().unwrap_or(0) / 10) as usize;
    if unit == 0 {
        return format!("{bytes} B");
    }
    format!("{:.2} {}", bytes as f64 / (1u64 << (unit * 10)) as f64, UNITS[unit])
}

/// A day in UTC, of seconds since 1970.
pub(crate) fn day(sec: i64) -> String {
    let (year, month, day) = calendar(sec.div_euclid(86_400));
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is cut says so, by characters.
    #[test]
    fn beginnings() {
        assert_eq!(shortened("äöüß", 4), "äöüß");
        assert_eq!(shortened("äöüßx", 4), "äöü…");
    }

    /// Goal: sizes and days at the edges.
    #[test]
    fn sizes_and_days() {
        assert_eq!((human(0), human(1023), human(1536)), ("0 B".into(), "1023 B".into(), "1.50 KiB".into()));
        assert_eq!(human(u64::MAX), "16.00 EiB");
        assert_eq!(
            (day(0), day(951_782_400), day(-1)),
            ("1970-01-01".into(), "2000-02-29".into(), "1969-12-31".into())
        );
        assert!(!day(i64::MAX).is_empty() && !day(i64::MIN).is_empty());
    }
}
