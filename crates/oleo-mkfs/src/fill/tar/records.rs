//! The framing of a tar stream: headers of 512 bytes, the pax and GNU headers before them, data in blocks.
//!
//! Supported: ustar; pax with local and global headers, values of any bytes; GNU long names and links; sparse files in
//! GNU's old form and pax forms 0.0, 0.1 and 1.0. A member that continues on another volume is refused.
//!
//! Fields of a header are read by the `tar` crate. Its pax reader is not used: it takes a line feed inside a value (any
//! binary extended attribute may hold one) for the end of the value.
//! Nothing is trusted: lengths are bounded by named constants before memory is allocated for them.

use std::io::{self, Read};

use tar::{GnuExtSparseHeader, Header};

use crate::MkfsError;
use crate::fill::entry::Stamp;

const BLOCK: usize = 512;
/// Bytes of all pax headers, long names and long links in front of one member. An extended attribute has at most 64 KiB.
const EXTENSION_BYTES_MAX: u64 = 16 << 20;
/// Keys and values in front of one member: each takes memory besides its bytes.
const PAIRS_MAX: usize = 1 << 19;
/// Bytes of keys and values that apply to all members that follow; they are searched for each.
const GLOBAL_BYTES_MAX: usize = 64 << 10;
/// Runs of data in one sparse file.
const SPARSE_RUNS_MAX: usize = 1 << 20;
/// Bytes of zeros after the end of an archive that are read.
const PADDING_BYTES_MAX: u64 = 16 << 20;
/// Digits of a number in the map of a sparse file, with blanks.
const NUMBER_LEN_MAX: usize = 64;

/// Keys and values of pax headers, in order.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What kind of member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Dir,
    Fifo,
    Socket,
}

/// One member's header, combined with the extended headers before it.
#[derive(Debug)]
pub(crate) struct Record {
    pub kind: Kind,
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Stamp,
    pub atime: Option<Stamp>,
    pub ctime: Option<Stamp>,
    pub birth: Option<Stamp>,
    pub major: u32,
    pub minor: u32,
    /// Bytes of the file, holes included.
    pub size: u64,
    /// Where its data belongs: start and length of runs that follow each other in the stream.
    pub runs: Vec<(u64, u64)>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// ACLs in text form that could not be taken over.
    pub text_acls: bool,
}

/// A tar stream, member by member.
pub(crate) struct Records<R> {
    inner: R,
    /// Bytes read so far, for messages.
    position: u64,
    /// Bytes of the current member that have not been read, and the padding after them.
    left: u64,
    padding: u64,
    globals: Pairs,
}

impl<R: Read> Records<R> {
    pub fn new(inner: R) -> Records<R> {
        Records { inner, position: 0, left: 0, padding: 0, globals: Vec::new() }
    }

