//! Which address an allocation gets.
//!
//! 1. The goal is where the search begins. A stream continues where it ended; a new stream of a directory begins where the last
//!    new one of that directory ended, so that small files lie side by side. A stream whose next address is taken skips ahead by
//!    one stretch, if the free run is that long, so that two streams, or two directories, do not interleave piece by piece. Tree
//!    blocks continue where the last tree blocks of their start cursor ended.
//! 2. The goal's group is tried first: at the goal, behind the stretch, then its shortest run that is long enough. A request
//!    without a goal skips this step.
//! 3. Then groups, in [`Pass`]es of falling expectations: class by class of lengths from the shortest that may hold the length; the best of the
//!    shorter runs, class by class downwards; any. Each pass visits the groups from the goal's (without a goal: from the
//!    start cursor's) upwards and around. Where runs are about as long as what is wanted, several groups are compared and the shortest run is
//!    taken; of equals the first. So new data fills the lowest groups and the shortest runs, and long runs stay whole.
//!    In groups with parity, what is shorter than a row first looks for a row that is free as a whole: beside what is live parity is at stake, and writing costs
//!    a record and a flush (decision 0032).
//! 4. A group that another thread has locked or is loading is stepped over, except in the last pass, which waits.
//!
//! Rows: what is at least as long as a row of a group with parity begins where a row does. What follows its goal goes on in the row as long as nothing of it
//! has become durable ([`Space::turn`]); afterwards it goes to the next row, unless it is in the first unit of its own: the columns further on
//! there are whole. What is small then goes behind others that were put into a fresh row in the same turn, as what is new does: else each file that is changed
//! here and there would take a row of its own. Nothing is refused for the sake of rows.
//!
//! Start cursors: requests without a goal begin at one of several cursors, whose number follows from the number of processors.
//! All threads begin with the first cursor, at the lowest group; a thread that finds a group busy gets a cursor of its own,
//! which begins where that search ended. So threads that disturb each other separate, and the same calls, one after the
//! other, get the same addresses on any machine: without contention no clock, thread number, number of processors or hash
//! seed has an influence.
//!
//! Invariants: what is returned is inside one group, aligned, of a length between the least and the wanted one.
//!
//! Locks: the table, then one group's state at a time; neither while a group is loaded or waited for. Goals are
//! hints in atomic numbers.
//! Not here: whether the caller may have the space at all (`account`), how groups are loaded (`load`).

use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use oleo_format::{ByteLen, Logical};

use crate::faults::RequestKind;
use crate::group::{COUNT_UNKNOWN, Content, Group, GroupHere, UNIT_LEN};
use crate::hints::{Goal, SearchStart, StartKind};
use crate::index::By;
use crate::inner::Inner;
use crate::load::AHEAD_GROUPS;
use crate::runs::find::{NEAR_CLASSES, bits, bits_down};
use crate::runs::{Fit, Found, Rows, Runs, class_of, class_sure};
use crate::space::Space;
use crate::table::Table;
use crate::{Grant, Kind, LoadError, Refusal, Reservation, Run};

/// Groups looked into, in one pass, on the mere chance that they hold enough.
const CHANCES_MAX: usize = 8;
/// Groups without parity that are passed over for nothing when a fresh row is looked for: nobody looks into them, and while a volume is converted
/// there are many.
const ROWLESS_MAX: usize = 64;

/// Groups whose runs of one class are compared, for the shortest that holds what is wanted.
const COMPARED_MAX: usize = 16;

/// Turns of the last pass while others free and take: each turn is one in which somebody else got on.
const ROUNDS_MAX: usize = 1000;

/// An allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// What for.
    pub kind: Kind,
    /// Bytes wanted.
    pub len: ByteLen,
    /// Bytes that will do, when no free run holds `len`.
    pub min_len: ByteLen,
    /// Start and length will be multiples of this power of two; the sector size at least.
    pub align: ByteLen,
    /// Where it would like to be.
    pub goal: Goal,
}

