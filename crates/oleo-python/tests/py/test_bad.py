"""What is hostile, damaged, closed or wrong: an exception, never more."""

import errno
import gc
import io
import os
import pickle
import random
import warnings

import pytest

import oleo
from oleo import _errors, _oleo

NAMES = [
    b"\xff\xfe invalid",
    b"\xed\xa0\x80 a surrogate",
    b"new\nline\x1b[31m",
    b"<img src=x onerror=alert(1)>",
    b"n" * 255,
    "Grüße 🦀".encode(),
    b" ",
    b"-rf",
    b"...",
]


def test_hostile_names(image):
    for name in NAMES:
        image.write(os.fsdecode(name), name)
        image.symlink(name, b"link to " + name[:200])
    listed = image.listdir()
    assert [os.fsencode(name) for name in listed][::2] == NAMES
    for name in listed[::2]:
        assert image.read(name) == os.fsencode(name) == image.read(image.path(name))
        assert image.readlink("link to " + os.fsdecode(os.fsencode(name)[:200])) == name
    assert sorted(next(image.walk())[2]) == sorted(listed)
    error = pytest.raises(FileNotFoundError, image.read, b"none\xff\n").value
    assert "none\\xff\\n" in str(error)


@pytest.mark.parametrize("name", ["", "/", ".", "..", "a/..", "n" * 256, "zero\0byte", "none/file"])
def test_names_that_cannot_be(image, name):
    for make in (image.mkdir, lambda name: image.write(name, b""), image.create_subvolume):
        with pytest.raises(OSError):
            make(name)
    assert image.listdir() == []


@pytest.mark.parametrize("value", [None, 1, 1.5, object(), ["a"], ("a", "b")])
def test_what_is_no_path(image, value):
    for call in (image.read, image.stat, image.listdir, image.mkdir, image.create_subvolume):
        if value is None and call is image.listdir:
            continue
        with pytest.raises(TypeError):
            call(value)


def test_numbers_out_of_range(image):
    image.write("file", b"contents")
    with image.open("file", "rb+", buffering=0) as file:
        for wrong in (-1, 1 << 64, 1 << 200):
            with pytest.raises((OverflowError, ValueError)):
                file.pread(1, wrong)
            with pytest.raises((OverflowError, ValueError)):
                file.truncate(wrong)
        assert file.pread((1 << 64) - 1, 0) == b"contents"
        assert file.pread(1, (1 << 64) - 1) == b""
        with pytest.raises(OSError) as large:
            file.pwrite(b"x", (1 << 64) - 1)
        assert large.value.errno == errno.EFBIG
        with pytest.raises(OSError) as large:
            file.truncate((1 << 64) - 1)
        assert large.value.errno == errno.EFBIG
    with pytest.raises(OverflowError):
        image.read("file", -1)
    with pytest.raises(OSError):
        image.subvolume(1 << 60)
    with pytest.raises((OverflowError, TypeError)):
        image.subvolume(-1)
    assert image.read("file") == b"contents"


def test_larger_than_memory(image):
    """A file that claims to be larger than memory is an error, not the end."""
    image.write("file", b"")
    image.truncate("file", 1 << 62)
    with pytest.raises((MemoryError, OSError)):
        image.read("file")
    with image.open("file", "rb") as file:
        assert file.read(10) == bytes(10)
        with pytest.raises((MemoryError, OSError)):
            file.read()


def test_errors_have_errno(image, disk):
    cases = [
        (lambda: image.read("none"), FileNotFoundError, errno.ENOENT),
        (lambda: image.create_subvolume("nowhere/none"), FileNotFoundError, errno.ENOENT),
        (lambda: oleo.open(disk.parent / "none"), FileNotFoundError, errno.ENOENT),
        (lambda: image.rmdir("file"), NotADirectoryError, errno.ENOTDIR),
        (lambda: image.read("dir"), IsADirectoryError, errno.EISDIR),
        (lambda: image.quota_disable(), oleo.OleoError, errno.ENOTCONN),
        (lambda: image.readlink("file"), oleo.OleoError, errno.EINVAL),
    ]
    image.write("file", b"")
    image.mkdir("dir")
    for call, kind, number in cases:
        error = pytest.raises(kind, call).value
        assert isinstance(error, oleo.OleoError) and error.errno == number and error.kind == "refusal"
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args, again.kind, again.hint) == (type(error), error.args, error.kind, error.hint)
    image.mkdir("full/more", parents=True)
    assert "rmtree" in pytest.raises(OSError, image.rmdir, "full").value.hint
    with oleo.open(disk) as reading:
        for call in (lambda: reading.write("a", b""), lambda: reading.mkdir("a"), lambda: reading.create_subvolume("a")):
            refused = pytest.raises(oleo.OleoError, call).value
            assert refused.errno == errno.EROFS and "r+" in refused.hint
        for mode in ("wb", "rb+", "ab"):
            with pytest.raises(OSError):
                reading.open("a", mode)
        busy = pytest.raises(oleo.OleoError, oleo.open, disk, "r+").value
        assert busy.errno == errno.EBUSY and "end the program" in busy.hint
    with pytest.raises(ValueError):
        oleo.open(disk, "w")
    with pytest.raises(OSError) as there:
        oleo.mkfs(disk, 256 << 20)
    assert there.value.errno == errno.EEXIST and "force" in there.value.hint
    with pytest.raises(TypeError, match="size must be an integer"):
        oleo.mkfs(disk, "1G", force=True)
    with pytest.raises((ValueError, OSError)):
        oleo.mkfs(disk, 256 << 20, force=True, data="raid99")
    with pytest.raises(OSError):
        oleo.mkfs(disk, 256 << 20, force=True, checksum="md5")


