//! A receive that is interrupted anywhere leaves nothing of a subvolume, a marked part, or all of it; and it can be
//! resumed.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use oleo::receive::{MARK, Receive, ReceiveOptions, Report};
use oleo::send::SendOptions;
use oleo::{Device, Image, SnapshotOptions, TreeId};
use oleo_sim::budget::budget;
use oleo_sim::crash::pages::{Contents, Overlay};
use oleo_sim::crash::record::{Event, Journal};
use oleo_sim::crash::states::{Kinds, Maker, cuts, progress};
use oleo_sim::manifest::{Detail, Ignore, Manifest};
use oleo_sim::rng::Rng;
use oleo_sim::script::{Mix, generate};

use crate::crash::run::{Base, Shape, check, open, options};
use crate::crash::tally::{Failure, Tally, in_parallel, say};
use crate::ours::{OleoTree, Ours};

const KINDS: Kinds = Kinds { flushes: true, writes: true, steps: true, some: 2, torn: 2 };
/// States verified of each receive.
const STATES_MAX: usize = 60;

fn mix() -> Mix {
    Mix {
        steps: 250,
        promises: 2,
        subvolumes: false,
        compress: true,
        file_len_max: 60_000,
        names_max: 60,
        ..Mix::default()
    }
}

/// Streams of snapshots of one subvolume, each on the one before.
fn streams(seed: u64, count: u64) -> Result<Vec<Vec<u8>>> {
    let image = Arc::new(open(&Base::new(Shape::USUAL, &[]).contents, true)?);
    image.create_subvol("work")?;
    let mut ours = Ours::sharing(image.clone(), "work");
    let mut before: Option<TreeId> = None;
    let mut out = Vec::new();
    for number in 0..count {
        for op in generate(seed * 10 + number, &mix()) {
            // Many are meant to fail.
            let _answer = ours.try_apply(&op);
        }
        let read_only = SnapshotOptions::default().read_only(true);
        let snapshot = image.snapshot("work", format!("s{number}"), &read_only)?;
        let mut stream = Vec::new();
        let how = SendOptions::default().parent(before).version(2);
        image.send(&[snapshot], &how, &mut stream)?;
        out.push(stream);
        before = Some(snapshot);
    }
    Ok(out)
}

/// So often that there are commits all the way.
fn how(resume: bool) -> Receive {
    let options = ReceiveOptions::default().resume(resume).commands_per_commit(40);
    Receive::default().options(options)
}

fn receive(image: &Image, stream: &[u8], how: &Receive) -> Result<Report> {
    Ok(image.receive(Cursor::new(stream.to_vec()), how)?)
}

fn contents(image: &Image, name: &str) -> Result<Manifest> {
    let detail = Detail { holes: true, sharing: false, otime: true, atime_ctime: true };
    Manifest::of(&OleoTree::below(image, image.subvol(name)?), detail)
}

/// What exists of a subvolume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Nothing,
    /// Marked; up to this byte of the stream.
    Part(Option<u64>),
    All,
}

fn found(image: &Image, name: &str) -> Result<Found> {
    let Ok(root) = image.subvol(name) else { return Ok(Found::Nothing) };
    let info = image.fs().subvol_info(root.tree())?;
    let mark = image.fs().xattr_get(&root, MARK)?;
    match mark {
        None => {
            ensure!(info.read_only && !info.received_uuid.is_nil(), "{name} is neither marked nor complete: {info:?}");
            Ok(Found::All)
        }
        Some(mark) => {
            ensure!(!info.read_only && info.received_uuid.is_nil(), "{name} is marked, and complete: {info:?}");
            Ok(Found::Part(String::from_utf8(mark)?.split(' ').nth(4).map(str::parse).transpose()?))
        }
    }
}

/// A receive into recorded disks.
struct Run {
    base: Vec<Contents>,
    events: Vec<Event>,
    name: String,
    stream: Vec<u8>,
    want: Manifest,
}

impl Run {
    /// Receives, and what the disks hold afterwards.
    fn new(base: Vec<Contents>, stream: Vec<u8>, number: usize) -> Result<(Run, Vec<Contents>)> {
        let journal = Journal::new();
        let disks: Vec<_> = base.iter().enumerate().map(|(i, c)| Arc::new(journal.disk(i, c.clone()))).collect();
        let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let image = Image::from_devices(devices, &options(true))?;
        let name = format!("s{number}");
        journal.take();
        journal.begin(0);
        receive(&image, &stream, &how(false))?;
        journal.end(0);
        let events = journal.take();
        let want = contents(&image, &name)?;
        image.close()?;
        let mut after: Vec<Contents> = disks.iter().map(|d| d.contents()).collect();
        after.iter_mut().for_each(Contents::settle);
        Ok((Run { base, events, name, stream, want }, after))
    }

