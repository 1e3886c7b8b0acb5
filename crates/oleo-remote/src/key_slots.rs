//! Who may open a sealed volume, or sealed streams: listed, added to, taken from. See [`mod@crate::keys`].

use std::sync::Arc;

use crate::error::RemoteError;
use crate::keys::{self, KeySource, SlotInfo};
use crate::options::StoreOptions;
use crate::store::{Deadline, Retry, Store};
use crate::streams;
use crate::swap::{Found, HEAD, find};

/// A sealed volume, or sealed streams, whose keys are looked at.
pub struct KeySlots {
    store: Retry,
    options: StoreOptions,
    uuid: [u8; 16],
}

impl KeySlots {
    /// Of the volume on a store, or of the streams if there is no volume.
    pub fn open(store: Arc<dyn Store>, options: &StoreOptions) -> Result<KeySlots, RemoteError> {
        let store = Retry::new(store, options.host.clone());
        let uuid = match find(&store, HEAD, None, options.host.now() + options.bounds.attach_max)? {
            Found::Closed(outline, ..) => outline.uuid,
            Found::Head(..) => return Err(RemoteError::Key { what: "the volume is not encrypted" }),
            Found::Damaged(e, _) => return Err(e.into()),
            Found::Nothing => match streams::outline(&store, options.host.now() + options.bounds.attach_max)? {
                Some(outline) if outline.sealed => outline.uuid,
                Some(_) => return Err(RemoteError::Key { what: "the streams are not encrypted" }),
                None => return Err(RemoteError::NoVolume { prefix: store.describe() }),
            },
        };
        Ok(KeySlots { store, options: options.clone(), uuid })
    }

    fn deadline(&self) -> Deadline {
        self.options.host.now() + self.options.bounds.attach_max
    }

    fn has(&self) -> Result<&KeySource, RemoteError> {
        self.options.key.as_ref().ok_or(RemoteError::Key { what: "the volume is encrypted, and no key is given" })
    }

    /// All of them.
    pub fn list(&self) -> Result<Vec<SlotInfo>, RemoteError> {
        keys::slots(&self.store, self.uuid, self.deadline())
    }

    /// Lets `new` open the volume, too; returns the name of its slot.
    pub fn add(&self, new: &KeySource) -> Result<String, RemoteError> {
        keys::add(&self.store, self.uuid, self.has()?, new, &*self.options.host, self.deadline())
    }

    /// Takes away the slot whose name begins with `name`. The last one stays.
    pub fn remove(&self, name: &str) -> Result<(), RemoteError> {
        keys::remove(&self.store, self.uuid, self.has()?, name, &*self.options.host, self.deadline())
    }
}
