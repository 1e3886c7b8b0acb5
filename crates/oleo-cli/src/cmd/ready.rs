//! Servers that have begun: they say so, let go of the terminal, and talk to the system's log.

use std::io::Write;
use std::os::unix::net::UnixDatagram;

/// Where messages of programs in the background go.
const SYSLOG: &str = "/dev/log";
/// Facility daemon, severity warning; see syslog(3).
const SYSLOG_WARNING: u8 = 3 << 3 | 4;
/// What a server says on standard output when it can be used.
pub(super) const READY: &[u8] = b"ready\n";

/// Says that it can be used, and lets go of the terminal.
pub(super) fn announce() -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(READY)?;
    stdout.flush()?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // Fails where it leads a session already, which is as good.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    Ok(())
}

/// A line for the system's log.
pub(super) fn to_syslog(line: &str) {
    // Where nobody listens, nobody reads it.
    if let Ok(socket) = UnixDatagram::unbound() {
        // A line is lost rather than a request held up by a system log that stands still.
        let _ = socket.set_nonblocking(true);
        let message = format!("<{SYSLOG_WARNING}>oleo[{}]: {line}", std::process::id());
        let _ = socket.send_to(message.as_bytes(), SYSLOG);
    }
}