    /// Verifies the state after a crash, resumes the receive, and verifies the result.
    fn verify(&self, state: &[Contents], returned: bool) -> Result<Found> {
        let disks = || -> Vec<Arc<dyn Device>> {
            state.iter().map(|c| Arc::new(Overlay::new("disk", c.clone())) as Arc<dyn Device>).collect()
        };
        let image = Image::from_devices(disks(), &options(true)).context("it does not open")?;
        let wrong = check(&image);
        ensure!(wrong.is_empty(), "check: {wrong:?}");
        let found = found(&image, &self.name)?;
        ensure!(!returned || found == Found::All, "the receive had returned: {found:?}");
        if found == Found::All {
            self.must_be_whole(&image).context("complete after the crash")?;
        }
        let report = receive(&image, &self.stream, &how(true)).with_context(|| format!("going on from {found:?}"))?;
        ensure!(report.subvols.len() == 1, "{report:?}");
        ensure!(report.subvols[0].passed_over == (found == Found::All), "{found:?}: {report:?}");
        self.must_be_whole(&image).with_context(|| format!("gone on from {found:?}"))?;
        image.clean()?;
        let wrong = check(&image);
        ensure!(wrong.is_empty(), "check after going on from {found:?}: {wrong:?}");
        image.close()?;
        Ok(found)
    }

    fn must_be_whole(&self, image: &Image) -> Result<()> {
        ensure!(self::found(image, &self.name)? == Found::All, "{} is not complete", self.name);
        let differ = self.want.differences(&contents(image, &self.name)?, &Ignore::default());
        ensure!(differ.is_empty(), "{}: {differ:?}", self.name);
        Ok(())
    }
}

/// States found: nothing, parts without and with a place, all.
type Kinds4 = [u64; 4];

fn history(seed: u64, kinds: &std::sync::Mutex<Kinds4>) -> Result<Tally> {
    let mut tally = Tally { runs: 1, ..Tally::default() };
    let mut rng = Rng::new(seed);
    let mut base = Base::new(Shape::BARE, &[]).contents;
    for (number, stream) in streams(seed, 2)?.into_iter().enumerate() {
        let begin = Instant::now();
        let (run, after) = Run::new(base, stream, number)?;
        tally.time_running += begin.elapsed();
        let begin = Instant::now();
        let mut all = cuts(&run.events, &KINDS, &mut rng);
        while all.len() > STATES_MAX {
            all.remove(usize::try_from(rng.below(all.len() as u64 - 1))?);
        }
        let mut maker = Maker::new(&run.base, &run.events);
        let mut returned = false;
        for cut in &all {
            let state = maker.make(cut);
            tally.states += 1;
            // That of a receive is to return.
            returned |= progress(&run.events, cut.at).done > 0;
            match run.verify(&state, progress(&run.events, cut.at).done > 0) {
                Ok(found) => {
                    let kind = match found {
                        Found::Nothing => 0,
                        Found::Part(None) => 1,
                        Found::Part(Some(_)) => 2,
                        Found::All => 3,
                    };
                    kinds.lock().unwrap()[kind] += 1;
                }
                Err(e) => {
                    let state = format!("seed {seed}, stream {number}, {cut:?}");
                    tally.failures.push(Failure { wrong: vec![format!("{e:#}")], state, script: Vec::new() });
                }
            }
        }
        tally.promises += u64::from(returned);
        tally.time_verifying += begin.elapsed();
        base = after;
    }
    Ok(tally)
}

/// Goal: the state of a receive after a crash is sound, distinguished from a complete one, and resumed to the same
/// result. Method: whole and incremental streams of random trees, with commits throughout; every state is checked,
/// received into once more, and compared with an uninterrupted receive.
#[test]
fn is_gone_on_with() {
    let kinds = std::sync::Mutex::new(Kinds4::default());
    let seeds = budget().seeds(9000, 4, 12);
    let tally = in_parallel((seeds.end - seeds.start) as usize, |i| history(seeds.start + i as u64, &kinds).unwrap());
    let kinds = kinds.into_inner().unwrap();
    say(&format!("crash: found nothing, parts without a place, parts, all: {kinds:?}"));
    tally.must_be_clean("receives", |_| Tally::default());
    tally.must_have_tested(200, 0);
    assert!(kinds[0] > 0 && kinds[2] > 5 && kinds[3] > 0, "every sort is met: {kinds:?}");
}
