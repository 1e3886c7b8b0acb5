//! An open volume, and what is asked of it.

use std::sync::Arc;

use oleo_browse::{Content, Output, Query, Refused, answer, encoded, name_text};
use oleo_device::Device;
use oleo_fs::{DataOptions, FixedClock, Fs, FsOptions, Time};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};
use serde_json::{Value, json};

/// Bytes of tree blocks that are kept.
const CACHE_BYTES: usize = 64 << 20;

/// A volume that is looked at.
pub struct Session {
    fs: Fs,
    has_log: bool,
    /// Devices that are shorter than the volume has them.
    cut_short: Vec<String>,
}

/// What is known of an answer before it comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// As HTTP has them.
    pub status: u16,
    /// The media type.
    pub kind: &'static str,
    /// How many bytes follow, if that is known.
    pub len: Option<u64>,
    /// The name of a file to be saved, percent-encoded.
    pub name: Option<String>,
}

impl Head {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({ "status": self.status, "kind": self.kind, "len": self.len, "name": self.name })
    }
}

/// An error for people: names in it may hold anything.
fn said(error: impl ToString) -> String {
    name_text(error.to_string().as_bytes())
}

impl Session {
    /// Opens the volume that these are the devices of. Missing ones are done without, if what is read has other copies.
    ///
    /// # Errors
    /// They are no btrfs, not of one volume, or damaged.
    pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<Session, String> {
        let how = OpenOptions { write: false, degraded: true, backup: None, super_copy: None };
        let lens: Vec<(String, u64)> = devices.iter().map(|device| (device.name(), device.len())).collect();
        let volume = Arc::new(Volume::open(devices, &how).map_err(said)?);
        let known = volume.devices();
        let cut_short = lens
            .iter()
            .filter(|(name, len)| known.iter().any(|device| device.name == *name && device.total.0 > *len))
            .map(|(name, _)| name_text(name.as_bytes()))
            .collect();
        let has_log = volume.super_block().log_root.get() != 0;
        let how = EngineOptions { read_only: true, cache_bytes: CACHE_BYTES, ..EngineOptions::default() };
        let engine = Engine::open(volume, &how).map_err(said)?;
        // There is no clock below, and nothing that needs one; and one thread.
        let how = FsOptions::default()
            .read_only(true)
            .clock(Arc::new(FixedClock(Time::default())))
            .data(DataOptions::default().threads(false));
        Ok(Session { fs: Fs::open(engine, &how).map_err(said)?, has_log, cut_short })
    }

    /// Answers what is asked at an address, such as `api/list?path=`: what is known first goes to `begin`, the rest to the output.
    ///
    /// # Errors
    /// What was written is not the whole answer.
    pub fn answer<O: Output>(
        &self,
        address: &str,
        begin: impl FnOnce(&mut O, &Head),
        out: &mut O,
    ) -> Result<(), String> {
        let (path, question) = address.split_once('?').unwrap_or((address, ""));
        let answered = match path {
            "api/info" => Ok(self.info()),
            _ => answer(&self.fs, path, &Query(question))
                .unwrap_or_else(|| Err(Refused { status: 404, why: "there is nothing at this address".into() }.into())),
        };
        let reply = match answered {
            Ok(reply) => reply,
            Err(why) => {
                let why = Refused::from(why);
                let len = Some(why.why.len() as u64);
                begin(out, &Head { status: why.status, kind: "text/plain; charset=utf-8", len, name: None });
                return out.write_all(why.why.as_bytes()).map_err(said);
            }
        };
        let name = reply.raw.filter(|name| !name.is_empty()).map(|name| encoded(&name));
        let len = match &reply.content {
            Content::Whole(bytes) => Some(bytes.len() as u64),
            Content::Written(_, len) => *len,
        };
        begin(out, &Head { status: 200, kind: reply.kind, len, name });
        let written = match reply.content {
            Content::Whole(bytes) => out.write_all(&bytes),
            Content::Written(write, _) => write(out),
        };
        written.and_then(|()| out.flush()).map_err(said)
    }

    fn info(&self) -> oleo_browse::Reply {
        let volume = self.fs.engine().volume();
        let sb = volume.super_block();
        let devices = volume.devices();
        oleo_browse::Reply::json(&json!({
            "label": name_text(sb.label()),
            "uuid": sb.fsid().to_string(),
            "generation": sb.generation.get(),
            "total": sb.total_bytes.get(),
            "available": Value::Null,
            "devices": devices.len(),
            "missing": devices.iter().filter(|device| device.missing).count(),
            "log": self.has_log,
            "cut_short": self.cut_short,
            "mounted": false,
            "offers": [],
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use oleo_device::{FileDevice, FileOptions};

    use super::*;

    /// Everything that is said.
    #[derive(Default)]
    struct Heard {
        head: Option<Head>,
        bytes: Vec<u8>,
    }

    impl Write for Heard {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.bytes.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Output for Heard {
        fn is_read(&self) -> bool {
            true
        }
    }

    /// Goal: the page gets the same of this as of a server: information, lists, contents, refusals; what is not there is refused, what is no volume cannot be opened.
    #[test]
    fn asked() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("disk.img");
        let image = oleo::Image::create(&path, 512 << 20).unwrap();
        image.create_dir("dir").unwrap();
        image.write("dir/file", &[7; 300_000]).unwrap();
        image.close().unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, &FileOptions::default()).unwrap());
        let session = Session::open(vec![device]).unwrap();
        let ask = |address: &str| {
            let mut heard = Heard::default();
            session.answer(address, |heard: &mut Heard, head| heard.head = Some(head.clone()), &mut heard).unwrap();
            (heard.head.unwrap(), heard.bytes)
        };
        let json = |address: &str| -> Value { serde_json::from_slice(&ask(address).1).unwrap() };
        assert_eq!(json("api/info")["log"], false);
        assert_eq!(json("api/list?path=dir")["entries"][0]["name"], "file");
        let (head, bytes) = ask("file?path=dir/file");
        assert_eq!((head.status, head.len, head.name.as_deref()), (200, Some(300_000), Some("file")));
        assert!(bytes == [7; 300_000]);
        assert_eq!((ask("api/list?path=no").0.status, ask("api/nothing").0.status, ask("").0.status), (404, 404, 404));
        let none: Arc<dyn Device> = Arc::new(oleo_device::MemDevice::new(1 << 20));
        assert!(Session::open(vec![none]).is_err() && Session::open(Vec::new()).is_err());
    }
}
