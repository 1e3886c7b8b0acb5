//! What the worker offers (files, a place for answers), and what it calls.
//!
//! A call: (1) [`oleo_input`] makes room for a text, which the worker writes there; (2) [`oleo_open`] or [`oleo_ask`] takes it, reads files through [`read`], and hands what it has to say to [`say`], in
//! order. All of this is on the worker's one thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Arc;

use oleo::Device;
use oleo_browse::Output;
use serde_json::Value;

use crate::session::{Head, Session};
use crate::slices::{ReadSlice, Slices};

/// Bytes that are said at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes of a text, at most: an address has a path of at most 4096 names.
const INPUT_BYTES_MAX: usize = 4 << 20;

/// What is said.
#[derive(Clone, Copy)]
enum What {
    Head = 0,
    Piece = 1,
    Error = 2,
}

#[link(wasm_import_module = "oleo")]
#[allow(unsafe_code, reason = "how WebAssembly reaches its host")]
unsafe extern "C" {
    /// Fills `len` bytes of memory from a file; 0 if that worked.
    fn read(file: u32, offset: u64, to: *mut u8, len: usize) -> i32;
    /// Hears bytes; 0 as long as somebody listens.
    fn say(what: u32, from: *const u8, len: usize) -> i32;
}

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
}

struct File(u32);

impl ReadSlice for File {
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        // SAFETY: the host writes `buf.len()` bytes from `buf.as_mut_ptr()` on, which are borrowed until it returns.
        #[allow(unsafe_code, reason = "how WebAssembly reaches its host")]
        let done = unsafe { read(self.0, offset, buf.as_mut_ptr(), buf.len()) };
        if done == 0 { Ok(()) } else { Err(io::Error::other("the file cannot be read, or is not what it was")) }
    }
}

fn tell(what: What, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the host reads `bytes.len()` bytes from `bytes.as_ptr()` on, which are borrowed until it returns.
    #[allow(unsafe_code, reason = "how WebAssembly reaches its host")]
    let heard = unsafe { say(what as u32, bytes.as_ptr(), bytes.len()) };
    if heard == 0 { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// The allocator, which says so when there is no more memory: what needs it ends then.
struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

impl Bounded {
    fn given(at: *mut u8) -> *mut u8 {
        if at.is_null() {
            // It takes no memory to say this.
            let _ = tell(What::Error, b"this needs more memory than the page may have; `oleo` has no such bound");
        }
        at
    }
}

// SAFETY: all of it is done by the system's allocator.
#[allow(unsafe_code, reason = "there is no other way to hear of it")]
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller has promised.
        Bounded::given(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller has promised.
        Bounded::given(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: as the caller has promised.
        Bounded::given(unsafe { System.realloc(at, layout, len) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller has promised.
        unsafe { System.dealloc(at, layout) }
    }
}

/// What answers are written to: pieces.
#[derive(Default)]
struct Pieces {
    kept: Vec<u8>,
    is_gone: bool,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() >= PIECE_BYTES {
            self.flush()?;
            tell(What::Piece, bytes)?;
            return Ok(bytes.len());
        }
        self.kept.extend_from_slice(bytes);
        if self.kept.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let told = tell(What::Piece, &self.kept);
        self.is_gone |= told.is_err();
        self.kept.clear();
        told
    }
}

impl Output for Pieces {
    fn is_read(&self) -> bool {
        !self.is_gone
    }
}

/// Whether something worked, as the host has it; if not, it is told why.
fn told(done: Result<(), String>) -> i32 {
    match done {
        Ok(()) => 0,
        Err(why) => {
            let _ = tell(What::Error, why.as_bytes());
            1
        }
    }
}

/// Makes room for a text of this length, and returns where; null if it is too long.
#[allow(unsafe_code, reason = "exported by its name")]
#[unsafe(no_mangle)]
pub extern "C" fn oleo_input(len: usize) -> *mut u8 {
    if len > INPUT_BYTES_MAX {
        return std::ptr::null_mut();
    }
    INPUT.with_borrow_mut(|input| {
        input.clear();
        input.resize(len, 0);
        input.as_mut_ptr()
    })
}

/// Opens the volume whose devices are files: the text is a JSON array of pairs of a name and a length.
#[allow(unsafe_code, reason = "exported by its name")]
#[unsafe(no_mangle)]
pub extern "C" fn oleo_open() -> i32 {
    std::panic::set_hook(Box::new(|info| {
        let _ = tell(What::Error, format!("a defect of Oleo: {info}").as_bytes());
    }));
    let text = INPUT.take();
    told(open(&text))
}

fn open(text: &[u8]) -> Result<(), String> {
    let files: Vec<Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for (number, file) in (0..).zip(&files) {
        let (Some(name), Some(len)) = (file[0].as_str(), file[1].as_u64()) else { return Err("no files".into()) };
        devices.push(Arc::new(Slices::new(name, len, File(number), files.len())));
    }
    let session = Session::open(devices)?;
    SESSION.set(Some(session));
    Ok(())
}

/// Answers what is asked at an address, the text. 0: the whole answer was said.
#[allow(unsafe_code, reason = "exported by its name")]
#[unsafe(no_mangle)]
pub extern "C" fn oleo_ask() -> i32 {
    let text = INPUT.take();
    let address = String::from_utf8_lossy(&text);
    SESSION.with_borrow(|session| {
        let Some(session) = session else { return told(Err("nothing is open".into())) };
        let begin = |_: &mut Pieces, head: &Head| {
            let _ = tell(What::Head, head.to_json().to_string().as_bytes());
        };
        told(session.answer(&address, begin, &mut Pieces::default()))
    })
}
