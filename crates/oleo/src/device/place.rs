//! What the name of an image means: a file or block device of this machine, or something with a scheme in front.
//!
//! Names travel as paths. One that begins with a known scheme and `://` is a URI; one with another scheme is refused,
//! unless there is such a file: a typing error must not become a file `s4:`. `./nbd://x` is a file in any case.
//!
//! A new kind of place is a variant of [`Place`], a scheme in [`SCHEMES`], and a branch in [`super::open_named`].

use std::path::{Path, PathBuf};

#[cfg(feature = "nbd")]
use oleo_nbd::{At, Uri};
#[cfg(feature = "remote")]
use oleo_remote::Url;

use crate::{Error, Result};

/// Schemes that mean something, and what is behind them.
const SCHEMES: [(&str, Kind); 9] = [
    ("nbd", Kind::Nbd { tls: false }),
    ("nbds", Kind::Nbd { tls: true }),
    ("nbd+unix", Kind::Nbd { tls: false }),
    ("nbds+unix", Kind::Nbd { tls: true }),
    ("file", Kind::Store { cloud: false }),
    ("memory", Kind::Store { cloud: false }),
    ("s3", Kind::Store { cloud: true }),
    ("gs", Kind::Store { cloud: true }),
    ("az", Kind::Store { cloud: true }),
];

/// What is behind a scheme.
#[derive(Clone, Copy)]
enum Kind {
    /// An export of a server.
    Nbd { tls: bool },
    /// An object store.
    Store { cloud: bool },
}

impl Kind {
    /// The feature that this build does not have, and would need.
    fn missing(self) -> Option<&'static str> {
        match self {
            Kind::Nbd { .. } if !cfg!(feature = "nbd") => Some("nbd"),
            Kind::Nbd { tls: true } if !cfg!(feature = "tls") => Some("tls"),
            Kind::Store { .. } if !cfg!(feature = "remote") => Some("remote"),
            Kind::Store { cloud: true } if !cfg!(feature = "cloud") => Some("cloud"),
            Kind::Nbd { .. } | Kind::Store { .. } => None,
        }
    }
}

/// A word before `://` that is shorter is no scheme.
const SCHEME_LEN_MIN: usize = 2;

/// Where an image or device is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Place {
    /// A file or block device of this machine.
    File(PathBuf),
    /// An export of a server.
    #[cfg(feature = "nbd")]
    Nbd(Box<Uri>),
    /// A volume on an object store.
    #[cfg(feature = "remote")]
    Remote(Box<Url>),
}

/// What tells one place from another, whatever its name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Identity {
    /// A file: its file system and inode.
    File(u64, u64),
    /// A block device: its number.
    Block(u64),
    /// Something else, by the one form of its name.
    Named(String),
}

impl Place {
    /// Finds out what a name means. Nothing is opened, and no network asked.
    ///
    /// # Errors
    /// The scheme is unknown, what follows it makes no sense, or this build cannot do it.
    pub fn parse(name: &Path) -> Result<Place> {
        let Some((scheme, _)) = scheme_of(name) else { return Ok(Place::File(name.to_path_buf())) };
        let scheme = scheme.to_ascii_lowercase();
        match SCHEMES.iter().find(|(known, _)| *known == scheme) {
            Some((_, kind)) => named(name, *kind),
            // Slashes that follow one another count once: it may be a file in a directory of that name.
            None if name.symlink_metadata().is_ok() => Ok(Place::File(name.to_path_buf())),
            None => {
                let known: Vec<&str> = SCHEMES.iter().map(|(known, _)| *known).collect();
                let known = known.join(", ");
                Err(Error::Request(format!("unknown scheme {scheme}; known are {known} (a file is ./{scheme}:…)")))
            }
        }
    }

    /// Whether it is a file or block device of this machine.
    pub fn is_file(&self) -> bool {
        matches!(self, Place::File(_))
    }

