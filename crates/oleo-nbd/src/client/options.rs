//! How a client behaves.

use std::path::PathBuf;
use std::time::Duration;

/// Options of [`super::NbdDevice::connect`].
///
/// No call on the device takes longer than twice `request_max` and once `reconnect_max` for what it asks first, and of
/// a long batch each further piece no longer than `request_max` after the one before; on slow links, what is under way
/// may take the time that it needs at 64 KiB/s on top.
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
