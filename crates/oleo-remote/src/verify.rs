//! Verifying: every object that a volume needs is read, and everything that can be compared is.
//!
//! For the newest head and then for each pin: (1) it is opened as by a reader, which reads and compares the pages of the index
//! and of the segment table, the directories of listed segments, and the tail; (2) every region is loaded, one at a time: each
//! run must be in a frame that has those blocks; (3) the live blocks of every segment are counted and compared with the
//! table; (4) every segment that is needed is read whole: its footer, its directory, each frame with its checksum and its
//! seal, and that the directory says the same as the frames. At last (5) objects are listed, and those that nobody names are
//! counted: they are no damage (a writer that was lost leaves some), and a listing may be old.
//!
//! What two heads share is read once. Memory: one segment, one region, and directories up to a bound; names of objects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use oleo_format::Corruption;

use crate::attach::attach_reading;
use crate::error::{RemoteError, StoreError};
use crate::fetch::{Part, begin, begin_page, checked, page};
use crate::format::map::{Row, Run, parse_graves};
use crate::format::pins::{PINS_LEN_MAX, Pins};
use crate::format::segment::{Change, Entry, FOOTER_LEN, parse_directory, parse_footer, parse_footer_of, parse_frame};
use crate::format::{ObjectId, ObjectRef, REGION_BLOCKS, SegmentRef, ensure};
use crate::options::StoreOptions;
use crate::read::load;
use crate::shared::Core;
use crate::store::{Answer, Deadline, Op, Retry, Store, get};

/// Most findings that are kept; more are counted.
const FINDING_COUNT_MAX: usize = 1000;
/// Most bytes of directories that are kept while regions are compared with them.
const DIRECTORY_BYTES_MAX: usize = 64 << 20;
/// Keys of one listing.
const LIST_COUNT: usize = 1000;

/// What is to be verified.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VerifyOptions {
    /// Only heads, maps and directories; not the frames.
    pub heads_only: bool,
}

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub struct Finding {
    /// In the newest head (none) or in which pin.
    pub pin: Option<String>,
    /// What is wrong.
    pub what: RemoteError,
}

/// What was found.
#[derive(Clone, Default, Debug)]
pub struct VerifyReport {
    /// Heads that were verified: the newest one and those of pins.
    pub heads: u64,
    /// Segments that were read whole.
    pub segments: u64,
    /// Their bytes.
    pub segment_bytes: u64,
    /// Frames in them.
    pub frames: u64,
    /// Runs of maps that were compared with the frames.
    pub runs: u64,
    /// Blocks that live.
    pub live_blocks: u64,
    /// What is wrong; at most a thousand.
    pub findings: Vec<Finding>,
    /// How many more there were.
    pub findings_left_out: u64,
    /// Objects that no head names.
    pub orphans: u64,
    /// Their bytes.
    pub orphan_bytes: u64,
}

struct Verifier<'a> {
    options: &'a StoreOptions,
    what: VerifyOptions,
    progress: &'a mut dyn FnMut(&VerifyReport),
    pin: Option<String>,
    /// Segments that were read.
    read: HashSet<([u8; 16], ObjectId)>,
    /// Objects that a head names.
    named: HashSet<ObjectId>,
    report: VerifyReport,
}

/// Verifies a volume with all its pins. Damage is in the report; an error means that it could not be looked for. `progress`
/// hears of what was done now and then.
pub fn verify(
    store: &Arc<dyn Store>,
    options: &StoreOptions,
    what: VerifyOptions,
    progress: &mut dyn FnMut(&VerifyReport),
) -> Result<VerifyReport, RemoteError> {
    let (read, named) = (HashSet::new(), HashSet::new());
    let mut verifier = Verifier { options, what, progress, pin: None, read, named, report: VerifyReport::default() };
    verifier.head(store)?;
    for pin in verifier.pins(store)? {
        verifier.pin = Some(pin);
        verifier.head(store)?;
    }
    if verifier.report.findings.is_empty() {
        // With damage it is not known what is named.
        verifier.orphans(store)?;
    }
    Ok(verifier.report)
}