    /// The same name, for a process that has changed its directory.
    pub fn absolute(&self) -> PathBuf {
        match self {
            Place::File(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
            #[cfg(feature = "nbd")]
            Place::Nbd(uri) => uri.to_string().into(),
            #[cfg(feature = "remote")]
            Place::Remote(url) => url.to_string().into(),
        }
    }

    /// As people are shown where something comes from: links of the host are followed.
    pub fn shown(&self) -> String {
        match self {
            Place::File(path) => std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()).display().to_string(),
            #[cfg(feature = "nbd")]
            Place::Nbd(uri) => uri.to_string(),
            #[cfg(feature = "remote")]
            Place::Remote(url) => url.to_string(),
        }
    }

    /// What tells it from others.
    ///
    /// # Errors
    /// There is no such file.
    pub fn identity(&self) -> Result<Identity> {
        match self {
            Place::File(path) => {
                let meta = std::fs::metadata(path).map_err(Error::host("open", path))?;
                identity_of(path, &meta)
            }
            // With or without TLS, it is the same.
            #[cfg(feature = "nbd")]
            Place::Nbd(uri) => Ok(Identity::Named(Uri::new(uri.at.clone(), &uri.export).to_string())),
            #[cfg(feature = "remote")]
            Place::Remote(url) => Ok(Identity::Named(url.to_string())),
        }
    }
}

#[cfg(unix)]
fn identity_of(_: &Path, meta: &std::fs::Metadata) -> Result<Identity> {
    use std::os::unix::fs::MetadataExt;

    Ok(match meta.rdev() {
        0 => Identity::File(meta.dev(), meta.ino()),
        number => Identity::Block(number),
    })
}

/// Numbers of files are not to be had in Rust there. Hard links are taken for different files; opening one keeps the others from being opened.
#[cfg(not(unix))]
fn identity_of(path: &Path, _: &std::fs::Metadata) -> Result<Identity> {
    let whole = std::fs::canonicalize(path).map_err(Error::host("open", path))?;
    Ok(Identity::Named(whole.display().to_string()))
}

/// The word in front of `://`, if it may be a scheme, and what follows.
fn scheme_of(name: &Path) -> Option<(&str, &[u8])> {
    let bytes = name.as_os_str().as_encoded_bytes();
    let at = bytes.windows(3).position(|three| three == b"://")?;
    let scheme = std::str::from_utf8(&bytes[..at]).ok()?;
    let good = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.len() >= SCHEME_LEN_MIN
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    good.then_some((scheme, &bytes[at + 3..]))
}

/// What a name with a known scheme leads to.
fn named(name: &Path, kind: Kind) -> Result<Place> {
    if let Some(feature) = kind.missing() {
        let text = format!("{}: not in this build (feature {feature})", name.display());
        return Err(Error::refused(oleo_fs::errno::EOPNOTSUPP, text));
    }
    let Some(text) = name.to_str() else {
        let text = name.display();
        return Err(Error::Request(format!("{text}: a name with a scheme is UTF-8; other bytes are written as %FF")));
    };
    match kind {
        Kind::Nbd { .. } => export(text),
        Kind::Store { .. } => volume(text),
    }
}

#[cfg(feature = "nbd")]
fn export(text: &str) -> Result<Place> {
    let mut uri = Uri::parse(text)?;
    if let At::Unix(path) = &uri.at
        && !path.as_os_str().as_encoded_bytes().starts_with(&[0])
    {
        let path = std::path::absolute(path).map_err(Error::host("find", path))?;
        uri.at = At::Unix(path);
    }
    if let Some(dir) = &uri.tls_certificates {
        uri.tls_certificates = Some(std::path::absolute(dir).map_err(Error::host("find", dir))?);
    }
    Ok(Place::Nbd(Box::new(uri)))
}

#[cfg(not(feature = "nbd"))]
fn export(text: &str) -> Result<Place> {
    Err(Error::refused(oleo_fs::errno::EOPNOTSUPP, format!("{text}: not in this build (feature nbd)")))
}

#[cfg(feature = "remote")]
fn volume(text: &str) -> Result<Place> {
    Ok(Place::Remote(Box::new(Url::parse(text)?)))
}