/// How much is expected of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Pass {
    /// It holds a row with parity that is free as a whole.
    FreshRow,
    /// It holds the whole length, or may.
    Whole,
    /// It holds less than the whole length, but the most there is.
    Best,
    /// Anything that will do, waiting for a thread that is busy there.
    Any,
}

/// What came of a look into a group.
enum Visit {
    Taken(Run),
    Nothing,
    /// Another thread has it.
    Busy,
    /// Its runs are not known.
    Unloaded,
    /// What it has is held by a trimmer.
    Held,
}

/// One pass over groups.
struct Walk<'a> {
    kind: Kind,
    /// Goes up from there and round.
    from: u64,
    fit: &'a Fit,
    /// Another thread was met.
    disturbed: Cell<bool>,
}

impl Inner {
    /// Takes a run that fits from the groups there are.
    fn take(&self, kind: Kind, fit: &Fit, search_start: SearchStart) -> Result<Option<Run>, LoadError> {
        let mut walk = Walk { kind, from: search_start.at, fit, disturbed: Cell::new(false) };
        let row_len = self.row_len(kind);
        if search_start.kind_of_start == StartKind::New
            && fit.len < row_len
            && let Some(run) = self.take_behind_others(kind, fit)
        {
            return Ok(Some(run));
        }
        let is_small_and_late = search_start.kind_of_start == StartKind::Continuation && search_start.is_old;
        if is_small_and_late && fit.len <= UNIT_LEN.min(row_len) {
            if let Some(run) = self.take_in_own_columns(kind, fit, search_start) {
                return Ok(Some(run));
            }
            if let Some(run) = self.take_behind_others(kind, fit) {
                return Ok(Some(run));
            }
        }
        if search_start.kind_of_start != StartKind::New {
            let in_fresh_row = Cell::new(false);
            match self.take_in_goal_group(kind, fit, search_start, row_len > 0, &in_fresh_row)? {
                (Visit::Taken(run), _) => {
                    if in_fresh_row.get() || self.hints.in_fresh_row(kind) == Some(run.start.0) {
                        self.hints.began_row(kind, run.end().0);
                    }
                    return Ok(Some(run));
                }
                (Visit::Busy, end) => {
                    walk.disturbed.set(true);
                    walk.from = end;
                }
                _ => {}
            }
        }
        let mut taken = None;
        if fit.len < row_len {
            taken = self.take_fresh_row(&walk, row_len)?;
            taken.inspect(|run| self.hints.began_row(kind, run.end().0));
            if taken.is_none()
                && search_start.kind_of_start != StartKind::New
                && let (Visit::Taken(run), _) =
                    self.take_in_goal_group(kind, fit, search_start, false, &Cell::new(false))?
            {
                taken = Some(run);
            }
        }
        if taken.is_none() {
            taken = self.take_in_groups(&walk)?;
        }
        if walk.disturbed.get() {
            self.hints.move_to_own_cursor();
            if let Some(run) = taken
                && self.hints.cursor_number() > 0
            {
                self.hints.cursor().first[kind as usize].store(run.start.0, Relaxed);
            }
        }
        Ok(taken)
    }

    /// Data bytes of the longest rows with parity, if rows count.
    fn row_len(&self, kind: Kind) -> u64 {
        match self.ignores_rows.load(Relaxed) {
            false => self.row_len[kind as usize].load(Relaxed),
            true => 0,
        }
    }

    /// What is wanted, as it lies best in a group.
    fn fit(&self, kind: Kind, group: &Group, fit: &Fit) -> Fit {
        if self.row_len(kind) > 0 { group.fit(fit) } else { *fit }
    }

