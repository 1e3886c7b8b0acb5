//! Names of volumes: `file:///dir/prefix`, `memory://name/prefix`, `s3://bucket/prefix`, `gs://bucket/prefix`,
//! `az://container/prefix`.
//!
//! Paths are percent-decoded. The query may hold `pin=NAME` or `at=newest`. [`std::fmt::Display`] gives one form to all
//! names of the same thing, which is parsed again the same.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode};

use crate::error::RemoteError;
use crate::format::pins::is_pin_name;

/// Longest name that is parsed, in bytes.
const URL_LEN_MAX: usize = 4096;

/// Which store, and where on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A directory of this machine.
    File(PathBuf),
    /// Memory of this process.
    Memory {
        /// The store.
        name: String,
        /// The prefix, without slashes around it.
        prefix: String,
    },
    /// A bucket of a cloud, or of what speaks as one does.
    Bucket {
        /// How it is spoken to.
        cloud: Cloud,
        /// The bucket, or container.
        bucket: String,
        /// The prefix, without slashes around it.
        prefix: String,
    },
}

/// How a store of a cloud is spoken to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cloud {
    /// S3, by Amazon and many others.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Cloud {
    /// What its names begin with.
    pub fn scheme(self) -> &'static str {
        match self {
            Cloud::S3 => "s3",
            Cloud::Google => "gs",
            Cloud::Azure => "az",
        }
    }
}

/// The name of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Url {
    /// Where it is.
    pub place: Place,
    /// The pin that is meant; else the newest head.
    pub pin: Option<String>,
}

/// Whether a name is meant as one of these: it begins with one of their schemes and `://`.
pub fn is_url(name: &str) -> bool {
    name.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()))
}

/// What names of volumes begin with.
pub const SCHEMES: [&str; 5] = ["file", "memory", "s3", "gs", "az"];

impl Url {
    /// Reads a name.
    pub fn parse(name: &str) -> Result<Url, RemoteError> {
        let shown: String = name.chars().take(200).flat_map(char::escape_debug).collect();
        parse(name).map_err(|what| RemoteError::Url { url: shown, what })
    }
}

fn parse(name: &str) -> Result<Url, String> {
    if name.len() > URL_LEN_MAX {
        return Err(format!("longer than {URL_LEN_MAX} bytes"));
    }
    let (scheme, rest) = name.split_once("://").ok_or("has no scheme")?;
    if rest.contains('#') {
        return Err("a fragment (#…) means nothing here".into());
    }
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let place = match scheme.to_ascii_lowercase().as_str() {
        "file" => {
            let path = path.strip_prefix("localhost").unwrap_or(path);
            if !path.starts_with('/') {
                return Err("a path begins with a slash: three slashes in all".into());
            }
            let path = segments(path)?.join("/");
            if path.is_empty() {
                return Err("the directory of the volume is missing".into());
            }
            Place::File(format!("/{path}").into())
        }
        "memory" => {
            let parts = segments(path)?;
            let (name, prefix) = parts.split_first().ok_or("the store's name is missing")?;
            if prefix.is_empty() {
                return Err("the prefix of the volume is missing".into());
            }
            Place::Memory { name: name.clone(), prefix: prefix.join("/") }
        }
        "s3" => bucket(Cloud::S3, path)?,
        "gs" => bucket(Cloud::Google, path)?,
        "az" => bucket(Cloud::Azure, path)?,
        _ => return Err(format!("not of the kind {}", SCHEMES.map(|s| format!("{s}://")).join(", "))),
    };
    let mut url = Url { place, pin: None };
    for part in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match (key, decoded(value)?) {
            ("pin", name) if is_pin_name(&name) && url.pin.is_none() => url.pin = Some(name),
            ("pin", _) => return Err("pin=NAME is given once, with letters, digits, dots and dashes".into()),
            ("at", value) if value == "newest" => {}
            ("at", value) => return Err(format!("at={} is not supported; newest is", value.escape_debug())),
            _ => return Err(format!("unknown parameter {}", key.escape_debug())),
        }
    }
    Ok(url)
}