    fn error(&self, what: impl Into<String>) -> MkfsError {
        MkfsError::Tar { at: self.position, what: what.into() }
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), MkfsError> {
        let result = self.inner.read_exact(buf);
        result.map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof => self.error("the stream ends in the middle of a member"),
            _ => self.error(cause.to_string()),
        })?;
        self.position += buf.len() as u64;
        Ok(())
    }

    /// Reads data of the current member; `buf` must not reach beyond it.
    pub fn read_data(&mut self, buf: &mut [u8]) -> Result<(), MkfsError> {
        if buf.len() as u64 > self.left {
            return Err(self.error("a member has less data than its header says"));
        }
        self.read_exact(buf)?;
        self.left -= buf.len() as u64;
        Ok(())
    }

    /// Skips the unread rest of the current member.
    fn skip_rest(&mut self) -> Result<(), MkfsError> {
        let mut scratch = [0u8; 16 * BLOCK];
        let total = self.left.checked_add(self.padding);
        let mut rest = total.ok_or_else(|| self.error("a member is longer than any archive"))?;
        while rest > 0 {
            let n = scratch.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
            self.read_exact(&mut scratch[..n])?;
            rest -= n as u64;
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// The next header, or `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, MkfsError> {
        self.skip_rest()?;
        let mut block = [0u8; BLOCK];
        let mut have = 0;
        while have < BLOCK {
            match self.inner.read(&mut block[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(self.error("the stream ends in the middle of a header")),
                Ok(n) => have += n,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(self.error(cause.to_string())),
            }
        }
        self.position += BLOCK as u64;
        if block.iter().all(|&b| b == 0) {
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        let sum: u32 = block[..148].iter().chain(&block[156..]).map(|&b| u32::from(b)).sum::<u32>() + 8 * 32;
        if header.cksum().ok() != Some(sum) {
            return Err(self.error("this is not a tar header (its checksum is wrong)"));
        }
        let size = header.entry_size().map_err(|e| self.error(e.to_string()))?;
        self.take_size(size);
        Ok(Some(header))
    }

    /// Whether anything but zeros follows the end of the archive. The padding is read, so that the program that writes it to a
    /// pipe does not fail; bytes that cannot be read count as none.
    pub fn has_more(&mut self) -> bool {
        let (mut buf, mut left) = ([0u8; 16 * BLOCK], PADDING_BYTES_MAX);
        while left > 0 {
            match self.inner.read(&mut buf) {
                Ok(0) => return false,
                Ok(n) if buf[..n].iter().any(|&b| b != 0) => return true,
                Ok(n) => left = left.saturating_sub(n as u64),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        false
    }

    fn take_size(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    /// The contents of an extended header; `room` is what those in front of one member may still take.
    fn extension(&mut self, room: &mut u64) -> Result<Vec<u8>, MkfsError> {
        let rest = room.checked_sub(self.left).ok_or_else(|| {
            self.error(format!("extended headers of more than {EXTENSION_BYTES_MAX} bytes in front of one member"))
        })?;
        *room = rest;
        let mut bytes = vec![0; usize::try_from(self.left).unwrap_or(0)];
        self.read_data(&mut bytes)?;
        Ok(bytes)
    }

    /// The next member, or `None` at the end.
    pub fn next(&mut self) -> Result<Option<Record>, MkfsError> {
        let mut pax: Pairs = self.globals.clone();
        let (mut long_path, mut long_link) = (None, None);
        let mut room = EXTENSION_BYTES_MAX;
        loop {
            if pax.len() > PAIRS_MAX {
                return Err(self.error("too many values in extended headers"));
            }
            let Some(header) = self.header()? else { return Ok(None) };
            match header.entry_type().as_byte() {
                b'x' | b'X' => pax.extend(self.pax_pairs(&mut room)?),
                b'g' => {
                    let pairs = self.pax_pairs(&mut room)?;
                    self.keep(&pairs)?;
                    pax.extend(pairs);
                }
                b'L' => long_path = Some(until_zero(self.extension(&mut room)?)),
                b'K' => long_link = Some(until_zero(self.extension(&mut room)?)),
                // A label of the whole archive.
                b'V' => {}
                b'M' => return Err(self.error("a member that continues from another volume")),
                _ => return self.member(&header, &pax, long_path, long_link).map(Some),
            }
        }
    }

    fn pax_pairs(&mut self, room: &mut u64) -> Result<Pairs, MkfsError> {
        let bytes = self.extension(room)?;
        parse_pairs(&bytes).ok_or_else(|| self.error("a malformed pax header"))
    }

    /// Keeps what holds for all members that follow; of each key the last value counts.
    fn keep(&mut self, pairs: &Pairs) -> Result<(), MkfsError> {
        let bytes = |pairs: &Pairs| -> usize { pairs.iter().map(|(key, value)| 1 + key.len() + value.len()).sum() };
        if bytes(pairs) <= GLOBAL_BYTES_MAX {
            for pair in pairs {
                self.globals.retain(|(key, _)| *key != pair.0);
                self.globals.push(pair.clone());
            }
        }
        if bytes(pairs).max(bytes(&self.globals)) > GLOBAL_BYTES_MAX {
            return Err(self.error(format!("global extended headers of more than {GLOBAL_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    fn member(
        &mut self,
        header: &Header,
        pax: &Pairs,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Record, MkfsError> {
        let get = |key: &str| pax.iter().rev().find(|(k, _)| k == key.as_bytes()).map(|(_, v)| v.as_slice());
        let number = |key: &str| get(key).and_then(decimal::<u64>);
        let stamp = |key: &str| get(key).and_then(parse_stamp);
        if let Some(size) = number("size") {
            self.take_size(size);
        }
        let path = get("GNU.sparse.name").or(get("path")).map(<[u8]>::to_vec).or(long_path);
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = get("linkpath").map(<[u8]>::to_vec).or(long_link);
        let link = link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
        let kind = match header.entry_type().as_byte() {
            _ if get("SCHILY.filetype") == Some(b"socket") => Kind::Socket,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::CharDevice,
            b'4' => Kind::BlockDevice,
            b'5' | b'D' => Kind::Dir,
            b'6' => Kind::Fifo,
            0 | b'0' if path.ends_with(b"/") => Kind::Dir,
            _ => Kind::File,
        };
        let wrong =
            |what: &str| MkfsError::Tar { at: self.position, what: format!("the header's {what} is not a number") };
        let id = |key: &str, field: io::Result<u64>| {
            let value = number(key).or(field.ok()).ok_or_else(|| wrong(key))?;
            u32::try_from(value).map_err(|_| wrong(key))
        };
        let mtime = stamp("mtime").or_else(|| whole_seconds(header.mtime().ok()?));
        let mut record = Record {
            kind,
            path,
            link,
            mode: header.mode().map_err(|_| wrong("mode"))? & 0o7777,
            uid: id("uid", header.uid())?,
            gid: id("gid", header.gid())?,
            mtime: mtime.ok_or_else(|| wrong("mtime"))?,
            atime: stamp("atime"),
            ctime: stamp("ctime"),
            birth: get("comment")
                .and_then(|text| text.strip_prefix(b"birth "))
                .and_then(parse_stamp)
                .or_else(|| stamp("LIBARCHIVE.creationtime")),
            major: header.device_major().ok().flatten().unwrap_or(0),
            minor: header.device_minor().ok().flatten().unwrap_or(0),
            size: 0,
            runs: Vec::new(),
            xattrs: xattrs(pax),
            text_acls: pax.iter().any(|(key, _)| key.starts_with(b"SCHILY.acl.")),
        };
        if kind == Kind::File {
            (record.size, record.runs) = self.data_runs(header, pax)?;
        }
        Ok(record)
    }

    /// The size of the current member as a file, and where in it the data that follows belongs.
    fn data_runs(&mut self, header: &Header, pax: &Pairs) -> Result<(u64, Vec<(u64, u64)>), MkfsError> {
        let get = |key: &str| pax.iter().rev().find(|(k, _)| k == key.as_bytes()).map(|(_, v)| v.as_slice());
        let real_size = get("GNU.sparse.realsize").or(get("GNU.sparse.size")).and_then(decimal::<u64>);
        let (size, runs) = if header.entry_type().as_byte() == b'S' {
            let (size, runs) = self.old_sparse(header)?;
            (real_size.unwrap_or(size), runs)
        } else if get("GNU.sparse.major") == Some(b"1") {
            let Some(size) = real_size else { return Err(self.error("a sparse file without its size")) };
            (size, self.sparse_map_in_data()?)
        } else if let (Some(map), Some(size)) = (get("GNU.sparse.map"), real_size) {
            if map.iter().filter(|&&b| b == b',').count() > 2 * SPARSE_RUNS_MAX {
                return Err(self.error("a sparse file of too many runs"));
            }
            let numbers: Option<Vec<u64>> = map.split(|&b| b == b',').map(decimal).collect();
            let Some(numbers) = numbers else { return Err(self.error("a malformed map of a sparse file")) };
            (size, numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
        } else if let (Some(_), Some(size)) = (get("GNU.sparse.numblocks"), real_size) {
            let of = |key: &str| {
                let values = pax.iter().filter(|(k, _)| k == key.as_bytes());
                values.map(|(_, v)| decimal::<u64>(v)).collect::<Option<Vec<u64>>>()
            };
            let (Some(starts), Some(lens)) = (of("GNU.sparse.offset"), of("GNU.sparse.numbytes")) else {
                return Err(self.error("a malformed map of a sparse file"));
            };
            (size, starts.into_iter().zip(lens).collect())
        } else {
            (self.left, vec![(0, self.left)])
        };
        if i64::try_from(size).is_err() {
            return Err(self.error(format!("a file of {size} bytes")));
        }
        let mut end = 0u64;
        let mut total = 0u64;
        for &(start, len) in &runs {
            let next = start.checked_add(len).filter(|&next| start >= end && next <= size);
            end = next.ok_or_else(|| self.error("the runs of a sparse file overlap or leave it"))?;
            total += len;
        }
        if total > self.left || runs.len() > SPARSE_RUNS_MAX {
            return Err(self.error("a sparse file with less data than its map says"));
        }
        Ok((size, runs.into_iter().filter(|&(_, len)| len > 0).collect()))
    }

    /// GNU's old form: four runs in the header, more in blocks that follow it.
    fn old_sparse(&mut self, header: &Header) -> Result<(u64, Vec<(u64, u64)>), MkfsError> {
        let wrong = "a malformed header of a sparse file";
        let Some(gnu) = header.as_gnu() else { return Err(self.error(wrong)) };
        let size = gnu.real_size().map_err(|_| self.error(wrong))?;
        let mut runs = Vec::new();
        let mut sparse: Vec<_> = gnu.sparse.to_vec_pairs();
        let mut more = gnu.is_extended();
        loop {
            for pair in sparse.drain(..) {
                runs.push(pair.ok_or_else(|| self.error(wrong))?);
            }
            if !more {
                return Ok((size, runs));
            }
            if runs.len() > SPARSE_RUNS_MAX {
                return Err(self.error("a sparse file of too many runs"));
            }
            let mut extended = GnuExtSparseHeader::new();
            // These blocks are not part of the size in the header.
            self.read_exact(extended.as_mut_bytes())?;
            sparse = extended.sparse().to_vec_pairs();
            more = extended.is_extended();
        }
    }

    /// Pax form 1.0: the map precedes the data, one decimal number a line, padded to whole blocks.
    fn sparse_map_in_data(&mut self) -> Result<Vec<(u64, u64)>, MkfsError> {
        // The number being read: never more than a line, so each byte is read only once.
        let mut line = Vec::new();
        let mut numbers: Vec<u64> = Vec::new();
        loop {
            let mut block = [0u8; BLOCK];
            self.read_data(&mut block)?;
            for byte in block {
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > NUMBER_LEN_MAX {
                        return Err(self.error("a malformed map of a sparse file"));
                    }
                    continue;
                }
                numbers.push(decimal(&line).ok_or_else(|| self.error("a malformed map of a sparse file"))?);
                line.clear();
                if numbers[0] > SPARSE_RUNS_MAX as u64 {
                    return Err(self.error("a sparse file of too many runs"));
                }
                if numbers.len() as u64 == 2 * numbers[0] + 1 {
                    return Ok(numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect());
                }
            }
        }
    }
}

/// The runs that a header lists; `None` for one that is malformed.
trait SparsePairs {
    fn to_vec_pairs(&self) -> Vec<Option<(u64, u64)>>;
}

impl SparsePairs for [tar::GnuSparseHeader] {
    fn to_vec_pairs(&self) -> Vec<Option<(u64, u64)>> {
        let used = self.iter().take_while(|run| !run.is_empty());
        used.map(|run| Some((run.offset().ok()?, run.length().ok()?))).collect()
    }
}

/// Splits a pax header: `length key=value\n`, where the length counts all of it.
fn parse_pairs(mut bytes: &[u8]) -> Option<Pairs> {
    let mut pairs = Vec::new();
    while !bytes.is_empty() && bytes[0] != 0 {
        let space = bytes.iter().position(|&b| b == b' ')?;
        let len: usize = decimal(&bytes[..space])?;
        let line = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
        let equals = line.iter().position(|&b| b == b'=')?;
        pairs.push((line[..equals].to_vec(), line[equals + 1..].to_vec()));
        bytes = &bytes[len..];
    }
    Some(pairs)
}

fn decimal<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok()
}

fn whole_seconds(seconds: u64) -> Option<Stamp> {
    Some(Stamp { seconds: i64::try_from(seconds).ok()?, nanoseconds: 0 })
}

/// Seconds with a decimal fraction, before 1970 with a minus sign.
fn parse_stamp(bytes: &[u8]) -> Option<Stamp> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    Some(match (negative, nanoseconds) {
        (false, _) => Stamp { seconds, nanoseconds },
        (true, 0) => Stamp { seconds: -seconds, nanoseconds: 0 },
        (true, _) => Stamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

/// The extended attributes in the pax headers of star, GNU tar and bsdtar, sorted by name; of equal names the last one
/// counts.
fn xattrs(pax: &Pairs) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found: std::collections::BTreeMap<Vec<u8>, Vec<u8>> = std::collections::BTreeMap::new();
    for (key, value) in pax {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            found.insert(name.to_vec(), value.clone());
        } else if key == b"RHT.security.selinux" {
            found.insert(b"security.selinux".to_vec(), value.clone());
        }
    }
    found.into_iter().collect()
}

fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|&b| b == 0) {
        bytes.truncate(end);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pax values may hold line feeds and zeros; malformed lines are refused.
    #[test]
    fn pax_values_are_bytes() {
        let pairs = parse_pairs(b"12 ab=c\nd\0f\n15 mtime=-1.25\n").unwrap();
        assert_eq!(pairs[0], (b"ab".to_vec(), b"c\nd\0f".to_vec()));
        assert_eq!(parse_stamp(&pairs[1].1), Some(Stamp { seconds: -2, nanoseconds: 750_000_000 }));
        for bad in [&b"99 a=b\n"[..], b"x", b"6 ab\n", b"3 \n"] {
            assert!(parse_pairs(bad).is_none(), "{}", bad.escape_ascii());
        }
    }

    /// A header with its data, padded.
    fn header(kind: u8, data: &[u8]) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        block[..4].copy_from_slice(b"name");
        for (at, field) in [(100, "0000644\0"), (108, "0000000\0"), (116, "0000000\0"), (136, "00000000000\0")] {
            block[at..at + field.len()].copy_from_slice(field.as_bytes());
        }
        block[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
        block[156] = kind;
        let sum: u32 = block[..148].iter().chain(&block[156..]).map(|&b| u32::from(b)).sum::<u32>() + 256;
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block.extend_from_slice(data);
        block.resize(block.len().next_multiple_of(BLOCK), 0);
        block
    }

    /// `length key=value\n`.
    fn line(key: &str, len: usize) -> Vec<u8> {
        let rest = key.len() + len + 3;
        let whole = (rest + 1..).find(|whole| *whole == rest + whole.to_string().len()).unwrap();
        [format!("{whole} {key}=").as_bytes(), &vec![b'v'; len], b"\n"].concat()
    }

    fn complaint(tar: &[u8]) -> String {
        let mut records = Records::new(tar);
        loop {
            match records.next() {
                Ok(Some(_)) => {}
                Ok(None) => return String::new(),
                Err(error) => return error.to_string(),
            }
        }
    }

    /// Goal: extended headers take bounded memory, however many there are. Method: many before one member, as many as
    /// fit; global ones with ever new keys, and with the same.
    #[test]
    fn extended_headers_are_bounded() {
        let one = header(b'x', &line("SCHILY.xattr.user.a", 1 << 20));
        let file = header(b'0', b"contents");
        assert_eq!(complaint(&[one.repeat(15), file.clone()].concat()), "");
        assert!(complaint(&[one.repeat(17), file.clone()].concat()).contains("extended headers of more than"));
        assert_eq!(
            complaint(&[[one.repeat(9), file.clone()].concat(), [one.repeat(9), file.clone()].concat()].concat()),
            ""
        );
        let many = header(b'x', &line("a", 1).repeat(PAIRS_MAX + 1));
        assert!(complaint(&[many, file.clone()].concat()).contains("too many values"));
        let global = |n: usize| header(b'g', &line(&format!("key{n}"), 1000));
        let new: Vec<u8> = (0..100).flat_map(|n| [global(n), file.clone()].concat()).collect();
        assert!(complaint(&new).contains("global extended headers"));
        let same: Vec<u8> = (0..100).flat_map(|_| [global(0), file.clone()].concat()).collect();
        assert_eq!(complaint(&same), "");
        assert!(complaint(&header(b'g', &line("key", GLOBAL_BYTES_MAX))).contains("global extended headers"));
    }

    /// Goal: the map of a sparse file is read once, and no further than it can make sense. Method: maps without a line's end, of
    /// more runs than are taken, and one in order.
    #[test]
    fn sparse_maps_are_bounded() {
        let sparse = |map: &[u8]| {
            let text = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n27 GNU.sparse.realsize=100\n";
            [header(b'x', text), header(b'0', map)].concat()
        };
        let began = std::time::Instant::now();
        assert!(complaint(&sparse(&vec![b'7'; 32 << 20])).contains("malformed map"));
        let greedy = [b"9999999\n", &b"1\n".repeat(4 << 20)[..]].concat();
        assert!(complaint(&sparse(&greedy)).contains("too many runs"));
        assert!(began.elapsed().as_secs() < 30);
        let map = [&b"1\n10\n4\n"[..], &[0; BLOCK - 7], b"data"].concat();
        assert_eq!(complaint(&sparse(&map)), "");
    }

    /// Goal: a size that no archive can have is an error. Method: a directory and a label with the largest size there is.
    #[test]
    fn endless_members() {
        for kind in [b'5', b'V'] {
            let mut file = header(kind, b"");
            file[124..136].copy_from_slice(&[0x80, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
            let sum: u32 = file[..148].iter().chain(&file[156..]).map(|&b| u32::from(b)).sum::<u32>() + 256;
            file[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            assert!(complaint(&file).contains("longer than any archive"));
        }
    }

    /// Goal: junk is an error, not a panic. Method: random bytes with correct header checksums.
    #[test]
    fn junk_is_an_error() {
        let mut state = 1u64;
        for _ in 0..2000 {
            let mut block = [0u8; 2048];
            for byte in &mut block {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (state >> 40) as u8;
            }
            block[156] = b"0125xgLKS7"[(state >> 60) as usize % 10];
            let sum: u32 = block[..148].iter().chain(&block[156..512]).map(|&b| u32::from(b)).sum::<u32>() + 256;
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            let mut records = Records::new(&block[..]);
            for _ in 0..4 {
                match records.next() {
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }
}
