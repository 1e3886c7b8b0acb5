//! Streams as text and as JSON: one line a command.
//!
//! The text has the command's name, its path with that of the subvolume in front, and its values as `name=value`, as users of
//! `btrfs receive --dump` know it; bytes that do not print, spaces and backslashes are escaped. Data itself is not shown,
//! nor are attributes longer than 256 bytes.

use oleo_format::stream::Command;
use oleo_format::{Timespec, print};
use serde_json::{Map, Value, json};

/// Bytes of an extended attribute that are shown.
const VALUE_SHOWN_MAX: usize = 256;
/// The column where values begin.
const COLUMN: usize = 48;

/// Makes lines of commands; remembers which subvolume they are in.
#[derive(Debug, Default)]
pub struct Dumper {
    subvol: Vec<u8>,
}

/// The values of a command, each with its name.
type Values = Vec<(&'static str, Value)>;

impl Dumper {
    /// One line of text.
    pub fn text(&mut self, command: &Command<'_>) -> String {
        let path = self.path(command);
        let mut line = format!("{:<16}{path}", command.kind().name());
        // btrfs shows only the path that a clone is from, and attributes without escapes for spaces.
        let values =
            self.values(command).into_iter().filter(|(name, _)| !matches!(*name, "clone_uuid" | "clone_transid"));
        for (at, (name, value)) in values.enumerate() {
            let gap = if at == 0 { COLUMN.saturating_sub(line.chars().count()).max(1) } else { 1 };
            let shown = match (command, name) {
                (Command::SetXattr { value, .. }, "data") => printable(&value[..value.len().min(VALUE_SHOWN_MAX)]),
                _ => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
            };
            line.push_str(&format!("{:gap$}{name}={shown}", ""));
        }
        line.trim_end().to_owned()
    }

    /// One line of JSON: `command`, `position`, `path`, and the values by name.
    pub fn json(&mut self, position: u64, command: &Command<'_>) -> String {
        let mut object = Map::new();
        object.insert("command".into(), command.kind().name().into());
        object.insert("position".into(), position.into());
        object.insert("path".into(), self.path(command).into());
        for (name, value) in self.values(command) {
            object.insert(name.into(), value);
        }
        Value::Object(object).to_string()
    }

    fn path(&mut self, command: &Command<'_>) -> String {
        match command {
            Command::Subvol { path, .. } | Command::Snapshot { path, .. } => {
                self.subvol = path.to_vec();
                format!("./{}", escaped(path))
            }
            Command::End => String::new(),
            _ => self.within(command.path().unwrap_or_default()),
        }
    }

    fn within(&self, path: &[u8]) -> String {
        format!("./{}/{}", escaped(&self.subvol), escaped(path))
    }

    fn values(&self, command: &Command<'_>) -> Values {
        let plain = |path: &[u8]| json!(escaped(path));
        match *command {
            Command::Subvol { uuid, ctransid, .. } => {
                vec![("uuid", json!(uuid.to_string())), ("transid", json!(ctransid))]
            }
            Command::Snapshot { uuid, ctransid, clone_uuid, clone_ctransid, .. } => vec![
                ("uuid", json!(uuid.to_string())),
                ("transid", json!(ctransid)),
                ("parent_uuid", json!(clone_uuid.to_string())),
                ("parent_transid", json!(clone_ctransid)),
            ],
            Command::MkFile { .. } | Command::MkDir { .. } | Command::MkFifo { .. } | Command::MkSock { .. } => vec![],
            Command::MkNod { mode, rdev, .. } => {
                vec![("mode", json!(format!("{mode:o}"))), ("dev", json!(format!("{rdev:#x}")))]
            }
            Command::Symlink { target, .. } => vec![("dest", plain(target))],
            Command::Rename { to, .. } => vec![("dest", json!(self.within(to)))],
            Command::Link { target, .. } => vec![("dest", plain(target))],
            Command::Unlink { .. } | Command::RmDir { .. } | Command::End => vec![],
            Command::SetXattr { name, value, .. } => vec![
                ("name", plain(name)),
                ("data", plain(&value[..value.len().min(VALUE_SHOWN_MAX)])),
                ("len", json!(value.len())),
            ],
            Command::RemoveXattr { name, .. } => vec![("name", plain(name))],
            Command::Write { offset, data, .. } => vec![("offset", json!(offset)), ("len", json!(data.len()))],
            Command::EncodedWrite {
                offset,
                unencoded_file_len,
                unencoded_len,
                unencoded_offset,
                compression,
                encryption,
                data,
                ..
            } => vec![
                ("offset", json!(offset)),
                ("len", json!(data.len())),
                ("unencoded_file_len", json!(unencoded_file_len)),
                ("unencoded_len", json!(unencoded_len)),
                ("unencoded_offset", json!(unencoded_offset)),
                ("compression", json!(compression)),
                ("encryption", json!(encryption)),
            ],
            Command::Clone { offset, len, clone_uuid, clone_ctransid, clone_path, clone_offset, .. } => vec![
                ("offset", json!(offset)),
                ("len", json!(len)),
                ("from", json!(self.within(clone_path))),
                ("clone_offset", json!(clone_offset)),
                ("clone_uuid", json!(clone_uuid.to_string())),
                ("clone_transid", json!(clone_ctransid)),
            ],
            Command::Truncate { size, .. } => vec![("size", json!(size))],
            Command::Chmod { mode, .. } => vec![("mode", json!(format!("{mode:o}")))],
            Command::Chown { uid, gid, .. } => vec![("gid", json!(gid)), ("uid", json!(uid))],
            Command::Utimes { ref atime, ref mtime, ref ctime, ref otime, .. } => {
                let mut times: Values = vec![("atime", shown(atime)), ("mtime", shown(mtime)), ("ctime", shown(ctime))];
                times.extend(otime.as_ref().map(|otime| ("otime", shown(otime))));
                times
            }
            Command::UpdateExtent { offset, len, .. } => vec![("offset", json!(offset)), ("len", json!(len))],
            Command::Fallocate { mode, offset, len, .. } => {
                vec![("mode", json!(mode)), ("offset", json!(offset)), ("len", json!(len))]
            }
            Command::FileAttr { attr, .. } => vec![("fileattr", json!(format!("{attr:#x}")))],
            Command::EnableVerity { algorithm, block_size, salt, signature, .. } => vec![
                ("algorithm", json!(algorithm)),
                ("block_size", json!(block_size)),
                ("salt_len", json!(salt.len())),
                ("sig_len", json!(signature.len())),
            ],
        }
    }
}

fn shown(time: &Timespec) -> Value {
    json!(format!("{}+0000", print::date(time.seconds()).replace(' ', "T")))
}

fn escaped(bytes: &[u8]) -> String {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.replace('\\', "\\\\"),
        _ => bytes.escape_ascii().to_string(),
    };
    text.replace(' ', "\\ ")
}

