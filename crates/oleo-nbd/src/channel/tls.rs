//! TLS: certificates, and the session of a connection.
//!
//! A session is one state for both directions, behind one lock that is held only while bytes are taken in or given out
//! on a socket that does not block. What the socket does not take stays in the session: nothing new is taken in before it
//! is gone, so memory is bounded by [`PLAIN_LEN_MAX`] and its encryption.
//!
//! Certificates are where the tools of others look for them: a directory with `ca-cert.pem`, `server-cert.pem`,
//! `server-key.pem`, `client-cert.pem`, `client-key.pem`. The cryptography is named here and is not the process's default.

use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use oleo_lock::{Mutex, rank};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, RootCertStore, ServerConfig, ServerConnection,
    SignatureScheme,
};

use crate::error::NbdError;

/// Bytes that a session takes before they are sent.
const PLAIN_LEN_MAX: usize = 256 << 10;
/// Bytes that are received with one call.
const RECEIVED_LEN: usize = 64 << 10;

fn failed(what: impl ToString) -> NbdError {
    NbdError::Tls { what: what.to_string() }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NbdError> {
    let wrong = |e: rustls::pki_types::pem::Error| failed(format_args!("{}: {e}", path.display()));
    let found = CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    match found.is_empty() {
        true => Err(failed(format_args!("{}: no certificate", path.display()))),
        false => Ok(found),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, NbdError> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| failed(format_args!("{}: {e}", path.display())))
}

fn authorities(path: &Path) -> Result<Arc<RootCertStore>, NbdError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| failed(format_args!("{}: {e}", path.display())))?;
    }
    Ok(Arc::new(roots))
}

/// What a server shows, and whom it trusts.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    verifies_peers: bool,
}

impl ServerTls {
    /// Reads certificate and key of a directory. With `verify_peer` clients have to have a certificate of `ca-cert.pem`.
    pub fn load(dir: &Path, verify_peer: bool) -> Result<ServerTls, NbdError> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let builder = match verify_peer {
            true => {
                let roots = authorities(&dir.join("ca-cert.pem"))?;
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build().map_err(failed)?;
                builder.with_client_cert_verifier(verifier)
            }
            false => builder.with_no_client_auth(),
        };
        let (chain, key) = (certificates(&dir.join("server-cert.pem"))?, key(&dir.join("server-key.pem"))?);
        let config = Arc::new(builder.with_single_cert(chain, key).map_err(failed)?);
        Ok(ServerTls { config, verifies_peers: verify_peer })
    }

    /// Whether clients have to have a certificate.
    pub(crate) fn verifies_peers(&self) -> bool {
        self.verifies_peers
    }
}

/// Whom a client trusts, and what it shows.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
}

impl ClientTls {
    /// Reads the certificates of a directory: `ca-cert.pem` says who may vouch for servers, `client-cert.pem` and
    /// `client-key.pem` are shown if they are there. Without a directory the system's authorities count. Without
    /// `verify_peer` any server will do.
    pub fn load(dir: Option<&Path>, verify_peer: bool) -> Result<ClientTls, NbdError> {
        let provider = provider();
        let verifier: Arc<dyn ServerCertVerifier> = match (verify_peer, dir) {
            (false, _) => Arc::new(AnyServer(provider.clone())),
            (true, dir) => {
                let roots = match dir {
                    Some(dir) => authorities(&dir.join("ca-cert.pem"))?,
                    None => system_authorities()?,
                };
                WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build().map_err(failed)?
            }
        };
        // Not weaker than the usual: what is verified is said by the name, and by nothing else here.
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let own = dir.map(|dir| (dir.join("client-cert.pem"), dir.join("client-key.pem")));
        let config = match own.filter(|(chain, _)| chain.exists()) {
            Some((chain, secret)) => {
                builder.with_client_auth_cert(certificates(&chain)?, key(&secret)?).map_err(failed)?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(ClientTls { config: Arc::new(config) })
    }
}

fn system_authorities() -> Result<Arc<RootCertStore>, NbdError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    match (roots.is_empty(), found.errors.first()) {
        (false, _) => Ok(Arc::new(roots)),
        (true, Some(e)) => Err(failed(format_args!("the system's authorities: {e}"))),
        (true, None) => Err(failed("the system has no authorities: name a directory with certificates")),
    }
}

/// Takes any certificate; the server still has to have its key.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// What a handshake waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// Something to be received.
    Recv,
    /// Space to send.
    Send,
}

/// A session on a socket.
#[derive(Debug)]
pub(super) struct Session {
    state: Mutex<rank::NbdTls, State>,
}

