//! Keys of sealed volumes: what opens them, and who may.
//!
//! A volume's key is random and never changes. The key object has it in up to eight slots, each sealed with what somebody
//! has: the 32 bytes of a key file, or what argon2id makes of a passphrase. So passphrases can be changed, added and removed
//! without touching what is stored. Whoever once had the key, or an old key object and its passphrase, can open the volume
//! for ever; only a new volume helps against that.
//!
//! The object is replaced under a condition; each version has a random id, by which an answer that was lost is made out.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use argon2::{Algorithm, Argon2, Params};
use oleo_format::Corruption;
use zeroize::Zeroizing;

use crate::error::{RemoteError, StoreError};
use crate::format::key::{KEY_LEN_MAX, KeyObject, Opener, SLOT_COUNT_MAX, Slot};
use crate::host::{Host, fill, nonce};
use crate::seal::{Key, SECRET_LEN, Use};
use crate::store::{Body, Cond, Deadline, Store, TRY_MAX, Version, Waits, attempt, get, put};

/// What argon2id takes for new passphrases: 64 MiB, three passes, one lane; about a quarter of a second.
const OPENER: Opener = Opener::Passphrase { memory: 64 << 10, passes: 3, lanes: 1 };

/// How often an object is read again whose bytes are wrong.
const WRONG_TRIES: u32 = 3;
/// How much of a file with a key or a passphrase is read.
const SECRET_FILE_LEN_MAX: u64 = 4096;

enum Secret {
    File(Zeroizing<[u8; SECRET_LEN]>),
    Passphrase(Zeroizing<Vec<u8>>),
}

struct Inner {
    secret: Secret,
    /// The key that it opened last, since argon2id takes its time.
    opened: OnceLock<([u8; 16], Arc<Key>)>,
}

/// What opens volumes: a key file or a passphrase. Copies share it.
#[derive(Clone)]
pub struct KeySource(Arc<Inner>);

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.secret {
            Secret::File(_) => f.write_str("KeySource::File"),
            Secret::Passphrase(_) => f.write_str("KeySource::Passphrase"),
        }
    }
}

/// A slot of a volume, as it is listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotInfo {
    /// Its name, in hexadecimal.
    pub id: String,
    /// How it is opened.
    pub opener: Opener,
}

impl KeySource {
    fn new(secret: Secret) -> KeySource {
        KeySource(Arc::new(Inner { secret, opened: OnceLock::new() }))
    }

