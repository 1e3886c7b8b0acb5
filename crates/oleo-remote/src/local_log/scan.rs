//! Reading a log: from the first record to the last that is whole and in its place.
//!
//! What comes after that must be what a crash leaves: nothing, or records that nobody was told to be on the disk. So what is
//! behind the end is looked through: a record there that says that more was on the disk than is whole shows that the log is
//! damaged. A file that is shorter than its header says was cut.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use oleo_format::Corruption;

use crate::format::ensure;
use crate::format::log::{
    Entry, LOG_HEADER_LEN, LogHeader, Of, Place, RECORD_LEN, RECORD_MAGIC, Record, frame_len_of, has_sum, parse_record,
};
use crate::format::segment::FRAME_HEADER_LEN;
use crate::seal::Key;

/// How much of the file is read together, bytes.
const READ_LEN: usize = 1 << 20;
/// Bytes of a record and its frame that its checksum covers.
const HEAD_LEN: usize = RECORD_LEN + FRAME_HEADER_LEN;

/// A volume, as its log must be of it.
#[derive(Clone, Copy)]
pub(super) struct Volume<'a> {
    pub(super) uuid: [u8; 16],
    pub(super) key: Option<&'a Key>,
}

/// What a log is found to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanned {
    pub(super) header: LogHeader,
    /// Where the next record goes.
    pub(super) end: u64,
    pub(super) number: u64,
    pub(super) before: u64,
    /// The checksum of the header.
    pub(super) first: u64,
    /// The position after the last frame; none: there is none.
    pub(super) last: Option<u64>,
    /// So many bytes are known to have been on the disk, so that somebody may have been told so.
    pub(super) durable: u64,
    /// The position of the newest head that is known to be published.
    pub(super) published: u64,
    /// Whether frames follow one another from the looked for position on, if there are any behind it.
    pub(super) complete: bool,
    /// Whether the head that was looked for is of this log.
    pub(super) has_head: bool,
}

impl Scanned {
    pub(super) fn of<'a>(&self, volume: Volume<'a>) -> Of<'a> {
        Of { uuid: volume.uuid, id: self.header.id, key: volume.key }
    }
}

/// Why a log cannot be read.
pub(super) enum Unread {
    /// The disk failed.
    Io(io::Error),
    /// It is no log of this volume, or damaged.
    Bad(Corruption),
}

impl From<io::Error> for Unread {
    fn from(e: io::Error) -> Unread {
        Unread::Io(e)
    }
}

impl From<Corruption> for Unread {
    fn from(e: Corruption) -> Unread {
        Unread::Bad(e)
    }
}

/// The head that a log is compared with.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) epoch: u32,
    pub(super) commit: [u8; 16],
    pub(super) position: u64,
}

/// Reads the whole log, and compares everything.
pub(super) fn scan(file: &File, volume: Volume<'_>, head: Wanted) -> Result<Scanned, Unread> {
    let mut bytes = [0; LOG_HEADER_LEN];
    let len = file.metadata()?.len();
    if len < LOG_HEADER_LEN as u64 {
        return Err(Corruption::new("local log", "length", len, LOG_HEADER_LEN).into());
    }
    file.read_exact_at(&mut bytes, 0)?;
    let (header, sum) = LogHeader::parse(&bytes, volume.uuid, volume.key)?;
    if len != header.len {
        return Err(Corruption::new("local log", "length", len, header.len).into());
    }
    let mut found = Scanned {
        header,
        end: LOG_HEADER_LEN as u64,
        number: 0,
        before: sum,
        first: sum,
        last: None,
        durable: 0,
        published: header.position,
        complete: true,
        has_head: (header.epoch, header.commit) == (head.epoch, head.commit),
    };
    each(file, volume, &mut found, |found, record, end| {
        match record.entry {
            Entry::Frame { position, .. } => {
                let next = found.last.unwrap_or(0);
                ensure!(next <= position, "local log", "position", position, format!("at least {next}"));
                // What is missing before the head's position was published.
                found.complete &= position < head.position || position == next.max(head.position);
                found.last = Some(position + 1);
            }
            Entry::Announced { epoch, commit } => found.has_head |= (epoch, commit) == (head.epoch, head.commit),
            Entry::Published { position } => found.published = found.published.max(position),
            Entry::Durable => {}
        }
        let durable = record.place.durable;
        ensure!(durable <= end, "local log", "bytes on the disk", durable, format!("at most {end}"));
        found.durable = found.durable.max(durable);
        Ok(())
    })?;
    look_behind(file, &found.of(volume), found.end)?;
    Ok(found)
}