#[derive(Debug)]
struct State {
    connection: Connection,
    /// What was received and not decrypted yet: `start..end`.
    received: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes decrypted and not taken yet.
    plain: usize,
}

impl Session {
    pub(super) fn server(tls: &ServerTls) -> Result<Session, NbdError> {
        Ok(Session::new(ServerConnection::new(tls.config.clone()).map_err(failed)?.into()))
    }

    /// For a server whose certificate has this name, or address.
    pub(super) fn client(tls: &ClientTls, name: &str) -> Result<Session, NbdError> {
        let name = match name.parse::<IpAddr>() {
            Ok(ip) => ServerName::IpAddress(ip.into()),
            Err(_) => ServerName::try_from(name.to_owned()).map_err(failed)?,
        };
        Ok(Session::new(ClientConnection::new(tls.config.clone(), name).map_err(failed)?.into()))
    }

    fn new(mut connection: Connection) -> Session {
        connection.set_buffer_limit(Some(PLAIN_LEN_MAX));
        let received = vec![0; RECEIVED_LEN].into();
        Session { state: Mutex::new(State { connection, received, start: 0, end: 0, plain: 0 }) }
    }

    /// Leads the handshake to its end. `wait` waits for the socket, or fails.
    pub(super) fn shake_hands(
        &self,
        mut socket: impl Read + Write,
        mut wait: impl FnMut(Want) -> io::Result<()>,
    ) -> Result<(), NbdError> {
        loop {
            let mut state = self.state.lock();
            let sent = state.give_out(&mut socket);
            let want = match sent {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Want::Send,
                Err(e) => return Err(failed(e)),
                Ok(()) if !state.connection.is_handshaking() => return Ok(()),
                Ok(()) => match state.take_in(&mut socket) {
                    Ok(true) => continue,
                    Ok(false) => return Err(failed("the other side closed")),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => Want::Recv,
                    Err(e) => {
                        // The reason, for the other side.
                        let _ = state.give_out(&mut socket);
                        return Err(failed(e));
                    }
                },
            };
            drop(state);
            wait(want).map_err(failed)?;
        }
    }

    /// See [`super::Channel::try_recv`].
    pub(super) fn try_recv(&self, mut socket: impl Read + Write, buf: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.lock();
        loop {
            match state.connection.reader().read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // Whoever closes without saying so has closed: requests and replies have lengths of their own.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                other => {
                    let n = other?;
                    state.plain = state.plain.saturating_sub(n);
                    return Ok(n);
                }
            }
            if buf.is_empty() || !state.take_in(&mut socket)? {
                return Ok(0);
            }
            // Answers of TLS itself; what the socket does not take goes with the next bytes.
            let _ = state.give_out(&mut socket);
        }
    }

    /// See [`super::Channel::try_send`].
    pub(super) fn try_send(&self, mut socket: impl Read + Write, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.state.lock();
        state.give_out(&mut socket)?;
        let taken = state.connection.writer().write_vectored(parts)?;
        match state.give_out(&mut socket) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(taken),
        }
    }

    /// See [`super::Channel::try_finish`].
    pub(super) fn try_finish(&self, mut socket: impl Read + Write) -> io::Result<()> {
        self.state.lock().give_out(&mut socket)
    }

    /// Whether something has been received already and not been taken. After a `try_recv` that would block, nothing has.
    pub(super) fn has_input(&self) -> bool {
        let state = self.state.lock();
        state.plain > 0 || state.start < state.end
    }

    /// Tells the other side that this was all, if that is possible now.
    pub(super) fn say_goodbye(&self, mut socket: impl Read + Write) {
        let mut state = self.state.lock();
        state.connection.send_close_notify();
        let _ = state.give_out(&mut socket);
    }
}

impl State {
    /// Receives and decrypts something; `false` at the end of the stream.
    fn take_in(&mut self, socket: &mut impl Read) -> io::Result<bool> {
        if self.start == self.end {
            // Also if nothing comes: what was there has been taken.
            (self.start, self.end) = (0, 0);
            self.end = socket.read(&mut self.received)?;
            if self.end == 0 {
                // The session learns of the end, too.
                self.connection.read_tls(&mut io::empty())?;
                let _ = self.connection.process_new_packets();
                return Ok(false);
            }
        }
        let mut some = &self.received[self.start..self.end];
        self.start += self.connection.read_tls(&mut some)?;
        let now = self.connection.process_new_packets().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        self.plain = now.plaintext_bytes_to_read();
        Ok(true)
    }

    /// Sends what is encrypted; `WouldBlock` if some is left.
    fn give_out(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(socket)?;
        }
        Ok(())
    }
}
