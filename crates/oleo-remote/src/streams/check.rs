//! Verifying streams: every part is read and compared.

use std::collections::HashMap;

use uuid::Uuid;

use super::open::Streams;
use super::pieces::{Kind, PREFIX, PieceId, stream_of};
use crate::create::each_listed;
use crate::error::RemoteError;
use crate::format::OBJECT_LEN_MAX;

/// Findings that are kept; the rest is counted.
const FINDINGS_MAX: usize = 1000;

/// Something that is wrong with a stream.
#[derive(Clone, Debug)]
pub struct StreamFinding {
    /// The stream.
    pub id: Uuid,
    /// Of which snapshot.
    pub name: String,
    /// What is wrong.
    pub what: RemoteError,
}

/// What was verified.
#[derive(Clone, Default, Debug)]
pub struct CheckedStreams {
    /// Streams.
    pub streams: u64,
    /// Parts of streams and of indexes that were read.
    pub parts: u64,
    /// Their bytes as they are stored.
    pub stored_bytes: u64,
    /// What is wrong.
    pub findings: Vec<StreamFinding>,
    /// How many more findings there were.
    pub findings_left_out: u64,
    /// Uploads under way.
    pub uploads: u64,
    /// Objects of no stream and no upload.
    pub orphans: u64,
    /// Their bytes.
    pub orphan_bytes: u64,
}

impl CheckedStreams {
    fn find(&mut self, id: Uuid, name: &str, what: RemoteError) {
        match self.findings.len() {
            n if n < FINDINGS_MAX => self.findings.push(StreamFinding { id, name: name.into(), what }),
            _ => self.findings_left_out += 1,
        }
    }
}

impl Streams {
    /// Reads all streams, or only their manifests, and compares all checksums and seals. Damage is a finding; an error is a store that does not
    /// answer.
    ///
    /// # Errors
    /// The store fails, or the list is damaged.
    pub fn verify(
        &self,
        manifests_only: bool,
        progress: &mut dyn FnMut(&CheckedStreams),
    ) -> Result<CheckedStreams, RemoteError> {
        let mut out = CheckedStreams::default();
        let mut objects: HashMap<Uuid, (u64, u64)> = HashMap::new();
        each_listed(&*self.store, PREFIX, self.deadline(), |listed| {
            if let Some(id) = stream_of(&listed.key) {
                let (count, bytes) = objects.entry(id).or_default();
                (*count, *bytes) = (*count + 1, *bytes + listed.len);
            }
        })?;
        // Read after the listing: what is on no list now was seen before and is dead.
        let list = self.list()?;
        out.uploads = list.uploads.len() as u64;
        for upload in &list.uploads {
            objects.remove(&upload.id);
        }
        for stream in &list.streams {
            objects.remove(&stream.id);
            out.streams += 1;
            for need in stream.needs.iter().filter(|need| list.stream(**need).is_none()) {
                let (name, need) = (stream.name.clone(), need.simple().to_string());
                out.find(stream.id, &stream.name, RemoteError::BrokenChain { name, need });
            }
            let manifest = match self.manifest(stream) {
                Ok(manifest) => manifest,
                Err(error) => {
                    out.find(stream.id, &stream.name, is_damage(error)?);
                    continue;
                }
            };
            let kinds = [(Kind::Part, &manifest.parts), (Kind::Index, &manifest.index)];
            for (kind, rows) in kinds.into_iter().filter(|_| !manifests_only) {
                for (n, row) in rows.iter().enumerate() {
                    debug_assert!(row.stored <= OBJECT_LEN_MAX + 64);
                    let id = PieceId { stream: stream.id, kind, n: n as u32 };
                    if let Err(error) = self.piece(&manifest, id, None) {
                        out.find(stream.id, &stream.name, is_damage(error)?);
                    }
                    out.parts += 1;
                    out.stored_bytes += u64::from(row.stored);
                    progress(&out);
                }
            }
        }
        out.orphans = objects.values().map(|(count, _)| count).sum();
        out.orphan_bytes = objects.values().map(|(_, bytes)| bytes).sum();
        Ok(out)
    }
}

/// What is wrong with an object, or the error of a store that does not answer.
fn is_damage(error: RemoteError) -> Result<RemoteError, RemoteError> {
    use crate::error::StoreError;
    match error {
        RemoteError::Corrupt(_) | RemoteError::Store { source: StoreError::Wrong(_), .. } => Ok(error),
        other => Err(other),
    }
}
