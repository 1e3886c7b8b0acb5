//! Names of exports: `nbd://host:port/export`, `nbd+unix:///export?socket=/path`, and `nbds` for both with TLS.
//!
//! The forms are those of the NBD URI document (`doc/uri.md` of the NetworkBlockDevice project). Names and values are
//! percent-decoded; a host may be an IPv6 address in brackets; a socket whose name begins with a NUL is abstract. The
//! query may hold `socket`, `tls-type=x509`, `tls-hostname`, `tls-verify-peer`, `tls-certificates`, and `x-…`, which is
//! ignored; anything else is refused, because it may matter. Plain stays plain and TLS is demanded by the scheme alone:
//! nothing is negotiated.
//!
//! [`fmt::Display`] gives one form to all names of the same thing, which is parsed again the same.

use std::fmt::{self, Write};
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode};

use crate::error::NbdError;

/// The port of the protocol.
pub const PORT: u16 = 10809;

/// Longest name that is parsed, in bytes.
const URI_LEN_MAX: usize = 16 << 10;

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum At {
    /// A host.
    Tcp {
        /// Its name or address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket: a path, or a NUL and an abstract name.
    Unix(PathBuf),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            At::Tcp { host, port } => write!(f, "{host}:{port}"),
            At::Unix(path) => write!(f, "{}", path.display().to_string().escape_debug()),
        }
    }
}

/// The name of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Uri {
    /// Whether TLS is demanded.
    pub tls: bool,
    /// Where.
    pub at: At,
    /// The export; empty: the default one.
    pub export: String,
    /// The directory with certificates, if it is named.
    pub tls_certificates: Option<PathBuf>,
    /// The name that the server's certificate must have, instead of the host's.
    pub tls_hostname: Option<String>,
    /// Whether the server's certificate is verified.
    pub tls_verify_peer: bool,
}

/// Whether a name is meant as one of these: it begins with one of their schemes and `://`.
pub fn is_uri(name: &str) -> bool {
    scheme_of(name).is_some()
}

/// TLS, a socket in the file system, and what follows the `://`.
fn scheme_of(name: &str) -> Option<(bool, bool, &str)> {
    let (scheme, rest) = name.split_once("://")?;
    match scheme.to_ascii_lowercase().as_str() {
        "nbd" => Some((false, false, rest)),
        "nbds" => Some((true, false, rest)),
        "nbd+unix" => Some((false, true, rest)),
        "nbds+unix" => Some((true, true, rest)),
        _ => None,
    }
}

impl Uri {
    /// A name for an export of a server.
    pub fn new(at: At, export: &str) -> Uri {
        let export = export.to_owned();
        Uri { tls: false, at, export, tls_certificates: None, tls_hostname: None, tls_verify_peer: true }
    }

    /// Reads a name.
    pub fn parse(name: &str) -> Result<Uri, NbdError> {
        let refused = |what: String| NbdError::Uri { uri: crate::wire::shown(name.as_bytes()), what };
        parse(name).map_err(refused)
    }
}

fn parse(name: &str) -> Result<Uri, String> {
    if name.len() > URI_LEN_MAX {
        return Err(format!("longer than {URI_LEN_MAX} bytes"));
    }
    let (tls, unix, rest) = scheme_of(name).ok_or("not of the kind nbd://, nbds://, nbd+unix://, nbds+unix://")?;
    if rest.contains('#') {
        return Err("a fragment (#…) means nothing here".into());
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let export = decoded(path)?;
    if crate::wire::string(export.as_bytes()).is_none() {
        return Err("the export's name is too long or has a NUL".into());
    }
    let mut socket = None;
    let mut uri = Uri::new(At::Unix(PathBuf::new()), &export);
    uri.tls = tls;
    for part in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let value = decoded(value)?;
        match key {
            "socket" if socket.is_some() => return Err("socket is given twice".into()),
            "socket" => socket = Some(value),
            "tls-certificates" => uri.tls_certificates = Some(value.into()),
            "tls-hostname" => uri.tls_hostname = Some(value),
            "tls-verify-peer" => {
                uri.tls_verify_peer = match value.as_str() {
                    "0" | "false" => false,
                    "1" | "true" => true,
                    _ => return Err("tls-verify-peer is 0 or 1".into()),
                }
            }
            "tls-type" if value == "x509" => {}
            "tls-type" => return Err(format!("tls-type {} is not supported; x509 is", value.escape_debug())),
            _ if key.starts_with("x-") => {}
            _ => return Err(format!("unknown parameter {}", key.escape_debug())),
        }
    }
    let about_tls = uri.tls_certificates.is_some() || uri.tls_hostname.is_some() || !uri.tls_verify_peer;
    if about_tls && !tls {
        return Err("says how to use TLS and asks for none: the scheme would be nbds".into());
    }
    uri.at = if unix { at_unix(authority, socket)? } else { at_tcp(authority, socket)? };
    Ok(uri)
}

