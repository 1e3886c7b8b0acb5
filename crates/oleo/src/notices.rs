//! What whoever opened a volume is told of its devices, a line of text for each: at the opening, which are missing, which missed writes, and which were
//! named and are not used; later on, which failed.

use std::fmt;
use std::sync::Arc;

use oleo_txn::Engine;
use oleo_volume::{LostDevice, Volume, WhyLeftOut};

type Told = Arc<dyn Fn(&str) + Send + Sync>;

/// Whoever is told. By default nobody.
#[derive(Clone, Default)]
pub struct OnNotice(Option<Told>);

impl OnNotice {
    /// This is called with each notice, one line of text.
    pub fn new(told: impl Fn(&str) + Send + Sync + 'static) -> OnNotice {
        OnNotice(Some(Arc::new(told)))
    }

    pub(crate) fn tell(&self, line: &str) {
        if let Some(told) = &self.0 {
            told(line);
        }
    }
}

impl fmt::Debug for OnNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OnNotice(..)" } else { "OnNotice(nobody)" })
    }
}

/// What is to be said of a volume that was opened.
pub(crate) fn of_opened(engine: &Engine, tell: &OnNotice) {
    let volume = engine.volume();
    for (what, why) in engine.not_read() {
        tell.tell(&format!("{what} cannot be read: {why}"));
    }
    for device in volume.left_out() {
        let (name, devid) = (&device.name, device.devid);
        tell.tell(&match device.why {
            WhyLeftOut::Outdated => format!("{name} is not used: another device {devid} is newer"),
            _ => format!("{name} is not used: it says that it is device {devid} of the volume, which has none"),
        });
    }
    for device in volume.devices() {
        let (name, devid) = (&device.name, device.devid);
        if device.missing {
            tell.tell(&format!("device {devid} ({}) is missing", device.uuid));
        } else if device.behind > 1 {
            let behind = device.behind;
            tell.tell(&format!(
                "device {devid} ({name}) missed {behind} transactions and is not relied on: `oleo scrub start` brings it up to date while the volume is not mounted"
            ));
        }
    }
}

/// What is to be said of devices that failed since this was last asked.
pub(crate) fn of_lost(volume: &Volume, tell: &OnNotice) {
    volume.take_lost().iter().for_each(|lost| tell.tell(&lost_text(lost)));
}

fn lost_text(lost: &LostDevice) -> String {
    let LostDevice { devid, name, error, .. } = lost;
    match lost.is_target {
        true => format!("{name}, which was to take the place of device {devid}, failed: {error}"),
        false => format!("device {devid} ({name}) failed and is not used any more: {error}"),
    }
}