    /// Of the contents of a key file: 32 bytes, or 64 hexadecimal digits.
    pub fn file(contents: &[u8]) -> Result<KeySource, RemoteError> {
        let odd = RemoteError::Key { what: "a key file has 32 random bytes, or 64 hexadecimal digits" };
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        if contents.len() == SECRET_LEN {
            secret.copy_from_slice(contents);
            return Ok(KeySource::new(Secret::File(secret)));
        }
        let digits = contents.trim_ascii();
        if digits.len() != 2 * SECRET_LEN {
            return Err(odd);
        }
        for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16);
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => *byte = (high * 16 + low) as u8,
                _ => return Err(odd),
            }
        }
        Ok(KeySource::new(Secret::File(secret)))
    }

    /// Of a key file.
    pub fn key_file(path: &Path) -> Result<KeySource, RemoteError> {
        KeySource::file(&read_secret(path)?)
    }

    /// Of a file whose first line is a passphrase.
    pub fn passphrase_file(path: &Path) -> Result<KeySource, RemoteError> {
        let text = read_secret(path)?;
        let line = text.split(|&b| b == b'\n').next().unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let odd = |_| RemoteError::Key { what: "the passphrase is no UTF-8" };
        KeySource::passphrase(std::str::from_utf8(line).map_err(odd)?)
    }

    /// Of a passphrase, which is not empty.
    pub fn passphrase(text: &str) -> Result<KeySource, RemoteError> {
        match text.is_empty() {
            true => Err(RemoteError::Key { what: "the passphrase is empty" }),
            false => Ok(KeySource::new(Secret::Passphrase(Zeroizing::new(text.as_bytes().to_vec())))),
        }
    }

    /// A new key for a volume, and its object.
    pub(crate) fn make(
        &self,
        store: &dyn Store,
        uuid: [u8; 16],
        host: &dyn Host,
        deadline: Deadline,
    ) -> Result<Arc<Key>, RemoteError> {
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        fill(host, &mut *secret);
        let key = Arc::new(Key::new(host.random(), secret));
        let object = KeyObject { id: key.id(), commit: host.random(), slots: vec![self.slot(&key, host)?] };
        // The volume's name is random, so nothing is in its place.
        let name = KeyObject::key(uuid);
        let stored = put(store, &name, Body::from(object.encode()), Cond::None, deadline);
        stored.map_err(|e| RemoteError::store("put", name, e))?;
        Ok(key)
    }

    /// The key of a volume.
    pub(crate) fn unlock(
        &self,
        store: &dyn Store,
        uuid: [u8; 16],
        deadline: Deadline,
    ) -> Result<Arc<Key>, RemoteError> {
        if let Some((of, key)) = self.0.opened.get()
            && *of == uuid
        {
            return Ok(key.clone());
        }
        let (object, _) = read(store, uuid, deadline)?;
        let key = Arc::new(self.open(&object)?);
        let _first = self.0.opened.set((uuid, key.clone()));
        Ok(key)
    }

    fn open(&self, object: &KeyObject) -> Result<Key, RemoteError> {
        for slot in &object.slots {
            let Some(wrapping) = self.wrapping(slot)? else { continue };
            let mut secret = Zeroizing::new([0; SECRET_LEN]);
            let (text, tag) = slot.wrapped.split_at(SECRET_LEN);
            secret.copy_from_slice(text);
            if wrapping.open_in_place(&slot.nonce, Use::Text, &[&slot.beside(object.id)], &mut *secret, tag) {
                return Ok(Key::new(object.id, secret));
            }
        }
        Err(RemoteError::Key { what: "the key file or passphrase opens none of the volume's slots" })
    }

    /// The key sealed for this source.
    fn slot(&self, key: &Key, host: &dyn Host) -> Result<Slot, RemoteError> {
        let opener = match &self.0.secret {
            Secret::File(_) => Opener::File,
            Secret::Passphrase(_) => OPENER,
        };
        let (salt, id) = (host.random(), host.random());
        let mut slot = Slot { opener, salt, nonce: nonce(host), wrapped: [0; 48], id };
        let Some(wrapping) = self.wrapping(&slot)? else { unreachable!("the slot is for this source") };
        let beside = slot.beside(key.id());
        let (text, tag) = slot.wrapped.split_at_mut(SECRET_LEN);
        text.copy_from_slice(key.secret());
        tag.copy_from_slice(&wrapping.seal_in_place(&slot.nonce, Use::Text, &[&beside], text));
        Ok(slot)
    }

    /// What seals a slot, if it is one for this kind of source.
    fn wrapping(&self, slot: &Slot) -> Result<Option<Key>, RemoteError> {
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        match (&self.0.secret, slot.opener) {
            (Secret::File(bytes), Opener::File) => secret.copy_from_slice(&**bytes),
            (Secret::Passphrase(text), Opener::Passphrase { memory, passes, lanes }) => {
                let odd = |_| RemoteError::Key { what: "a slot asks for what argon2id cannot do" };
                let params = Params::new(memory, passes, lanes, Some(SECRET_LEN)).map_err(odd)?;
                let argon = Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, params);
                argon.hash_password_into(text, &slot.salt, &mut *secret).map_err(odd)?;
            }
            _ => return Ok(None),
        }
        Ok(Some(Key::new(slot.id, secret)))
    }
}

/// The contents of a small file.
fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, RemoteError> {
    let failed = |e| RemoteError::Local { path: path.into(), source: Arc::new(e) };
    // As long as it may be, so that it is not moved, and left in memory, when it grows.
    let mut out = Zeroizing::new(Vec::with_capacity(SECRET_FILE_LEN_MAX as usize + 1));
    let file = File::open(path).map_err(failed)?;
    file.take(SECRET_FILE_LEN_MAX).read_to_end(&mut out).map_err(failed)?;
    Ok(out)
}