/// The position after the last frame that is known to have been on the disk; 0: there is none.
pub(super) fn confirmed(file: &File, volume: Volume<'_>, found: &Scanned) -> Result<u64, Unread> {
    let mut last = 0;
    let start = Scanned { end: LOG_HEADER_LEN as u64, number: 0, before: found.first, ..*found };
    each(file, volume, &mut start.clone(), |_, record, end| {
        if let Entry::Frame { position, .. } = record.entry
            && end <= found.durable
        {
            last = position + 1;
        }
        Ok(())
    })?;
    Ok(last)
}

/// Calls for each record that is whole and in its place, with where it ends.
fn each(
    file: &File,
    volume: Volume<'_>,
    found: &mut Scanned,
    mut take: impl FnMut(&mut Scanned, Record, u64) -> Result<(), Corruption>,
) -> Result<(), Unread> {
    let (of, len) = (found.of(volume), found.header.len);
    let mut reader = Records::new(file, of, found.end, len)?;
    while let Some((record, _)) = reader.next(found.number, found.before)? {
        (found.number, found.before, found.end) = (found.number + 1, record.sum, reader.at);
        take(found, record, reader.at)?;
    }
    Ok(())
}

/// Records one after the other.
pub(super) struct Records<'a> {
    reader: BufReader<&'a File>,
    of: Of<'a>,
    /// Where the next begins.
    pub(super) at: u64,
    len: u64,
    bytes: Vec<u8>,
}

impl<'a> Records<'a> {
    pub(super) fn new(file: &'a File, of: Of<'a>, at: u64, len: u64) -> io::Result<Records<'a>> {
        let mut reader = BufReader::with_capacity(READ_LEN, file);
        reader.seek(SeekFrom::Start(at))?;
        Ok(Records { reader, of, at, len, bytes: Vec::new() })
    }

    /// The next one with its frame, if it is whole and in its place.
    pub(super) fn next(&mut self, number: u64, before: u64) -> io::Result<Option<(Record, &[u8])>> {
        let room = self.len.saturating_sub(self.at);
        if room < RECORD_LEN as u64 {
            return Ok(None);
        }
        self.bytes.resize(RECORD_LEN, 0);
        self.reader.read_exact(&mut self.bytes)?;
        let Some(frame) = frame_len_of(&self.bytes).filter(|frame| (RECORD_LEN + frame) as u64 <= room) else {
            return Ok(None);
        };
        self.bytes.resize(RECORD_LEN + frame, 0);
        self.reader.read_exact(&mut self.bytes[RECORD_LEN..])?;
        match parse_record(&self.bytes, &self.of) {
            Ok(record) if (record.place.number, record.place.before) == (number, before) => {
                self.at += (RECORD_LEN + frame) as u64;
                Ok(Some((record, &self.bytes[RECORD_LEN..])))
            }
            _ => Ok(None),
        }
    }
}

/// Looks for records behind the end which say that more than that was on the disk.
fn look_behind(file: &File, of: &Of<'_>, end: u64) -> Result<(), Unread> {
    let len = file.metadata()?.len();
    let piece_len = |at: u64| len.saturating_sub(at).min((READ_LEN + HEAD_LEN) as u64) as usize;
    let (mut at, mut piece) = (end, vec![0; piece_len(end)]);
    while at < len {
        // Holes are passed over where the file system tells of them.
        at = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data.max(at).next_multiple_of(16),
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(_) => at,
        };
        let now = (len.saturating_sub(at)).min(READ_LEN as u64) as usize;
        // The piece ends with all that decides whether a record begins in it.
        let piece = &mut piece[..piece_len(at)];
        file.read_exact_at(piece, at)?;
        for begin in (0..now).step_by(16) {
            if piece[begin..].starts_with(&RECORD_MAGIC) {
                check_behind(file, of, at + begin as u64, &piece[begin..], end)?;
            }
        }
        at += now.max(16) as u64;
    }
    Ok(())
}

/// Looks at what begins with a record's magic. Data of files is in a log, too: a frame, which may be long, is read only if the
/// checksum of its record fits, which takes the random id of the log.
fn check_behind(file: &File, of: &Of<'_>, at: u64, piece: &[u8], end: u64) -> Result<(), Unread> {
    let Some(frame) = frame_len_of(piece) else { return Ok(()) };
    if !piece.get(..RECORD_LEN + frame.min(FRAME_HEADER_LEN)).is_some_and(|head| has_sum(head, of)) {
        return Ok(());
    }
    let mut bytes = vec![0; RECORD_LEN + frame];
    if file.read_exact_at(&mut bytes, at).is_err() {
        return Ok(());
    }
    match parse_record(&bytes, of) {
        Ok(Record { place: Place { durable, .. }, .. }) if durable > end => {
            Err(Corruption::new("local log", "whole bytes", end, format!("at least {durable}")).into())
        }
        _ => Ok(()),
    }
}
