//! The volumes that a branch goes back to: where they are, and how a branch names what is theirs.

use std::path::Path;
use std::sync::Arc;

use crate::disk_cache::DiskCache;
use crate::error::RemoteError;
use crate::format::head::{Head, Origin};
use crate::format::{ObjectId, ObjectRef};
use crate::open_store::open_store;
use crate::options::StoreOptions;
use crate::store::{Retry, Store};
use crate::url::{Place, Url};

/// A volume that a branch goes back to.
pub(crate) struct OriginStore {
    pub(crate) uuid: [u8; 16],
    pub(crate) store: Arc<dyn Store>,
    /// What is on the local disk of it, which its other branches share.
    pub(crate) disk: Option<DiskCache>,
}

/// Whose head a volume is opened from: its own, or when it is made that of its parent.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) uuid: [u8; 16],
    /// Number of the origin that the parent is for the child; 0: there is none.
    pub(crate) shift: u16,
}

/// The stores of a head's origins. `own` is the store of the head.
pub(crate) fn open_origins(own: &str, head: &Head, options: &StoreOptions) -> Result<Vec<OriginStore>, RemoteError> {
    check_origins(own, head, options)?;
    let open = |origin: &Origin| {
        let url = Url::parse(&origin.prefix)?;
        let store = Retry::new(open_store(&url, options)?, options.host.clone());
        let disk = options.cache.as_ref().map(|cache| DiskCache::open(&cache.dir, origin.uuid, cache.bytes_max));
        Ok(OriginStore { uuid: origin.uuid, store: Arc::new(store), disk: disk.transpose()? })
    };
    head.origins.iter().map(open).collect()
}

/// Refuses origins elsewhere than in the bucket of `own`, the store of the head, or in the directory that it is in, unless
/// `trust_origins` is set. They would be opened with the credentials of this process, and anyone may have written the head of
/// a volume that is not sealed.
pub(crate) fn check_origins(own: &str, head: &Head, options: &StoreOptions) -> Result<(), RemoteError> {
    if head.key.is_some() || options.trust_origins {
        return Ok(());
    }
    for origin in &head.origins {
        let url = Url::parse(&origin.prefix)?;
        if options.host.store(&url).is_none() && !is_beside(own, &url.place) {
            return Err(RemoteError::Unsupported {
                what: format!(
                    "{own} is a branch of {url}, which is elsewhere, and it is not encrypted; if you trust it, open it with the option trust-origins"
                ),
            });
        }
    }
    Ok(())
}

/// Whether a place is in the bucket of a store, or in the directory that the store is in.
fn is_beside(own: &str, place: &Place) -> bool {
    let Some((scheme, own)) = own.split_once("://") else { return false };
    let top = own.split('/').next();
    match place {
        Place::File(path) => scheme == "file" && path.parent().is_some() && Path::new(own).parent() == path.parent(),
        Place::Memory { name, .. } => scheme == "memory" && top == Some(name),
        Place::Bucket { cloud, bucket, .. } => scheme == cloud.scheme() && top == Some(bucket),
    }
}

/// An object of the parent, as a child names it, for whom the parent is the origin `by`; 0: there is no child.
pub(crate) fn shifted(id: ObjectId, by: u16) -> ObjectId {
    if id.origin == 0 { ObjectId { origin: by, ..id } } else { id }
}

/// The same for a part of one.
pub(crate) fn shifted_ref(at: ObjectRef, by: u16) -> ObjectRef {
    ObjectRef { id: shifted(at.id, by), ..at }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the head of a volume that is not sealed opens no origins in another store, bucket or directory without `trust_origins`.
    /// Method: a table; opening a store sends no request.
    #[test]
    fn other_places() {
        let open = |own: &str, prefix: &str, trust_origins| {
            let origin = Origin { uuid: [1; 16], pin: "p".into(), prefix: prefix.into() };
            let head = Head { origins: vec![origin], ..Head::default() };
            let options = StoreOptions { trust_origins, ..StoreOptions::default() };
            open_origins(own, &head, &options).map(|origins| origins.len())
        };
        for (own, prefix) in [("file:///a/child", "file:///a/parent"), ("memory://m/child", "memory://m/parent")] {
            assert_eq!(open(own, prefix, false).expect(own), 1);
        }
        for (own, prefix) in [
            ("file:///a/child", "memory://m/parent"),
            ("file:///a/child", "file:///b/parent"),
            ("file:///a/child", "file:///a"),
            ("memory://m/child", "memory://n/parent"),
            ("s3://own/child", "memory://own/parent"),
        ] {
            let refused = open(own, prefix, false).expect_err(prefix);
            assert!(refused.to_string().contains("trust-origins"), "{refused}");
            assert_eq!(open(own, prefix, true).expect(prefix), 1);
        }
        assert!(is_beside("s3://own/child", &Url::parse("s3://own/x/parent").expect("a name").place));
        assert!(!is_beside("s3://own/child", &Url::parse("s3://other/parent").expect("a name").place));
        assert!(!is_beside("gs://own/child", &Url::parse("s3://own/parent").expect("a name").place));
    }
}