/// Reads the object, again if its bytes are wrong.
fn read(store: &dyn Store, uuid: [u8; 16], deadline: Deadline) -> Result<(KeyObject, Version), RemoteError> {
    let name = KeyObject::key(uuid);
    let mut tries = WRONG_TRIES;
    loop {
        tries -= 1;
        let (bytes, version) = match get(store, &name, KEY_LEN_MAX as u64, deadline) {
            Ok(found) => found,
            Err(StoreError::Wrong(_)) if tries > 0 => continue,
            Err(StoreError::Absent) => {
                return Err(Corruption::new("volume", "key", "missing", "stored").within(&name).into());
            }
            Err(e) => return Err(RemoteError::store("get", name, e)),
        };
        match KeyObject::parse(&bytes) {
            Ok(object) => return Ok((object, version)),
            Err(e) if tries == 0 => return Err(e.within(&name).into()),
            Err(_) => {}
        }
    }
}

/// Lets whoever opens a volume open its child, which is sealed with the same key.
pub(crate) fn copy(
    from: &dyn Store,
    parent: [u8; 16],
    to: &dyn Store,
    child: [u8; 16],
    deadline: Deadline,
) -> Result<(), RemoteError> {
    let (object, _) = read(from, parent, deadline)?;
    let name = KeyObject::key(child);
    let stored = put(to, &name, Body::from(object.encode()), Cond::None, deadline);
    stored.map(|_| ()).map_err(|e| RemoteError::store("put", name, e))
}

/// The slots of a volume.
pub(crate) fn slots(store: &dyn Store, uuid: [u8; 16], deadline: Deadline) -> Result<Vec<SlotInfo>, RemoteError> {
    let (object, _) = read(store, uuid, deadline)?;
    Ok(object.slots.iter().map(|slot| SlotInfo { id: name_of(&slot.id), opener: slot.opener }).collect())
}

fn name_of(id: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*id).simple().to_string()
}

/// Lets somebody else open the volume, too; returns the name of the slot.
pub(crate) fn add(
    store: &dyn Store,
    uuid: [u8; 16],
    has: &KeySource,
    new: &KeySource,
    host: &dyn Host,
    deadline: Deadline,
) -> Result<String, RemoteError> {
    let (object, version) = read(store, uuid, deadline)?;
    if object.slots.len() == SLOT_COUNT_MAX {
        return Err(RemoteError::Limit { what: format!("a volume has at most {SLOT_COUNT_MAX} keys") });
    }
    let slot = new.slot(&has.open(&object)?, host)?;
    let name = name_of(&slot.id);
    let slots = object.slots.iter().cloned().chain([slot]).collect();
    replace(store, uuid, &KeyObject { slots, commit: host.random(), ..object }, &version, host, deadline)?;
    Ok(name)
}

/// Takes a slot away, by the beginning of its name. The last one stays, and whoever does it must be able to open the volume.
pub(crate) fn remove(
    store: &dyn Store,
    uuid: [u8; 16],
    has: &KeySource,
    name: &str,
    host: &dyn Host,
    deadline: Deadline,
) -> Result<(), RemoteError> {
    let (object, version) = read(store, uuid, deadline)?;
    has.open(&object)?;
    let (gone, slots): (Vec<Slot>, Vec<Slot>) =
        object.slots.iter().cloned().partition(|slot| !name.is_empty() && name_of(&slot.id).starts_with(name));
    match gone.len() {
        0 => return Err(RemoteError::Key { what: "the volume has no such key" }),
        1 if slots.is_empty() => return Err(RemoteError::Key { what: "it is the only key that opens the volume" }),
        1 => {}
        _ => return Err(RemoteError::Key { what: "several keys of the volume begin so" }),
    }
    replace(store, uuid, &KeyObject { slots, commit: host.random(), ..object }, &version, host, deadline)
}

/// Replaces the object, and finds out whether it was replaced where the answer does not say; while the old one is there that is asked for again.
fn replace(
    store: &dyn Store,
    uuid: [u8; 16],
    object: &KeyObject,
    version: &Version,
    host: &dyn Host,
    deadline: Deadline,
) -> Result<(), RemoteError> {
    let name = KeyObject::key(uuid);
    let body = Body::from(object.encode());
    let mut waits = Waits::new();
    loop {
        let until = attempt(host, deadline, TRY_MAX);
        let Err(error) = put(store, &name, body.clone(), Cond::Match(version.clone()), until) else { return Ok(()) };
        let (found, there) = read(store, uuid, deadline)?;
        if found.commit == object.commit {
            return Ok(());
        }
        let is_final = error == StoreError::Condition || error.is_refusal() || matches!(error, StoreError::Wrong(_));
        if is_final || there != *version || !waits.wait(host, deadline) {
            return Err(RemoteError::store("replace", name, error));
        }
    }
}
