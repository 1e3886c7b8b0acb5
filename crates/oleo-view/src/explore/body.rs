//! Bodies of answers: whole, or piece by piece as they are read.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use oleo_browse::Output;
use tokio::sync::mpsc;

/// Pieces that wait for the reader.
const PIECES_AHEAD: usize = 4;
/// Bytes of one piece, at most.
const PIECE_BYTES: usize = 256 << 10;

/// The body of an answer.
pub(super) enum Answer {
    Whole(Bytes),
    /// The piece that came first, until it is sent, and where the others come from. `None` is the end. Without it the writer has not come to its end, whatever it
    /// was that ended it.
    Pieces(Option<Bytes>, mpsc::Receiver<io::Result<Option<Bytes>>>),
}

impl Answer {
    pub fn empty() -> Answer {
        Answer::Whole(Bytes::new())
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let answer = self.get_mut();
        let receiver = match answer {
            Answer::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
            Answer::Whole(bytes) => return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Answer::Pieces(first, receiver) => match first.take() {
                Some(piece) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                None => receiver,
            },
        };
        let end = match ready!(receiver.poll_recv(cx)) {
            Some(Ok(Some(piece))) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
            Some(Ok(None)) => None,
            Some(Err(error)) => Some(Err(error)),
            None => Some(Err(io::ErrorKind::UnexpectedEof.into())),
        };
        *answer = Answer::empty();
        Poll::Ready(end)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Answer::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Answer::Pieces(..) => SizeHint::default(),
        }
    }
}

/// What a body is written to. Fails when nobody reads any more.
pub(super) struct Pieces {
    sender: mpsc::Sender<io::Result<Option<Bytes>>>,
    kept: Vec<u8>,
    /// Nobody looks at parts: pieces are as large as they can be.
    gathers: bool,
}

impl Pieces {
    /// From now on flushing hands nothing on.
    pub fn gather(&mut self) {
        self.gathers = true;
    }

    /// Hands on what was written so far.
    fn pass(&mut self) -> io::Result<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.kept));
        self.sender.blocking_send(Ok(Some(piece))).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Output for Pieces {
    fn is_read(&self) -> bool {
        !self.sender.is_closed()
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let some = &bytes[..bytes.len().min(PIECE_BYTES - self.kept.len())];
        self.kept.extend_from_slice(some);
        if self.kept.len() == PIECE_BYTES {
            self.pass()?;
        }
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathers { Ok(()) } else { self.pass() }
    }
}

/// A body that `write` writes on a thread of its own kind, as soon as there is something of it. After an error, or a panic, the connection is cut, so that nobody takes
/// a part for the whole.
///
/// # Errors
/// What ended the writer before anything was written: there is still time to say it.
pub(super) async fn pieces(write: impl FnOnce(&mut Pieces) -> io::Result<()> + Send + 'static) -> io::Result<Answer> {
    let (sender, mut receiver) = mpsc::channel(PIECES_AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut pieces = Pieces { sender, kept: Vec::new(), gathers: false };
        let written = write(&mut pieces).and_then(|()| pieces.pass());
        let _ = pieces.sender.blocking_send(written.map(|()| None));
    });
    match receiver.recv().await {
        Some(Ok(Some(first))) => Ok(Answer::Pieces(Some(first), receiver)),
        Some(Ok(None)) => Ok(Answer::empty()),
        Some(Err(error)) => Err(error),
        None => Err(io::Error::other("a defect of the explorer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bytes come, and whether the end is said to be one.
    fn read(write: impl FnOnce(&mut Pieces) -> io::Result<()> + Send + 'static) -> (usize, bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let Ok(mut answer) = pieces(write).await else { return (0, false) };
            let mut len = 0;
            loop {
                match std::future::poll_fn(|cx| Pin::new(&mut answer).poll_frame(cx)).await {
                    Some(Ok(frame)) => len += frame.into_data().unwrap().len(),
                    Some(Err(_)) => return (len, false),
                    None => return (len, true),
                }
            }
        })
    }

    /// Goal: a body without a reader takes bounded memory. Method: a writer of much at a time, whose reader takes one piece.
    #[test]
    fn what_is_not_read_is_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let taken = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = taken.clone();
        let written = move |out: &mut Pieces| {
            let mut bytes = &[1; 64 << 20][..];
            while !bytes.is_empty() {
                let n = out.write(bytes)?;
                count.fetch_add(n, std::sync::atomic::Ordering::SeqCst);
                bytes = &bytes[n..];
            }
            Ok(())
        };
        let answer = runtime.block_on(pieces(written)).ok();
        std::thread::sleep(std::time::Duration::from_millis(200));
        let taken = taken.load(std::sync::atomic::Ordering::SeqCst);
        assert!(taken <= (PIECES_AHEAD + 2) * PIECE_BYTES, "{taken}");
        drop(answer);
    }

    /// Goal: a body ends well only if its writer came to its end: neither an error nor a panic looks like one.
    #[test]
    fn only_what_is_whole_ends_well() {
        assert_eq!(read(|out| out.write_all(&[1; PIECE_BYTES + 1])), (PIECE_BYTES + 1, true));
        assert_eq!(read(|_| Ok(())), (0, true));
        let failed = |out: &mut Pieces| {
            out.write_all(&[1; PIECE_BYTES + 1])?;
            Err(io::Error::other("damage"))
        };
        assert_eq!(read(failed), (PIECE_BYTES, false));
        let panics = |out: &mut Pieces| {
            out.write_all(&[1; PIECE_BYTES + 1])?;
            panic!("a defect, for the test");
        };
        assert_eq!(read(panics), (PIECE_BYTES, false));
        assert_eq!(read(|_| panic!("a defect, for the test")), (0, false));
    }
}