fn at_unix(authority: &str, socket: Option<String>) -> Result<At, String> {
    if !authority.is_empty() {
        return Err("a socket in the file system has no host: three slashes, and ?socket=PATH".into());
    }
    match socket {
        Some(path) if path.starts_with('\0') && path.len() > 1 => Ok(At::Unix(path.into())),
        Some(path) if path.is_empty() || path.contains('\0') => Err("the socket's path makes no sense".into()),
        Some(path) => Ok(At::Unix(path.into())),
        None => Err("?socket=PATH is missing".into()),
    }
}

fn at_tcp(authority: &str, socket: Option<String>) -> Result<At, String> {
    if socket.is_some() {
        return Err("?socket= goes with nbd+unix://".into());
    }
    if authority.contains('@') {
        return Err("a user goes with keys (PSK) for TLS, which are not supported".into());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("a bracket is open")?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("in the brackets is no IPv6 address".into());
            }
            let port = match after {
                "" => "",
                _ => after.strip_prefix(':').ok_or("after the bracket comes a colon and a port")?,
            };
            (host.to_owned(), port)
        }
        None => {
            let (host, port) = authority.rsplit_once(':').unwrap_or((authority, ""));
            if host.contains(':') {
                return Err("an IPv6 address is written in brackets".into());
            }
            (decoded(host)?, port)
        }
    };
    let port = match port {
        "" => PORT,
        _ => port.parse().ok().filter(|&p| p != 0).ok_or("the port is no number from 1 to 65535")?,
    };
    match host.as_str() {
        // RFC 3986 allows it, and the document means this machine.
        "" => Ok(At::Tcp { host: "localhost".into(), port }),
        _ if host.chars().any(|c| c.is_control() || c.is_whitespace() || "/?#@[]".contains(c)) => {
            Err("the host's name makes no sense".into())
        }
        _ => Ok(At::Tcp { host: host.to_ascii_lowercase(), port }),
    }
}

