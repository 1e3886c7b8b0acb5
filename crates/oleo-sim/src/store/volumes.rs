//! The volumes that are made below one prefix, one in the place of the other, each with its [`Chain`].
//!
//! 1. Whoever opens the volume after another took its place finds that one, or a later one.
//! 2. A writer of a volume that was replaced is promised nothing but what was stored before.
//!
//! Which volume follows which is told by whoever sees the heads as they are stored ([`Volumes::stored`]).

use std::collections::BTreeMap;

use super::chain::{Chain, Promised};

/// Names a volume.
pub type Uuid = [u8; 16];

#[derive(Debug)]
struct Volume {
    /// The how manieth it is.
    number: u64,
    epoch: u32,
    /// None: nobody has looked at what it begins with.
    chain: Option<Chain>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Volumes {
    by_uuid: BTreeMap<Uuid, Volume>,
    /// Blocks of zeros that a new volume has; none: it is a branch, and begins with what its parent had.
    blocks: Option<usize>,
}

/// What there was when somebody began to open.
#[derive(Clone, Debug)]
pub struct Since {
    newest: u64,
    promised: BTreeMap<Uuid, Promised>,
}

impl Volumes {
    /// None yet.
    pub fn new(blocks: Option<usize>) -> Volumes {
        Volumes { by_uuid: BTreeMap::new(), blocks }
    }

    /// A head of this volume and epoch has been stored, with everything up to a position, if that can be told. The first of a
    /// volume is that of its making.
    pub fn stored(&mut self, uuid: Uuid, epoch: u32, position: Option<u64>) {
        let number = self.by_uuid.len() as u64 + 1;
        let chain = self.blocks.map(|blocks| Chain::new(blocks, epoch, 0));
        let volume = self.by_uuid.entry(uuid).or_insert(Volume { number, epoch, chain });
        if let Some(chain) = &mut volume.chain {
            chain.stored(epoch, position);
        }
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.by_uuid.len()
    }

    /// Whether it is known what the volume begins with.
    pub fn is_known(&self, uuid: Uuid) -> bool {
        self.by_uuid.get(&uuid).is_some_and(|volume| volume.chain.is_some())
    }

    /// The volume begins with this.
    pub fn begins(&mut self, uuid: Uuid, position: u64, state: &[u64]) {
        if let Some(volume) = self.by_uuid.get_mut(&uuid) {
            volume.chain.get_or_insert_with(|| Chain::of(state.to_vec(), volume.epoch, position));
        }
    }

    /// The chain of a volume that is known.
    pub fn chain(&mut self, uuid: Uuid) -> &mut Chain {
        self.by_uuid.get_mut(&uuid).and_then(|volume| volume.chain.as_mut()).expect("a volume that was opened")
    }

    /// The one volume that there has been.
    pub fn only(&self) -> Uuid {
        *self.by_uuid.keys().next().expect("a volume that was made")
    }

    fn newest(&self) -> u64 {
        self.by_uuid.len() as u64
    }

    /// What there is now.
    pub fn since(&self) -> Since {
        let known = self.by_uuid.iter().filter_map(|(uuid, volume)| Some((*uuid, volume.chain.as_ref()?.promised())));
        Since { newest: self.newest(), promised: known.collect() }
    }

    /// Whether another has taken the place of a volume.
    pub fn is_replaced(&self, uuid: Uuid) -> bool {
        self.number(uuid) < self.newest()
    }

    fn number(&self, uuid: Uuid) -> u64 {
        self.by_uuid.get(&uuid).map_or(0, |volume| volume.number)
    }

    fn is_current(&self, since: &Since, uuid: Uuid) -> Result<(), String> {
        match self.number(uuid) >= since.newest {
            true => Ok(()),
            false => Err("a volume is found, though another had taken its place before".into()),
        }
    }

    /// A writer has opened, and finds this.
    pub fn attached(
        &mut self,
        since: &Since,
        uuid: Uuid,
        epoch: u32,
        position: u64,
        found: &[u64],
    ) -> Result<(), String> {
        self.is_current(since, uuid)?;
        self.chain(uuid).attached(epoch, position, found)
    }

    /// A reader has opened the newest state, and finds this.
    pub fn opened(
        &mut self,
        since: &Since,
        uuid: Uuid,
        epoch: u32,
        position: u64,
        found: &[u64],
    ) -> Result<(), String> {
        self.is_current(since, uuid)?;
        self.kept(since, uuid, epoch, position, found)
    }

    /// The same for a state that was pinned, which is there whatever has taken the volume's place.
    pub fn kept(&mut self, since: &Since, uuid: Uuid, epoch: u32, position: u64, found: &[u64]) -> Result<(), String> {
        let before = since.promised.get(&uuid).cloned().unwrap_or_default();
        self.chain(uuid).opened(&before, epoch, position, found)
    }
}