#[cfg(not(feature = "remote"))]
fn volume(text: &str) -> Result<Place> {
    Err(Error::refused(oleo_fs::errno::EOPNOTSUPP, format!("{text}: not in this build (feature remote)")))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use oleo_format::ErrorKind;

    use super::*;

    fn place(name: &str) -> Result<Place> {
        Place::parse(Path::new(name))
    }

    /// Goal: what is a file, what is not, and what is a mistake. Method: a table.
    #[test]
    fn names() {
        for name in ["a", "/a/b", "./nbd://h/e", "a:b", "nbd:", "nbd:/h", "://x", "1x://y", "c://x", "a b://c", ""] {
            assert_eq!(place(name).ok(), Some(Place::File(name.into())), "{name}");
        }
        let bytes = Path::new(OsStr::from_bytes(b"\xff://x"));
        assert_eq!(Place::parse(bytes).ok(), Some(Place::File(bytes.into())));
        for name in ["s4://bucket", "nbdx://h/e", "http://h", "NBD2://h"] {
            let error = place(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            assert!(error.to_string().contains("nbd+unix"), "{error}");
        }
    }

    /// Goal: a file in a directory with a colon at the end of its name stays one, and the same name without such a file
    /// is refused. Method: an absolute path, which never is a URI, and one in a directory that is there.
    #[test]
    fn directories_with_colons() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("abc:")).unwrap();
        std::fs::write(dir.path().join("abc:/x"), "").unwrap();
        let whole = format!("{}/abc://x", dir.path().display());
        assert!(place(&whole).unwrap().is_file());
    }

    #[cfg(feature = "nbd")]
    mod nbd {
        use super::*;

        /// Goal: all names of one export are the same, and a name means the same in any directory.
        #[test]
        fn exports() {
            let of = |name: &str| place(name).unwrap().identity().unwrap();
            assert_eq!(of("nbd://H/e"), of("nbd://h:10809/e"));
            assert_ne!(of("nbd://h/e"), of("nbd://h/f"));
            let here = std::env::current_dir().unwrap();
            let far = place("nbd+unix:///e?socket=s%20s").unwrap();
            assert!(!far.is_file());
            let whole = format!("nbd+unix:///e?socket={}/s%20s", here.display());
            assert_eq!(far.absolute(), Path::new(&whole));
            assert_eq!(of("nbd+unix:///e?socket=s%20s"), of(&whole));
            assert_eq!(Place::parse(&far.absolute()).unwrap(), far, "it reads back as the same");
            let hidden = place("nbd+unix:///?socket=%00x").unwrap();
            assert_eq!(hidden.absolute(), Path::new("nbd+unix:///?socket=%00x"));
        }

        /// Goal: what follows the scheme is verified, and said to be wrong usage.
        #[test]
        fn mistakes() {
            for name in ["nbd://h:x/e", "nbd+unix:///e", "nbd://h/e?compress=1", "nbd+unix://h/e?socket=s"] {
                assert_eq!(place(name).unwrap_err().kind(), ErrorKind::Usage, "{name}");
            }
            let bytes = Path::new(OsStr::from_bytes(b"nbd://h/\xff"));
            assert_eq!(Place::parse(bytes).unwrap_err().kind(), ErrorKind::Usage);
        }
    }

    /// Goal: all names of one volume on a store are the same, and mistakes in them are wrong usage.
    #[cfg(feature = "remote")]
    #[test]
    fn volumes() {
        let far = place("file:///var//v/").unwrap();
        assert!(!far.is_file());
        assert_eq!(far.absolute(), Path::new("file:///var/v"));
        assert_eq!(far.identity().unwrap(), place("FILE://localhost/var/v").unwrap().identity().unwrap());
        for name in ["file://host/v", "memory://box", "file:///"] {
            assert_eq!(place(name).unwrap_err().kind(), ErrorKind::Usage, "{name}");
        }
        assert_eq!(place("s3://bucket/v").is_ok(), cfg!(feature = "cloud"));
    }

    /// Goal: a build without it says so, and takes no file for it.
    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_missing_feature_is_named() {
        let error = place("nbds://h/e").unwrap_err();
        assert_eq!(error.errno(), oleo_fs::errno::EOPNOTSUPP);
        assert!(error.to_string().contains("tls"), "{error}");
    }
}
