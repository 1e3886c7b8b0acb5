//! Paths of a tree that is restored.
//!
//! A chain of names: each entry has its own name and shares the rest, so that memory grows with the depth of a tree and not with
//! its square. A path is put together when an error or a link needs it.

use std::sync::Arc;

/// A path inside what is restored.
#[derive(Debug)]
pub(super) struct Place {
    name: Vec<u8>,
    parent: Option<Arc<Place>>,
}

impl Place {
    /// A path of one name; an empty one adds nothing to the paths below it.
    pub fn new(name: &[u8]) -> Arc<Place> {
        Arc::new(Place { name: name.to_vec(), parent: None })
    }

    /// The place of an entry.
    pub fn child(self: &Arc<Place>, name: &[u8]) -> Arc<Place> {
        Arc::new(Place { name: name.to_vec(), parent: Some(self.clone()) })
    }

    /// The last name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The place that this one is in.
    #[cfg(target_os = "linux")]
    pub fn parent(&self) -> Option<&Arc<Place>> {
        self.parent.as_ref()
    }

    /// All names, the first one first.
    pub fn names(&self) -> Vec<&[u8]> {
        let mut names: Vec<&[u8]> =
            std::iter::successors(Some(self), |place| place.parent.as_deref()).map(Place::name).collect();
        names.reverse();
        names.retain(|name| !name.is_empty());
        names
    }

    /// The names, with slashes between them.
    pub fn path(&self) -> Vec<u8> {
        self.names().join(&b'/')
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // One after the other, not each inside the one before: depth has no bound.
        let mut next = self.parent.take();
        while let Some(place) = next {
            next = Arc::into_inner(place).and_then(|mut place| place.parent.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: paths are the names in their order, and a long chain is dropped without recursion. Method: a chain of a million names.
    #[test]
    fn chains() {
        let top = Place::new(b"");
        let file = top.child(b"a").child(b"b");
        assert_eq!((file.path(), file.name()), (b"a/b".to_vec(), &b"b"[..]));
        assert_eq!(Place::new(b"x").child(b"y").names(), [b"x", b"y"]);
        assert_eq!(top.path(), b"");
        let deep = (0..1_000_000).fold(top, |above, _| above.child(b"d"));
        assert_eq!(deep.path().len(), 2 * 1_000_000 - 1);
    }
}
