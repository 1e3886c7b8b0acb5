//! Connections: accepted, bounded in number and time, and answered.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use oleo_browse::Refused;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::body::Answer;
use super::guard::Guard;
use super::routes;
use super::volume::Current;

/// Connections that are served; more wait.
const CONNECTIONS_MAX: usize = 48;
/// Threads that read for requests.
const READERS_MAX: usize = 32;
/// How long a client may take for the head of a request.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// What the browser may do with pages of the explorer: nothing but what comes from it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A server and how it is ended.
pub(super) struct Running {
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Running {
    pub fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.thread.join();
    }
}

pub(super) fn start(volume: Arc<Current>, token: String, port: u16) -> io::Result<(SocketAddr, Running)> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(READERS_MAX)
        .thread_name("explore")
        .enable_io()
        .enable_time()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, port)))?;
    let address = listener.local_addr()?;
    let guard = Arc::new(Guard::new(address, token));
    let (stop, stopped) = watch::channel(false);
    let thread = std::thread::Builder::new().name("explore".into()).spawn(move || {
        runtime.block_on(accept(listener, volume, guard, stopped));
        // Whoever reads for a request notices at the next piece that nobody wants it.
        runtime.shutdown_background();
    })?;
    Ok((address, Running { stop, thread }))
}

async fn accept(listener: TcpListener, volume: Arc<Current>, guard: Arc<Guard>, mut stopped: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            _ = stopped.changed() => return,
        };
        let Ok(place) = place else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => return,
        };
        let Ok((stream, _)) = accepted else {
            // No descriptors are left, or the client has gone already.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let (volume, guard) = (volume.clone(), guard.clone());
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(move |request| answer(request, volume.clone(), guard.clone()));
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME_MAX)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            // What a client does wrong is its own business.
            let _ = served.await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    volume: Arc<Current>,
    guard: Arc<Guard>,
) -> Result<Response<Answer>, Infallible> {
    let admitted = guard.admit(request.method(), request.uri(), request.headers()).map(str::to_owned);
    let mut response = match admitted {
        Err((status, why)) => {
            let mut refused = refusal(status, why);
            // One answer for each connection without the token: waiting connections get the place.
            refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            refused
        }
        Ok(path) => {
            let query = request.uri().query().unwrap_or("").to_owned();
            let done = tokio::task::spawn_blocking(move || routes::answer(&volume, &path, &query)).await;
            let begun = match done {
                Ok(Ok(reply)) => reply.start(request.method()).await,
                Ok(Err(refused)) => Err(refused),
                Err(_) => Err(Refused { status: 500, why: "a defect of the explorer".into() }),
            };
            match begun {
                Ok(response) => response,
                Err(refused) => refusal(
                    StatusCode::from_u16(refused.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                    &refused.why,
                ),
            }
        }
    };
    let headers = response.headers_mut();
    let always: [(HeaderName, &'static str); 6] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in always {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CONTENT_SECURITY_POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    }
    if request.method() == Method::HEAD {
        // Refusals, too.
        *response.body_mut() = Answer::empty();
    }
    Ok(response)
}

fn refusal(status: StatusCode, why: &str) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Bytes::from(format!("{why}\n"))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
