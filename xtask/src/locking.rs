//! The tables in `docs/locking.md`, which are generated from the ranks (`oleo_lock::Rank`): `cargo xtask locking` writes them, `cargo
//! xtask tidy` compares.
//!
//! A table is between `<!-- locks: CRATE -->` and `<!-- /locks -->`; everything else is written by hand.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// The document.
pub const PAGE: &str = "docs/locking.md";

const BEGIN: &str = "<!-- locks: ";
const END: &str = "<!-- /locks -->";

/// Writes the tables.
pub fn run(root: &Path) -> Result<()> {
    let path = root.join(PAGE);
    let text = std::fs::read_to_string(&path).context(PAGE)?;
    let renewed = renew(&text)?;
    if renewed != text {
        std::fs::write(&path, renewed).context(PAGE)?;
        println!("{PAGE} is written");
    }
    Ok(())
}

/// The document with its tables as the ranks have them.
///
/// # Errors
/// A table has no end, or a crate with locks has no table or two.
pub fn renew(text: &str) -> Result<String> {
    let mut missing: BTreeSet<&str> = oleo_lock::Rank::ALL.iter().map(|rank| rank.entry().krate).collect();
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (krate, after) = after.split_once(" -->").with_context(|| format!("{BEGIN}without its end"))?;
        let (_, after) = after.split_once(END).with_context(|| format!("the table of {krate} has no end"))?;
        if !missing.remove(krate) {
            bail!("{krate} has two tables of locks, or none of its locks has a rank");
        }
        out += &format!("{before}{BEGIN}{krate} -->\n{}{END}", oleo_lock::table(krate));
        rest = after;
    }
    if !missing.is_empty() {
        bail!("no table of the locks of {}", missing.into_iter().collect::<Vec<_>>().join(", "));
    }
    Ok(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every crate's place, with nothing in it.
    fn empty() -> String {
        let crates: BTreeSet<&str> = oleo_lock::Rank::ALL.iter().map(|rank| rank.entry().krate).collect();
        crates.iter().map(|krate| format!("## {krate}\n\n{BEGIN}{krate} -->\n{END}\n\nText.\n")).collect()
    }

    /// Goal: every rank comes into its crate's table, handwritten text stays, and a document that is up to date does
    /// not change.
    #[test]
    fn tables_are_renewed() {
        let renewed = renew(&empty()).expect("it is whole");
        for rank in oleo_lock::Rank::ALL {
            assert!(renewed.contains(&format!("| {} |", rank.entry().name)), "{rank}");
        }
        assert_eq!(renewed.matches("Text.").count(), empty().matches("Text.").count());
        assert_eq!(renew(&renewed).expect("the same"), renewed);
        assert_ne!(renewed, empty());
    }

    /// Goal: a crate without table, with two, and a table without end are refused.
    #[test]
    fn what_is_missing_is_refused() {
        assert!(renew("").is_err());
        assert!(renew(&(empty() + &empty())).is_err());
        let without_end = empty();
        let last = without_end.rfind(END).expect("it has one");
        assert!(renew(&without_end[..last]).is_err());
        assert!(renew(&empty().replace("oleo-fs", "oleo-none")).is_err());
    }

    /// Goal: the document is that of the ranks. `cargo xtask locking` makes it so.
    #[test]
    fn the_document_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE);
        let text = std::fs::read_to_string(path).expect(PAGE);
        assert!(renew(&text).expect("it is whole") == text, "run `cargo xtask locking`");
    }
}
