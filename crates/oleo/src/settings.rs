//! Parsing of settings that users write, and properties of files, directories and subvolumes.

use oleo_format::compress::is_supported;
use oleo_format::{Compression, CsumType, InodeFlags, TreeId};
use oleo_fs::data::Compress;
use oleo_fs::{COMPRESSION, InodeRef, ReadOnly, SetAttr, XattrMode};
use oleo_mkfs::MkfsOptions;

use crate::{Error, Image, Result};

/// Properties that [`Image::property`] knows: name, and what it is.
pub const PROPERTIES: [(&str, &str); 4] = [
    ("ro", "whether a subvolume refuses changes: true or false"),
    ("label", "the name of the file system (at the top level)"),
    ("compression", "how new data of a file or directory is compressed: zlib, lzo, zstd, none, or empty"),
    ("nodatacow", "whether an empty file or a directory's new files are overwritten in place: true or false"),
];

/// `ALGO[:LEVEL]`: zlib (1 to 9), lzo, zstd (-15 to 15), none.
///
/// # Errors
/// There is no such algorithm or level, or this build is without the algorithm.
pub fn parse_compress(text: &str) -> Result<Option<Compress>> {
    let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
    let (algorithm, levels) = match name {
        "zlib" => (Compression::Zlib, 1..=9),
        "zstd" => (Compression::Zstd, -15..=15),
        "lzo" => (Compression::Lzo, 0..=0),
        "none" | "no" => return Ok(None),
        _ => {
            return Err(Error::Request(format!("there is no compression {name}; choose one of zlib, lzo, zstd, none")));
        }
    };
    if !is_supported(algorithm) {
        let text =
            format!("nothing can be compressed with {name}: this program was built without the feature `{name}`");
        return Err(Error::refused(oleo_fs::errno::EOPNOTSUPP, text));
    }
    let level = match level {
        None => 0,
        Some(text) => text.parse::<i32>().ok().filter(|level| levels.contains(level)).ok_or_else(|| {
            Error::Request(format!("{name} has no level {text}; it has {} to {}", levels.start(), levels.end()))
        })?,
    };
    Ok(Some(Compress { algorithm, level, force: false }))
}

/// A checksum by its name.
///
/// # Errors
/// There is none of that name.
pub fn parse_checksum(text: &str) -> Result<CsumType> {
    let wanted = text.to_ascii_lowercase();
    let wanted = if wanted == "xxhash" { "xxh64" } else { wanted.as_str() };
    let same = |csum: &CsumType| csum.name().replace("hash64", "h64") == wanted || csum.name() == wanted;
    CsumType::ALL.into_iter().find(|csum| same(csum) || (wanted == "blake2" && *csum == CsumType::Blake2b)).ok_or_else(
        || Error::Request(format!("there is no checksum {text}; choose one of crc32c, xxhash, sha256, blake2")),
    )
}

/// A seed from any text: the same for the same text.
pub fn seed_from_text(text: &str) -> [u8; 32] {
    CsumType::Sha256.csum(text.as_bytes())
}

/// A random seed.
pub fn random_seed() -> [u8; 32] {
    MkfsOptions::unique().seed
}

impl Image {
    /// The label of the file system.
    pub fn label(&self) -> Vec<u8> {
        self.fs().engine().super_block().label().to_vec()
    }

    /// Changes the label; durable with the next [`Image::sync`].
    ///
    /// # Errors
    /// It is too long, or has a line feed or a zero byte.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        let mut fits = !label.contains(&b'\n');
        if fits {
            self.fs().engine().edit_super(|sb| fits = sb.set_label(label))?;
        }
        if fits { Ok(()) } else { Err(Error::Request("a label has at most 255 bytes and no line feed".into())) }
    }

    /// A property of a file, directory or subvolume; `None` if it does not apply or is not set.
    ///
    /// # Errors
    /// There is no such property.
    pub fn property(&self, inode: &InodeRef, name: &str) -> Result<Option<String>> {
        let attr = self.fs().attr(inode);
        let is_root = inode.ino() == oleo_format::Ino::ROOT_DIR;
        Ok(match name {
            "ro" => is_root.then(|| inode.subvol().is_read_only().to_string()),
            "label" => {
                (is_root && inode.tree() == TreeId::FS).then(|| String::from_utf8_lossy(&self.label()).into_owned())
            }
            "compression" => {
                self.fs().xattr_get(inode, COMPRESSION)?.map(|value| String::from_utf8_lossy(&value).into_owned())
            }
            "nodatacow" => Some(attr.flags.contains(InodeFlags::NODATACOW).to_string()),
            _ => return Err(unknown(name)),
        })
    }

    /// Sets a property.
    ///
    /// # Errors
    /// There is no such property, it does not apply to this object, or the value is invalid.
    pub fn set_property(&self, inode: &InodeRef, name: &str, value: &str) -> Result<()> {
        let yes_or_no = || match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Error::Request(format!("{name} is true or false, not {value}"))),
        };
        let is_root = inode.ino() == oleo_format::Ino::ROOT_DIR;
        match name {
            "ro" if is_root => {
                let read_only = if yes_or_no()? { ReadOnly::Yes } else { ReadOnly::No };
                Ok(self.fs().set_read_only(inode.tree(), read_only)?)
            }
            "label" if is_root && inode.tree() == TreeId::FS => self.set_label(value.as_bytes()),
            "ro" => Err(Error::refused(oleo_fs::errno::EINVAL, "only subvolumes have the property ro")),
            "label" => Err(Error::refused(oleo_fs::errno::EINVAL, "only the top level has the property label")),
            "compression" if value.is_empty() => Ok(self.fs().xattr_remove(inode, COMPRESSION)?),
            "compression" => {
                parse_compress(value)?;
                Ok(self.fs().xattr_set(inode, COMPRESSION, value.as_bytes(), XattrMode::Any)?)
            }
            "nodatacow" => {
                let mut flags = self.fs().attr(inode).flags;
                // Data that is overwritten in place can have no checksums.
                flags.set(InodeFlags::NODATACOW | InodeFlags::NODATASUM, yes_or_no()?);
                self.fs().set_attr(inode, &SetAttr::default().flags(Some(flags)))?;
                Ok(())
            }
            _ => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> Error {
    let names: Vec<&str> = PROPERTIES.iter().map(|(name, _)| *name).collect();
    Error::Request(format!("there is no property {name}; choose one of {}", names.join(", ")))
}