    /// Behind what was last put into a fresh row in this turn, if that is free.
    fn take_behind_others(&self, kind: Kind, fit: &Fit) -> Option<Run> {
        let at = self.hints.in_fresh_row(kind)?;
        let table = self.tables.read();
        let group = table.group_of(at).filter(|group| group.serves(kind))?;
        let whole = Fit { min_len: fit.len, ..*fit };
        let find = |group: &Group, runs: &Runs| {
            // At its end the next one has to be free as a whole.
            let is_border = group.rows().is_some_and(|rows| rows.border(at) == Some(at));
            let whole = if is_border { group.fresh_row(&whole)? } else { whole };
            runs.find_at(at, &whole)
        };
        match self.visit(&table, &group, false, &find) {
            Visit::Taken(run) => {
                self.hints.began_row(kind, run.end().0);
                Some(run)
            }
            _ => None,
        }
    }

    /// At the goal, in a row whose first part is durable, if it shares no column with that.
    fn take_in_own_columns(&self, kind: Kind, fit: &Fit, search_start: SearchStart) -> Option<Run> {
        let table = self.tables.read();
        let group = table.group_of(search_start.at).filter(|group| group.serves(kind))?;
        let find = |group: &Group, runs: &Runs| {
            let at = search_start.at;
            let goes_on = group.rows().is_none_or(|rows| continues(rows, runs, at, fit.len));
            goes_on.then(|| runs.find_at(at, &Fit { min_len: fit.len, ..*fit })).flatten()
        };
        match self.visit(&table, &group, false, &find) {
            Visit::Taken(run) => Some(run),
            _ => None,
        }
    }

