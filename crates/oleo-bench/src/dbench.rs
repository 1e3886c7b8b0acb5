//! dbench on mounts: throughput, and the latencies of the calls that fsync hurts.

use std::process::Command;

use anyhow::{Context, Result};

use crate::Args;
use crate::measure::{Better, Figure, Found, Report};
use crate::mounted::{Files, Fixture, tool};
use crate::peer::Peer;

const CLIENTS: [u32; 3] = [1, 4, 16];
const SECONDS: &str = "15";
/// Calls that wait for the log, or must not.
const CALLS: [&str; 4] = ["Rename", "Flush", "Unlink", "NTCreateX"];

fn figures() -> Vec<Figure> {
    let mut all = Vec::new();
    for n in CLIENTS {
        all.push(Figure { name: throughput(n).into(), unit: "MiB/s", better: Better::More, aims: &[] });
        for call in CALLS {
            for which in ["average", "maximum"] {
                let name = latency(call, which, n).into();
                all.push(Figure { name, unit: "ms", better: Better::Less, aims: &[] });
            }
        }
    }
    all
}

fn throughput(clients: u32) -> String {
    format!("throughput, {clients} clients")
}

fn latency(call: &str, which: &str, clients: u32) -> String {
    format!("{call} {which}, {clients} clients")
}

/// Takes apart what dbench prints: a table of calls (count, average and maximum latency in ms), and the throughput.
fn parse(out: &str, clients: u32, mut put: impl FnMut(&str, f64)) -> Result<()> {
    for call in CALLS {
        let row = out.lines().find(|l| l.split_whitespace().next() == Some(call));
        let row = row.with_context(|| format!("dbench tells nothing of {call}"))?;
        let numbers: Vec<f64> = row.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
        let (average, max) = numbers.get(1).zip(numbers.get(2)).with_context(|| row.to_owned())?;
        put(&latency(call, "average", clients), *average);
        put(&latency(call, "maximum", clients), *max);
    }
    let line = out.lines().find(|l| l.starts_with("Throughput")).context("dbench tells no throughput")?;
    let rate = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).with_context(|| line.to_owned())?;
    put(&throughput(clients), rate);
    Ok(())
}

fn one_run(fixture: &Fixture, peer: Peer, args: &Args, found: &mut Found) -> Result<()> {
    for n in CLIENTS.into_iter().filter(|n| args.wants(&throughput(*n))) {
        let mount = fixture.fresh(peer, Files::Few)?;
        let dir = mount.path().join("dbench");
        std::fs::create_dir(&dir)?;
        let out = tool(Command::new("dbench").arg("-D").arg(&dir).args(["-t", SECONDS, &n.to_string()]))?;
        parse(&out, n, |name, value| found.put(peer, name, value))?;
        mount.unmount()?;
        fixture.must_be_sound(peer)?;
    }
    fixture.remove(peer);
    Ok(())
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let fixture = Fixture::new(args.old.as_deref())?;
    report.note(&format!("dbench for {SECONDS} s with {CLIENTS:?} clients; median of {} runs", args.runs));
    let peers = args.peers(&[Peer::Oleo, Peer::Kernel]);
    report.in_turns(&figures(), &peers, args.runs, |peer, found| one_run(&fixture, peer, args, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let out = " Operation      Count    AvgLat    MaxLat\n ----------------------------------------\n \
                   NTCreateX     167410     0.016    19.116\n Rename          7090     0.123     1.800\n \
                   Unlink         33805     0.060    19.022\n Flush          11733     1.117    29.540\n\n\
                   Throughput 87.5421 MB/sec  4 clients  4 procs  max_latency=29.545 ms\n";
        let mut found = Vec::new();
        parse(out, 4, |name, value| found.push((name.to_owned(), value))).unwrap();
        assert_eq!(found[0], ("Rename average, 4 clients".to_owned(), 0.123));
        assert_eq!(found[3], ("Flush maximum, 4 clients".to_owned(), 29.54));
        assert_eq!(found[8], ("throughput, 4 clients".to_owned(), 87.5421));
        assert!(parse("Rename", 4, |_, _| {}).is_err());
    }
}
