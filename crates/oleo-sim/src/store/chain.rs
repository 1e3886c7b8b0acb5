//! What a volume that is a log may be found to be: for each writer, by its epoch, the changes it made, and which of them it
//! was promised.
//!
//! 1. Whoever opens the volume finds the state after some change of the writer before it, and no earlier one than the last
//!    that any writer was promised.
//! 2. What a writer is promised is in every state that a later writer began with.
//! 3. Nothing is promised that no head has had.
//! 4. What is read is the state of the moment that the reader has.
//!
//! Contents are marks, one for each block: 0 for zeros.

use std::collections::BTreeMap;

/// A change: these blocks get marks that rise by one, or zeros.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The first block.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// The mark of the first; 0: zeros.
    pub mark: u64,
}

#[derive(Debug)]
struct Writer {
    /// The position that it began with, and the state then.
    base: u64,
    state: Vec<u64>,
    /// Its changes, the first at `base + 1`.
    changes: Vec<Change>,
    promised: u64,
    /// Up to where a head was stored.
    stored: u64,
}

impl Writer {
    fn state_at(&self, position: u64) -> Option<Vec<u64>> {
        let count = usize::try_from(position.checked_sub(self.base)?).ok()?;
        let mut state = self.state.clone();
        self.changes.get(..count)?.iter().for_each(|change| change.apply(&mut state));
        Some(state)
    }
}

impl Change {
    /// Changes a state.
    pub fn apply(&self, state: &mut [u64]) {
        for (n, block) in state[self.first..self.first + self.count].iter_mut().enumerate() {
            *block = if self.mark == 0 { 0 } else { self.mark + n as u64 };
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Chain {
    writers: BTreeMap<u32, Writer>,
}

/// What has been promised when somebody begins to open.
#[derive(Clone, Default, Debug)]
pub struct Promised(Vec<(u32, u64)>);

impl Chain {
    /// A volume of zeros, with the position and epoch that it was made with.
    pub fn new(blocks: usize, epoch: u32, position: u64) -> Chain {
        Chain::of(vec![0; blocks], epoch, position)
    }

    /// A volume that begins with a state, at a position: a branch.
    pub fn of(state: Vec<u64>, epoch: u32, position: u64) -> Chain {
        let first = Writer { base: position, state, changes: Vec::new(), promised: position, stored: position };
        Chain { writers: BTreeMap::from([(epoch, first)]) }
    }

    /// What has been promised by now.
    pub fn promised(&self) -> Promised {
        Promised(self.writers.iter().map(|(epoch, writer)| (*epoch, writer.promised)).collect())
    }

    /// A writer has opened, and finds this.
    pub fn attached(&mut self, epoch: u32, position: u64, found: &[u64]) -> Result<(), String> {
        let (before, state) = self.find(epoch.saturating_sub(1), position, found)?;
        let lost = self.writers.range(..epoch).find(|(_, writer)| writer.promised > position);
        if let Some((of, writer)) = lost {
            return Err(format!(
                "epoch {epoch} begins at {position} after {before}, but {} was promised to {of}",
                writer.promised
            ));
        }
        if self.writers.contains_key(&epoch) {
            return Err(format!("two writers have epoch {epoch}"));
        }
        self.writers
            .insert(epoch, Writer { base: position, state, changes: Vec::new(), promised: position, stored: position });
        Ok(())
    }

    /// A reader has opened, and finds this; `since`: what had been promised when it began.
    pub fn opened(&self, since: &Promised, epoch: u32, position: u64, found: &[u64]) -> Result<(), String> {
        self.find(epoch, position, found)?;
        match since.0.iter().find(|(_, promised)| *promised > position) {
            Some((of, promised)) => {
                Err(format!("a reader finds {position}, but {promised} was promised to {of} before"))
            }
            None => Ok(()),
        }
    }

    /// The last writer up to an epoch, whose state at a position must be what was found.
    fn find(&self, epoch: u32, position: u64, found: &[u64]) -> Result<(u32, Vec<u64>), String> {
        let (before, writer) = self.writers.range(..=epoch).next_back().ok_or("no writer before")?;
        let last = writer.base + writer.changes.len() as u64;
        let state = writer.state_at(position);
        let state = state
            .ok_or_else(|| format!("position {position}, but epoch {before} went from {} to {last}", writer.base))?;
        match state.iter().zip(found).position(|(want, have)| want != have) {
            None => Ok((*before, state)),
            Some(block) => Err(format!(
                "block {block} is {}, but after {position} of epoch {before} it is {}",
                found[block], state[block]
            )),
        }
    }

    /// A writer is about to make a change; returns its position.
    pub fn will_change(&mut self, epoch: u32, change: Change) -> u64 {
        let writer = self.writer(epoch);
        writer.changes.push(change);
        writer.base + writer.changes.len() as u64
    }

    /// A writer has come to a position, with changes that change no block.
    pub fn came_to(&mut self, epoch: u32, position: u64) {
        let writer = self.writer(epoch);
        let count = position.saturating_sub(writer.base) as usize;
        if count > writer.changes.len() {
            writer.changes.resize(count, Change { first: 0, count: 0, mark: 0 });
        }
    }

    /// A head of a writer was stored, with everything up to a position; none: nobody knows which, at most all.
    pub fn stored(&mut self, epoch: u32, position: Option<u64>) {
        if let Some(writer) = self.writers.get_mut(&epoch) {
            let all = writer.base + writer.changes.len() as u64;
            writer.stored = writer.stored.max(position.unwrap_or(all));
        }
    }

    /// The last change was not made after all.
    pub fn did_not(&mut self, epoch: u32) {
        self.writer(epoch).changes.pop();
    }

    /// A writer was promised everything up to a position.
    pub fn promise(&mut self, epoch: u32, position: u64) -> Result<(), String> {
        let later = self.writers.range(epoch + 1..).find(|(_, later)| later.base < position);
        if let Some((of, later)) = later {
            return Err(format!("epoch {epoch} is promised {position}, but {of} has begun at {}", later.base));
        }
        let writer = self.writer(epoch);
        if position > writer.stored {
            return Err(format!("epoch {epoch} is promised {position}, and no head has more than {}", writer.stored));
        }
        writer.promised = writer.promised.max(position);
        Ok(())
    }

    /// The state that a writer sees.
    pub fn now(&mut self, epoch: u32) -> Vec<u64> {
        let writer = self.writer(epoch);
        writer.state_at(writer.base + writer.changes.len() as u64).unwrap_or_default()
    }

    fn writer(&mut self, epoch: u32) -> &mut Writer {
        self.writers.get_mut(&epoch).expect("a writer that has attached")
    }
}
