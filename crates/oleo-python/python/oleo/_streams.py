"""Send streams: made, received, taken apart."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Union

from . import _oleo
from ._types import Change, Command, Sent


class _Readable(Protocol):
    def read(self, size: int, /) -> Any: ...


#: What a stream is read from: a file object, or pieces of bytes.
StreamSource = Union[_Readable, Iterable[bytes]]


class SendStream(io.RawIOBase):
    """A stream that is made while it is read: a file object, and an iterator of pieces of bytes.

    Closing it before the end stops the work. ``report`` says what was sent, after the end.
    """

    def __init__(self, sending: _oleo.Sending) -> None:
        self._sending = sending
        self._left = memoryview(b"")
        self._ended = False

    @property
    def report(self) -> Sent | None:
        """What was sent; none before the end."""
        sent = self._sending.sent()
        return None if sent is None else Sent(**sent)

    def readable(self) -> bool:
        if self.closed:
            raise ValueError("I/O operation on closed stream")
        return True

    def _more(self) -> memoryview:
        self.readable()
        if not self._left and not self._ended:
            piece = self._sending.next()
            self._ended = piece is None
            self._left = memoryview(piece or b"")
        return self._left

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if not view:
            return 0
        have = self._more()
        count = min(len(view), len(have))
        view[:count] = have[:count]
        self._left = have[count:]
        return count

    def __iter__(self) -> Iterator[bytes]:
        self.readable()
        return self

    def __next__(self) -> bytes:
        piece = self._more()
        self._left = memoryview(b"")
        if not piece:
            raise StopIteration
        return bytes(piece)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._left = memoryview(b"")
            self._sending.close()


def stream_commands(stream: StreamSource) -> Iterator[Command]:
    """The commands of a stream of ``btrfs send`` or :meth:`Image.send`, in their order.

    >>> image = oleo.create_in_memory(256 << 20)
    >>> _ = image.create_subvolume("home")
    >>> image.write("home/letter", b"Dear reader")
    >>> _ = image.snapshot("home", "monday", read_only=True)
    >>> [command.path for command in oleo.stream_commands(image.send("monday")) if command.name == "write"]
    ['letter']
    """
    listing = _oleo.commands(stream)
    try:
        while (told := listing.next()) is not None:
            name, path, fields = told
            yield Command(name, _text(path or b""), {key: _value(key, value) for key, value in fields})
    finally:
        listing.close()


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _value(key: str, value: Any) -> Any:
    return _text(value) if key in ("to", "target", "clone_path", "name") else value


_KINDS = {
    "mkfile": "added",
    "mkdir": "added",
    "mknod": "added",
    "mkfifo": "added",
    "mksock": "added",
    "symlink": "added",
    "unlink": "removed",
    "rmdir": "removed",
    "chmod": "attributes",
    "chown": "attributes",
    "set_xattr": "attributes",
    "remove_xattr": "attributes",
    "fileattr": "attributes",
    "enable_verity": "attributes",
}


def changes(stream: StreamSource) -> Iterator[Change]:
    """The differences that a stream without data tells; times are left out."""
    for command in stream_commands(stream):
        fields = command.fields
        if command.name == "rename":
            yield Change("renamed", command.path, other=fields["to"])
        elif command.name == "link":
            yield Change("linked", command.path, other=fields["target"])
        elif command.name in ("update_extent", "clone"):
            yield Change("contents", command.path, offset=fields["offset"], length=fields["len"])
        elif command.name == "truncate":
            yield Change("size", command.path, length=fields["size"])
        elif command.name in _KINDS:
            yield Change(_KINDS[command.name], command.path)
