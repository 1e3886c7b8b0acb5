//! Streams of snapshots: made piece by piece for whoever asks, received from anything that can be read, taken apart into commands.
//!
//! Sending: (1) [`send()`] starts a thread that writes into a channel of [`PIECES_AHEAD`] pieces; (2) [`Sending::next`] takes one after the
//! other out of it, and at the end joins the thread for its outcome; (3) [`Sending::close`] before the end drops the receiver and
//! sets a flag, either of which ends the thread.
//!
//! A [`Source`] reads from an object of Python's on whatever thread the library reads from; an exception there fails the read, and is
//! what the caller gets in the end.
//! Locks: `state` of a [`Sending`], held while one thread waits for a piece, at most [`LOOK_EVERY`].

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use oleo::Error;
use oleo::receive::{Command, Commands, Incomplete, Limits, Receive};
use oleo::send::{SendOptions, Sent};
use pyo3::exceptions::{PyStopIteration, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{OrRaise, closed};
use crate::handle::Handle;
use crate::subvolumes::Which;
use crate::watch::{LOOK_EVERY, watched};

/// Bytes of a piece, about.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for whoever reads the stream: enough for both sides to work in parallel, a megabyte.
const PIECES_AHEAD: usize = 4;
/// Bytes asked for at a time from a file object.
const READ_BYTES: usize = 1 << 20;

/// The exception that ended a read.
type Raised = Arc<Mutex<Option<PyErr>>>;

/// An object of Python's that is read: one with `read`, or one that gives pieces of bytes when it is iterated.
pub(crate) struct Source {
    object: Py<PyAny>,
    is_file: bool,
    left: VecDeque<u8>,
    raised: Raised,
    stop: Arc<AtomicBool>,
}

impl Source {
    pub(crate) fn new(object: Py<PyAny>) -> PyResult<Source> {
        Python::attach(|py| {
            let bound = object.bind(py);
            let is_file = bound.hasattr("read")?;
            let object = match is_file {
                true => object,
                false if bound.is_instance_of::<PyBytes>() => {
                    return Err(PyTypeError::new_err("bytes are no file object: wrap them in io.BytesIO"));
                }
                false => bound.try_iter()?.into_any().unbind(),
            };
            Ok(Source { object, is_file, left: VecDeque::new(), raised: Raised::default(), stop: Arc::default() })
        })
    }

    /// Where the exception will be.
    pub(crate) fn raised(&self) -> Raised {
        self.raised.clone()
    }

    /// What ends reading.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// What comes next, which may be nothing; none at the end.
    fn piece(&self) -> PyResult<Option<Vec<u8>>> {
        Python::attach(|py| {
            let object = self.object.bind(py);
            if self.is_file {
                let read = bytes_of(&object.call_method1("read", (READ_BYTES,))?)?;
                return Ok(Some(read).filter(|read| !read.is_empty()));
            }
            match object.call_method0("__next__") {
                Ok(piece) => bytes_of(&piece).map(Some),
                Err(error) if error.is_instance_of::<PyStopIteration>(py) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match object.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().to_vec()),
        Err(_) => {
            let made = object.py().import("builtins")?.getattr("memoryview")?.call1((object,))?;
            Ok(made.call_method0("tobytes")?.cast_into::<PyBytes>()?.as_bytes().to_vec())
        }
    }
}

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.left.is_empty() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            match self.piece() {
                Ok(Some(piece)) => self.left = piece.into(),
                Ok(None) => return Ok(0),
                Err(error) => {
                    let text = error.to_string();
                    self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return Err(io::Error::other(text));
                }
            }
        }
        self.left.read(out)
    }
}

/// Pieces that a thread writes.
struct Pieces {
    to: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
}

impl Pieces {
    fn hand_over(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.to.send(piece).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.hand_over()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hand_over()
    }
}

struct Working {
    pieces: Receiver<Vec<u8>>,
    worker: JoinHandle<Result<Sent, Error>>,
}