/// With `%41` as `A`.
fn decoded(text: &str) -> Result<String, String> {
    // The crate leaves as it is what is no code.
    let is_code = |after: &str| after.get(..2).is_some_and(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
    if !text.split('%').skip(1).all(is_code) {
        return Err("after a percent sign come two hexadecimal digits".into());
    }
    let text = percent_decode_str(text).decode_utf8().map_err(|_| "percent-encoded bytes that are no UTF-8")?;
    Ok(text.into_owned())
}

/// What is plain in a path or a value, and the rest as `%41`.
fn encoded(text: &str) -> PercentEncode<'_> {
    const PLAIN_IN_BOTH: AsciiSet = NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~')
        .remove(b'/')
        .remove(b':')
        .remove(b',')
        .remove(b'@');
    utf8_percent_encode(text, const { &PLAIN_IN_BOTH })
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut query = String::new();
        let mut add = |key: &str, value: &str| {
            let _ = write!(query, "{}{key}={}", if query.is_empty() { '?' } else { '&' }, encoded(value));
        };
        f.write_str(if self.tls { "nbds" } else { "nbd" })?;
        match &self.at {
            At::Tcp { host, port } => {
                f.write_str("://")?;
                match host.contains(':') {
                    true => write!(f, "[{host}]")?,
                    false => write!(f, "{}", encoded(host))?,
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                f.write_str("/")?;
            }
            At::Unix(path) => {
                f.write_str("+unix:///")?;
                add("socket", &path.to_string_lossy());
            }
        }
        write!(f, "{}", encoded(&self.export))?;
        if let Some(dir) = &self.tls_certificates {
            add("tls-certificates", &dir.to_string_lossy());
        }
        if let Some(name) = &self.tls_hostname {
            add("tls-hostname", name);
        }
        if !self.tls_verify_peer {
            add("tls-verify-peer", "0");
        }
        f.write_str(&query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> At {
        At::Tcp { host: host.into(), port }
    }

    /// Goal: every form of the document is understood, and written back in one form. Method: a table.
    #[test]
    fn table() {
        let cases = [
            ("nbd://example.com", tcp("example.com", PORT), "", "nbd://example.com/"),
            ("nbd://example.com/", tcp("example.com", PORT), "", "nbd://example.com/"),
            ("nbd://example.com/disk", tcp("example.com", PORT), "disk", "nbd://example.com/disk"),
            ("NBD://Example.COM:10810/a%20b", tcp("example.com", 10810), "a b", "nbd://example.com:10810/a%20b"),
            ("nbd://example.com//usr/x", tcp("example.com", PORT), "/usr/x", "nbd://example.com//usr/x"),
            ("nbd://[::1]/x", tcp("::1", PORT), "x", "nbd://[::1]/x"),
            ("nbd://[::1]:7/x", tcp("::1", 7), "x", "nbd://[::1]:7/x"),
            ("nbd://:7/x?x-note=1", tcp("localhost", 7), "x", "nbd://localhost:7/x"),
            ("nbds://h/x?tls-type=x509&tls-hostname=a.b", tcp("h", PORT), "x", "nbds://h/x?tls-hostname=a.b"),
            ("nbd+unix:///?socket=/tmp/s", At::Unix("/tmp/s".into()), "", "nbd+unix:///?socket=/tmp/s"),
            ("nbd+unix:///e?socket=s%3F1", At::Unix("s?1".into()), "e", "nbd+unix:///e?socket=s%3F1"),
            ("nbd+unix:///e?socket=%00name", At::Unix("\0name".into()), "e", "nbd+unix:///e?socket=%00name"),
            (
                "nbds+unix:///%C3%A9?socket=/s&tls-verify-peer=0&tls-certificates=/c",
                At::Unix("/s".into()),
                "é",
                "nbds+unix:///%C3%A9?socket=/s&tls-certificates=/c&tls-verify-peer=0",
            ),
        ];
        for (name, at, export, normal) in cases {
            let uri = Uri::parse(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((&uri.at, uri.export.as_str()), (&at, export), "{name}");
            assert_eq!(uri.tls, normal.starts_with("nbds"), "{name}");
            assert_eq!(uri.to_string(), normal);
            assert_eq!(Uri::parse(normal).expect("its own form"), uri);
            assert!(is_uri(name) && !is_uri(&format!("./{name}")));
        }
    }

    /// Goal: what is wrong or not supported is refused, in few words. Method: a table.
    #[test]
    fn refusals() {
        let long = format!("nbd://h/{}", "a".repeat(5000));
        let endless = format!("nbd://h/{}", "a".repeat(URI_LEN_MAX));
        for (name, why) in [
            ("file:///x", "not of the kind"),
            ("nbd:/h/x", "not of the kind"),
            ("nbd://h:0/x", "port"),
            ("nbd://h:99999/x", "port"),
            ("nbd://h:x/x", "port"),
            ("nbd://::1/x", "brackets"),
            ("nbd://[::1/x", "bracket"),
            ("nbd://[h]/x", "IPv6"),
            ("nbd://[::1]7/x", "colon"),
            ("nbd://a b/x", "host"),
            ("nbd://u@h/x", "PSK"),
            ("nbd://h/x#y", "fragment"),
            ("nbd://h/%4", "percent"),
            ("nbd://h/%zz", "percent"),
            ("nbd://h/%ff", "UTF-8"),
            ("nbd://h/%00", "NUL"),
            ("nbd://h/x?socket=/s", "nbd+unix"),
            ("nbd://h/x?y=1", "unknown parameter"),
            ("nbd://h/x?tls-hostname=y", "nbds"),
            ("nbds://h/x?tls-type=psk", "psk"),
            ("nbds://h/x?tls-verify-peer=maybe", "0 or 1"),
            ("nbd+unix:///x", "missing"),
            ("nbd+unix://h/x?socket=/s", "three slashes"),
            ("nbd+unix:///x?socket=", "makes no sense"),
            ("nbd+unix:///x?socket=%00", "makes no sense"),
            ("nbd+unix:///x?socket=a%00b", "makes no sense"),
            ("nbd+unix:///x?socket=a&socket=b", "twice"),
            (&long, "too long"),
            (&endless, "longer than"),
        ] {
            let error = Uri::parse(name).expect_err(name).to_string();
            assert!(error.contains(why), "{name}: {error}");
            assert!(error.len() < 500);
        }
    }
}
