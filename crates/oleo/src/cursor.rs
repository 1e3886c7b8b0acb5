//! Reading and writing a file from a position onward, by the traits of `std::io`.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::{Error, File};

/// A position in an open [`File`], from which `std::io::{Read, Write, Seek}` go on. Every cursor has its own position;
/// clones begin at the same one.
///
/// What is written is seen by all other users of the file when the call returns, and is durable after
/// [`Image::sync`](crate::Image::sync). `flush` does nothing: a cursor keeps no bytes, so that a `BufWriter` around it makes many
/// small writes cheaper. The position may lie behind the end of the file: nothing is read there, and a write leaves a hole.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
///
/// let image = oleo::Image::create_in_memory(256 << 20)?;
/// let mut log = image.create_file("log")?.cursor();
/// writeln!(log, "first line")?;
/// writeln!(log, "second line")?;
/// log.seek(SeekFrom::Start(0))?;
/// let lines: Vec<String> = BufReader::new(log).lines().collect::<Result<_, _>>()?;
/// assert_eq!(lines, ["first line", "second line"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cursor {
    file: File,
    position: u64,
}

impl File {
    /// A cursor at the beginning, for whoever reads and writes by [`std::io`].
    pub fn cursor(&self) -> Cursor {
        Cursor { file: self.clone(), position: 0 }
    }
}

impl Cursor {
    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The offset in bytes at which the next read or write begins.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for Cursor {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write_at(buf, self.position)?;
        self.position += buf.len() as u64;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Cursor {
    /// Before the beginning is refused (`EINVAL`), and the position stays where it was.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.file.len().checked_add_signed(by),
        };
        self.position = position.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a position before the beginning or behind 2^64 bytes")
        })?;
        Ok(self.position)
    }
}

/// The kind follows from [`Error::errno`]; the error itself is the source.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, OpenOptions};

    type Result = std::result::Result<(), Box<dyn std::error::Error>>;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    /// Goal: reads go on where the last one ended, give what is there up to the end, and nothing behind it.
    #[test]
    fn partial_reads() -> Result {
        let image = Image::create_in_memory(256 << 20)?;
        image.write("file", &pattern(10_000))?;
        let mut cursor = image.open_file("file")?.cursor();
        let mut buf = [0; 4096];
        let mut sizes = Vec::new();
        let mut all = Vec::new();
        loop {
            let n = cursor.read(&mut buf)?;
            sizes.push(n);
            all.extend_from_slice(&buf[..n]);
            if n == 0 {
                break;
            }
        }
        assert_eq!(sizes, [4096, 4096, 1808, 0]);
        assert_eq!(all, pattern(10_000));
        assert_eq!(cursor.position(), 10_000);

        cursor.seek(SeekFrom::End(-10))?;
        assert_eq!(cursor.read_exact(&mut buf[..11]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut last = Vec::new();
        cursor.seek_relative(-10)?;
        cursor.read_to_end(&mut last)?;
        assert_eq!(last, pattern(10_000)[9_990..]);
        Ok(())
    }

    /// Goal: a write behind the end leaves zeros between, a read there returns nothing, and no position is below zero.
    #[test]
    fn seeking_past_the_end() -> Result {
        let image = Image::create_in_memory(256 << 20)?;
        let mut cursor = image.create_file("file")?.cursor();
        cursor.write_all(b"begin")?;
        assert_eq!(cursor.seek(SeekFrom::Current(100_000))?, 100_005);
        assert_eq!(cursor.read(&mut [0; 10])?, 0);
        assert_eq!(cursor.file().len(), 5, "seeking alone changes nothing");
        cursor.write_all(b"end")?;
        assert_eq!(cursor.file().len(), 100_008);
        let mut expected = vec![0; 100_008];
        expected[..5].copy_from_slice(b"begin");
        expected[100_005..].copy_from_slice(b"end");
        assert_eq!(image.read("file")?, expected);

        for to in [SeekFrom::Current(-100_009), SeekFrom::End(-100_009), SeekFrom::End(i64::MIN)] {
            assert_eq!(cursor.seek(to).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(cursor.stream_position()?, 100_008);
        }
        Ok(())
    }

    /// Goal: a cursor at the end appends, also after others made the file longer; cursors share the file and not the position.
    #[test]
    fn appending() -> Result {
        let image = Image::create_in_memory(256 << 20)?;
        image.write("file", b"one ")?;
        let file = image.open_file("file")?;
        let (mut end, mut begin) = (file.cursor(), file.cursor());
        end.seek(SeekFrom::End(0))?;
        end.write_all(b"two ")?;
        file.write_at(b"three ", file.len())?;
        end.seek(SeekFrom::End(0))?;
        write!(end, "{} ", 4)?;
        let mut all = String::new();
        begin.read_to_string(&mut all)?;
        assert_eq!(all, "one two three 4 ");

        let copied = io::copy(&mut file.cursor(), &mut image.create_file("copy")?.cursor())?;
        assert_eq!((copied, image.read("copy")?), (all.len() as u64, all.into_bytes()));
        Ok(())
    }

    /// Goal: an error keeps its kind and itself on its way through `std::io`.
    #[test]
    fn errors_pass() -> Result {
        let scratch = tempfile::tempdir()?;
        let path = scratch.path().join("disk.img");
        let image = Image::create(&path, 128 << 20)?;
        image.write("file", b"contents")?;
        image.close()?;
        let image = Image::open(&path, &OpenOptions::default())?;
        let error = image.open_file("file")?.cursor().write(b"no").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        assert_eq!(inner.map(Error::errno), Some(oleo_fs::errno::EROFS));
        Ok(())
    }
}
