//! What there is to say of a volume without opening it: its head, and the list of pins.

use std::sync::Arc;

use crate::error::{RemoteError, StoreError};
use crate::format::head::Head;
use crate::format::pins::{PINS_LEN_MAX, Pins};
use crate::options::StoreOptions;
use crate::pin::{find_pin, key_of};
use crate::store::{self, Retry, Store};
use crate::swap::{HEAD, read};

/// The key of the list of pins.
const PINS: &str = "pins";

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
    let key = match pin {
        None => HEAD.to_owned(),
        Some(pin) => key_of(&find_pin(&store, pin, deadline)?),
    };
    let (head, _) = read(&store, &key, options.key.as_ref(), deadline)?;
    let pins = match store::get(&store, PINS, PINS_LEN_MAX as u64, deadline) {
        Ok((bytes, _)) => Some(Pins::parse(&bytes)?),
        Err(StoreError::Absent) => None,
        Err(error) => return Err(RemoteError::store("get", PINS, error)),
    };
    Ok(Shown { head, pins })
}
