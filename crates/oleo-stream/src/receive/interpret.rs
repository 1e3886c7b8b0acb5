//! The order of commands, the rules of paths, errors and progress.
//!
//! ```text
//!            SUBVOL, SNAPSHOT              END, or the next SUBVOL, SNAPSHOT
//!   Nothing ─────────────────> Open ──────────────────────────────────────> Nothing
//!      └─(resuming, complete)─> Passing ──────────────────────────────────────┘
//!      └─(resuming, a part)──> Skipping ──(position and digest of the mark)──> Open
//! ```
//! Everything else between subvolumes is refused.

use std::io::Read;

use oleo_format::stream::Command;

use super::blocks::{self, Block, InBlock};
use super::mark::{Mark, Prefix};
use super::paths::{self, Root};
use super::{
    ApplyError, Begin, Failed, Found, Item, Late, ReceiveError, ReceiveOptions, ReceivedSubvol, Report, Target, Wait,
};

/// How many errors are kept as text.
const ERRORS_KEPT_MAX: usize = 1000;

/// Applies a stream, or several concatenated ones. Subvolumes completed before an error stay, unless
/// [`Incomplete::Deleted`](super::Incomplete::Deleted) is requested; nothing is committed at the end.
///
/// # Errors
/// The stream is damaged, ends early, breaks a rule, or cannot be applied. The report lists what was done until then.
pub fn receive<R: Read + Send + 'static>(
    target: &mut dyn Target,
    input: R,
    options: &ReceiveOptions,
) -> (Report, Result<(), ReceiveError>) {
    let mut session = Session {
        target,
        options,
        report: Report::default(),
        state: State::Nothing,
        prefix: Prefix::default(),
        exact: true,
        applied: None,
        passed: 0,
        done: false,
    };
    let blocks = blocks::read(input, options.limits, options.commands_per_commit);
    let mut result = Ok(());
    // Ends with the channel, which the reading thread closes at the end of the stream.
    for block in blocks {
        result = session.block(block);
        if result.is_err() || session.done {
            break;
        }
    }
    if result.is_err() {
        let applied = session.applied.take().filter(|_| session.exact);
        if let Err(source) = session.target.abandon(applied.as_ref(), options.incomplete) {
            session.report.warnings.push(format!("incomplete subvolumes could not be cleaned up: {source}"));
        }
    }
    session.report.warnings.extend(session.target.take_warnings());
    (session.report, result)
}

/// Commands that go to the target in one run.
#[derive(Default)]
struct Run<'b> {
    items: Vec<Item<'b>>,
    headers: Vec<&'b [u8]>,
    /// Of the stream before them.
    before: Prefix,
    /// Where the last one ends.
    end: u64,
}

enum State {
    Nothing,
    /// A subvolume is being received.
    Open,
    /// A subvolume is there already.
    Passing,
    /// A part of a subvolume is there already.
    Skipping(Mark),
}

struct Session<'t> {
    target: &'t mut dyn Target,
    options: &'t ReceiveOptions,
    report: Report,
    state: State,
    prefix: Prefix,
    /// Exactly the stream up to `applied` is applied.
    exact: bool,
    applied: Option<Mark>,
    /// Errors that were passed over.
    passed: u64,
    /// An END was seen and nothing after it is wanted.
    done: bool,
}

