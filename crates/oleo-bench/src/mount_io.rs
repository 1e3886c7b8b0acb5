//! Data on a mount: fio, sequential and random; and by which transport calls of which size go faster.

use std::borrow::Cow;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Args;
use crate::measure::{Better, Figure, Found, Report};
use crate::mounted::{Files, Fixture, Mount, tool};
use crate::peer::Peer;
use crate::transport::{Chosen, Transport};

/// Length of the file that is worked on.
const SIZE: &str = "1g";
const RANDOM_SECONDS: &str = "6";

/// The figures, as in `mount_metadata`.
const FIGURES: &[Figure] = &[
    Figure::rate("seq write 1 MiB", "MiB/s", &[(Peer::Pass, "0.9x")]),
    Figure::rate("seq write 1 MiB + fsync", "MiB/s", &[]),
    Figure::rate("seq rewrite 1 MiB", "MiB/s", &[(Peer::Pass, "0.9x")]),
    Figure::rate("seq read 1 MiB cold", "MiB/s", &[(Peer::Pass, "0.9x")]),
    Figure::rate("seq read 1 MiB warm", "MiB/s", &[(Peer::Pass, "0.9x")]),
    Figure::rate("random read 4 KiB cold", "IOPS", &[]),
    Figure::rate("random read 4 KiB direct", "IOPS", &[]),
    Figure::rate("random write 4 KiB", "IOPS", &[]),
    Figure::rate("random write 4 KiB direct", "IOPS", &[]),
];

/// Bandwidth in MiB/s and operations a second of one job over the file.
fn fio(mount: &Mount, how: &str, block: &str, extra: &[&str]) -> Result<(f64, f64)> {
    let file = format!("--filename={}", mount.path().join("data").display());
    let rw = format!("--rw={how}");
    let bs = format!("--bs={block}");
    let size = format!("--size={SIZE}");
    let mut command = Command::new("fio");
    command.args(["--name=x", &file, &rw, &bs, &size, "--ioengine=psync", "--output-format=json", "--fallocate=none"]);
    // Contents that do not compress; caches are not invalidated after writing.
    command.args(["--refill_buffers", "--randrepeat=1", "--invalidate=0"]).args(extra);
    let json: serde_json::Value = serde_json::from_str(&tool(&mut command)?).context("what fio prints")?;
    let side = &json["jobs"][0][if how.ends_with("read") { "read" } else { "write" }];
    let number = |name: &str| side[name].as_f64().with_context(|| format!("fio tells no {name}"));
    Ok((number("bw_bytes")? / f64::from(1 << 20), number("iops")?))
}

fn one_run(fixture: &Fixture, peer: Peer, args: &Args, found: &mut Found) -> Result<()> {
    let wanted = |name: &str| args.wants(name);
    let mut put = |name, value| found.put(peer, name, value);
    let random = ["--time_based", "--runtime", RANDOM_SECONDS, "--norandommap"];
    let direct = [&random[..], &["--direct=1"]].concat();
    let mut mount = fixture.fresh(peer, Files::Few)?;
    put("seq write 1 MiB", fio(&mount, "write", "1m", &[])?.0);
    if wanted("fsync") {
        mount.unmount()?;
        mount = fixture.fresh(peer, Files::Few)?;
        put("seq write 1 MiB + fsync", fio(&mount, "write", "1m", &["--end_fsync=1"])?.0);
    }
    put("seq rewrite 1 MiB", fio(&mount, "write", "1m", &["--overwrite=1"])?.0);
    mount = fixture.cold(peer, Files::Few, mount)?;
    put("seq read 1 MiB cold", fio(&mount, "read", "1m", &[])?.0);
    put("seq read 1 MiB warm", fio(&mount, "read", "1m", &[])?.0);
    if wanted("random") {
        mount = fixture.cold(peer, Files::Few, mount)?;
        put("random read 4 KiB cold", fio(&mount, "randread", "4k", &random)?.1);
        put("random read 4 KiB direct", fio(&mount, "randread", "4k", &direct)?.1);
        put("random write 4 KiB", fio(&mount, "randwrite", "4k", &random)?.1);
        put("random write 4 KiB direct", fio(&mount, "randwrite", "4k", &direct)?.1);
    }
    mount.unmount()?;
    fixture.must_be_sound(peer)?;
    fixture.remove(peer);
    Ok(())
}

/// Runs the benchmark.
pub fn run(args: &Args, report: &mut Report) -> Result<()> {
    let fixture = Fixture::new(args.old.as_deref())?;
    report.note(&format!(
        "fio, one job, psync, a file of {SIZE}; random for {RANDOM_SECONDS} s; median of {} runs",
        args.runs
    ));
    report.note(&format!("the pass-through is {}", fixture.pass_through(Files::Few)));
    report.in_turns(FIGURES, &args.peers(Peer::FILES), args.runs, |peer, found| one_run(&fixture, peer, args, found))
}

/// Bytes of a call, as fio and as figures call them. The kernel sends each as one request.
const CALLS: &[(&str, &str)] = &[("4k", "4 KiB"), ("64k", "64 KiB"), ("256k", "256 KiB"), ("1m", "1 MiB")];

/// What is done with calls of each size: the figure, fio's name of it, and options.
const TRANSFERS: &[(&str, &str, &[&str])] = &[
    ("write", "write", &[]),
    ("write over it", "write", &["--overwrite=1"]),
    ("write direct", "write", &["--overwrite=1", "--direct=1"]),
    ("read direct", "read", &["--direct=1"]),
];

fn transfer_name((_, size): (&str, &str), what: &str) -> String {
    format!("{what} {size}")
}

fn one_run_of_transfers(fixture: &Fixture, peer: Peer, args: &Args, found: &mut Found) -> Result<()> {
    for call in CALLS {
        let names = TRANSFERS.iter().map(|transfer| transfer_name(*call, transfer.0));
        let wanted: Vec<bool> = names.map(|name| args.wants(&name)).collect();
        if !wanted.contains(&true) {
            continue;
        }
        let mount = fixture.fresh(peer, Files::Few)?;
        for ((what, how, options), wanted) in TRANSFERS.iter().zip(wanted) {
            // The file must be there for what comes next.
            let rate = fio(&mount, how, call.0, options)?.0;
            if wanted {
                found.put(peer, &transfer_name(*call, what), rate);
            }
        }
        mount.unmount()?;
    }
    fixture.must_be_sound(peer)?;
    fixture.remove(peer);
    Ok(())
}

/// Runs the benchmark of both transports.
pub fn transfers(args: &Args, report: &mut Report) -> Result<()> {
    ensure!(args.transport.is_none(), "transfer-sizes measures both transports in one run");
    let _offered = Chosen::set(Transport::Rings)?;
    let fixture = Fixture::new(args.old.as_deref())?;
    let peers = [args.peers(&[Peer::Oleo]), vec![Peer::AtDevice]].concat();
    report.note(&format!("ours over io_uring; fio, one job, psync, a file of {SIZE}; median of {} runs", args.runs));
    let rate = |name| Figure { name: Cow::Owned(name), unit: "MiB/s", better: Better::More, aims: &[] };
    let all = CALLS.iter().flat_map(|call| TRANSFERS.iter().map(|transfer| transfer_name(*call, transfer.0)));
    let figures: Vec<Figure> = all.map(rate).collect();
    report.in_turns(&figures, &peers, args.runs, |peer, found| one_run_of_transfers(&fixture, peer, args, found))
}
