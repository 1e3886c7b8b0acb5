//! How a client behaves.

use std::path::PathBuf;
use std::time::Duration;

/// Options of [`super::NbdDevice::connect`].
///
/// Nothing waits for ever. A request is answered within `request_max`, plus the time that what is under way before it
/// takes at 64 KiB/s, plus two seconds in which that is noticed; or its session is given up. What only reads is then
/// asked again, on a session that comes within `reconnect_max` and shows within `request_max` that it is with the same
/// export; if that breaks too, again, but nothing is asked any more later than `request_max` and `reconnect_max` after
/// the call began. So a server that fails again and again holds a read of one request up for at most three times the one
/// and twice the other; a write, which is never asked again, for less.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Connections, if the server allows more than one.
    pub connections: usize,
    /// Requests under way on one connection.
    pub window_requests: usize,
    /// Bytes of payload under way on one connection, both directions together.
    pub window_bytes: u64,
    /// How long connecting may take, handshake included.
    pub connect_max: Duration,
    /// How long a request may stay without an answer, and a connection with requests without a byte.
    pub request_max: Duration,
    /// How long a server that went may stay away, from the first call that needs it; zero: it is not waited for.
    pub reconnect_max: Duration,
    /// After so long without a write, what is unflushed is flushed.
    pub settle_after: Duration,
    /// The directory with certificates, unless the URI names one.
    pub tls_certificates: Option<PathBuf>,
    /// The name that the server's certificate must have, unless the URI names one.
    pub tls_hostname: Option<String>,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connections: 4,
            window_requests: 64,
            window_bytes: 16 << 20,
            connect_max: Duration::from_secs(10),
            request_max: Duration::from_secs(30),
            reconnect_max: Duration::from_secs(30),
            settle_after: Duration::from_secs(1),
            tls_certificates: None,
            tls_hostname: None,
        }
    }
}

oleo_format::setters!(ClientOptions {
    connections: usize,
    window_requests: usize,
    window_bytes: u64,
    connect_max: Duration,
    request_max: Duration,
    reconnect_max: Duration,
    settle_after: Duration,
    tls_certificates: Option<PathBuf>,
    tls_hostname: Option<String>,
});
