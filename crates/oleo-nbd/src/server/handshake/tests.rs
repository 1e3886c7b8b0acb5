//! What strangers say before they have an export, over memory.

use std::sync::Arc;

use oleo_device::MemDevice;
use oleo_sim::mutate::mutate;
use oleo_sim::rng::Rng;

use super::super::export::Export;
use super::*;
use crate::wire::option::{INFO_EXPORT, OptionReply, push_option};
use crate::wire::{GREETING_MAGIC, PAYLOAD_LEN_MAX};

/// What a client sends, and what it gets; reads are counted.
struct Memory<'a> {
    input: &'a [u8],
    output: Vec<u8>,
    reads: usize,
}

impl Read for Memory<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        self.input.read(buf)
    }
}

impl Write for Memory<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.output.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Default)]
struct TestHost {
    refuses: bool,
    stopping: bool,
    stays: usize,
}

impl Host for TestHost {
    fn admit(&mut self, _: usize, stay: bool) -> Result<(), String> {
        if self.refuses {
            return Err("in use".into());
        }
        self.stays += usize::from(stay);
        Ok(())
    }
    fn is_stopping(&self) -> bool {
        self.stopping
    }
}

fn exports() -> Vec<Served> {
    let export = |name: &str, read_only| Export {
        name: name.into(),
        description: format!("the {name}"),
        device: Arc::new(MemDevice::new(1 << 20)),
        read_only,
    };
    [export("one", false), export("two", true)].map(|e| Served::new(e, PAYLOAD_LEN_MAX).expect("an export")).into()
}

const TERMS: Terms = Terms { options_max: 64, tls: false };

/// The client's flags, then options.
fn said(options: &[(u32, &[u8])]) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 3];
    options.iter().for_each(|(option, data)| push_option(&mut out, *option, data));
    out
}

/// An option and its data.
type Said<'a> = (u32, &'a [u8]);

/// Option, kind, data.
type Reply = (u32, u32, Vec<u8>);

/// The outcome (none where the stream ended before the handshake did), the replies, and what else was sent.
fn answers(input: &[u8], terms: Terms, host: &mut TestHost) -> (Option<Outcome>, Vec<Reply>, Vec<u8>) {
    let served = exports();
    let mut stream = Memory { input, output: Vec::new(), reads: 0 };
    let outcome = Handshake::new(&served, terms).run(&mut stream, host).ok();
    assert!(stream.reads <= 2 * usize::try_from(terms.options_max).unwrap() + 200, "bounded work");
    assert!(stream.output.len() <= 1 << 20, "bounded replies");
    let mut rest = &stream.output[..];
    assert_eq!(rest[..8], GREETING_MAGIC.to_be_bytes());
    rest = &rest[18..];
    let mut out = Vec::new();
    while let Some(head) = rest.first_chunk() {
        let Some(reply) = OptionReply::decode(head) else { break };
        let len = reply.len as usize;
        out.push((reply.option, reply.kind, rest[OptionReply::LEN..][..len].to_vec()));
        rest = &rest[OptionReply::LEN + len..];
    }
    (outcome, out, rest.to_vec())
}

fn go(name: &str, infos: &[u16]) -> Vec<u8> {
    InfoRequest { name: name.into(), infos: infos.to_vec() }.encode()
}

fn query(name: &str, queries: &[&str]) -> Vec<u8> {
    MetaQuery { name: name.into(), queries: queries.iter().map(|q| q.to_string()).collect() }.encode()
}