/// Text as it is; bytes that are none, and what a terminal would obey, escaped.
fn printable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    /// Goal: lines have the form that users know.
    #[test]
    fn lines_have_the_form_of_btrfs() {
        let mut dumper = Dumper::default();
        let uuid = Uuid::from_u128(1);
        let begin = dumper.text(&Command::Subvol { path: b"s 1", uuid, ctransid: 8 });
        assert_eq!(
            begin,
            "subvol          ./s\\ 1                          uuid=00000000-0000-0000-0000-000000000001 transid=8"
        );
        let rename = dumper.text(&Command::Rename { path: b"o257", to: b"\xff\n" });
        assert_eq!(rename, "rename          ./s\\ 1/o257                     dest=./s\\ 1/\\xff\\n");
        let t = Timespec::new(1_795_293_979, 5);
        let times = dumper.text(&Command::Utimes { path: b"", atime: t, mtime: t, ctime: t, otime: None });
        assert!(times.ends_with(
            " atime=2026-11-21T20:46:19+0000 mtime=2026-11-21T20:46:19+0000 ctime=2026-11-21T20:46:19+0000"
        ));
        assert_eq!(
            dumper.json(70, &Command::Write { path: b"f", offset: 4096, data: b"abc" }),
            r#"{"command":"write","len":3,"offset":4096,"path":"./s\\ 1/f","position":70}"#
        );
        assert_eq!(dumper.text(&Command::End), "end");
        let set = dumper.text(&Command::SetXattr { path: b"f", name: b"user.x", value: b"a b" });
        assert!(set.ends_with("name=user.x data=a b len=3"), "{set}");
        let (clone_uuid, clone_path) = (uuid, &b"g"[..]);
        let clone = Command::Clone {
            path: b"f",
            offset: 0,
            len: 4096,
            clone_uuid,
            clone_ctransid: 7,
            clone_path,
            clone_offset: 0,
        };
        assert!(dumper.text(&clone).ends_with("from=./s\\ 1/g clone_offset=0"));
        assert!(dumper.json(0, &clone).contains("clone_transid"));
    }
}