    /// The start of a row that is free as a whole, for something shorter.
    fn take_fresh_row(&self, walk: &Walk<'_>, row_len: u64) -> Result<Option<Run>, LoadError> {
        // A run of two rows' length has one, wherever it begins.
        let sure = class_sure(2 * row_len, self.sector_shift);
        let classes = self.tables.read().classes(walk.kind);
        for class in bits(classes >> sure << sure) {
            if let Some(run) = self.walk(walk, Pass::FreshRow, By::Class(class), CHANCES_MAX)? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    fn take_in_groups(&self, walk: &Walk<'_>) -> Result<Option<Run>, LoadError> {
        let fit = walk.fit;
        let sector = 1 << self.sector_shift;
        let sure = class_sure(fit.len + fit.align - fit.align.min(sector), self.sector_shift);
        let own = class_of(fit.len.max(sector), self.sector_shift);
        let least = class_of(fit.min_len, self.sector_shift);
        let classes = self.tables.read().classes(walk.kind);
        // The last class is open-ended, so nothing is sure there.
        for class in bits(classes >> own << own) {
            if class < own + NEAR_CLASSES
                && let Some(run) = self.take_tightest(walk, class)
            {
                return Ok(Some(run));
            }
            let visits_max = if class < sure { CHANCES_MAX } else { usize::MAX };
            if let Some(run) = self.walk(walk, Pass::Whole, By::Class(class), visits_max)? {
                return Ok(Some(run));
            }
        }
        if fit.min_len < fit.len {
            for class in bits_down(classes >> least << least) {
                if let Some(run) = self.walk(walk, Pass::Best, By::Class(class), CHANCES_MAX)? {
                    return Ok(Some(run));
                }
            }
        }
        let search = self.pool(walk.kind).search();
        for _ in 0..ROUNDS_MAX {
            let seen = search.frees();
            if let Some(run) = self.walk(walk, Pass::Any, By::Any, usize::MAX)? {
                return Ok(Some(run));
            }
            // What became free behind our back, while what was in front of us was taken, is not to be missed: a
            // request that has a promise must not be refused.
            if search.frees() == seen {
                break;
            }
        }
        Ok(None)
    }

    /// The shortest run of a class that holds the whole length, of the first groups that have any and are neither busy nor
    /// unread; `None` if only one is to be looked at, or none of them has one.
    fn take_tightest(&self, walk: &Walk<'_>, class: usize) -> Option<Run> {
        let table = self.tables.read();
        let by = By::Class(class);
        let first = table.slot_from(walk.from);
        let above =
            std::iter::successors(table.next(walk.kind, by, first), |next| table.next(walk.kind, by, next.0 + 1));
        let below = std::iter::successors(table.next(walk.kind, by, 0), |next| table.next(walk.kind, by, next.0 + 1));
        let below = below.take_while(|next| next.0 < first);
        let mut best: Option<(u64, GroupHere<'_>)> = None;
        let mut groups = above.chain(below).take(COMPARED_MAX);
        let [first, second] = [groups.next()?, groups.next()?];
        for (_, group) in [first, second].into_iter().chain(groups) {
            let run_len = Cell::new(u64::MAX);
            let exact = |group: &Group, runs: &Runs| {
                let found = runs.find_tight(&self.fit(walk.kind, group, walk.fit))?;
                if class_of(found.run_len, self.sector_shift) == class {
                    run_len.set(found.run_len);
                }
                (found.run_len == walk.fit.len).then_some(found)
            };
            if let Visit::Taken(run) = self.visit(&table, &group, false, &exact) {
                return Some(run);
            }
            if run_len.get() < best.map_or(u64::MAX, |(len, _)| len) {
                best = Some((run_len.get(), group));
            }
        }
        let tight = |group: &Group, runs: &Runs| runs.find_tight(&self.fit(walk.kind, group, walk.fit));
        match self.visit(&table, &best?.1, false, &tight) {
            Visit::Taken(run) => Some(run),
            _ => None,
        }
    }

    /// The goal's group, and where it ends. Without `by_rows`, whatever parity that costs. Says whether it is the start of a row that was free as a
    /// whole, if the run is shorter than one.
    fn take_in_goal_group(
        &self,
        kind: Kind,
        fit: &Fit,
        search_start: SearchStart,
        by_rows: bool,
        in_fresh_row: &Cell<bool>,
    ) -> Result<(Visit, u64), LoadError> {
        let elsewhere = |runs: &Runs, at: u64, fit: &Fit| {
            if search_start.kind_of_start == StartKind::Address {
                return runs.find_whole(at, fit, false);
            }
            let apart = runs.find_apart(at.saturating_add(search_start.skip), search_start.rest_len, fit);
            apart.or_else(|| runs.find_tight(fit))
        };
        let find = |group: &Group, runs: &Runs| {
            let whole = Fit { min_len: fit.len, ..*fit };
            let at = search_start.at;
            let rows = group.rows().filter(|_| by_rows);
            let found = match rows.filter(|rows| search_start.is_old && !continues(*rows, runs, at, fit.len)) {
                None => runs.find_at(at, &whole).map(|found| (found, false)),
                Some(rows) => {
                    let fresh = group.fresh_row(&whole);
                    runs.find_at(rows.border(at)?, &fresh.unwrap_or(whole)).map(|found| (found, fresh.is_some()))
                }
            };
            // With no fresh row here, those of other groups come first.
            let there = || {
                let fresh = rows.and_then(|_| group.fresh_row(fit));
                let by_rows = || rows.map_or(*fit, |_| group.fit(fit));
                elsewhere(runs, at, &fresh.unwrap_or_else(by_rows)).map(|found| (found, fresh.is_some()))
            };
            let (found, is_fresh) = found.or_else(there)?;
            in_fresh_row.set(is_fresh);
            Some(found)
        };
        for _ in 0..2 {
            let table = self.tables.read();
            let Some(group) = table.group_of(search_start.at).filter(|group| group.serves(kind)) else { break };
            let visit = self.visit(&table, &group, false, &find);
            if !matches!(visit, Visit::Unloaded) {
                return Ok((visit, group.end));
            }
            let group = group.keep();
            drop(table);
            if !self.load(&group, false)? {
                break;
            }
        }
        Ok((Visit::Nothing, search_start.at))
    }

    /// One pass over the groups that the index names, going up and round, once.
    fn walk(&self, walk: &Walk<'_>, pass: Pass, by: By, visits_max: usize) -> Result<Option<Run>, LoadError> {
        let (wait, fit, kind) = (pass == Pass::Any, walk.fit, walk.kind);
        let least = class_of(fit.min_len, self.sector_shift);
        let find = |group: &Group, runs: &Runs| match pass {
            Pass::FreshRow => runs.find_tight(&group.fresh_row(fit)?),
            Pass::Whole => {
                runs.find_tight(&self.fit(kind, group, fit)).filter(|found| by.takes(found.run_len, self.sector_shift))
            }
            Pass::Best => runs.find_best(fit, false),
            Pass::Any => runs.find_whole(group.start, fit, true).or_else(|| runs.find_best(fit, true)),
        };
        let mut table = self.tables.read();
        let mut first = table.slot_from(walk.from);
        let mut at = first;
        let mut round = false;
        let mut loads = 0;
        let (mut chances, mut rowless) = (visits_max, 0);
        while chances > 0 {
            chances -= 1;
            let next = table.next(kind, by, at);
            let Some((slot, group)) = next.filter(|&(slot, _)| !round || slot < first) else {
                if round || first == 0 {
                    return Ok(None);
                }
                (at, round) = (0, true);
                continue;
            };
            if pass == Pass::FreshRow && group.rows().is_none() {
                rowless += 1;
                chances += usize::from(rowless <= ROWLESS_MAX);
                at = slot + 1;
                continue;
            }
            // Whatever is free there is too short. (Not so in the other passes, which go by class.)
            let too_short = wait && group.lengths().longest().is_none_or(|longest| longest < least);
            let visit = if too_short { Visit::Nothing } else { self.visit(&table, &group, wait, &find) };
            match visit {
                Visit::Taken(run) => return Ok(Some(run)),
                Visit::Nothing | Visit::Busy => {
                    walk.disturbed.set(walk.disturbed.get() || matches!(visit, Visit::Busy));
                    at = slot + 1;
                    continue;
                }
                Visit::Unloaded | Visit::Held => {}
            }
            // What takes time is done without the table, which may be another one afterwards.
            let group = group.keep();
            drop(table);
            let mut loaded = false;
            let again = match visit {
                Visit::Held => {
                    self.wait_for_held(&group);
                    true
                }
                _ if !wait && group.count.load(SeqCst) == COUNT_UNKNOWN => {
                    self.learn_counts(kind, by, slot);
                    true
                }
                _ => {
                    loads += 1;
                    // The first one deceived: a scan has begun; or what was read ahead is used up.
                    if loads % AHEAD_GROUPS == 2 {
                        self.expect(kind, by, slot);
                    }
                    loaded = self.load(&group, wait)?;
                    false
                }
            };
            table = self.tables.read();
            first = table.slot_from(walk.from);
            // What was just read is looked into under whatever order it is now: it may well do.
            let find_any = |group: &Group, runs: &Runs| {
                find(group, runs).or_else(|| runs.find_tight(fit).filter(|_| pass != Pass::FreshRow))
            };
            if loaded && let Visit::Taken(run) = self.visit(&table, &group, wait, &find_any) {
                return Ok(Some(run));
            }
            at = table.slot_from(group.start) + usize::from(!again);
        }
        Ok(None)
    }

    /// Looks into one group, and takes what `find` finds there.
    fn visit(&self, table: &Table, group: &Group, wait: bool, find: &impl Fn(&Group, &Runs) -> Option<Found>) -> Visit {
        let state = if wait { Some(group.state.lock()) } else { group.state.try_lock() };
        let Some(mut state) = state else { return Visit::Busy };
        if !group.is_open() {
            return Visit::Nothing;
        }
        state.set_recent(true);
        let is_loading = matches!(state.content(), Content::Loading);
        let Some(runs) = state.runs_mut() else {
            return if is_loading && !wait { Visit::Nothing } else { Visit::Unloaded };
        };
        match find(group, runs) {
            Some(found) => {
                runs.take_found(found);
                if group.rows().is_some() {
                    state.note_granted(self.hints.turn(), found.start, found.end);
                }
                group.add_free(-(found.end - found.start).cast_signed());
                self.refile(table, group, &mut state, 0);
                Visit::Taken(Run::between(found.start, found.end))
            }
            None if wait && state.sets().held.total() > 0 => Visit::Held,
            None => Visit::Nothing,
        }
    }

    /// Waits until a held run of a group is released. It is held only while it is discarded on the devices.
    fn wait_for_held(&self, group: &Group) {
        let seen = self.wakeups.seen();
        if group.state.lock().sets().held.total() > 0 {
            self.wakeups.wait(seen);
        }
    }

    /// Takes a run for bytes that are committed already.
    fn take_committed(&self, want: &Want, fit: &Fit) -> Result<Run, Refusal> {
        if fit.len < fit.min_len {
            return Err(Refusal::NeedChunk(want.kind));
        }
        let search_start = self.hints.search_start(want.kind, want.goal);
        let run = self.take(want.kind, fit, search_start)?.ok_or(Refusal::NeedChunk(want.kind))?;
        self.hints.ended(want.kind, want.goal, run.end().0);
        Ok(run)
    }
}

/// Whether something of a length at an address of a row that others have begun shares no column with them: it is in the first unit, whose length is that of all,
/// and the rest of the row is free.
fn continues(rows: Rows, runs: &Runs, at: u64, len: u64) -> bool {
    let in_row = at.saturating_sub(rows.base) % rows.len;
    let is_free = |end: u64| runs.at_or_after(at).is_some_and(|(start, run_end)| start <= at && end <= run_end);
    in_row + len <= UNIT_LEN && is_free(at - in_row + rows.len)
}

impl Space {
    /// What was allocated so far is about to become durable: what is put beside it in rows with parity from then on endangers it.
    pub fn turn(&self) {
        self.inner.hints.next_turn();
    }

    /// From now on rows do not count. For measurements.
    #[doc(hidden)]
    pub fn ignore_rows(&self) {
        self.inner.ignores_rows.store(true, Relaxed);
    }

    /// Takes a run of between `min_len` and `len` bytes, from space that is not promised to anybody.
    pub fn alloc(&self, want: &Want) -> Result<Grant, Refusal> {
        self.alloc_with(None, want)
    }

    /// The same against a promise: bytes that `hold` still has are used first and are reserved no longer.
    pub fn alloc_from(&self, hold: &Reservation, want: &Want) -> Result<Grant, Refusal> {
        self.alloc_with(Some(hold), want)
    }

    fn alloc_with(&self, hold: Option<&Reservation>, want: &Want) -> Result<Grant, Refusal> {
        let inner = &self.inner;
        inner.faults.check(RequestKind::Extent, want.kind)?;
        let sector = 1 << inner.sector_shift;
        let align = want.align.0.max(sector).next_power_of_two();
        let len = want.len.align_up(ByteLen(align)).0;
        let min_len = want.min_len.align_up(ByteLen(align)).0.clamp(align, len.max(align));
        let pool = inner.pool(want.kind);
        let claimed = hold.map_or(0, |hold| hold.claim(len));
        // Short of the least, the rest has to come from what nobody was promised.
        let more = if claimed == len {
            Some(0)
        } else {
            pool.commit_some(len - claimed, min_len.saturating_sub(claimed), sector)
        };
        let taken = match more {
            Some(more) => {
                let fit = Fit { len: (claimed + more) & !(align - 1), min_len, align, rows: None };
                inner.take_committed(want, &fit)
            }
            None => Err(Refusal::NeedChunk(want.kind)),
        };
        // Bytes that were not used go back to where they came from: first into the promise, as far as it gave them.
        let used = taken.as_ref().map_or(0, |run| run.len.0);
        let back = (claimed + more.unwrap_or(0) - used).min(claimed);
        if let Some(hold) = hold
            && claimed > 0
        {
            hold.left.fetch_add(back, SeqCst);
            pool.reserved.fetch_sub(claimed - back, SeqCst);
        }
        let rest = claimed + more.unwrap_or(0) - used - back;
        if rest > 0 {
            pool.uncommit(rest);
        }
        Ok(Grant { inner: self.share(), run: taken?, live: true })
    }

    /// Takes `count` tree blocks of the node size, appends their addresses to `out`: in one run where one is long
    /// enough, else in the longest there are. Nothing is taken when not all can be had.
    ///
    /// This is for a commit, which must go on: it takes free space even if it was promised to others. What the caller
    /// had promised to itself it gives up ([`Reservation::give_up`]) or lets [`Space::alloc_blocks_from`] convert.
    pub fn alloc_blocks(&self, kind: Kind, count: usize, out: &mut Vec<Logical>) -> Result<(), Refusal> {
        let inner = &self.inner;
        inner.faults.check(RequestKind::Blocks, kind)?;
        inner.pool(kind).overdraw(count as u64 * inner.nodesize);
        let taken = self.take_blocks(kind, count, out);
        if taken.is_err() {
            inner.pool(kind).uncommit(count as u64 * inner.nodesize);
        }
        taken
    }

    /// The same against a promise: bytes that `hold` still has are reserved no longer, only the rest is overdrawn.
    pub fn alloc_blocks_from(&self, hold: &Reservation, count: usize, out: &mut Vec<Logical>) -> Result<(), Refusal> {
        let inner = &self.inner;
        inner.faults.check(RequestKind::Blocks, hold.kind)?;
        let pool = inner.pool(hold.kind);
        let need = count as u64 * inner.nodesize;
        let claimed = hold.claim(need);
        pool.overdraw(need - claimed);
        let taken = self.take_blocks(hold.kind, count, out);
        if taken.is_ok() {
            pool.reserved.fetch_sub(claimed, SeqCst);
        } else {
            pool.uncommit(need - claimed);
            hold.left.fetch_add(claimed, SeqCst);
        }
        taken
    }

    /// Takes blocks whose bytes are committed already. On refusal all are free again, and still committed.
    fn take_blocks(&self, kind: Kind, count: usize, out: &mut Vec<Logical>) -> Result<(), Refusal> {
        let inner = &self.inner;
        let node = inner.nodesize;
        let before = out.len();
        let mut left = count as u64;
        while left > 0 {
            let fit = Fit { len: left * node, min_len: node, align: node, rows: None };
            let search_start = inner.hints.blocks(kind);
            let refusal = match inner.take(kind, &fit, search_start) {
                Ok(Some(run)) => {
                    inner.hints.blocks_ended(kind, run.end().0);
                    out.extend((0..run.len.0 / node).map(|i| Logical(run.start.0 + i * node)));
                    left -= run.len.0 / node;
                    continue;
                }
                Ok(None) => Refusal::NeedChunk(kind),
                Err(error) => Refusal::Load(error),
            };
            for at in out.drain(before..) {
                inner.pool(kind).overdraw(node);
                inner.put_back(Run::new(at, ByteLen(node)));
            }
            return Err(refusal);
        }
        Ok(())
    }

    /// Takes exactly `run`, if it is free; for addresses that something outside names. The bytes are overdrawn.
    pub fn claim(&self, run: Run) -> Result<bool, Refusal> {
        let inner = &self.inner;
        let group = inner.tables.read().group_of(run.start.0).map(GroupHere::keep);
        let Some(group) = group.filter(|_| run.len.0 > 0) else { return Ok(false) };
        Ok(inner.with_loaded(&group, |table, state, inner| {
            let Some(runs) = state.runs_mut() else { return false };
            let taken = runs.take(run.start.0, run.end().0);
            if taken {
                state.forget_granted(run.start.0, run.end().0);
                group.add_free(-run.len.0.cast_signed());
                if group.is_open() {
                    inner.pool_of(&group).overdraw(run.len.0);
                }
                inner.refile(table, &group, state, 0);
            }
            taken
        })?)
    }
}

#[cfg(test)]
mod row_tests;
#[cfg(test)]
mod tests;