/// Goal: each option gets the reply that the protocol wants. Method: a table of what is said and which kinds come.
#[test]
fn replies() {
    const ACK: u32 = REP_ACK;
    let long = vec![0; OPTION_LEN_MAX as usize + 1];
    let one = go("one", &[]);
    let asked = query("one", &["base:allocation"]);
    #[rustfmt::skip]
    let cases: &[(&str, &[Said<'_>], &[u32])] = &[
        ("list", &[(LIST, b"")], &[REP_SERVER, REP_SERVER, ACK]),
        ("list with data", &[(LIST, b"x")], &[ERR_INVALID]),
        ("unknown", &[(4, b"abc"), (11, b""), (77, &long)], &[ERR_UNSUP; 3]),
        ("too long", &[(LIST, &long), (GO, &long)], &[ERR_TOO_BIG; 2]),
        ("no TLS here", &[(STARTTLS, b""), (STARTTLS, b"x")], &[ERR_POLICY, ERR_INVALID]),
        ("structured", &[(STRUCTURED_REPLY, b""), (STRUCTURED_REPLY, b"x")], &[ACK, ERR_INVALID]),
        ("info of none", &[(INFO, b"\0\0\0\x04none\0\0")], &[ERR_UNKNOWN]),
        ("no default among two", &[(INFO, b"\0\0\0\0\0\0")], &[ERR_UNKNOWN]),
        ("info torn", &[(INFO, b"\0\0\0\x09one\0\0"), (INFO, b"")], &[ERR_INVALID; 2]),
        ("info", &[(INFO, &one)], &[REP_INFO, ACK]),
        ("contexts too early", &[(SET_META_CONTEXT, &asked)], &[ERR_INVALID]),
        ("contexts", &[(STRUCTURED_REPLY, b""), (SET_META_CONTEXT, &asked)], &[ACK, REP_META_CONTEXT, ACK]),
        ("contexts torn", &[(STRUCTURED_REPLY, b""), (SET_META_CONTEXT, b"\0")], &[ACK, ERR_INVALID]),
        ("abort", &[(ABORT, b"why not")], &[ACK]),
    ];
    for (what, options, kinds) in cases {
        let (_, found, _) = answers(&said(options), TERMS, &mut TestHost::default());
        assert_eq!(found.iter().map(|(_, kind, _)| *kind).collect::<Vec<_>>(), *kinds, "{what}");
        let options: Vec<u32> = options.iter().map(|(option, _)| *option).collect();
        assert!(found.iter().all(|(option, ..)| options.contains(option)), "{what}");
    }
}

/// Goal: what was agreed is what was asked for. Method: whole handshakes.
#[test]
fn agreements() {
    let mut host = TestHost::default();
    let asked = query("one", &["x-y:z", "base:allocation"]);
    let all = go("one", &[INFO_BLOCK_SIZE, INFO_NAME, 99, INFO_DESCRIPTION]);
    let options: [(u32, &[u8]); 3] = [(STRUCTURED_REPLY, b""), (SET_META_CONTEXT, &asked), (GO, &all)];
    let (outcome, replies, rest) = answers(&said(&options), TERMS, &mut host);
    let agreed = Agreed { export: 0, structured: true, allocation: true };
    assert_eq!((outcome, host.stays, rest.len()), (Some(Outcome::Transmit(agreed)), 1, 0));
    let infos: Vec<Info> =
        replies.iter().filter(|r| r.1 == REP_INFO).map(|r| Info::decode(&r.2).expect("an info")).collect();
    let served = exports();
    let want = [
        Info::Export { size: 1 << 20, flags: served[0].flags(true) },
        Info::BlockSize(served[0].block_sizes()),
        Info::Name("one".into()),
        Info::Description("the one".into()),
    ];
    assert_eq!(infos, want);
    assert!(served[0].block_sizes().are_sound());

    // Contexts of another export, and a failed attempt to choose some, mean none.
    for second in [query("two", &["base:allocation"]), query("one", &["base:"]), query("one", &[]), vec![1]] {
        let one = go("one", &[]);
        let options: [(u32, &[u8]); 4] =
            [(STRUCTURED_REPLY, b""), (SET_META_CONTEXT, &asked), (SET_META_CONTEXT, &second), (GO, &one)];
        let (outcome, ..) = answers(&said(&options), TERMS, &mut host);
        assert_eq!(outcome, Some(Outcome::Transmit(Agreed { allocation: false, ..agreed })));
    }
    for queries in [&["base:"][..], &[]] {
        let listed = query("one", queries);
        let (_, replies, _) = answers(&said(&[(LIST_META_CONTEXT, &listed)]), TERMS, &mut host);
        assert_eq!(replies[0], (LIST_META_CONTEXT, REP_META_CONTEXT, context_data(0, ALLOCATION_CONTEXT)));
    }
    // The old way has no replies: size, flags, and zeros for who did not forgo them.
    for (flags, zeros) in [(3, 0), (1, EXPORT_NAME_ZEROS)] {
        let mut input = said(&[(EXPORT_NAME, b"two")]);
        input[3] = flags;
        let (outcome, _, rest) = answers(&input, TERMS, &mut host);
        let agreed = Agreed { export: 1, structured: false, allocation: false };
        assert_eq!(outcome, Some(Outcome::Transmit(agreed)));
        assert_eq!((rest.len(), &rest[..8]), (10 + zeros, &(1u64 << 20).to_be_bytes()[..]));
    }
}

/// Goal: whoever may not have an export does not get it. Method: a host that refuses, one that ends, and TLS.
#[test]
fn refusals() {
    let one = go("one", &[]);
    let mut host = TestHost { refuses: true, ..TestHost::default() };
    let (outcome, replies, _) = answers(&said(&[(GO, &one), (INFO, &one), (LIST, b"")]), TERMS, &mut host);
    assert_eq!(outcome, None, "the client closed without an export");
    assert_eq!(replies[0], (GO, ERR_POLICY, b"in use".to_vec()));
    assert_eq!((replies[1].1, replies[4].1), (ERR_POLICY, REP_ACK));
    assert_eq!(answers(&said(&[(EXPORT_NAME, b"one")]), TERMS, &mut host).0, Some(Outcome::Close));
    let mut host = TestHost { stopping: true, ..TestHost::default() };
    let (outcome, replies, _) = answers(&said(&[(GO, &one)]), TERMS, &mut host);
    assert_eq!((outcome, replies[0].1), (Some(Outcome::Close), ERR_SHUTDOWN));

    let terms = Terms { tls: true, ..TERMS };
    let mut host = TestHost::default();
    let input = said(&[(LIST, b""), (GO, &one), (99, b""), (INFO, &one), (STARTTLS, b"")]);
    let (outcome, replies, _) = answers(&input, terms, &mut host);
    let kinds: Vec<u32> = replies.iter().map(|r| r.1).collect();
    let demanded = ERR_TLS_REQD;
    assert_eq!(kinds, [demanded, demanded, demanded, demanded, REP_ACK]);
    assert_eq!((outcome, host.stays), (Some(Outcome::StartTls), 0));
    assert_eq!(answers(&said(&[(EXPORT_NAME, b"one")]), terms, &mut host).0, Some(Outcome::Close));
    // What was agreed before is forgotten, and TLS does not begin twice.
    let served = exports();
    let mut handshake = Handshake::new(&served, terms);
    let mut input = said(&[(STARTTLS, b"")]);
    push_option(&mut input, STARTTLS, b"");
    push_option(&mut input, GO, &one);
    let mut stream = Memory { input: &input, output: Vec::new(), reads: 0 };
    assert_eq!(handshake.run(&mut stream, &mut host).ok(), Some(Outcome::StartTls));
    stream.output.clear();
    let agreed = Agreed { export: 0, structured: false, allocation: false };
    assert_eq!(handshake.run(&mut stream, &mut host).ok(), Some(Outcome::Transmit(agreed)));
    let first = OptionReply::decode(stream.output.first_chunk().expect("a reply")).expect("a reply");
    assert_eq!((first.option, first.kind), (STARTTLS, ERR_INVALID));
}

/// Goal: nothing that a stranger sends costs much or gets further than it should.
/// Method: a table of rude beginnings, endless options, and seeded mutations of a sound handshake: bounded reads and
/// replies (`answers` asserts it), and an outcome that is sound.
#[test]
fn hostile() {
    let mut host = TestHost::default();
    for greeting in [&b"GET "[..], &[0, 0, 0, 4], &[0, 0, 0, 0], &[0, 1, 0, 1], &[0xff; 4]] {
        assert_eq!(answers(greeting, TERMS, &mut host).0, Some(Outcome::Close), "{greeting:?}");
    }
    let list: (u32, &[u8]) = (LIST, b"");
    assert_eq!(answers(&said(&[list; 64]), TERMS, &mut host).0, None, "as many as are allowed");
    let (outcome, replies, _) = answers(&said(&[list; 65]), TERMS, &mut host);
    assert_eq!((outcome, replies.len()), (Some(Outcome::Close), 64 * 3));
    let huge = OptionHeader { option: LIST, len: u32::MAX };
    assert_eq!(answers(&[&[0, 0, 0, 3][..], &huge.encode()].concat(), TERMS, &mut host).0, Some(Outcome::Close));
    let long = OptionHeader { option: EXPORT_NAME, len: 5000 };
    assert_eq!(answers(&[&[0, 0, 0, 3][..], &long.encode()].concat(), TERMS, &mut host).0, Some(Outcome::Close));

    let (asked, one) = (query("one", &["base:allocation"]), go("one", &[INFO_EXPORT, INFO_BLOCK_SIZE]));
    let options: [(u32, &[u8]); 5] =
        [(STRUCTURED_REPLY, b""), (LIST, b""), (LIST_META_CONTEXT, &asked), (SET_META_CONTEXT, &asked), (GO, &one)];
    let sound = said(&options);
    let mut rng = Rng::new(7);
    let mut transmitted = 0;
    for _ in 0..50_000 {
        let mut input = sound.clone();
        mutate(&mut rng, &mut input);
        if let Some(Outcome::Transmit(agreed)) = answers(&input, TERMS, &mut host).0 {
            assert!(agreed.export < 2 && (agreed.structured || !agreed.allocation));
            transmitted += 1;
        }
    }
    assert!(transmitted > 100, "some came through: {transmitted}");
}
