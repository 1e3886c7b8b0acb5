//! The same encrypted: certificates that openssl makes, our server with the clients of others, our client with theirs.

use std::path::Path;

use oleo_sim::oracle::Scratch;

use crate::common::{fails_with, ok};
use crate::nbd::harness::{Process, sparse, tool, try_tool};

/// An authority, and certificates of a server (localhost) and a client, named as the tools of GnuTLS and libnbd name them.
fn certificates(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    let (ca, ca_key) = (at("ca-cert.pem"), at("ca-key.pem"));
    let common = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"];
    tool("openssl", &[&common[..], &["-subj", "/CN=authority", "-keyout", &ca_key, "-out", &ca]].concat());
    for (who, names) in
        [("server", "subjectAltName=DNS:localhost,IP:127.0.0.1"), ("client", "subjectAltName=DNS:client")]
    {
        let (key, cert) = (at(&format!("{who}-key.pem")), at(&format!("{who}-cert.pem")));
        let own = ["-subj", &format!("/CN={who}"), "-addext", names, "-CA", &ca, "-CAkey", &ca_key];
        // Not an authority itself.
        let end = ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", &key, "-out", &cert];
        tool("openssl", &[&common[..], &own, &end].concat());
    }
}

/// Goal: with certificates all is well, and each that is missing or of another authority is refused, on both sides; nobody falls
/// back to plain. Method: a table of clients of ours and of libnbd.
#[test]
fn who_may_talk() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    certificates(&dir.join("good"));
    certificates(&dir.join("other"));
    std::fs::create_dir(dir.join("bare")).unwrap();
    std::fs::copy(dir.join("good/ca-cert.pem"), dir.join("bare/ca-cert.pem")).unwrap();
    ok(dir, &["mkfs", "--size", "300M", "i"]);
    let certificates = dir.join("good").display().to_string();
    let server = Process::oleo(&[&dir.join("i")], &["--tls-certificates", &certificates, "--tls-verify-peer"]);
    let plain = server.uri("");
    let uri = |which: &str, more: &str| {
        let secure = plain.replace("nbd+unix", "nbds+unix");
        format!("{secure}&tls-certificates={}&tls-hostname=localhost{more}", dir.join(which).display())
    };
    ok(dir, &["mkdir", &uri("good", ""), "d"]);
    assert_eq!(ok(dir, &["ls", &uri("good", "&tls-verify-peer=0")]), "d\n");
    for (name, says) in [
        (uri("other", ""), "TLS"),
        (uri("bare", ""), ""),
        (uri("good", "").replace("=localhost", "=elsewhere"), "TLS"),
        (plain.clone(), "TLS"),
    ] {
        let output = crate::common::run(dir, &["ls", &name]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(1 | 4)), "{name}: {line}");
        assert!(line.contains(says), "{name}: {line}");
    }
    let info = |name: &str| try_tool("nbdinfo", &["--size", name]);
    let theirs = |which: &str| {
        plain.replace("nbd+unix", "nbds+unix") + &format!("&tls-certificates={}", dir.join(which).display())
    };
    let (status, size, err) = info(&(theirs("good") + "&tls-verify-peer=0"));
    assert!(status.success() && size.trim() == (300u64 << 20).to_string(), "{size}{err}");
    assert!(!info(&(theirs("bare") + "&tls-verify-peer=0")).0.success(), "without a certificate");
    assert!(!info(&plain).0.success(), "in the clear");
    assert!(server.end().success());
}

/// Goal: our client talks TLS to the servers of others, and to none that has no TLS. Method: nbdkit with and without.
#[test]
fn over_nbdkit() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    certificates(&dir.join("good"));
    let good = format!("--tls-certificates={}", dir.join("good").display());
    let start = |tls: &str, good: &str| {
        let (tls, good) = (tls.to_owned(), good.to_owned());
        Process::start("nbdkit", |socket| {
            ["--foreground", "--exit-with-parent", "--unix", socket, &tls, &good, "memory", "300M"]
                .map(str::to_owned)
                .into()
        })
    };
    let server = start("--tls=require", &good);
    let secure = |server: &Process| {
        let uri = server.uri("").replace("nbd+unix", "nbds+unix");
        format!("{uri}&tls-certificates={}&tls-hostname=localhost", dir.join("good").display())
    };
    ok(dir, &["mkfs", &secure(&server)]);
    ok(dir, &["mkdir", &secure(&server), "d"]);
    assert!(ok(dir, &["check", &secure(&server)]).contains("clean"));
    fails_with(dir, 1, &["ls", &server.uri("")]);
    drop(server);
    let server = start("--tls=off", &good);
    assert!(fails_with(dir, 1, &["ls", &secure(&server)]).contains("TLS"));
}

/// Goal: certificates that cannot be used are refused before anybody can connect.
#[test]
fn certificates_that_are_missing() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    sparse(&dir.join("i"), 1 << 20, &[]);
    std::fs::create_dir(dir.join("empty")).unwrap();
    let serve = |certificates: &str| {
        fails_with(dir, 1, &["serve", "nbd", "--listen", "unix:s", "--tls-certificates", certificates, "i"])
    };
    assert!(serve("empty").contains("server-cert.pem"));
    assert!(serve("none").contains("server-cert.pem"));
    assert!(!dir.join("s").exists());
}