/// A stream that is being made.
#[pyclass(frozen, module = "oleo._oleo")]
pub(crate) struct Sending {
    state: Mutex<Option<Working>>,
    sent: Mutex<Option<Sent>>,
    stop: Arc<AtomicBool>,
}

impl Sending {
    fn state(&self) -> MutexGuard<'_, Option<Working>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a little for the next piece: none yet, or the end.
    fn look(&self) -> Result<Result<Vec<u8>, RecvTimeoutError>, Closed> {
        self.state().as_ref().map(|working| working.pieces.recv_timeout(LOOK_EVERY)).ok_or(Closed)
    }

    /// The outcome of the thread, which has ended.
    fn join(&self) -> Result<(), Error> {
        let Some(working) = self.state().take() else { return Ok(()) };
        drop(working.pieces);
        let sent = working.worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(sent);
        Ok(())
    }
}

struct Closed;

#[pymethods]
impl Sending {
    /// The next piece; none at the end.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        loop {
            match py.detach(|| self.look()) {
                Err(Closed) => return Ok(None),
                Ok(Ok(piece)) => return Ok(Some(PyBytes::new(py, &piece))),
                Ok(Err(RecvTimeoutError::Timeout)) => py.check_signals()?,
                Ok(Err(RecvTimeoutError::Disconnected)) => {
                    py.detach(|| self.join()).or_raise(py)?;
                    return Ok(None);
                }
            }
        }
    }

    /// What was sent, after the end.
    fn sent<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(sent) = *self.sent.lock().unwrap_or_else(PoisonError::into_inner) else { return Ok(None) };
        let all = PyDict::new(py);
        all.set_item("bytes", sent.bytes)?;
        all.set_item("commands", sent.commands)?;
        all.set_item("data_bytes", sent.data_bytes)?;
        all.set_item("clones", sent.clones)?;
        all.set_item("cloned_bytes", sent.cloned_bytes)?;
        Ok(Some(all))
    }

    /// Ends the thread, wherever it is.
    fn close(&self, py: Python<'_>) {
        self.stop.store(true, Ordering::Relaxed);
        // That it was stopped is no news.
        let _stopped = py.detach(|| self.join());
    }
}

/// How to send, as Python says it.
#[derive(FromPyObject)]
struct SendHow {
    #[pyo3(item)]
    parent: Option<Which>,
    #[pyo3(item)]
    clone_sources: Vec<Which>,
    #[pyo3(item)]
    version: u32,
    #[pyo3(item)]
    compressed: bool,
    #[pyo3(item)]
    no_data: bool,
}

/// Starts the thread that sends.
#[pyfunction]
fn send(py: Python<'_>, handle: &Handle, subvols: Vec<Which>, how: SendHow) -> PyResult<Sending> {
    let image = handle.image()?;
    let id = |which: &Which| which.root(&image).map(|root| root.tree());
    let ids = py.detach(|| {
        let subvols = subvols.iter().map(id).collect::<Result<Vec<_>, _>>()?;
        let parent = how.parent.as_ref().map(id).transpose()?;
        let sources = how.clone_sources.iter().map(id).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, Error>((subvols, parent, sources))
    });
    let (subvols, parent, sources) = ids.or_raise(py)?;
    let (version, compressed, no_data) = (how.version, how.compressed, how.no_data);
    let stop = Arc::new(AtomicBool::new(false));
    let (to, pieces) = sync_channel(PIECES_AHEAD);
    let stopped = stop.clone();
    let worker = std::thread::Builder::new().name("oleo-send".into()).spawn(move || {
        let hook = |_: &oleo::send::Progress| match stopped.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let options = SendOptions::default()
            .parent(parent)
            .clone_sources(sources)
            .version(version)
            .compressed(compressed)
            .no_data(no_data)
            .progress(Some(&hook));
        let mut out = Pieces { to, piece: Vec::with_capacity(PIECE_BYTES) };
        let sent = image.send(&subvols, &options, &mut out)?;
        out.flush().map_err(Error::Output)?;
        Ok(sent)
    })?;
    Ok(Sending { state: Mutex::new(Some(Working { pieces, worker })), sent: Mutex::new(None), stop })
}