impl Verifier<'_> {
    fn deadline(&self) -> Deadline {
        self.options.host.now() + self.options.bounds.attach_max
    }

    /// Damage is noted; anything else ends it.
    fn note(&mut self, result: Result<(), RemoteError>) -> Result<(), RemoteError> {
        let what = match result {
            Ok(()) => return Ok(()),
            Err(e @ (RemoteError::Corrupt(_) | RemoteError::Stale { .. })) => e,
            Err(e @ RemoteError::Store { source: StoreError::Wrong(_) | StoreError::Absent, .. }) => e,
            Err(e) => return Err(e),
        };
        if self.report.findings.len() < FINDING_COUNT_MAX {
            self.report.findings.push(Finding { pin: self.pin.clone(), what });
        } else {
            self.report.findings_left_out += 1;
        }
        Ok(())
    }

    /// The names of the pins that have a head of their own.
    fn pins(&mut self, store: &Arc<dyn Store>) -> Result<Vec<String>, RemoteError> {
        let retry = Retry::new(store.clone(), self.options.host.clone());
        let found = match get(&retry, "pins", PINS_LEN_MAX as u64, self.deadline()) {
            Err(StoreError::Absent) => return Ok(Vec::new()),
            found => found.map_err(|e| RemoteError::store("get", "pins", e))?,
        };
        match Pins::parse(&found.0) {
            Ok(pins) => Ok(pins.pins.into_iter().filter(|pin| pin.expires.is_none()).map(|pin| pin.name).collect()),
            Err(e) => self.note(Err(e.within("pins").into())).map(|()| Vec::new()),
        }
    }

    fn head(&mut self, store: &Arc<dyn Store>) -> Result<(), RemoteError> {
        // Everything is to come from the store.
        let options = StoreOptions { cache: None, ..self.options.clone() };
        let core = match attach_reading(store.clone(), self.pin.as_deref(), &options) {
            Ok(core) => core,
            Err(e) => return self.note(Err(e)),
        };
        self.report.heads += 1;
        let (rows, objects): (BTreeMap<u32, Row>, Vec<ObjectId>) = {
            let state = core.state.lock();
            let rows = state.table.rows().iter().enumerate();
            let rows = rows.filter_map(|(n, row)| Some((n as u32, (*row)?))).collect();
            (rows, state.saved.objects.keys().copied().collect())
        };
        let listed: Vec<ObjectId> = core.published.lock().head.segments.iter().map(|segment| segment.id).collect();
        let graves: Vec<ObjectId> = core.published.lock().head.graves.iter().map(|grave| grave.id).collect();
        self.named.extend(objects);
        self.named.extend(graves);
        self.graves(&core)?;
        let own = core.state.lock().open_id();
        let mut directories = Directories::default();
        let live = self.regions(&core, &rows, own, &mut directories)?;
        // All regions have been loaded, so the counts are exact.
        let now: Vec<(u32, Row)> = {
            let state = core.state.lock();
            rows.keys().filter_map(|n| Some((*n, *state.table.get(*n)?))).collect()
        };
        for (n, row) in &now {
            let have = live.get(n).copied().unwrap_or(0);
            if have != row.live && self.report.findings.is_empty() {
                let wrong = Corruption::new("segment table", "live blocks", row.live, have).within(row.id);
                self.note(Err(wrong.into()))?;
            }
        }
        for (_, row) in now.iter().filter(|(_, row)| Some(row.id) != own) {
            self.named.insert(row.id);
            let needed = row.live > 0 || listed.contains(&row.id);
            let name = (core.bound(row.id).uuid, ObjectId { origin: 0, ..row.id });
            if needed && self.read.insert(name) && !self.what.heads_only {
                let segment = self.segment(&core, row);
                self.note(segment)?;
                (self.progress)(&self.report);
            }
        }
        Ok(())
    }

    /// Notes what is dead and not deleted.
    fn graves(&mut self, core: &Core) -> Result<(), RemoteError> {
        let pages: Vec<(u32, ObjectRef)> =
            core.state.lock().saved.graves.iter().map(|(number, at)| (*number, *at)).collect();
        for (number, at) in pages {
            let deadline = self.deadline();
            let parse = |bytes: &[u8]| parse_graves(bytes, number);
            match page(core, at, begin_page(core, at, deadline), deadline, parse) {
                Ok(graves) => self.named.extend(graves.iter().map(|grave| grave.id)),
                Err(e) => self.note(Err(e))?,
            }
        }
        Ok(())
    }

    /// Reads a segment and compares all of it.
    fn segment(&mut self, core: &Core, row: &Row) -> Result<(), RemoteError> {
        let part = Part { id: row.id, off: 0, len: row.len.into() };
        let deadline = self.deadline();
        let frames = checked(core, part, begin(core, part, deadline), deadline, |bytes| {
            whole_segment(core, row.id, bytes).map_err(|e| e.within(row.id))
        })?;
        self.report.segments += 1;
        self.report.segment_bytes += u64::from(row.len);
        self.report.frames += frames;
        Ok(())
    }

    /// Compares the runs of all regions with the frames; returns the live blocks by row.
    fn regions(
        &mut self,
        core: &Core,
        rows: &BTreeMap<u32, Row>,
        own: Option<ObjectId>,
        directories: &mut Directories,
    ) -> Result<HashMap<u32, u32>, RemoteError> {
        let mut live: HashMap<u32, u32> = HashMap::new();
        let numbers = core.state.lock().regions.numbers();
        for region in numbers {
            let runs = match runs_of(core, region, self.deadline()) {
                Ok(runs) => runs,
                Err(e) => {
                    self.note(Err(e))?;
                    continue;
                }
            };
            for run in runs {
                *live.entry(run.row).or_default() += u32::from(run.blocks);
                self.report.runs += 1;
                self.report.live_blocks += u64::from(run.blocks);
                let Some(row) = rows.get(&run.row) else {
                    self.note(Err(Corruption::new("run", "row", run.row, "one of the table").into()))?;
                    continue;
                };
                if Some(row.id) != own {
                    let compared = directories
                        .of(core, row, self.deadline())
                        .and_then(|directory| Ok(compare(&run, region, directory).map_err(|e| e.within(row.id))?));
                    self.note(compared)?;
                }
            }
            (self.progress)(&self.report);
        }
        Ok(live)
    }

    /// Counts objects that no head names.
    fn orphans(&mut self, store: &Arc<dyn Store>) -> Result<(), RemoteError> {
        let retry = Retry::new(store.clone(), self.options.host.clone());
        for prefix in ["seg/", "map/"] {
            let mut after = String::new();
            loop {
                let op = Op::List { prefix: prefix.into(), after: after.clone(), count_max: LIST_COUNT };
                let answer = retry.submit(op, self.deadline()).wait();
                let listed = match answer.map_err(|e| RemoteError::store("list", prefix, e))? {
                    Answer::Listed(listed) => listed,
                    _ => return Err(RemoteError::store("list", prefix, StoreError::Wrong("no list".into()))),
                };
                for object in &listed {
                    let named = ObjectId::of_key(&object.key).is_some_and(|id| self.named.contains(&id));
                    if !named {
                        self.report.orphans += 1;
                        self.report.orphan_bytes += object.len;
                    }
                }
                match listed.last() {
                    Some(last) if last.key > after => after = last.key.clone(),
                    _ => break,
                }
            }
        }
        Ok(())
    }
}

