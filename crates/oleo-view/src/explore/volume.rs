//! The volume that is explored: opened for reading, and anew when a mount has committed.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use oleo::check::{CheckOptions, Report, Start};
use oleo::control::{Reply, Request};
use oleo::inspect::Inspector;
use oleo::layers::format::Classified;
use oleo::{Access, ErrorKind, Image};
use oleo_browse::{Refused, Unread};

use super::target::Target;
use crate::answers::{Checked, Pace};
use crate::{Findings, Map, MapOptions};

/// How often a mount's superblock is looked at, at most.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the progress of a check is told.
const TOLD_EVERY: Duration = Duration::from_millis(200);
/// How often something is read anew, because a mount has overwritten it meanwhile.
const TRIES_MAX: usize = 3;

struct Opened {
    image: Arc<Image>,
    generation: u64,
    looked: Instant,
}

/// What is open now.
pub(super) struct Current {
    pub target: Target,
    opened: Mutex<Opened>,
    /// The last map, and the generation that it is of.
    map: Mutex<Option<(u64, Arc<Map>)>>,
    /// Held while a check runs.
    checking: Mutex<()>,
    /// What the last check found, for maps.
    found: Mutex<Option<Findings>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Current {
    pub fn open(mut target: Target) -> oleo::Result<Current> {
        target.options.access = if target.mount.is_some() { Access::ReadOnlyInUse } else { Access::ReadOnly };
        let image = opened(&target)?;
        let generation = image.volume().super_block().generation.get();
        let opened = Opened { image: Arc::new(image), generation, looked: Instant::now() };
        Ok(Current {
            target,
            opened: Mutex::new(opened),
            map: Mutex::new(None),
            checking: Mutex::new(()),
            found: Mutex::new(None),
        })
    }

    /// The volume as the last commit left it.
    pub fn image(&self) -> oleo::Result<Arc<Image>> {
        let mut opened = locked(&self.opened);
        if self.target.mount.is_some() && opened.looked.elapsed() >= LOOK_EVERY {
            opened.looked = Instant::now();
            if newest(&self.target.image, &self.target)? != opened.generation {
                self.reopen(&mut opened)?;
            }
        }
        Ok(opened.image.clone())
    }

    fn reopen(&self, opened: &mut Opened) -> oleo::Result<()> {
        let image = self::opened(&self.target)?;
        opened.generation = image.volume().super_block().generation.get();
        opened.image = Arc::new(image);
        Ok(())
    }

    /// Opens the volume anew, if a mount has it: what was to be read has been overwritten.
    pub fn renewed(&self) -> oleo::Result<Option<Arc<Image>>> {
        if self.target.mount.is_none() {
            return Ok(None);
        }
        let mut opened = locked(&self.opened);
        self.reopen(&mut opened)?;
        Ok(Some(opened.image.clone()))
    }

    /// Reads something, beginning with its path; once more if a mount has overwritten meanwhile what was to be read.
    pub fn read<T>(&self, read: impl Fn(&Arc<Image>) -> Result<T, Unread>) -> Result<T, Refused> {
        let mut tries = 1;
        loop {
            match read(&self.image().map_err(refused)?) {
                Err(Unread::Fs(error))
                    if self.target.mount.is_some() && error.kind() == ErrorKind::Corruption && tries < TRIES_MAX =>
                {
                    tries += 1;
                    self.reopen(&mut locked(&self.opened)).map_err(refused)?;
                }
                Err(why) => return Err(why.into()),
                Ok(done) => return Ok(done),
            }
        }
    }

    /// For tests: commits are noticed only when something cannot be read.
    #[cfg(test)]
    pub fn never_look(&self) {
        locked(&self.opened).looked += Duration::from_secs(3600);
    }

    /// Whether a check runs.
    pub fn is_checking(&self) -> bool {
        matches!(self.checking.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// The map of what is there now, with what the last check found, or, of a mount, the last scrub.
    pub fn map(&self) -> Result<Arc<Map>, crate::MapError> {
        let map = self.plain_map()?;
        let found = match &self.target.mount {
            None => locked(&self.found).clone(),
            Some(ask) => match ask(Request::ScrubStatus { files: true }) {
                Ok(Reply::Scrub(shown)) if shown.status.number > 0 => Some(Findings::of_scrub(&shown)),
                _ => None,
            },
        };
        let Some(found) = found else { return Ok(map) };
        let mut map = Map::clone(&map);
        map.add_findings(found);
        Ok(Arc::new(map))
    }

    /// Made once for each generation.
    fn plain_map(&self) -> Result<Arc<Map>, crate::MapError> {
        let generation = self.image()?.volume().super_block().generation.get();
        let mut kept = locked(&self.map);
        if let Some((of, map)) = &*kept
            && *of == generation
        {
            return Ok(map.clone());
        }
        let options = MapOptions { table_bytes: self.target.map_bytes, space_only: false };
        let mut tries = 1;
        let map = loop {
            let read = Inspector::open(&self.target.image, &self.target.options)
                .map_err(crate::MapError::from)
                .and_then(|inspector| Map::read(&inspector, &options));
            let is_last = self.target.mount.is_none() || tries == TRIES_MAX;
            match read {
                Ok(map) if is_last || map.unread == 0 => break Arc::new(map),
                Err(error) if is_last => return Err(error),
                _ => tries += 1,
            }
        };
        *kept = Some((map.generation, map.clone()));
        Ok(map)
    }
}

impl Checked for Current {
    fn check(&self, how: &CheckOptions<'_>) -> oleo::Result<Report> {
        let _one = locked(&self.checking);
        oleo::check::image(&self.target.image, &self.target.options, Start::default(), how)
    }

    fn image(&self) -> oleo::Result<Arc<Image>> {
        Current::image(self)
    }

    fn has_found(&self, findings: Findings) {
        *locked(&self.found) = Some(findings);
    }

    fn pace(&self) -> Pace {
        let mut told = Instant::now();
        Box::new(move || {
            let is_time = told.elapsed() > TOLD_EVERY;
            if is_time {
                told = Instant::now();
            }
            is_time
        })
    }
}

fn opened(target: &Target) -> oleo::Result<Image> {
    Image::open(&target.image, &target.options)
}

/// The generation in the best superblock of the first device.
fn newest(path: &Path, target: &Target) -> oleo::Result<u64> {
    let copies = oleo::inspect::superblocks(path, target.options.offset, &target.options.places)?;
    Ok(copies.into_iter().filter_map(|(_, sb)| Some(sb.ok()?.generation.get())).max().unwrap_or(0))
}

/// An error of the library as an answer.
pub(super) fn refused(error: oleo::Error) -> Refused {
    Refused::of(&error)
}
