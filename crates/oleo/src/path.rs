//! Paths inside an image, and what names a subvolume.

#[cfg(unix)]
use std::ffi::{OsStr, OsString};
use std::fmt;
#[cfg(unix)]
use std::os::unix::ffi::OsStrExt;
#[cfg(unix)]
use std::path::{Path, PathBuf};

use oleo_format::TreeId;
use serde::{Deserialize, Serialize};

use crate::control::Location;

/// A path inside an image: bytes, of which only `/` and zero mean something. Strings, bytes and paths of the host are such paths; those of Windows are not:
/// they have other slashes, and are no bytes.
pub trait ImagePath {
    /// The bytes of the path.
    fn path_bytes(&self) -> &[u8];
}

macro_rules! image_paths {
    ($($of:ty => |$path:ident| $bytes:expr,)*) => { $(
        impl ImagePath for $of {
            fn path_bytes(&self) -> &[u8] {
                let $path = self;
                $bytes
            }
        }
    )* };
}
image_paths! {
    [u8] => |path| path,
    Vec<u8> => |path| path,
    str => |path| path.as_bytes(),
    String => |path| path.as_bytes(),
}
#[cfg(unix)]
image_paths! {
    OsStr => |path| path.as_bytes(),
    OsString => |path| path.as_bytes(),
    Path => |path| path.as_os_str().as_bytes(),
    PathBuf => |path| path.as_os_str().as_bytes(),
}

impl<const N: usize> ImagePath for [u8; N] {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl<P: ImagePath + ?Sized> ImagePath for &P {
    fn path_bytes(&self) -> &[u8] {
        (**self).path_bytes()
    }
}

/// Names a subvolume: by its ID, or by the place of its root directory. Paths from the top level, [`Location`]s and [`TreeId`]s turn
/// into one by themselves; text is always a path, so that a directory called `257` can be reached.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubvolRef {
    /// By the number of its tree.
    Id(TreeId),
    /// By the place of its root directory.
    At(Location),
}

impl From<TreeId> for SubvolRef {
    fn from(id: TreeId) -> SubvolRef {
        SubvolRef::Id(id)
    }
}

impl From<Location> for SubvolRef {
    fn from(at: Location) -> SubvolRef {
        SubvolRef::At(at)
    }
}

impl<P: ImagePath> From<P> for SubvolRef {
    fn from(path: P) -> SubvolRef {
        SubvolRef::At(Location::top(path.path_bytes()))
    }
}

impl fmt::Display for SubvolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubvolRef::Id(id) => write!(f, "subvolume {}", id.0),
            SubvolRef::At(at) => fmt::Display::fmt(at, f),
        }
    }
}

impl fmt::Debug for SubvolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use oleo_format::Ino;

    use super::*;
    use crate::{Image, Result, SnapshotOptions};

    /// Goal: subvolumes whose names are numbers are reached by their paths, others by the same numbers as IDs; so with snapshots.
    #[test]
    fn names_that_are_numbers() -> Result<()> {
        let image = Image::create_in_memory(256 << 20)?;
        let first = image.create_subvol("a")?;
        assert_eq!(first, TreeId(256));
        let second = image.create_subvol("256")?;
        image.write("a/who", b"first")?;
        image.write("256/who", b"second")?;

        assert_eq!(image.subvol("256")?.tree(), second);
        assert_eq!(image.subvol(TreeId(256))?.tree(), first);
        assert_eq!(image.subvol(Location::inode(first, Ino::ROOT_DIR))?.tree(), first);
        image.create_subvol("a/256")?;
        let inner = image.subvol(Location::below(first, Ino::ROOT_DIR, &b"256"[..]))?;
        assert_eq!(inner.tree(), image.subvol("a/256")?.tree());
        assert_eq!(image.subvol(SubvolRef::from(b"./256"))?.tree(), second);

        image.snapshot("256", "of second", &SnapshotOptions::default())?;
        image.snapshot(first, "of first", &SnapshotOptions::default())?;
        assert_eq!(image.read("of second/who")?, b"second");
        assert_eq!(image.read("of first/who")?, b"first");

        image.create_dir("300")?;
        assert!(image.subvol("300").is_err(), "a directory is no subvolume");
        assert!(image.subvol(TreeId(300)).is_err());
        assert!(image.subvol(Location::top(&b"300"[..])).is_err());
        Ok(())
    }

    /// Goal: text, bytes that are no text, and paths of the host name the same things.
    #[test]
    fn forms() -> Result<()> {
        let image = Image::create_in_memory(256 << 20)?;
        let odd = b"sub\xffvol/file";
        image.create_subvol(&odd[..7])?;
        image.write(Path::new(OsStr::from_bytes(odd)), b"contents")?;
        let forms: [&dyn ImagePath; 4] =
            [odd, &odd.to_vec(), &OsStr::from_bytes(odd), &PathBuf::from(OsStr::from_bytes(odd))];
        for form in forms {
            assert_eq!(form.path_bytes(), odd);
        }
        assert_eq!(image.read(odd)?, b"contents");
        assert_eq!(image.read(OsStr::from_bytes(odd))?, b"contents");
        let error = image.read(b"sub\xffvol/other").map(drop).unwrap_err();
        assert!(error.to_string().starts_with("sub\\xffvol/other: "), "{error}");
        image.write(String::from("text"), b"more")?;
        assert_eq!(image.read("text")?, b"more");
        assert_eq!(image.subvol(Path::new(OsStr::from_bytes(&odd[..7])))?.tree(), TreeId(256));
        Ok(())
    }
}
