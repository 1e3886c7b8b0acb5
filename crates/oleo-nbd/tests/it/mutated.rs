//! The bodies of the fuzz targets `nbd_*`, fed with sound conversations, changed: a little in CI, and for a minute each by
//! `cargo test --release -p oleo-nbd --test it -- --ignored mutated::`.

mod client;
mod server;
mod wire;

use std::time::Duration;

use oleo_nbd::wire::option::{
    GO, INFO_BLOCK_SIZE, INFO_EXPORT, InfoRequest, LIST, MetaQuery, OptionReply, SET_META_CONTEXT, STRUCTURED_REPLY,
    context_data, push_option, server_data,
};
use oleo_nbd::wire::reply::{Chunk, ChunkError, OFFSET_DATA, OFFSET_HOLE, SimpleReply, StatusExtent, status_data};
use oleo_nbd::wire::{ALLOCATION_CONTEXT, AllocationFlags, ChunkFlags, Command, CommandFlags, ReplyError, Request};
use oleo_sim::mutate::feed;

/// What a client says to a server: how it begins, options, and requests with their payloads.
fn client_says(structured: bool, requests: &[(Command, CommandFlags, u64, u32)]) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 3];
    if structured {
        push_option(&mut out, STRUCTURED_REPLY, b"");
        let query = MetaQuery { name: server::NAME.into(), queries: vec![ALLOCATION_CONTEXT.into()] };
        push_option(&mut out, SET_META_CONTEXT, &query.encode());
    }
    push_option(&mut out, LIST, b"");
    let go = InfoRequest { name: server::NAME.into(), infos: vec![INFO_EXPORT, INFO_BLOCK_SIZE] };
    push_option(&mut out, GO, &go.encode());
    for (n, (command, flags, offset, len)) in requests.iter().enumerate() {
        let request =
            Request { flags: *flags, command: command.number(), cookie: n as u64, offset: *offset, len: *len };
        out.extend(request.encode());
        if *command == Command::Write {
            out.extend(vec![n as u8; *len as usize]);
        }
    }
    out
}

fn to_servers() -> Vec<Vec<u8>> {
    let none = CommandFlags::empty();
    let all = [
        (Command::Write, none, 4096, 300),
        (Command::Read, CommandFlags::DF, 4000, 600),
        (Command::Write, CommandFlags::FUA, 0, 10),
        (Command::Flush, none, 0, 0),
        (Command::Trim, none, 8192, 4096),
        (Command::WriteZeroes, CommandFlags::NO_HOLE, 100, 5000),
        (Command::Cache, none, 0, 4096),
        (Command::Read, none, 0, 20_000),
        (Command::Disconnect, none, 0, 0),
    ];
    let mut structured = all.to_vec();
    structured.insert(5, (Command::BlockStatus, CommandFlags::REQ_ONE, 0, 1 << 19));
    structured.insert(5, (Command::BlockStatus, none, 0, 1 << 19));
    vec![client_says(true, &structured), client_says(false, &all), client_says(true, &[])]
}

/// What a server says to the requests of the client's body, one piece after the other; see there.
fn to_clients() -> Vec<Vec<u8>> {
    let chunk = |kind, done, payload: &[u8]| {
        let flags = if done { ChunkFlags::DONE } else { ChunkFlags::empty() };
        let head = Chunk { flags, kind, cookie: 0, len: payload.len() as u32 };
        [&head.encode()[..], payload].concat()
    };
    let at = |offset: u64, more: &[u8]| [&offset.to_be_bytes()[..], more].concat();
    let status = |extents: &[(u32, u32)]| {
        let extents: Vec<StatusExtent> = extents
            .iter()
            .map(|(len, flags)| StatusExtent { len: *len, flags: AllocationFlags::from_bits_retain(*flags) })
            .collect();
        chunk(5, true, &status_data(client::CONTEXT, &extents))
    };
    let (error, payload) = ChunkError::encode(ReplyError::Io, "a disk", Some(client::AT + 5));
    let hole = at(client::AT, &(client::LEN as u32).to_be_bytes());
    let data = chunk(OFFSET_DATA, true, &at(client::AT, &[7; client::LEN]));
    let parts = [
        chunk(OFFSET_DATA, false, &at(client::AT, &[7; 1000])),
        chunk(OFFSET_DATA, true, &at(client::AT + 1000, &[7; client::LEN - 1000])),
    ];
    let extents = status(&[(4096, 0), (8192, 3), (client::SIZE as u32 - 12_288, 0)]);
    let simple = SimpleReply { error: 0, cookie: 0 }.encode().to_vec();
    let script = |pieces: &[&[u8]]| client::script(client::Begins::Well, pieces);
    vec![
        script(&[&data, &extents, &simple]),
        script(&[&parts.concat(), &extents, &simple]),
        script(&[&chunk(OFFSET_HOLE, true, &hole), &status(&[(client::SIZE as u32, 0)]), &simple]),
        script(&[&chunk(error, true, &payload), &extents, &simple]),
        client::script(client::Begins::AsItSays, &[&client::greeting()]),
    ]
}

fn run(time: Duration) {
    let name = "a disk".to_owned();
    let go = InfoRequest { name: name.clone(), infos: vec![INFO_EXPORT, INFO_BLOCK_SIZE] };
    let data = vec![
        go.encode(),
        MetaQuery { name, queries: vec![ALLOCATION_CONTEXT.into()] }.encode(),
        server_data("one", "a text"),
        context_data(7, ALLOCATION_CONTEXT),
        OptionReply { option: GO, kind: 3, len: 12 }.encode().to_vec(),
        Request { flags: CommandFlags::FUA, command: 1, cookie: 2, offset: 3, len: 4 }.encode().to_vec(),
        status_data(7, &[StatusExtent { len: 5, flags: AllocationFlags::HOLE }; 3]),
    ];
    let fed = [
        feed("nbd_wire", &data, 1, time, wire::body),
        feed("nbd_server", &to_servers(), 2, time, server::body),
        feed("nbd_client", &to_clients(), 3, time, client::body),
    ];
    println!("inputs: {fed:?}");
    for socket in [server::socket(), client::socket()] {
        std::fs::remove_file(socket).expect("a socket that was listened at");
    }
}

/// Goal: nothing that the other side of a connection says makes a server or a client panic or hang. Method: see the module's text.
#[test]
fn a_little() {
    run(Duration::from_millis(700));
}

/// The same for a minute each.
#[test]
#[ignore = "three minutes"]
fn for_minutes() {
    run(Duration::from_secs(60));
}