/// The runs of a region, all changes applied.
fn runs_of(core: &Core, region: u32, deadline: Deadline) -> Result<Vec<Run>, RemoteError> {
    let missing = match core.state.lock().regions.loaded(region) {
        Ok(runs) => return Ok(runs.map(|runs| runs.all().collect()).unwrap_or_default()),
        Err(missing) => missing,
    };
    load(core, missing, deadline)?;
    let mut state = core.state.lock();
    match state.regions.loaded(region) {
        Ok(runs) => Ok(runs.map(|runs| runs.all().collect()).unwrap_or_default()),
        Err(_) => Err(RemoteError::Limit { what: format!("region {region} does not stay in memory") }),
    }
}

/// Compares all of a segment; returns how many frames it has.
fn whole_segment(core: &Core, id: ObjectId, bytes: &[u8]) -> Result<u64, Corruption> {
    let (known, first) = parse_footer(bytes)?;
    let what = "segment";
    ensure!(known.id == ObjectId { origin: 0, ..id }, what, "its own name", known.id, id);
    let dir = &bytes[known.dir_off as usize..][..known.dir_len() as usize];
    let bound = core.bound(id);
    for (entry, position) in
        parse_directory(dir, &SegmentRef { id, ..known }, bound.uuid, core.coder.key())?.iter().zip(first..)
    {
        let rest = bytes.get(entry.off as usize..known.dir_off as usize).unwrap_or(&[]);
        let frame = parse_frame(rest, entry.off, &bound)?;
        ensure!(
            frame.entry == *entry,
            what,
            "entry of the directory",
            format!("{entry:?}"),
            format!("{:?}", frame.entry)
        );
        ensure!(frame.position == position, what, "position of a frame", frame.position, position);
        core.coder.unpack(&frame, &bound)?;
    }
    Ok(known.frames.into())
}

