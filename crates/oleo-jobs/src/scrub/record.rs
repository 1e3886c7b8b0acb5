//! The state of a scrub, as btrfs-progs keep it: so that either goes on with what the other began, and shows it.
//!
//! A file `scrub.status.FSID` of text: a line `scrub status:1`, then one for each device, `FSID:DEVID|key:value|…`. It is replaced as a
//! whole, so that it is never seen in parts. Source: files that btrfs-progs 6.2 wrote.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write as _};
use std::path::Path;

use oleo_format::DevId;
use uuid::Uuid;

use super::DeviceScrub;

const FIRST_LINE: &str = "scrub status:1";
/// More than a line for each of 65 536 devices takes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The fields, in their order.
type Field = (&'static str, fn(&DeviceScrub) -> u64, fn(&mut DeviceScrub, u64));

macro_rules! fields {
    ($($name:ident),*) => { [$((stringify!($name), |d| d.$name, |d, v| d.$name = v)),*] };
}

const COUNTS: [Field; 17] = fields!(
    data_extents_scrubbed,
    tree_extents_scrubbed,
    data_bytes_scrubbed,
    tree_bytes_scrubbed,
    read_errors,
    csum_errors,
    verify_errors,
    no_csum,
    csum_discards,
    super_errors,
    malloc_errors,
    uncorrectable_errors,
    corrected_errors,
    last_physical,
    t_start,
    t_resumed,
    duration
);
const STATES: [Field; 2] = [
    ("canceled", |d| u64::from(d.canceled), |d, v| d.canceled = v != 0),
    ("finished", |d| u64::from(d.finished), |d, v| d.finished = v != 0),
];

/// What is known of the last scrub, by device.
pub(super) type Record = BTreeMap<DevId, DeviceScrub>;

/// The text of a record.
fn text(fsid: Uuid, record: &Record) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for (devid, device) in record {
        let _ = write!(text, "{fsid}:{devid}");
        for (name, get, _) in COUNTS.iter().chain(&STATES) {
            let _ = write!(text, "|{name}:{}", get(device));
        }
        text.push('\n');
    }
    text
}

/// A record from its text; lines and fields that are not known are passed over. `None`: it is none, or damaged.
fn parse(fsid: Uuid, text: &str) -> Option<Record> {
    let mut lines = text.lines();
    lines.next().filter(|line| *line == FIRST_LINE)?;
    let mut record = Record::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let mut parts = line.split('|');
        let (id, devid) = parts.next()?.split_once(':')?;
        if id.parse::<Uuid>().ok()? != fsid {
            continue;
        }
        let mut device = DeviceScrub::default();
        for part in parts {
            let (name, value) = part.split_once(':')?;
            let value: u64 = value.parse().ok()?;
            if let Some((_, _, set)) = COUNTS.iter().chain(&STATES).find(|(known, ..)| *known == name) {
                set(&mut device, value);
            }
        }
        record.insert(DevId(devid.parse().ok()?), device);
    }
    Some(record)
}

fn name(fsid: Uuid) -> String {
    format!("scrub.status.{fsid}")
}

/// What is made is for its owner alone. Elsewhere that is what the directory says.
fn private() -> OpenOptions {
    #[allow(unused_mut, reason = "used by what only some systems have")]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Writes the record of a file system into a directory, which is made if it is not there.
pub(super) fn write(dir: &Path, fsid: Uuid, record: &Record) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let temporary = dir.join(format!("{}.oleo.{}", name(fsid), std::process::id()));
    let written = (|| {
        let mut file = private().write(true).create(true).truncate(true).open(&temporary)?;
        file.write_all(text(fsid, record).as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, dir.join(name(fsid)))
    })();
    written.inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// The record of a file system in a directory. `Ok(None)`: there is none.
pub(super) fn read(dir: &Path, fsid: Uuid) -> io::Result<Option<Record>> {
    let mut text = String::new();
    match fs::File::open(dir.join(name(fsid))) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is no state of a scrub", name(fsid)));
    parse(fsid, &text).map(Some).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what btrfs-progs wrote is read, every field of it, and written again the same; what is damaged is no record.
    /// Method: a file of btrfs-progs 6.2 with a different number in every field; prefixes and changes of it.
    #[test]
    fn files_of_progs() {
        let fsid: Uuid = "0bc36517-204c-4df8-bbfb-345b992a52f2".parse().unwrap();
        let line = |devid: u64, by: u64| {
            let numbers = COUNTS.iter().enumerate().map(|(nth, (name, ..))| format!("|{name}:{}", nth as u64 * by + 1));
            format!("{fsid}:{devid}{}|canceled:{}|finished:{}\n", numbers.collect::<String>(), by % 2, 1 - by % 2)
        };
        let file = format!("scrub status:1\n{}{}", line(1, 3), line(12, 1000));
        let record = parse(fsid, &file).unwrap();
        assert_eq!(record[&DevId(12)].tree_extents_scrubbed, 1001);
        assert!(record[&DevId(1)].canceled && record[&DevId(12)].finished);
        assert_eq!(text(fsid, &record), file);
        assert!(file.contains("|corrected_errors:37|last_physical:40|t_start:43|t_resumed:46|duration:49|canceled:1|"));
        for bad in [
            "",
            "scrub status:2\n",
            &file.replace("12|", "x|"),
            &file.replace("data_bytes_scrubbed:7", "data_bytes_scrubbed:-7"),
        ] {
            assert_eq!(parse(fsid, bad), None, "{bad}");
        }
        let of_another = file.replace("0bc36517", "1bc36517");
        assert_eq!(parse(fsid, &of_another), Some(Record::new()));
        let newer = file.replace("|canceled", "|unverified_errors:5|canceled");
        assert_eq!(parse(fsid, &newer), Some(record), "what is not known is passed over");
    }
}
