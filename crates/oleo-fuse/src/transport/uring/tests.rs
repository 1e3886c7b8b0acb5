use super::*;
use crate::wire::Op;
use crate::wire::abi::opcode;

/// Goal: every queue has exactly one thread, and every thread a queue. Method: some machines.
#[test]
fn queues_are_shared_out() {
    let whole = |n: usize| (0..n).collect::<Vec<_>>();
    let cases = [
        (1, 1, whole(1)),
        (4, 4, whole(4)),
        (8, 2, whole(8)),
        (8, 2, vec![3, 6]),
        (7, 3, vec![]),
        (2, 16, whole(2)),
        (64, 64, whole(64)),
        (3, 0, whole(3)),
        (2, 2, vec![1, 2]),
    ];
    for (queues, threads, processors) in cases {
        let case = format!("{queues} {threads} {processors:?}");
        let shares = shares(queues, threads, &processors);
        assert!(shares.iter().all(|share| !share.queues.is_empty()), "{case}");
        assert_eq!(shares.len(), threads.clamp(1, queues));
        let mut all: Vec<u16> = shares.iter().flat_map(|share| share.queues.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..queues as u16).collect::<Vec<_>>(), "{case}");
        let bound: Vec<usize> = shares.iter().filter_map(|share| share.processor).collect();
        let fits = processors.len() == shares.len() && processors.iter().all(|n| *n < queues);
        assert_eq!(bound, if fits { processors } else { vec![] }, "{case}");
        assert!(shares.iter().all(|share| share.processor.is_none_or(|n| share.queues[0] == n as u16)), "{case}");
    }
}

/// Goal: the list of processors is read as the kernel writes it.
#[test]
fn ranges_are_counted() {
    for (text, count) in [("0\n", Some(1)), ("0-1\n", Some(2)), ("0-3,8,10-11", Some(7)), ("", None), ("3-1", None)] {
        assert_eq!(count_ranges(text), count, "{text:?}");
    }
}

/// Answers lookups with the name, writes with their length, and panics at unlink.
struct Echo;

impl Handler for Echo {
    fn handle(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        match &request.op {
            Op::Lookup { name } => assert!(reply.bytes(name)),
            Op::Write { args, data } => {
                assert!(data.len() == args.size as usize && data.iter().all(|b| *b == 0xdd));
                reply.put(&abi::WriteOut { size: args.size, padding: 0 });
            }
            Op::Read(args) => reply
                .fill(args.size as usize, |out| {
                    out.fill(0xee);
                    Ok::<_, ()>(out.len())
                })
                .unwrap(),
            Op::Unlink { .. } => panic!("meant to"),
            _ => return Outcome::Failed(38),
        }
        Outcome::Done
    }
}

/// What the kernel does with a slot: request in, reply out.
fn ask(op: u32, args: &[u8], payload: &[u8]) -> (abi::OutHeader, Vec<u8>) {
    let mut slot = Slot::new(0, 0, IO_LEN_MAX);
    {
        let (header, out) = slot.parts();
        header.op_in.fill(0xaa);
        header.op_in[..args.len()].copy_from_slice(args);
        out.fill(0xbb);
        out[..payload.len()].copy_from_slice(payload);
        let len = (size_of::<abi::InHeader>() + args.len() + payload.len()) as u32;
        let head = abi::InHeader { len, opcode: op, unique: 42, nodeid: 1, ..Default::default() };
        header.in_out[..40].copy_from_slice(head.as_bytes());
        header.ent.commit_id = 5;
        header.ent.payload_sz = payload.len() as u32;
    }
    answer(&Echo, &mut slot, &mut Scratch::new());
    let (header, out) = slot.parts();
    assert_eq!(header.ent.commit_id, 5);
    let (head, _) = abi::OutHeader::read_from_prefix(&header.in_out).unwrap();
    assert_eq!((head.unique, head.len as usize), (42, 16 + header.ent.payload_sz as usize));
    (head, out[..header.ent.payload_sz as usize].to_vec())
}

/// Goal: requests are taken out of a slot and replies put into it whatever their sizes, though both share the payload.
/// Method: small and large requests and replies; one whose struct is cut short; one whose handler panics.
#[test]
fn requests_and_replies_share_a_slot() {
    let (head, reply) = ask(opcode::LOOKUP, &[], b"a name\0");
    assert_eq!((head.error, reply.as_slice()), (0, &b"a name"[..]));
    for size in [1, COPIED_MAX - 1, COPIED_MAX, COPIED_MAX + 1, IO_LEN_MAX] {
        let args = abi::WriteIn { size: size as u32, ..Default::default() };
        let (head, reply) = ask(opcode::WRITE, args.as_bytes(), &vec![0xdd; size]);
        assert_eq!((head.error, reply.len()), (0, 8), "{size}");
        assert_eq!(reply[..4], (size as u32).as_bytes()[..], "{size}");
        let args = abi::ReadIn { size: size as u32, ..Default::default() };
        let (head, reply) = ask(opcode::READ, args.as_bytes(), &[]);
        assert!(head.error == 0 && reply.len() == size && reply.iter().all(|b| *b == 0xee), "{size}");
    }
    assert_eq!(ask(opcode::WRITE, &[0; 39], b"").0.error, -5);
    assert_eq!(ask(opcode::UNLINK, &[], b"x\0").0.error, -5);
    assert_eq!(ask(opcode::STATFS, &[], &[]).0.error, -38);
}

/// Goal: however many requests wait for others, a queue keeps its slots for these, up to a limit; and a slot that has come back is used
/// before there is another. Method: a queue of two slots and at most five.
#[test]
fn who_waits_leaves_room() {
    let mut room = Room::new(&[3, 7], 2, 5);
    assert_eq!(room.begin(7), Place::WithAnother);
    assert_eq!(room.begin(7), Place::WithAnother);
    room.end(7);
    assert_eq!(room.begin(7), Place::Enough);
    assert_eq!(room.begin(7), Place::WithAnother);
    assert_eq!(room.begin(7), Place::None, "two are left for the others");
    assert_eq!(room.begin(3), Place::WithAnother, "another queue has its own");
    room.end(7);
    assert_eq!(room.begin(7), Place::Enough);
    assert_eq!(room.begin(9), Place::None, "no queue of this thread");
}
