//! The reader of streams against any bytes, with and without checksums put right: what it accepts it would write again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oleo::receive::{Commands, Limits, header};
use oleo_format::stream::{Command, CommandHead};

fuzz_target!(|data: &[u8]| {
    read(data);
    let [version, rest @ ..] = data else { return };
    let version = u32::from(*version % 3) + 1;
    let mut stream = header(version).to_vec();
    for attrs in rest.chunks(97) {
        let [kind, attrs @ ..] = attrs else { return };
        let mut head = CommandHead { len: attrs.len() as u32, kind: u16::from(*kind), crc: 0 };
        head.crc = head.checksum(attrs);
        stream.extend(head.len.to_le_bytes());
        stream.extend(head.kind.to_le_bytes());
        stream.extend(head.crc.to_le_bytes());
        stream.extend(attrs);
    }
    read(&stream);
});

fn read(stream: &[u8]) {
    let mut commands = Commands::new(stream, Limits::default());
    while let Ok(Some(next)) = commands.next() {
        let (mut again, mut twice) = (Vec::new(), Vec::new());
        next.command.encode(next.version, &mut again);
        let head = CommandHead::parse(again.first_chunk().expect("a header"));
        let command = Command::decode(next.version, head.kind, &again[10..]).expect("what was written is read");
        command.encode(next.version, &mut twice);
        assert_eq!(again, twice);
    }
}
