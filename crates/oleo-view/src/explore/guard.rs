//! Who may ask what: decided from a request's head alone, before anything is read.
//!
//! A page of another origin cannot read answers, but it could send requests; and a name that a stranger controls can be made to lead to this machine (DNS rebinding). So a request has to name this
//! server by its address in `Host`, and a browser that says where a request comes from (`Origin`, `Sec-Fetch-Site`) has to say: from here, or from the user.

use std::net::SocketAddr;

use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{Method, StatusCode, Uri};

/// `Sec-Fetch-Site` (W3C Fetch Metadata Request Headers).
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What is compared with requests.
pub(super) struct Guard {
    hosts: [String; 2],
    token: String,
}

impl Guard {
    pub fn new(address: SocketAddr, token: String) -> Guard {
        Guard { hosts: [address.to_string(), format!("localhost:{}", address.port())], token }
    }

    /// The path behind the token, or why the request is refused.
    pub fn admit<'u>(
        &self,
        method: &Method,
        uri: &'u Uri,
        headers: &HeaderMap,
    ) -> Result<&'u str, (StatusCode, &'static str)> {
        if method != Method::GET && method != Method::HEAD {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "the explorer only reads: GET and HEAD"));
        }
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next().map(|host| host.to_str()), hosts.next()) {
            (Some(Ok(host)), None) if self.hosts.iter().any(|known| known == host) => host,
            _ => return Err((StatusCode::MISDIRECTED_REQUEST, "this server goes by another name")),
        };
        if uri.authority().is_some() {
            return Err((StatusCode::BAD_REQUEST, "this is no proxy"));
        }
        let own = format!("http://{host}");
        if headers.get_all(ORIGIN).iter().any(|origin| origin.as_bytes() != own.as_bytes()) {
            return Err((StatusCode::FORBIDDEN, "the request comes from another origin"));
        }
        let from_here = |site: &[u8]| site == b"same-origin" || site == b"none";
        if headers.get_all(FETCH_SITE).iter().any(|site| !from_here(site.as_bytes())) {
            return Err((StatusCode::FORBIDDEN, "the request comes from another site"));
        }
        let path = uri.path();
        let refused = (StatusCode::FORBIDDEN, "the address has no token, or a wrong one");
        let (token, rest) = path.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or(refused)?;
        match same(token.as_bytes(), self.token.as_bytes()) {
            true => Ok(rest),
            false => Err(refused),
        }
    }
}

/// Whether two are equal, in a time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, uri: &str, headers: &[(&str, &str)]) -> Result<String, u16> {
        let guard = Guard::new("127.0.0.1:4000".parse().unwrap(), "0123abcd".into());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let (method, uri) = (method.parse().unwrap(), uri.parse().unwrap());
        guard.admit(&method, &uri, &map).map(str::to_owned).map_err(|refused| refused.0.as_u16())
    }

    /// Goal: only reading requests, to this address, from here, with the token are let in.
    #[test]
    fn what_is_let_in() {
        let host = ("host", "127.0.0.1:4000");
        let good = "/0123abcd/api/list";
        assert_eq!(asked("GET", good, &[host]), Ok("api/list".into()));
        assert_eq!(asked("HEAD", "/0123abcd/", &[("host", "localhost:4000")]), Ok(String::new()));
        assert_eq!(
            asked("GET", good, &[host, ("origin", "http://127.0.0.1:4000"), ("sec-fetch-site", "same-origin")]),
            Ok("api/list".into())
        );
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "PROPFIND"] {
            assert_eq!(asked(method, good, &[host]), Err(405), "{method}");
        }
        for name in [
            "evil.example:4000",
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost",
            "",
            "127.0.0.1:4000.evil.example",
            "0x7f000001:4000",
        ] {
            assert_eq!(asked("GET", good, &[("host", name)]), Err(421), "{name}");
        }
        assert_eq!(asked("GET", good, &[]), Err(421));
        assert_eq!(asked("GET", good, &[host, host]), Err(421));
        assert_eq!(asked("GET", "http://evil.example/0123abcd/", &[host]), Err(400));
        for origin in
            ["null", "http://evil.example", "https://127.0.0.1:4000", "http://localhost:4000", "http://127.0.0.1:4001"]
        {
            assert_eq!(asked("GET", good, &[host, ("origin", origin)]), Err(403), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert_eq!(asked("GET", good, &[host, ("sec-fetch-site", site)]), Err(403), "{site}");
        }
        for path in ["/", "/api/list", "/0123abce/", "/0123abcd", "//", "/0123ABCD/", "/%30123abcd/", "/0123abcd0/"] {
            assert_eq!(asked("GET", path, &[host]), Err(403), "{path}");
        }
    }
}