/// How to receive, as Python says it.
#[derive(FromPyObject)]
struct ReceiveHow {
    #[pyo3(item)]
    into: Vec<u8>,
    #[pyo3(item)]
    parent: Option<Which>,
    #[pyo3(item)]
    atomic: bool,
    #[pyo3(item)]
    resume: bool,
    #[pyo3(item)]
    one_stream: bool,
}

/// Path, UUID at the sender's, whether it is a snapshot of what was there, whether it was complete before.
type Received = (Vec<u8>, String, bool, bool);

/// Applies a stream: what was received, commands, bytes, warnings.
#[pyfunction]
fn receive(
    py: Python<'_>,
    handle: &Handle,
    input: Py<PyAny>,
    how: ReceiveHow,
) -> PyResult<(Vec<Received>, u64, u64, Vec<String>)> {
    let image = handle.image()?;
    let source = Source::new(input)?;
    let raised = source.raised();
    let mut want = Receive::default().into(how.into).rebase(how.parent.map(|which| which.subvol_ref()));
    want = want.atomic(how.atomic);
    want.options = want.options.resume(how.resume).one_stream(how.one_stream);
    if how.atomic {
        want.options.incomplete = Incomplete::Deleted;
    }
    let stop = source.stop();
    let done = watched(py, |_| Ok(()), || stop.store(true, Ordering::Relaxed), || image.receive(source, &want))?;
    if let Some(error) = raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    let report = done.or_raise(py)?;
    let received = report.subvols.into_iter().map(|of| (of.path, of.uuid.to_string(), of.incremental, of.passed_over));
    Ok((received.collect(), report.commands, report.bytes, report.warnings))
}

/// The commands of a stream.
#[pyclass(frozen, module = "oleo._oleo")]
pub(crate) struct Listing {
    commands: Mutex<Option<Commands<Source>>>,
    raised: Raised,
}

#[pyfunction]
fn commands(input: Py<PyAny>) -> PyResult<Listing> {
    let source = Source::new(input)?;
    let raised = source.raised();
    Ok(Listing { commands: Mutex::new(Some(Commands::new(source, Limits::default()))), raised })
}

/// One command: its name, the path that it is about, everything else.
type Told = (&'static str, Option<Vec<u8>>, Vec<(&'static str, Field)>);

/// A value in a command.
#[derive(IntoPyObject)]
enum Field {
    Number(u64),
    Text(String),
    Bytes(Blob),
    Time((i64, u32)),
}

/// Bytes that become `bytes`.
struct Blob(Vec<u8>);

impl<'py> IntoPyObject<'py> for Blob {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = std::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        Ok(PyBytes::new(py, &self.0))
    }
}

