//! What there is to say of a volume without opening it: its head, and the list of pins.

use std::sync::Arc;

use crate::error::RemoteError;
use crate::format::head::Head;
use crate::format::pins::Pins;
use crate::options::StoreOptions;
use crate::pin::{find_pin, list, read_pinned, unseal_all};
use crate::store::{Retry, Store};
use crate::swap::{HEAD, read};

/// What [`show`] finds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Shown {
    /// The head.
    pub head: Head,
    /// The pins, if there is a list.
    pub pins: Option<Pins>,
}

/// Reads the newest head, or that of a pin, and the list of pins. Two requests.
///
/// # Errors
/// There is no volume, it is damaged, or the store fails.
pub fn show(store: Arc<dyn Store>, pin: Option<&str>, options: &StoreOptions) -> Result<Shown, RemoteError> {
    let store = Retry::new(store, options.host.clone());
    let deadline = options.host.now() + options.bounds.attach_max;
    let (head, _) = match pin {
        None => read(&store, HEAD, options.key.as_ref(), deadline)?,
        Some(pin) => read_pinned(&store, &find_pin(&store, pin, deadline)?, options, deadline)?,
    };
    let mut pins = list(&store, deadline)?.map(|(pins, _)| pins);
    if let Some(Pins { uuid, pins, .. }) = &mut pins {
        unseal_all(pins, uuid, &store, options, deadline)?;
    }
    Ok(Shown { head, pins })
}