/// Whether a run is in the frame that it names.
fn compare(run: &Run, region: u32, directory: &[Entry]) -> Result<(), Corruption> {
    let odd =
        |have: String| Corruption::new("run", "frame", have, format!("{} blocks of {} bytes", run.blocks, run.stored));
    let at = directory.binary_search_by_key(&run.off, |entry| entry.off);
    let entry = at.ok().and_then(|at| directory.get(at)).ok_or_else(|| odd(format!("none at {}", run.off)))?;
    let Change::Data { first, blocks, stored, .. } = entry.change else { return Err(odd("one without blocks".into())) };
    let begins = u64::from(region) * REGION_BLOCKS + u64::from(run.start);
    let skip = u64::from(run.skip);
    let fits = stored == run.stored && first + skip == begins && skip + u64::from(run.blocks) <= u64::from(blocks);
    if fits { Ok(()) } else { Err(odd(format!("{blocks} blocks from {first}, {stored} bytes"))) }
}

/// Directories of segments, as many as fit.
#[derive(Default)]
struct Directories {
    by_id: HashMap<ObjectId, Vec<Entry>>,
    bytes: usize,
}

impl Directories {
    fn of(&mut self, core: &Core, row: &Row, deadline: Deadline) -> Result<&[Entry], RemoteError> {
        if !self.by_id.contains_key(&row.id) {
            let entries = directory_of(core, row, deadline)?;
            let bytes = size_of_val(&entries[..]);
            if self.bytes + bytes > DIRECTORY_BYTES_MAX {
                (self.by_id, self.bytes) = (HashMap::new(), 0);
            }
            self.bytes += bytes;
            self.by_id.insert(row.id, entries);
        }
        Ok(self.by_id.get(&row.id).map(Vec::as_slice).unwrap_or(&[]))
    }
}

/// Reads the directory of a segment of which only the length is known.
fn directory_of(core: &Core, row: &Row, deadline: Deadline) -> Result<Vec<Entry>, RemoteError> {
    let footer_len = FOOTER_LEN as u64;
    let short = || Corruption::new("segment table", "length", row.len, format!("at least {footer_len}")).within(row.id);
    let off = u64::from(row.len).checked_sub(footer_len).ok_or_else(short)?;
    let part = Part { id: row.id, off, len: footer_len };
    let known = checked(core, part, begin(core, part, deadline), deadline, |bytes| {
        parse_footer_of(bytes, row.len.into()).map(|(known, _)| known).map_err(|e| e.within(row.id))
    })?;
    let part = Part { id: row.id, off: known.dir_off.into(), len: known.dir_len().into() };
    let segment = SegmentRef { id: row.id, ..known };
    checked(core, part, begin(core, part, deadline), deadline, |bytes| {
        parse_directory(bytes, &segment, core.bound(row.id).uuid, core.coder.key())
    })
}