fn bucket(cloud: Cloud, path: &str) -> Result<Place, String> {
    let parts = segments(path)?;
    let (bucket, prefix) = parts.split_first().ok_or("the bucket is missing")?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    // The longest that any of them allows has 222.
    if !(3..=222).contains(&bucket.len()) || !bucket.bytes().all(plain) {
        return Err(format!("{} is no name of a bucket", bucket.escape_debug()));
    }
    if prefix.is_empty() {
        return Err("the prefix of the volume is missing, which is the name of a directory in the bucket".into());
    }
    match prefix.iter().find(|part| part.contains(char::is_control)) {
        Some(part) => Err(format!("{} is no part of a key", part.escape_debug())),
        None => Ok(Place::Bucket { cloud, bucket: bucket.clone(), prefix: prefix.join("/") }),
    }
}

/// The parts of a path between slashes, decoded; empty ones are left out.
fn segments(path: &str) -> Result<Vec<String>, String> {
    let parts = path.split('/').filter(|p| !p.is_empty()).map(decoded);
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    match parts.iter().find(|p| *p == "." || *p == ".." || p.contains(['/', '\0'])) {
        Some(odd) => Err(format!("{} is no part of a path here", odd.escape_debug())),
        None => Ok(parts),
    }
}

/// With `%41` as `A`.
pub(crate) fn decoded(text: &str) -> Result<String, String> {
    // The crate leaves as it is what is no code.
    let is_code = |after: &str| after.get(..2).is_some_and(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
    if !text.split('%').skip(1).all(is_code) {
        return Err("after % come two hexadecimal digits".into());
    }
    let text = percent_decode_str(text).decode_utf8().map_err(|_| "not UTF-8")?;
    Ok(text.into_owned())
}

fn encoded(text: &str) -> PercentEncode<'_> {
    const CODED: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, const { &CODED })
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File(path) => {
                write!(f, "file://{}", encoded(&path.to_string_lossy()))?;
            }
            Place::Memory { name, prefix } => {
                write!(f, "memory://{}/{}", encoded(name), encoded(prefix))?;
            }
            Place::Bucket { cloud, bucket, prefix } => {
                write!(f, "{}://{bucket}/{}", cloud.scheme(), encoded(prefix))?;
            }
        }
        match &self.pin {
            Some(pin) => write!(f, "?pin={pin}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn again(name: &str) -> String {
        Url::parse(name).unwrap_or_else(|e| panic!("{name}: {e}")).to_string()
    }

    /// Goal: one form for all names of a thing; what cannot be meant is refused.
    #[test]
    fn names() {
        assert_eq!(again("file:///var//volume/"), "file:///var/volume");
        assert_eq!(again("FILE://localhost/a%20b?at=newest"), "file:///a%20b");
        assert_eq!(again("memory://box/one/two?pin=v1.0"), "memory://box/one/two?pin=v1.0");
        assert_eq!(again("S3://my.bucket-1//a%20b/c/"), "s3://my.bucket-1/a%20b/c");
        assert_eq!(again("gs://bucket/a?pin=v1"), "gs://bucket/a?pin=v1");
        assert_eq!(again("az://container/a"), "az://container/a");
        for bad in [
            "file://",
            "file:///",
            "file://host/dir",
            "file:///a/../b",
            "file:///a%2Fb",
            "file:///a%0",
            "memory://box",
            "memory:///",
            "file:///a?pin=",
            "file:///a?pin=.x",
            "file:///a?pin=a&pin=b",
            "file:///a?x=1",
            "file:///a#b",
            "file:///a?at=7",
            "s3://",
            "s3://bucket",
            "s3://bucket/",
            "s3://b/prefix",
            "s3://buck et/prefix",
            "s3://user@bucket/prefix",
            "s3://bucket:9000/prefix",
            "s3://bucket/a%0ab",
            "gs://bucket/../a",
            "http://a/b",
            "plain",
            "file:///%ff",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
        assert!(is_url("s3://bucket") && is_url("Memory://a/b") && !is_url("./file:/x") && !is_url("nbd://h/e"));
    }

    proptest! {
        /// Goal: nothing panics, and what is accepted is printed as something that is parsed the same.
        #[test]
        fn any_text(text in "(file|memory|s3|gs|az)://[a-c/%2E?=&pinat.]{0,30}") {
            if let Ok(url) = Url::parse(&text) {
                prop_assert_eq!(Url::parse(&url.to_string()).unwrap(), url);
            }
        }
    }
}
