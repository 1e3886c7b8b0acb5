//! Bodies of answers: whole, or piece by piece as they are read.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

/// Pieces that wait for the reader.
const PIECES_AHEAD: usize = 8;
/// Bytes that are put together into one piece.
const PIECE_BYTES: usize = 64 << 10;

/// The body of an answer.
pub(super) enum Answer {
    Whole(Bytes),
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Answer::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Answer::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Answer::Pieces(receiver) => receiver.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answer::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Answer::Pieces(_) => SizeHint::default(),
        }
    }
}

/// What a body is written to. Fails when nobody reads any more.
pub(super) struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    kept: Vec<u8>,
}

impl Pieces {
    /// Hands on what was written so far.
    pub fn pass(&mut self) -> io::Result<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.kept));
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// A value and a line's end, handed on.
    pub fn line(&mut self, value: &serde_json::Value) -> io::Result<()> {
        self.write_all(value.to_string().as_bytes())?;
        self.write_all(b"\n")?;
        self.pass()
    }

    /// Whether somebody still reads.
    pub fn is_read(&self) -> bool {
        !self.sender.is_closed()
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.kept.extend_from_slice(bytes);
        if self.kept.len() >= PIECE_BYTES {
            self.pass()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass()
    }
}

/// A body that `write` writes on a thread of its own kind. After an error the connection is cut, so that nobody takes a part for the whole.
pub(super) fn pieces(write: impl FnOnce(&mut Pieces) -> io::Result<()> + Send + 'static) -> Answer {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut pieces = Pieces { sender, kept: Vec::new() };
        let written = write(&mut pieces).and_then(|()| pieces.pass());
        if let Err(error) = written {
            let _ = pieces.sender.blocking_send(Err(error));
        }
    });
    Answer::Pieces(receiver)
}
