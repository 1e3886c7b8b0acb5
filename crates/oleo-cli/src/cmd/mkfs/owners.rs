//! Owners in a new image: names of this machine, device tables, and the owners that fakeroot shows.

use std::path::Path;

use anyhow::Context;
use oleo::mkfs::TableEntry;

use crate::out::misuse;

/// Whether the program runs under fakeroot. It replaces functions of the C library, and Oleo calls the kernel itself, so the owners
/// and devices that fakeroot shows are not seen.
pub(crate) fn under_fakeroot() -> bool {
    std::env::var_os("FAKEROOTKEY").is_some()
}

/// The number of a user.
pub(super) fn user(text: &str) -> anyhow::Result<u32> {
    number(text, "user", "/etc/passwd")
}

/// The number of a group.
pub(super) fn group(text: &str) -> anyhow::Result<u32> {
    number(text, "group", "/etc/group")
}

/// A number, or that of a name in a file whose lines begin with name, password and number.
fn number(text: &str, kind: &str, file: &str) -> anyhow::Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let names = std::fs::read_to_string(file).unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    names.lines().find_map(of_line).ok_or_else(|| misuse!("there is no {kind} {text} in {file}; give the number"))
}

/// Reads a device table.
pub(super) fn table(path: &Path) -> anyhow::Result<Vec<TableEntry>> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(oleo::mkfs::parse_table(&text).map_err(oleo::Error::from)?)
}
