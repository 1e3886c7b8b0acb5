//! HTTP, below the crate that speaks to clouds: one client with our TLS, which notes beside each operation what was answered.
//!
//! That crate tells some answers under one name that differ in what is known of the outcome, and asks others for credentials
//! on the way. So [`Service`] notes the status of the operation's own requests in a [`Noted`] of the task that it is carried
//! out in ([`NOTED`]); requests for credentials are those that have no [`Marker`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::options::StoreOptions;

/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// For how long a connection is kept that nobody uses: stores close theirs after 20 s and more.
const IDLE_MAX: Duration = Duration::from_secs(15);
/// How often the kernel asks whether the other side is there.
const KEEPALIVE: Duration = Duration::from_secs(15);

tokio::task_local! {
    /// What is noted of the operation that this task carries out.
    pub(super) static NOTED: Arc<Noted>;
}

/// That a request is the operation itself, not one for credentials.
#[derive(Clone, Copy)]
pub(super) struct Marker;

/// What is known of an operation besides its result.
#[derive(Default, Debug)]
pub(super) struct Noted {
    /// The status of the last answer; 0: none.
    status: AtomicU16,
    /// How many requests were begun.
    sent: AtomicU32,
    /// How many were answered.
    answered: AtomicU32,
}

impl Noted {
    /// The status of the last answer, if there was one.
    pub(super) fn status(&self) -> Option<u16> {
        Some(self.status.load(Ordering::Relaxed)).filter(|&status| status != 0)
    }

    /// Whether a request was begun.
    pub(super) fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed) > 0
    }

    /// Whether the store has begun to answer one.
    pub(super) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed) > 0
    }
}

/// The store's clock, in seconds since 1970; 0: not known.
pub(super) type Clock = Arc<AtomicU64>;

/// Makes the client.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    client: reqwest::Client,
    clock: Clock,
}

impl Connector {
    /// With the certificates that the system trusts, and those of `AWS_CA_BUNDLE`.
    pub(super) fn new(options: &StoreOptions, clock: Clock) -> Result<Connector, String> {
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls(options.setting("AWS_CA_BUNDLE"))?)
            .http1_only()
            .no_proxy()
            .referer(false)
            // Whoever sends elsewhere is not the store that was named.
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .tcp_keepalive(KEEPALIVE)
            .user_agent(concat!("oleo/", env!("CARGO_PKG_VERSION")));
        if let Some(proxy) = &options.proxy {
            let bad = |e: reqwest::Error| format!("proxy {proxy}: {}", e.without_url());
            builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(bad)?);
        }
        let client = builder.build().map_err(|e| e.to_string())?;
        Ok(Connector { client, clock })
    }
}

fn tls(more: Option<&str>) -> Result<rustls::ClientConfig, String> {
    let mut roots = rustls::RootCertStore::empty();
    // What of the system cannot be read is left out: a server that needs it is refused.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = more {
        let wrong = |e: rustls::pki_types::pem::Error| format!("{path}: {e}");
        let certificates = CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<Vec<_>, _>>();
        roots.add_parsable_certificates(certificates.map_err(wrong)?);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder.map_err(|e| e.to_string())?.with_root_certificates(roots).with_no_client_auth())
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service { client: self.client.clone(), clock: self.clock.clone() }))
    }
}

/// Sends requests and notes answers.
#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    clock: Clock,
}

#[async_trait::async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Nothing else than our operations deletes, which Azure does by batches.
        let is_batch = || request.uri().query().is_some_and(|query| query.split('&').any(|word| word == "comp=batch"));
        let is_delete = || request.method().as_str() == "DELETE" || is_batch();
        let is_own = request.extensions().get::<Marker>().is_some() || is_delete();
        let noted = NOTED.try_with(Arc::clone).ok().filter(|_| is_own);
        if let Some(noted) = &noted {
            noted.sent.fetch_add(1, Ordering::Relaxed);
            noted.status.store(0, Ordering::Relaxed);
        }
        let response = self.client.call(request).await?;
        if let Some(noted) = &noted {
            noted.status.store(response.status().as_u16(), Ordering::Relaxed);
            noted.answered.fetch_add(1, Ordering::Relaxed);
            let date = response.headers().get("date").and_then(|date| date.to_str().ok());
            if let Some(seconds) = date.and_then(seconds_of) {
                self.clock.store(seconds, Ordering::Relaxed);
            }
        }
        Ok(response)
    }
}

/// Seconds since 1970 of a date as HTTP has it: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn seconds_of(date: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = date.split_once(", ")?.1.split(' ');
    let day: u64 = words.next()?.parse().ok()?;
    let month_name = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month_name)? as u64 + 1;
    let year: u64 = words.next()?.parse().ok()?;
    let mut time = words.next()?.split(':').map(|part| part.parse::<u64>().ok().filter(|n| *n < 61));
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1970..10_000).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    Some(days_of(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days since 1970 of a date, counted in years that begin in March, so that the day of a leap year is the last one.
pub(super) fn days_of(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    (year * 365 + year / 4 - year / 100 + year / 400 + of_year).saturating_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the store's clock is read as it is meant. Method: dates with known seconds, and what is none.
    #[test]
    fn dates() {
        assert_eq!(seconds_of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds_of("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(seconds_of("Tue, 29 Feb 2000 00:00:00 GMT"), Some(951_782_400));
        assert_eq!(seconds_of("Sat, 21 Nov 2026 20:53:25 GMT"), Some(1_795_294_405));
        for bad in
            ["", "Sun, 06 Nov", "Sun, 06 Nox 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:99:37 GMT", "0, 0 Jan 1 0:0:0"]
        {
            assert_eq!(seconds_of(bad), None, "{bad}");
        }
    }
}
