//! Answers that are ready to begin.

use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Response};
use oleo_browse::{Refused, encoded};
use serde_json::Value;

use super::body::{Answer, Pieces, pieces};
use crate::name_text;

/// The policy of what comes from a volume.
const DATA_POLICY: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

/// What writes a body.
pub(super) type Writer = Box<dyn FnOnce(&mut Pieces) -> std::io::Result<()> + Send>;

/// An answer that is ready to begin.
pub(super) struct Reply {
    kind: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
    content: Content,
}

enum Content {
    Whole(Bytes),
    Written(Writer, Option<u64>),
}

impl Reply {
    pub fn whole(kind: &'static str, bytes: impl Into<Bytes>) -> Reply {
        Reply { kind, headers: Vec::new(), content: Content::Whole(bytes.into()) }
    }

    pub fn json(value: &Value) -> Reply {
        Reply::whole("application/json", value.to_string())
    }

    /// Contents of a volume, to be saved under a name.
    pub fn download(name: &[u8], len: Option<u64>, write: Writer) -> Reply {
        // RFC 6266, with the bytes as they are.
        let text = format!("attachment; filename*=UTF-8''{}", encoded(name));
        let disposition = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("attachment"));
        let write: Writer = Box::new(move |out: &mut Pieces| {
            out.gather();
            write(out)
        });
        Reply {
            kind: "application/octet-stream",
            headers: vec![
                (header::CONTENT_DISPOSITION, disposition),
                (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(DATA_POLICY)),
            ],
            content: Content::Written(write, len),
        }
    }

    /// What says the same wherever it is asked.
    pub fn of(reply: oleo_browse::Reply) -> Reply {
        let kind = reply.kind;
        match (reply.content, reply.raw) {
            (oleo_browse::Content::Whole(bytes), raw) => {
                let whole = Reply::whole(kind, bytes);
                // A picture of a volume.
                if raw.is_some() { whole.with(header::CONTENT_SECURITY_POLICY, DATA_POLICY) } else { whole }
            }
            (oleo_browse::Content::Written(write, len), Some(name)) => {
                Reply::download(&name, len, Box::new(move |out: &mut Pieces| write(out)))
            }
            (oleo_browse::Content::Written(write, len), None) => {
                let write: Writer = Box::new(move |out: &mut Pieces| write(out));
                Reply { kind, headers: Vec::new(), content: Content::Written(write, len) }
            }
        }
    }

    pub fn with(mut self, name: HeaderName, value: &'static str) -> Reply {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    /// Begins the answer, when the first piece of its body is there; on a thread of the runtime. Who asks for the head alone has no body begun.
    pub async fn start(self, method: &Method) -> Result<Response<Answer>, Refused> {
        let len = match &self.content {
            Content::Whole(bytes) => Some(bytes.len() as u64),
            Content::Written(_, len) => *len,
        };
        let body = match self.content {
            _ if method == Method::HEAD => Answer::empty(),
            Content::Whole(bytes) => Answer::Whole(bytes),
            Content::Written(write, _) => {
                let failed =
                    |error: std::io::Error| Refused { status: 500, why: name_text(error.to_string().as_bytes()) };
                pieces(write).await.map_err(failed)?
            }
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        if let Some(len) = len {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
        }
        headers.extend(self.headers);
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Goal: who asks only for the head has nothing done for them, and learns the length all the same.
    #[test]
    fn heads_alone() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let written = Arc::new(AtomicBool::new(false));
        runtime.block_on(async {
            let writes = written.clone();
            let write: Writer = Box::new(move |_| {
                writes.store(true, Ordering::SeqCst);
                Ok(())
            });
            let response = Reply::download(b"a", Some(7), write).start(&Method::HEAD).await.unwrap();
            assert_eq!(response.headers()[header::CONTENT_LENGTH], "7");
            assert!(matches!(response.body(), Answer::Whole(bytes) if bytes.is_empty()));
            let response = Reply::whole("text/plain", "four").start(&Method::HEAD).await.unwrap();
            assert_eq!(response.headers()[header::CONTENT_LENGTH], "4");
            assert!(matches!(response.body(), Answer::Whole(bytes) if bytes.is_empty()));
        });
        // Waits for threads that were begun.
        drop(runtime);
        assert!(!written.load(Ordering::SeqCst));
    }
}
