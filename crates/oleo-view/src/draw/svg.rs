//! Markup: the only place where text becomes markup.

use std::fmt::Write;

/// Steps of amounts.
pub(super) const STEPS: usize = 8;

/// A picture.
pub(super) struct Picture {
    /// A word for links, in ASCII.
    pub id: String,
    pub title: String,
    /// One or two sentences that say what it shows.
    pub about: String,
    pub width: u32,
    pub height: u32,
    /// Markup inside an `svg` element.
    pub body: String,
    /// The same in numbers.
    pub tables: Vec<Table>,
}

/// A table.
pub(super) struct Table {
    pub caption: String,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// Rows that are left out.
    pub left_out: usize,
}

/// The width of a character in small text, with room for wide fonts.
const CHAR: f64 = 7.4;

/// How wide a small text is at most, in most fonts.
pub(super) fn text_width(text: &str) -> f64 {
    CHAR * text.chars().count() as f64
}

/// Rows of a table, at most.
pub(super) const ROWS_MAX: usize = 500;

impl Table {
    pub fn new(caption: impl Into<String>, head: &[&'static str], rows: impl Iterator<Item = Vec<String>>) -> Table {
        let mut table = Table { caption: caption.into(), head: head.to_vec(), rows: Vec::new(), left_out: 0 };
        for row in rows {
            match table.rows.len() < ROWS_MAX {
                true => table.rows.push(row),
                false => table.left_out += 1,
            }
        }
        table
    }
}

/// Text as it stands in markup, between tags or in an attribute with double quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Names have been made text already; what XML has no way to write must not get here from anywhere else.
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The body of a picture while it is drawn.
#[derive(Default)]
pub(super) struct Body(pub String);

impl Body {
    /// A rectangle with what is said when it is pointed at; nothing if that is empty.
    pub fn rect(&mut self, [x, y, w, h]: [f64; 4], class: &str, title: &str) {
        let _ = write!(
            self.0,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{class}\"",
            number(x),
            number(y),
            number(w.max(0.0)),
            number(h.max(0.0))
        );
        match title {
            "" => self.0.push_str("/>"),
            title => _ = write!(self.0, "><title>{}</title></rect>", escaped(title)),
        }
    }

    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ =
            write!(self.0, "<text x=\"{}\" y=\"{}\" class=\"{class}\">{}</text>", number(x), number(y), escaped(text));
    }

    pub fn path(&mut self, d: &str, class: &str, title: &str) {
        let _ = write!(self.0, "<path d=\"{d}\" class=\"{class}\"><title>{}</title></path>", escaped(title));
    }

    /// Squares of colour with what they mean, from left to right.
    pub fn legend(&mut self, x: f64, y: f64, entries: &[(&str, &str)]) {
        let mut at = x;
        for (class, text) in entries {
            self.rect([at, y - 10.0, 12.0, 12.0], class, "");
            self.text(at + 17.0, y, "s", text);
            at += 34.0 + text_width(text);
        }
    }

    /// The legend of amounts, from little to much.
    pub fn scale(&mut self, x: f64, y: f64, low: &str, high: &str) {
        self.text(x, y, "s", low);
        let at = x + 8.0 + text_width(low);
        for step in 0..STEPS {
            self.rect([at + 14.0 * step as f64, y - 10.0, 14.0, 12.0], &format!("r{step}"), "");
        }
        self.text(at + 14.0 * STEPS as f64 + 6.0, y, "s", high);
    }
}

/// A number with at most two decimals, without what says nothing.
pub(super) fn number(n: f64) -> String {
    let text = format!("{n:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The step of a part of a whole.
pub(super) fn step(part: u64, whole: u64) -> usize {
    let step = u128::from(part.min(whole)) * (STEPS as u128 - 1) / u128::from(whole.max(1));
    step as usize
}

/// In percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

/// The style sheet of pictures, and all colours. The page that is alone names what it hashes to in its policy.
pub(super) const STYLE: &str = include_str!("../../assets/map.css");

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing that is markup is left of a text, and no character that XML forbids.
    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("<a href=\"x\" b='y'>&"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;");
        assert!(!escaped("a\u{0}b\u{1b}c\u{ffff}").contains(|c: char| c.is_control() || c == '\u{ffff}'));
        assert_eq!((number(1.0), number(0.5), number(12.345)), ("1".into(), "0.5".into(), "12.35".into()));
    }

    /// Types that have a colour.
    const KINDS: [&str; 5] = ["data", "metadata", "system", "mixed", "alone"];

    /// The colour of a class, from 0 to 1.
    fn colour(class: &str) -> [f64; 3] {
        let (_, rest) = STYLE.split_once(&format!("\n.{class}{{fill:#")).unwrap();
        [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&rest[at..at + 2], 16).unwrap()) / 255.0)
    }

    fn amount(step: usize) -> [f64; 3] {
        colour(&format!("r{step}"))
    }

    /// Luminance of the relative kind that WCAG 2.2 defines.
    fn luminance(rgb: [f64; 3]) -> f64 {
        let linear = rgb.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    }

    /// How colours look to people without one kind of cone: the matrices for severity 1 of Machado, Oliveira and Fernandes (2009), on linear light.
    fn seen_by(kind: usize, rgb: [f64; 3]) -> [f64; 3] {
        const MATRICES: [[[f64; 3]; 3]; 3] = [
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
        ];
        let linear = rgb.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        MATRICES[kind].map(|row| {
            let c = (row[0] * linear[0] + row[1] * linear[1] + row[2] * linear[2]).clamp(0.0, 1.0);
            if c <= 0.0031308 { c * 12.92 } else { 1.055 * c.powf(1.0 / 2.4) - 0.055 }
        })
    }

    /// Goal: more is lighter, step by step, in every kind of sight.
    #[test]
    fn amounts_get_lighter_in_any_sight() {
        for n in 1..STEPS {
            let (less, more) = (amount(n - 1), amount(n));
            assert!(luminance(less) * 1.15 < luminance(more), "{n}");
            for kind in 0..3 {
                assert!(luminance(seen_by(kind, less)) < luminance(seen_by(kind, more)), "{n} {kind}");
            }
        }
    }

    /// Goal: the colours of types differ in every kind of sight. Method: their distance in the cube of colours after the simulation is a tenth of its edge at least.
    #[test]
    fn types_differ_in_any_sight() {
        for (n, a) in KINDS.iter().enumerate() {
            for b in &KINDS[n + 1..] {
                for kind in 0..3 {
                    let (x, y) = (seen_by(kind, colour(a)), seen_by(kind, colour(b)));
                    let distance = x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
                    assert!(distance > 0.1, "{a} and {b} for {kind}: {distance}");
                }
            }
        }
    }
}