def test_every_hint_has_words():
    assert sorted(_errors.HINTS) == sorted(_oleo.HINTS)


def test_closed(image):
    image.write("file", b"contents")
    image.create_subvolume("sub")
    image.snapshot("sub", "snap", read_only=True)
    raw, buffered = image.open("file", "rb+", buffering=0), image.open("file", "rb")
    listing, walk, stream = image.scandir(), image.walk(), image.send("snap")
    late = image.open("late", "w")
    late.write("in a buffer")
    image.close()
    image.close()
    assert image.closed and late.closed
    calls = [
        lambda: image.read("file"),
        lambda: image.write("file", b""),
        lambda: image.open("file"),
        lambda: image.stat("file"),
        lambda: image.listdir(),
        lambda: next(listing),
        lambda: next(walk),
        lambda: image.sync(),
        lambda: image.label,
        lambda: image.uuid,
        lambda: image.space,
        lambda: image.subvolumes(),
        lambda: image.snapshot("sub", "other"),
        lambda: image.send("snap"),
        lambda: image.receive(io.BytesIO(b"")),
        lambda: image.balance(),
        lambda: image.balance_status,
        lambda: image.quota,
        lambda: next(image.diff("snap", "snap")),
        lambda: image.extents("file"),
        lambda: raw.read(1),
        lambda: raw.write(b"x"),
        lambda: raw.seek(0),
        lambda: raw.truncate(0),
        lambda: buffered.read(1),
        lambda: stream.read(1),
        lambda: next(stream),
        lambda: image.__enter__().read("file"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    raw.close()
    for call in (raw.read, raw.readable, raw.tell, raw.sync, lambda: raw.seek(0, os.SEEK_END)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_buffers_are_written_when_an_image_is_closed(disk):
    image = oleo.open(disk, "r+")
    file = image.open("late", "w")
    file.write("in a buffer")
    image.close()
    with oleo.open(disk) as image:
        assert image.read("late") == b"in a buffer"


def test_unclosed_image_is_kept_and_warned_of(disk):
    image = oleo.open(disk, "r+")
    image.write("file", b"kept")
    with pytest.warns(ResourceWarning, match="unclosed image"):
        del image
        gc.collect()
    with oleo.open(disk) as image:
        assert image.read("file") == b"kept"


def test_damaged_images(disk):
    """Goal: whatever is in an image, calls end with a result or an exception of ours. Method: bytes of tree blocks are changed at random;
    everything is listed, read, checked, sent."""
    with oleo.open(disk, "r+") as image:
        image.create_subvolume("sub")
        for at in range(40):
            image.write(f"sub/file{at}", bytes([at]) * (at * 700))
        image.snapshot("sub", "snap", read_only=True)
    sound = disk.read_bytes()
    # Blocks of trees: those with something in them, in the first 64 MiB.
    blocks = [at for at in range(1 << 20, 64 << 20, 16 << 10) if any(sound[at : at + 200])]
    rng = random.Random(7)
    errors = 0
    for _ in range(30):
        with open(disk, "rb+") as file:
            for _ in range(rng.choice([1, 3, 40])):
                file.seek(rng.choice(blocks) + rng.randrange(16 << 10))
                file.write(rng.randbytes(rng.choice([1, 8, 300])))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image = oleo.open(disk)
        except oleo.OleoError:
            errors += 1
        else:
            with image:
                try:
                    walked = list(image.walk(onerror=lambda error: None))
                except oleo.OleoError:
                    walked, errors = [], errors + 1
                for dir, dirs, files in walked:
                    for name in dirs + files:
                        path = f"{dir}/{name}"
                        for call in (image.read, image.lstat, image.extents, image.listxattr):
                            try:
                                call(path)
                            except oleo.OleoError as error:
                                errors += error.kind in ("corruption", "device")
                for call in (image.subvolumes, image.subvolume_sizes, lambda: image.send("snap").read()):
                    try:
                        call()
                    except oleo.OleoError:
                        errors += 1
        try:
            errors += not oleo.check(disk, data=True).is_clean
        except oleo.OleoError:
            errors += 1
        disk.write_bytes(sound)
    assert errors > 10


def test_what_is_no_image(tmp_path):
    for contents in (b"", b"x", bytes(100_000), b"<html>" * 100_000):
        (tmp_path / "no").write_bytes(contents)
        with pytest.raises(oleo.OleoError):
            oleo.open(tmp_path / "no")
        with pytest.raises(oleo.OleoError):
            oleo.check(tmp_path / "no")
    with pytest.raises(OSError):
        oleo.open(tmp_path)
    with pytest.raises(OSError):
        oleo.create_in_memory(1 << 20)