fn told(command: &Command<'_>) -> Told {
    let number = Field::Number;
    let bytes = |bytes: &[u8]| Field::Bytes(Blob(bytes.to_vec()));
    let uuid = |uuid: &oleo::Uuid| Field::Text(uuid.to_string());
    let time = |time: &oleo::layers::format::Timespec| Field::Time((time.sec.get().cast_signed(), time.nsec.get()));
    let (name, path, fields) = match command {
        Command::Subvol { path, uuid: id, ctransid } => {
            ("subvol", *path, vec![("uuid", uuid(id)), ("ctransid", number(*ctransid))])
        }
        Command::Snapshot { path, uuid: id, ctransid, clone_uuid, clone_ctransid } => {
            let of = [("clone_uuid", uuid(clone_uuid)), ("clone_ctransid", number(*clone_ctransid))];
            ("snapshot", *path, [("uuid", uuid(id)), ("ctransid", number(*ctransid))].into_iter().chain(of).collect())
        }
        Command::MkFile { path, ino } => ("mkfile", *path, vec![("ino", number(*ino))]),
        Command::MkDir { path, ino } => ("mkdir", *path, vec![("ino", number(*ino))]),
        Command::MkNod { path, ino, mode, rdev } => {
            ("mknod", *path, vec![("ino", number(*ino)), ("mode", number(*mode)), ("rdev", number(*rdev))])
        }
        Command::MkFifo { path, ino } => ("mkfifo", *path, vec![("ino", number(*ino))]),
        Command::MkSock { path, ino } => ("mksock", *path, vec![("ino", number(*ino))]),
        Command::Symlink { path, ino, target } => {
            ("symlink", *path, vec![("ino", number(*ino)), ("target", bytes(target))])
        }
        Command::Rename { path, to } => ("rename", *path, vec![("to", bytes(to))]),
        Command::Link { path, target } => ("link", *path, vec![("target", bytes(target))]),
        Command::Unlink { path } => ("unlink", *path, vec![]),
        Command::RmDir { path } => ("rmdir", *path, vec![]),
        Command::SetXattr { path, name, value } => {
            ("set_xattr", *path, vec![("name", bytes(name)), ("value", bytes(value))])
        }
        Command::RemoveXattr { path, name } => ("remove_xattr", *path, vec![("name", bytes(name))]),
        Command::Write { path, offset, data } => {
            ("write", *path, vec![("offset", number(*offset)), ("data", bytes(data))])
        }
        Command::EncodedWrite { path, offset, unencoded_file_len, compression, data, .. } => {
            let of = [("len", number(*unencoded_file_len)), ("compression", number((*compression).into()))];
            let fields = [("offset", number(*offset)), ("data", bytes(data))].into_iter().chain(of);
            ("encoded_write", *path, fields.collect())
        }
        Command::Clone { path, offset, len, clone_uuid, clone_path, clone_offset, .. } => {
            let of = [("clone_path", bytes(clone_path)), ("clone_offset", number(*clone_offset))];
            let fields = [("offset", number(*offset)), ("len", number(*len)), ("clone_uuid", uuid(clone_uuid))];
            ("clone", *path, fields.into_iter().chain(of).collect())
        }
        Command::Truncate { path, size } => ("truncate", *path, vec![("size", number(*size))]),
        Command::Chmod { path, mode } => ("chmod", *path, vec![("mode", number(*mode))]),
        Command::Chown { path, uid, gid } => ("chown", *path, vec![("uid", number(*uid)), ("gid", number(*gid))]),
        Command::Utimes { path, atime, mtime, ctime, .. } => {
            ("utimes", *path, vec![("atime", time(atime)), ("mtime", time(mtime)), ("ctime", time(ctime))])
        }
        Command::UpdateExtent { path, offset, len } => {
            ("update_extent", *path, vec![("offset", number(*offset)), ("len", number(*len))])
        }
        Command::Fallocate { path, mode, offset, len } => {
            let fields = [("mode", number((*mode).into())), ("offset", number(*offset)), ("len", number(*len))];
            ("fallocate", *path, fields.into_iter().collect())
        }
        Command::FileAttr { path, attr } => ("fileattr", *path, vec![("attr", number(*attr))]),
        Command::EnableVerity { path, .. } => ("enable_verity", *path, vec![]),
        Command::End => return ("end", None, vec![]),
    };
    (name, Some(path.to_vec()), fields)
}

#[pymethods]
impl Listing {
    /// The next command; none at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Told>> {
        let next = py.detach(|| {
            let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(commands) = commands.as_mut() else { return Err(None) };
            match commands.next() {
                Ok(next) => Ok(next.map(|next| told(&next.command))),
                Err(error) => Err(Some((error.to_string(), oleo::error::Classified::class(&error)))),
            }
        });
        match next {
            Ok(next) => Ok(next),
            Err(None) => Err(closed("stream")),
            Err(Some((text, class))) => match self.raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(error) => Err(error),
                None => Err(crate::errors::refused(py, class.errno, class.kind, &text, None)),
            },
        }
    }

    fn close(&self, py: Python<'_>) {
        let gone = py.detach(|| self.commands.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(gone);
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Sending>()?;
    module.add_class::<Listing>()?;
    module.add_function(wrap_pyfunction!(send, module)?)?;
    module.add_function(wrap_pyfunction!(receive, module)?)?;
    module.add_function(wrap_pyfunction!(commands, module)?)
}
