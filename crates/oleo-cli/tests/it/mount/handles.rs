//! Ways to a file beside its name: handles, and asynchronous direct writes beside the page cache. Both have no safe wrapper
//! in Rust; Python calls the system for us.

use std::process::Command;

use oleo_sim::oracle::run;

use crate::mount::place::{Place, family};

family!(
    "";
    handles_survive_the_cache, handles_of_what_is_gone, handles_in_subvolumes, buffered_reads_beside_asynchronous_direct_writes,
);

/// `handle(path)` and `by_handle(mount, handle)`, with what libc has.
const HANDLES: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_char * 128)]
def handle(path):
    h, mount = Handle(), ctypes.c_int()
    h.bytes = 128
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(h), ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at " + path)
    return bytes(h)
def by_handle(mount, raw, flags=os.O_RDONLY):
    h = Handle.from_buffer_copy(raw)
    fd = libc.open_by_handle_at(mount, ctypes.byref(h), flags)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd
def forget():
    open("/proc/sys/vm/drop_caches", "w").write("2")
top = os.open(sys.argv[1], os.O_RDONLY)
at = sys.argv[2]
"#;

fn python(at: &Place, script: &str) {
    run("python3", ["-c".as_ref(), script.as_ref(), at.top.as_os_str(), at.dir.as_os_str()]).unwrap();
}

/// Files and directories, moved and changed meanwhile, also when the kernel has forgotten them.
fn handles_survive_the_cache(at: &Place) {
    let script = r#"
os.makedirs(at + "/d/e")
files = {}
for n in range(200):
    path = "%s/d/e/f%d" % (at, n)
    open(path, "w").write("content %d" % n)
    files[n] = handle(path)
dirs = [handle(at), handle(at + "/d"), handle(at + "/d/e")]
os.rename(at + "/d/e/f7", at + "/moved")
for again in range(3):
    forget()
    for n, raw in files.items():
        fd = by_handle(top, raw)
        assert os.read(fd, 100) == b"content %d" % n, n
        os.close(fd)
    for raw, name in zip(dirs, ["d", "e", "f1"]):
        fd = by_handle(top, raw, os.O_RDONLY | os.O_DIRECTORY)
        assert name in os.listdir(fd), name
        os.close(fd)
fd = by_handle(top, files[9], os.O_WRONLY)
os.write(fd, b"CHANGED")
os.close(fd)
assert open(at + "/d/e/f9").read() == "CHANGED 9"
"#;
    python(at, &format!("{HANDLES}{script}"));
}

/// What is deleted has no handle any more, and a new file is not taken for it.
fn handles_of_what_is_gone(at: &Place) {
    let script = r#"
import errno, time
open(at + "/f", "w").write("x")
raw = handle(at + "/f")
os.unlink(at + "/f")
forget()
for n in range(10):
    open("%s/new%d" % (at, n), "w").write("y")
for again in range(50):
    try:
        os.close(by_handle(top, raw))
    except OSError as e:
        assert e.errno == errno.ESTALE, e
        break
    time.sleep(0.1)
else:
    raise Exception("it is still there")
"#;
    python(at, &format!("{HANDLES}{script}"));
}

/// Files of different subvolumes with the same inode number.
fn handles_in_subvolumes(at: &Place) {
    for name in ["v", "w"] {
        let path = at.subvolume(name);
        std::fs::write(path.join("f"), name).unwrap();
    }
    let script = r#"
found = {name: handle(at + "/" + name + "/f") for name in "vw"}
forget()
for name, raw in found.items():
    assert os.read(by_handle(top, raw), 9) == name.encode()
"#;
    python(at, &format!("{HANDLES}{script}"));
}

/// Whoever reads through the page cache after an asynchronous direct write is done sees it, whatever others have read into the
/// cache meanwhile.
fn buffered_reads_beside_asynchronous_direct_writes(at: &Place) {
    if !cfg!(target_arch = "x86_64") || Command::new("python3").arg("--version").output().is_err() {
        return oleo_sim::oracle::skip("no python3, or numbers of system calls that are not known here");
    }
    let script = r#"
import mmap, struct, threading
LEN = 256 * 1024
path = at + "/f"
open(path, "wb").write(bytes(LEN))
direct, plain = os.open(path, os.O_RDWR | os.O_DIRECT), os.open(path, os.O_RDONLY)
memory = mmap.mmap(-1, LEN)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
context = ctypes.c_ulong(0)
assert libc.syscall(206, 8, ctypes.byref(context)) == 0
stop = False
def read_on():
    while not stop:
        os.pread(plain, LEN, 0)
readers = [threading.Thread(target=read_on) for n in range(3)]
for reader in readers: reader.start()
try:
    for n in range(1, 120):
        memory[:] = bytes([n]) * LEN
        block = ctypes.create_string_buffer(struct.pack("<QIIHhIQQqQII", 0, 0, 0, 1, 0, direct, address, LEN, 0, 0, 0, 0))
        blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        assert libc.syscall(209, context, 1, blocks) == 1
        event = ctypes.create_string_buffer(32)
        assert libc.syscall(208, context, 1, 1, event, None) == 1
        assert struct.unpack("<QQqq", event.raw)[2] == LEN
        seen = os.pread(plain, LEN, 0)
        assert seen == bytes([n]) * LEN, "write %d: %s" % (n, sorted(set(seen)))
finally:
    stop = True
    for reader in readers: reader.join()
"#;
    python(at, &format!("{HANDLES}{script}"));
}