impl Session<'_> {
    fn block(&mut self, mut block: Block) -> Result<(), ReceiveError> {
        let error = block.error.take();
        let mut run = Run::default();
        for next in block.commands() {
            let next = next?;
            self.report.commands += 1;
            self.report.bytes = next.end;
            let wanted = match self.rule(&next) {
                Ok(wanted) => wanted,
                Err(error) => {
                    self.apply(&mut run)?;
                    return self.late(Wait::Yes).and(Err(error));
                }
            };
            if wanted == Wanted::Apply {
                if run.items.is_empty() {
                    run.before = self.prefix.clone();
                }
                run.items.push(Item { position: next.position, command: next.command, block: block.bytes() });
                run.headers.push(next.header);
                run.end = next.end;
                self.prefix.add(next.header);
                continue;
            }
            self.apply(&mut run)?;
            self.prefix.add(next.header);
            if wanted == Wanted::Control {
                self.late(Wait::Yes)?;
                self.control(&next)?;
            }
            if self.done {
                return Ok(());
            }
            self.skipped(next.end)?;
        }
        self.apply(&mut run)?;
        match error {
            Some(error) => self.late(Wait::Yes).and(Err(error.into())),
            None => self.checkpoint(),
        }
    }

    /// What to do with a command, or the rule it breaks.
    fn rule(&self, next: &InBlock<'_>) -> Result<Wanted, ReceiveError> {
        let wanted = match next.command {
            Command::Subvol { .. } | Command::Snapshot { .. } | Command::End => Wanted::Control,
            _ if matches!(self.state, State::Open) => Wanted::Apply,
            _ => Wanted::PassOver,
        };
        let broken = match (&next.command, &self.state) {
            (Command::End, State::Nothing) => Err("no subvolume has begun".to_owned()),
            (Command::Subvol { .. } | Command::Snapshot { .. } | Command::End, _) => check_paths(&next.command),
            (_, State::Nothing) => Err("before a subvolume has begun".to_owned()),
            _ => check_paths(&next.command),
        };
        broken.map(|()| wanted).map_err(|what| ReceiveError::Rule {
            position: next.position,
            command: next.command.kind().name(),
            what,
        })
    }

    /// Begins or ends a subvolume.
    fn control(&mut self, next: &InBlock<'_>) -> Result<(), ReceiveError> {
        let failed = |source| command_error(next.position, &next.command, source);
        self.end_subvol().map_err(failed)?;
        let begin = match next.command {
            Command::Subvol { path, uuid, ctransid } => Begin { path, uuid, ctransid, parent: None },
            Command::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                Begin { path, uuid, ctransid, parent: Some((clone_uuid, clone_ctransid)) }
            }
            _ => {
                self.done = self.options.one_stream;
                return Ok(());
            }
        };
        let found = if self.options.resume { self.target.reopen(&begin) } else { Ok(Found::Nothing) };
        self.exact = true;
        self.applied = Some(self.prefix.mark(next.end));
        self.state = match found.map_err(failed)? {
            Found::Nothing => {
                self.target.begin(&begin).map_err(failed)?;
                State::Open
            }
            Found::Complete => State::Passing,
            Found::Part(mark) => {
                // If this turns out to be another stream, the mark stays what it was.
                self.applied = Some(mark.clone());
                State::Skipping(mark)
            }
        };
        self.report.subvols.push(ReceivedSubvol {
            path: begin.path.to_vec(),
            uuid: begin.uuid,
            ctransid: begin.ctransid,
            incremental: begin.parent.is_some(),
            passed_over: matches!(self.state, State::Passing),
        });
        self.skipped(next.end)
    }

    fn end_subvol(&mut self) -> Result<(), ApplyError> {
        match std::mem::replace(&mut self.state, State::Nothing) {
            State::Nothing | State::Passing => Ok(()),
            State::Open => {
                let finished = self.target.finish();
                if finished.is_err() {
                    self.state = State::Open;
                    self.exact = false;
                }
                finished
            }
            State::Skipping(mark) => {
                let what = format!("the subvolume ends before byte {}, up to which it was applied", mark.position);
                self.state = State::Skipping(mark);
                Err(ApplyError::Refused(format!("{what}: this is not the stream that was being received")))
            }
        }
    }

    /// Checks whether the part that exists already has been skipped.
    fn skipped(&mut self, end: u64) -> Result<(), ReceiveError> {
        let State::Skipping(mark) = &self.state else { return Ok(()) };
        if end < mark.position {
            return Ok(());
        }
        if self.prefix.mark(end) != *mark {
            let what = format!("up to byte {} this is not the stream that was being received", mark.position);
            return Err(ReceiveError::Target { what: "resume", source: Box::new(ApplyError::Refused(what)) });
        }
        self.applied = Some(mark.clone());
        self.state = State::Open;
        Ok(())
    }

    /// Has a run applied, and empties it.
    fn apply(&mut self, run: &mut Run<'_>) -> Result<(), ReceiveError> {
        if run.items.is_empty() {
            return Ok(());
        }
        let mut from = 0;
        while from < run.items.len() {
            let result = self.target.apply(&run.items[from..]);
            self.late(Wait::No)?;
            let Err(Failed { index, exact, error }) = result else { break };
            let index = from + index;
            let item = &run.items[index];
            if let Err(error) = self.pass_over(command_error(item.position, &item.command, error)) {
                // A receive that is resumed begins with this command.
                self.exact &= exact;
                run.headers[..index].iter().for_each(|header| run.before.add(header));
                self.applied = Some(run.before.mark(item.position));
                return Err(error);
            }
            self.exact = false;
            from = index + 1;
        }
        self.applied = Some(self.prefix.mark(run.end));
        run.items.clear();
        run.headers.clear();
        Ok(())
    }

    /// What turned out to have failed.
    fn late(&mut self, wait: Wait) -> Result<(), ReceiveError> {
        for Late { position, command, path, error } in self.target.late(wait) {
            self.exact = false;
            let (path, source) = (path.escape_ascii().to_string(), Box::new(error));
            self.pass_over(ReceiveError::Command { position, command, path, source })?;
        }
        Ok(())
    }

    /// Notes an error, or gives it back if it is one too many.
    fn pass_over(&mut self, error: ReceiveError) -> Result<(), ReceiveError> {
        if self.options.errors_passed_max.is_some_and(|max| self.passed >= max) {
            return Err(error);
        }
        self.passed += 1;
        if self.report.errors.len() < ERRORS_KEPT_MAX {
            self.report.errors.push(error.to_string());
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), ReceiveError> {
        match (&self.state, &self.applied) {
            (State::Open, Some(mark)) if self.exact => self
                .target
                .checkpoint(mark)
                .map_err(|e| ReceiveError::Target { what: "keep what was received so far", source: Box::new(e) }),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// It begins or ends a subvolume.
    Control,
    Apply,
    /// It was applied before.
    PassOver,
}

fn command_error(position: u64, command: &Command<'_>, source: ApplyError) -> ReceiveError {
    let path = command.path().unwrap_or_default().escape_ascii().to_string();
    ReceiveError::Command { position, command: command.kind().name(), path, source: Box::new(source) }
}

/// Fails unless all paths of a command stay inside the subvolume.
fn check_paths(command: &Command<'_>) -> Result<(), String> {
    let root = match command {
        Command::SetXattr { .. }
        | Command::RemoveXattr { .. }
        | Command::Chmod { .. }
        | Command::Chown { .. }
        | Command::Utimes { .. }
        | Command::FileAttr { .. } => Root::Allowed,
        _ => Root::Refused,
    };
    if let Some(path) = command.path() {
        paths::check(path, root)?;
    }
    match command {
        Command::Rename { to: other, .. }
        | Command::Link { target: other, .. }
        | Command::Clone { clone_path: other, .. } => paths::check(other, Root::Refused),
        _ => Ok(()),
    }
}
