//! An open volume, and what is asked of it.
//!
//! What a crash left in the log is applied in memory when a volume is opened (`log.rs` in `oleo`), so that files are seen as they were last synced. If that cannot be, they are seen as the last commit has them,
//! and [`Session::answer`] says so in what it tells of the volume. Checks and maps are of what is in the files, as everywhere.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oleo::check::{CheckOptions, Report, Start};
use oleo::fs::{DataOptions, FixedClock, FsOptions, Time};
use oleo::inspect::Inspector;
use oleo::{Device, Error, Image, OpenOptions};
use oleo_browse::{Content, Output, Query, Refused, answer, encoded, name_text};
use oleo_view::answers::{self, Checked, Pace};
use oleo_view::{Findings, Map, MapError, MapOptions};
use serde_json::{Value, json};

/// Bytes of tree blocks that are kept.
const CACHE_BYTES: usize = 64 << 20;
/// Bytes of a log that are applied in memory, and of what that changes.
const LOG_BYTES_MAX: u64 = 32 << 20;
/// Bytes of the tables of maps, about: a sample is taken of what does not fit.
const MAP_BYTES: u64 = 32 << 20;

/// A volume that is looked at.
pub struct Session {
    volume: Arc<Opened>,
    /// Why the log is not applied, if there is one that is not.
    unapplied: Option<String>,
    /// Devices that are shorter than the volume has them.
    cut_short: Vec<String>,
}

/// What is open.
struct Opened {
    devices: Vec<Arc<dyn Device>>,
    image: Arc<Image>,
    /// The map, once it is made.
    map: Mutex<Option<Arc<Map>>>,
    /// What the last check found, for maps.
    found: Mutex<Option<Findings>>,
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For reading; missing devices are done without. There is no clock below, and nothing that needs one; and one thread.
fn options() -> OpenOptions {
    let fs =
        FsOptions::default().clock(Arc::new(FixedClock(Time::default()))).data(DataOptions::default().threads(false));
    OpenOptions::default().degraded(true).cache_bytes(CACHE_BYTES).log_bytes_max(LOG_BYTES_MAX).fs(fs)
}

impl Session {
    /// Opens the volume that these are the devices of. Missing ones are done without, if what is read has other copies.
    ///
    /// # Errors
    /// They are no btrfs, not of one volume, or damaged.
    pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<Session, String> {
        let lens: Vec<(String, u64)> = devices.iter().map(|device| (device.name(), device.len())).collect();
        let (image, unapplied) = match Image::from_devices(devices.clone(), &options()) {
            Err(Error::Log(why)) => {
                let image = Image::from_devices(devices.clone(), &options().no_log_replay(true)).map_err(said)?;
                (image, Some(said(why)))
            }
            image => (image.map_err(said)?, None),
        };
        let known = image.volume().devices();
        let cut_short = lens
            .iter()
            .filter(|(name, len)| known.iter().any(|device| device.name == *name && device.total.0 > *len))
            .map(|(name, _)| name_text(name.as_bytes()))
            .collect();
        let (image, map, found) = (Arc::new(image), Mutex::default(), Mutex::default());
        Ok(Session { volume: Arc::new(Opened { devices, image, map, found }), unapplied, cut_short })
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
        let reply = match self.reply(address) {
            Ok(reply) => reply,
            Err(why) => {
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

    fn reply(&self, address: &str) -> Result<oleo_browse::Reply, Refused> {
        let (path, question) = address.split_once('?').unwrap_or((address, ""));
        let query = Query(question);
        match path {
            "api/info" => Ok(self.info()),
            "api/check" => Ok(answers::check(self.volume.clone(), query.number("data", 0)? != 0)),
            "tar" => Ok(answers::tar(&self.volume.image, &query)?),
            _ => {
                if let Some(map) = answers::map(path, || self.volume.map()) {
                    return map;
                }
                let missing = || Err(Refused { status: 404, why: "there is nothing at this address".into() }.into());
                Ok(answer(self.volume.image.fs(), path, &query).unwrap_or_else(missing)?)
            }
        }
    }

    fn info(&self) -> oleo_browse::Reply {
        let volume = self.volume.image.volume();
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
            "unapplied": self.unapplied,
            "cut_short": self.cut_short,
            "mounted": false,
            "offers": ["tar", "check", "maps"],
        }))
    }
}

impl Opened {
    /// The map, with what the last check found.
    fn map(&self) -> Result<Arc<Map>, MapError> {
        let mut made = locked(&self.map);
        let map = match &*made {
            Some(map) => map.clone(),
            None => {
                let inspector = Inspector::from_devices(self.devices.clone(), &options())?;
                let how = MapOptions { table_bytes: MAP_BYTES, space_only: false };
                made.insert(Arc::new(Map::read(&inspector, &how)?)).clone()
            }
        };
        let Some(found) = locked(&self.found).clone() else { return Ok(map) };
        let mut map = Map::clone(&map);
        map.add_findings(found);
        Ok(Arc::new(map))
    }
}

impl Checked for Opened {
    fn check(&self, how: &CheckOptions<'_>) -> oleo::Result<Report> {
        oleo::check::devices(self.devices.clone(), true, Start::default(), &how.threads(1))
    }

    fn image(&self) -> oleo::Result<Arc<Image>> {
        Ok(self.image.clone())
    }

    fn has_found(&self, findings: Findings) {
        *locked(&self.found) = Some(findings);
    }

    /// There is no clock; whoever hears it does little with it.
    fn pace(&self) -> Pace {
        Box::new(|| true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use oleo::device::{FileDevice, FileOptions, MemDevice};

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
        assert_eq!(json("api/info")["unapplied"], Value::Null);
        assert_eq!(json("api/list?path=dir")["entries"][0]["name"], "file");
        let (head, bytes) = ask("file?path=dir/file");
        assert_eq!((head.status, head.len, head.name.as_deref()), (200, Some(300_000), Some("file")));
        assert!(bytes == [7; 300_000]);
        assert_eq!((ask("api/list?path=no").0.status, ask("api/nothing").0.status, ask("").0.status), (404, 404, 404));
        let (head, bytes) = ask("tar?path=dir");
        assert_eq!((head.status, head.name.as_deref(), bytes.len() % 512), (200, Some("dir%2Etar"), 0));
        assert_eq!((ask("tar?path=no").0.status, ask("api/check?data=x").0.status), (404, 400));
        let none: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
        assert!(Session::open(vec![none]).is_err() && Session::open(Vec::new()).is_err());
    }
}
