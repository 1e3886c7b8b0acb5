//! The bytes of an item that is put: never changed, so whoever has them shares them instead of making a copy.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes that are kept in place. With them a value is as long as one that shares a part of others.
const FEW: usize = 22;

/// The bytes of an item. A clone is the same bytes, or a copy of a few.
#[derive(Clone)]
pub struct ItemBytes(Repr);

#[derive(Clone)]
enum Repr {
    Few {
        len: u8,
        bytes: [u8; FEW],
    },
    /// Items that are made together lie in one piece of memory: each piece that is allocated costs more than the bytes.
    Part {
        start: u16,
        len: u16,
        of: Arc<[u8]>,
    },
    Whole(Arc<[u8]>),
}

impl ItemBytes {
    /// A part of bytes that hold several items.
    ///
    /// # Panics
    /// The range is not in them, which is a bug.
    pub fn part(of: &Arc<[u8]>, range: Range<usize>) -> ItemBytes {
        let len = range.end - range.start;
        match (u16::try_from(range.start), u16::try_from(len)) {
            (Ok(start), Ok(short)) if len > FEW => {
                assert!(range.end <= of.len(), "{range:?} of {} bytes", of.len());
                ItemBytes(Repr::Part { start, len: short, of: of.clone() })
            }
            _ => of[range].into(),
        }
    }
}

impl Deref for ItemBytes {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Few { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Part { start, len, of } => &of[usize::from(*start)..][..usize::from(*len)],
            Repr::Whole(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for ItemBytes {
    fn from(from: &[u8]) -> ItemBytes {
        if from.len() > FEW {
            return ItemBytes(Repr::Whole(from.into()));
        }
        let mut bytes = [0; FEW];
        bytes[..from.len()].copy_from_slice(from);
        ItemBytes(Repr::Few { len: from.len() as u8, bytes })
    }
}

impl From<Vec<u8>> for ItemBytes {
    fn from(from: Vec<u8>) -> ItemBytes {
        from.as_slice().into()
    }
}

impl From<Box<[u8]>> for ItemBytes {
    fn from(from: Box<[u8]>) -> ItemBytes {
        (*from).into()
    }
}

impl<const N: usize> From<[u8; N]> for ItemBytes {
    fn from(from: [u8; N]) -> ItemBytes {
        from.as_slice().into()
    }
}

impl Default for ItemBytes {
    fn default() -> ItemBytes {
        ItemBytes(Repr::Few { len: 0, bytes: [0; FEW] })
    }
}

impl PartialEq for ItemBytes {
    fn eq(&self, other: &ItemBytes) -> bool {
        **self == **other
    }
}

impl Eq for ItemBytes {}

impl fmt::Debug for ItemBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the bytes are those that were given, however they are kept, and a value is small. Method: all lengths around the limits, as wholes and as
    /// parts, also such as begin or end beyond what a part can say.
    #[test]
    fn bytes_are_those_that_were_given() {
        assert_eq!(size_of::<Option<ItemBytes>>(), 24);
        let long: Arc<[u8]> = (0..80_000usize).map(|n| (n % 251) as u8).collect();
        for len in [0, 1, FEW - 1, FEW, FEW + 1, 65_534, 65_535, 65_536] {
            assert_eq!(*ItemBytes::from(&long[..len]), long[..len]);
            assert_eq!(*ItemBytes::from(long[..len].to_vec()).clone(), long[..len]);
            for start in [0, 7, 14_000] {
                let part = ItemBytes::part(&long, start..start + len);
                assert_eq!((&*part, &part), (&long[start..start + len], &part.clone()), "{len} from {start}");
            }
        }
        assert_eq!(*ItemBytes::part(&long, 70_000..70_100), long[70_000..70_100]);
        assert!(ItemBytes::default().is_empty());
    }
}
