"""Open files of an image, as the ``io`` module has them."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from . import _oleo

if TYPE_CHECKING:
    from ._image import Image

#: Bytes that buffered files read and write at a time.
BUFFER_BYTES = 256 << 10


class RawFile(io.RawIOBase):
    """A regular file of an image, unbuffered: what :meth:`Image.open` returns with ``buffering=0``.

    Positions behind the end are fine: nothing is read there, and a write leaves a hole. What is written is seen by all other
    users of the file at once, and durable after :meth:`Image.sync`, :meth:`Image.close` or :meth:`sync`.
    """

    def __init__(self, image: Image, path: str, number: int, *, read: bool, write: bool, append: bool) -> None:
        self._image, self._handle, self._number = image, image._handle, number
        self._reads, self._writes, self._appends = read, write, append
        self._position = 0
        self.name = path
        self.mode = "rb" if not write else "ab" if append else "rb+" if read else "wb"

    def _open(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._number

    def readable(self) -> bool:
        self._open()
        return self._reads

    def writable(self) -> bool:
        self._open()
        return self._writes

    def seekable(self) -> bool:
        self._open()
        return True

    def _must_read(self) -> int:
        number = self._open()
        if not self._reads:
            raise io.UnsupportedOperation("not readable")
        return number

    def _must_write(self) -> int:
        number = self._open()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        return number

    def pread(self, size: int, offset: int) -> bytes:
        """At most ``size`` bytes at ``offset``; the position stays. Several threads may do this at once."""
        return _oleo.file_read(self._handle, self._must_read(), offset, size)

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes ``data`` at ``offset``; the position stays. Several threads may do this at once."""
        number = self._must_write()
        data = as_bytes(data)
        _oleo.file_write(self._handle, number, offset, data)
        return len(data)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.pread(len(view), self._position)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        data = self.pread(size, self._position)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        number = self._must_read()
        left = max(_oleo.file_len(self._handle, number) - self._position, 0)
        return self.read(left)

    def write(self, data: Any) -> int:
        number, data = self._must_write(), as_bytes(data)
        # Writing nothing moves nothing, as with files of the host.
        if self._appends and data:
            self._position = _oleo.file_len(self._handle, number)
        count = self.pwrite(data, self._position)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        number = self._open()
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += _oleo.file_len(self._handle, number)
        elif whence != os.SEEK_SET:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        if offset < 0:
            raise ValueError(f"negative seek position {offset}")
        self._position = offset
        return offset

    def tell(self) -> int:
        self._open()
        return self._position

    def truncate(self, size: int | None = None) -> int:
        number = self._must_write()
        size = self._position if size is None else size
        if size < 0:
            raise ValueError(f"negative size {size}")
        _oleo.file_set_len(self._handle, number, size)
        return size

    def sync(self) -> None:
        """Makes this file durable, as ``os.fsync`` does: faster than :meth:`Image.sync`."""
        _oleo.file_sync(self._handle, self._open())

    def stat(self) -> _oleo.Stat:
        """The attributes of what is at the path that the file was opened by."""
        self._open()
        return self._image.stat(self.name)

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a file of an image has no descriptor")

    def isatty(self) -> bool:
        self._open()
        return False

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                _oleo.file_close(self._handle, self._number)

    def __repr__(self) -> str:
        return f"<oleo.RawFile name={self.name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"


def as_bytes(data: Any) -> bytes:
    """The bytes of whatever has a buffer."""
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def open_file(
    image: Image,
    path: str,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    """What :func:`open` does, in an image."""
    letters = set(mode)
    action = letters & set("rwax")
    if len(letters) != len(mode) or letters - set("rwax+bt") or len(action) != 1 or {"b", "t"} <= letters:
        raise ValueError(f"invalid mode: {mode!r}")
    binary, plus = "b" in letters, "+" in letters
    if binary and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    read, write = "r" in action or plus, "r" not in action or plus
    number = _oleo.open_file(
        image._handle, os.fsencode(path), create="r" not in action, exclusive="x" in action, cut="w" in action
    )
    raw = RawFile(image, path, number, read=read, write=write, append="a" in action)
    try:
        if write and not image.writable:
            # Said when it is opened, not when a buffer is written.
            raise io.UnsupportedOperation("the image is open for reading only")
        if "a" in action:
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            return raw
        size = BUFFER_BYTES if buffering in (-1, 1) else buffering
        buffer: Any
        if read and write:
            buffer = io.BufferedRandom(raw, size)
        elif write:
            buffer = io.BufferedWriter(raw, size)
        else:
            buffer = io.BufferedReader(raw, size)
        if binary:
            return buffer
        text = io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text
    except BaseException:
        raw.close()
        raise
