"""An open image."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Union

from . import _oleo
from ._errors import OleoError
from ._file import as_bytes, open_file
from ._oleo import Filled, Stat
from ._path import Path
from ._streams import SendStream, StreamSource, changes
from ._types import (
    BalanceStatus,
    Change,
    DirEntry,
    Extent,
    Quota,
    QuotaGroup,
    Received,
    ReceiveReport,
    Space,
    SubvolumeSize,
    fsname,
    group_number,
    group_text,
)

#: A path inside an image. Bytes are taken as they are; text is encoded as names of files are (``os.fsencode``).
ImagePath = Union[str, bytes, "os.PathLike[Any]"]
#: A subvolume: its path from the top level, its number, or what :meth:`Image.subvolume` returned.
SubvolumeRef = Union[ImagePath, int, "Subvolume"]
_Time = Union[int, float]

_KIND, _DIR, _FILE, _LINK = 0o170000, 0o040000, 0o100000, 0o120000
#: Entries of a directory read at a time.
_ENTRIES_AT_ONCE = 4096


class Subvolume:
    """A subvolume or snapshot, as it was when it was asked for."""

    __slots__ = ("_of", "path")

    #: Its path from the top level; empty for the top level.
    path: str

    def __init__(self, of: _oleo.Subvolume) -> None:
        self._of, self.path = of, os.fsdecode(of.path)

    @property
    def id(self) -> int:
        """Its number."""
        return self._of.id

    @property
    def parent_id(self) -> int | None:
        """The number of the one that it is in; none for the top level."""
        return self._of.parent_id

    @property
    def read_only(self) -> bool:
        """Changes are refused."""
        return self._of.read_only

    @property
    def uuid(self) -> str | None:
        """Its UUID."""
        return self._of.uuid

    @property
    def parent_uuid(self) -> str | None:
        """That of the one that it is a snapshot of, if it is one."""
        return self._of.parent_uuid

    @property
    def received_uuid(self) -> str | None:
        """That of the one that it was received from, if it was."""
        return self._of.received_uuid

    @property
    def generation(self) -> int:
        """The transaction that last wrote it."""
        return self._of.generation

    @property
    def ctransid(self) -> int:
        """The transaction of its last change."""
        return self._of.ctransid

    @property
    def otransid(self) -> int:
        """The transaction that made it."""
        return self._of.otransid

    @property
    def ctime_ns(self) -> int:
        """Its last change, in nanoseconds since 1970."""
        return _ns(self._of.ctime)

    @property
    def otime_ns(self) -> int:
        """Its creation, in nanoseconds since 1970."""
        return _ns(self._of.otime)

    def __repr__(self) -> str:
        return f"oleo.Subvolume(id={self.id}, path={self.path!r}, read_only={self.read_only})"


def _ns(time: tuple[int, int]) -> int:
    return time[0] * 10**9 + time[1]


def _which(subvolume: SubvolumeRef) -> int | bytes:
    if isinstance(subvolume, Subvolume):
        return subvolume.id
    return subvolume if isinstance(subvolume, int) else fsname(subvolume)


def _time(seconds: _Time | None, ns: int | None) -> tuple[int, int] | None:
    if ns is None and seconds is not None:
        ns = seconds * 10**9 if isinstance(seconds, int) else int(seconds * 10**9)
    return None if ns is None else divmod(ns, 10**9)


class Image:
    """An open image or device: files, directories, subvolumes and everything else in it.

    Made by :func:`oleo.open`. All methods may be called from many threads at once; the interpreter is released while they work.
    Paths begin at the top level, with or without a slash in front. Changes are in memory until :meth:`sync` or :meth:`close`;
    a ``with`` block closes at its end.

    >>> with oleo.create_in_memory(256 << 20) as image:
    ...     image.write("greeting", b"hello")
    ...     image.read("greeting")
    b'hello'
    """

    def __init__(self, handle: _oleo.Handle, name: str) -> None:
        self._handle = handle
        #: The name that it was opened by.
        self.name = name
        self._streams: weakref.WeakSet[SendStream] = weakref.WeakSet()
        #: Files that are open for writing, as their users have them: buffers hold what is not in the image yet.
        self._writers: weakref.WeakSet[Any] = weakref.WeakSet()

    # Opening and closing.

    def __enter__(self) -> Image:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and not handle.closed:
            # What is in memory is lost in any case.
            if handle.writable and self.name != ":memory:":
                warnings.warn(f"unclosed image {self.name!r}", ResourceWarning, stacklevel=2, source=self)
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "writable" if self.writable else "read-only"
        return f"<oleo.Image {self.name!r} {state}>"

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._handle.closed

    @property
    def writable(self) -> bool:
        """Whether it was opened for changes."""
        return self._handle.writable

    def close(self) -> None:
        """Closes open files and streams, makes everything durable and gives the image up. A second call does nothing."""
        first: BaseException | None = None
        for opened in [*self._streams, *self._writers]:
            try:
                opened.close()
            except Exception as error:
                first = first or error
        self._handle.close()
        if first is not None:
            raise first

    def sync(self) -> int:
        """Makes everything done so far durable; returns the number of the transaction."""
        return self._handle.sync()

    def clean(self) -> None:
        """Takes apart what was deleted, so that its space is free for others."""
        self._handle.clean()

    @property
    def uuid(self) -> str:
        """The UUID of the file system."""
        return self._handle.uuid

    @property
    def label(self) -> str:
        """The label of the file system. Setting it is durable with the next :meth:`sync`."""
        return os.fsdecode(self._handle.label)

    @label.setter
    def label(self, label: str) -> None:
        self._handle.set_label(os.fsencode(label))

    @property
    def space(self) -> Space:
        """How full it is."""
        return Space(*self._handle.space())

    # Files.

    def path(self, *parts: str | os.PathLike[str]) -> Path:
        """A path in this image, with the methods of :class:`pathlib.Path`."""
        return Path(self, *parts)

    def open(
        self,
        path: ImagePath,
        mode: str = "r",
        buffering: int = -1,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Opens a file as the built-in :func:`open` does: text by default (UTF-8), ``"b"`` for bytes, ``buffering=0`` for a
        :class:`RawFile`.

        >>> image = oleo.create_in_memory(256 << 20)
        >>> with image.open("log", "w") as log:
        ...     print("first line", file=log)
        ...     print("second line", file=log)
        >>> with image.open("log") as log:
        ...     [line.strip() for line in log]
        ['first line', 'second line']
        """
        opened = open_file(self, os.fsdecode(path), mode, buffering, encoding, errors, newline)
        if opened.writable():
            self._writers.add(opened)
        return opened

    def read(self, path: ImagePath, size: int | None = None, offset: int = 0) -> bytes:
        """The contents of a regular file, or ``size`` bytes of it from ``offset`` on."""
        return _oleo.read(self._handle, fsname(path), offset, size)

    def write(self, path: ImagePath, data: Any) -> None:
        """Makes a regular file with these contents, or replaces those of the one that is there."""
        _oleo.write(self._handle, fsname(path), as_bytes(data))

    def stat(self, path: ImagePath, *, follow_symlinks: bool = True) -> Stat:
        """What is known of a file, as :func:`os.stat` says it."""
        return _oleo.stat(self._handle, fsname(path), follow_symlinks)

    def lstat(self, path: ImagePath) -> Stat:
        """The same; of a symbolic link the link's own."""
        return self.stat(path, follow_symlinks=False)

    def _is(self, path: ImagePath, kind: int, follow: bool = True) -> bool:
        try:
            return self.stat(path, follow_symlinks=follow).st_mode & _KIND == kind
        except (FileNotFoundError, NotADirectoryError):
            return False

    def exists(self, path: ImagePath) -> bool:
        """Whether there is something."""
        try:
            self.stat(path)
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_dir(self, path: ImagePath) -> bool:
        """Whether there is a directory or a subvolume."""
        return self._is(path, _DIR)

    def is_file(self, path: ImagePath) -> bool:
        """Whether there is a regular file."""
        return self._is(path, _FILE)

    def is_symlink(self, path: ImagePath) -> bool:
        """Whether there is a symbolic link."""
        return self._is(path, _LINK, follow=False)

    def scandir(self, path: ImagePath = "/") -> Iterator[DirEntry]:
        """The entries of a directory, in the order of their creation. Memory stays small, however many there are."""
        dir, after = fsname(path), 0
        shown = os.fsdecode(path)
        while True:
            entries, after = _oleo.entries(self._handle, dir, after, _ENTRIES_AT_ONCE)
            if not entries:
                return
            for name, kind, ino, subvolume in entries:
                yield DirEntry(self, shown, os.fsdecode(name), kind, ino, subvolume)

    def listdir(self, path: ImagePath = "/") -> list[str]:
        """The names in a directory, in the order of their creation."""
        return [entry.name for entry in self.scandir(path)]

    def walk(
        self,
        top: ImagePath = "/",
        *,
        onerror: Callable[[OSError], object] | None = None,
        one_subvolume: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """Goes through everything below a directory, as :func:`os.walk` does from the top down: path, names of directories, names
        of everything else. Directories that are taken out of the second list are not entered. With ``one_subvolume`` other
        subvolumes are listed and not entered.

        It ends on damaged images too, in which directories may contain themselves.

        >>> image = oleo.create_in_memory(256 << 20)
        >>> image.mkdir("a/b", parents=True)
        >>> image.write("a/b/file", b"")
        >>> list(image.walk())
        [('/', ['a'], []), ('/a', ['b'], []), ('/a/b', [], ['file'])]
        """
        seen = _oleo.walk(self._handle, fsname(top))
        left = [os.fsdecode(top)]
        while left:
            dir = left.pop()
            dirs: list[str] = []
            files: list[str] = []
            others = set()
            try:
                for entry in self.scandir(dir):
                    if entry._kind != _DIR:
                        files.append(entry.name)
                        continue
                    dirs.append(entry.name)
                    if entry.subvolume is not None:
                        others.add(entry.name)
            except OleoError as error:
                if onerror is not None:
                    onerror(error)
                continue
            yield dir, dirs, files
            below = []
            for name in dirs:
                if one_subvolume and name in others:
                    continue
                try:
                    if seen.enters(self._handle, os.fsencode(dir), os.fsencode(name)):
                        below.append(f"{dir}{name}" if dir.endswith("/") or not dir else f"{dir}/{name}")
                except OleoError as error:
                    if onerror is not None:
                        onerror(error)
            left.extend(reversed(below))

    def mkdir(self, path: ImagePath, mode: int = 0o755, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory; with ``parents`` those on the way, too."""
        if parents:
            parent = os.path.dirname(os.path.normpath(fsname(path)).lstrip(b"/"))
            if parent:
                _oleo.makedirs(self._handle, parent)
        try:
            _oleo.mkdir(self._handle, fsname(path), mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir(path):
                raise

    def makedirs(self, path: ImagePath, exist_ok: bool = False) -> None:
        """Makes a directory and those on the way."""
        self.mkdir(path, parents=True, exist_ok=exist_ok)

    def unlink(self, path: ImagePath) -> None:
        """Removes a file."""
        _oleo.unlink(self._handle, fsname(path), False)

    remove = unlink

    def rmdir(self, path: ImagePath) -> None:
        """Removes an empty directory."""
        _oleo.unlink(self._handle, fsname(path), True)

    def rmtree(self, path: ImagePath) -> None:
        """Removes a file, or a directory with everything below, nested subvolumes included."""
        _oleo.rmtree(self._handle, fsname(path))

    def rename(self, source: ImagePath, target: ImagePath) -> None:
        """Renames or moves; a file that has the new name is replaced."""
        _oleo.rename(self._handle, fsname(source), fsname(target))

    def link(self, source: ImagePath, path: ImagePath) -> None:
        """Gives a file another name."""
        _oleo.link(self._handle, fsname(source), fsname(path))

    def symlink(self, target: ImagePath, path: ImagePath) -> None:
        """Makes a symbolic link."""
        _oleo.symlink(self._handle, fsname(target), fsname(path))

    def readlink(self, path: ImagePath) -> str:
        """The target of a symbolic link."""
        return os.fsdecode(_oleo.readlink(self._handle, fsname(path)))

    def copy(self, source: ImagePath, target: ImagePath, *, recursive: bool = False, reflink: bool = False) -> None:
        """Copies within the image, attributes included; with ``reflink`` the copy shares the data of the original."""
        _oleo.copy(self._handle, fsname(source), fsname(target), recursive, reflink)

    def put(self, source: str | os.PathLike[str], path: ImagePath = "/") -> Filled:
        """Copies a file or directory of the host into the image, as ``cp -a`` does."""
        return _oleo.put(self._handle, os.fspath(source), fsname(path))

    def restore(self, path: ImagePath, dest: str | os.PathLike[str], *, no_special: bool = False) -> Filled:
        """Copies what is in a directory of the image into a directory of the host, which is empty or made; a file is put there
        under its own name. ``no_special`` leaves out devices and set-ID bits."""
        return _oleo.restore(self._handle, fsname(path), os.fspath(dest), no_special)

    def _set(self, path: ImagePath, follow: bool, **changes: Any) -> None:
        names = ("mode", "uid", "gid", "size", "atime", "mtime")
        _oleo.set_attr(self._handle, fsname(path), {name: changes.get(name) for name in names}, follow)

    def chmod(self, path: ImagePath, mode: int) -> None:
        """Changes permission bits."""
        self._set(path, True, mode=mode)

    def chown(self, path: ImagePath, uid: int = -1, gid: int = -1, *, follow_symlinks: bool = True) -> None:
        """Changes owner and group; -1 leaves one as it is."""
        self._set(path, follow_symlinks, uid=None if uid == -1 else uid, gid=None if gid == -1 else gid)

    def truncate(self, path: ImagePath, length: int) -> None:
        """Makes a file this many bytes long: shorter, or longer by a hole."""
        self._set(path, True, size=length)

    def utime(
        self,
        path: ImagePath,
        times: tuple[_Time, _Time] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of access and modification, in seconds or (``ns``) nanoseconds since 1970."""
        if (times is None) == (ns is None):
            raise ValueError("give times or ns")
        atime, mtime = (_time(None, t) for t in ns) if ns else (_time(t, None) for t in times or ())
        self._set(path, follow_symlinks, atime=atime, mtime=mtime)

    def getxattr(self, path: ImagePath, name: str | bytes, *, follow_symlinks: bool = True) -> bytes:
        """An extended attribute."""
        value = _oleo.getxattr(self._handle, fsname(path), os.fsencode(name), follow_symlinks)
        if value is None:
            import errno

            raise OleoError(errno.ENODATA, f"{os.fsdecode(path)}: there is no attribute {os.fsdecode(name)}")
        return bytes(value)

    def listxattr(self, path: ImagePath, *, follow_symlinks: bool = True) -> list[str]:
        """The names of all extended attributes."""
        return [os.fsdecode(bytes(name)) for name in _oleo.listxattr(self._handle, fsname(path), follow_symlinks)]

    def setxattr(self, path: ImagePath, name: str | bytes, value: bytes, *, follow_symlinks: bool = True) -> None:
        """Sets an extended attribute."""
        _oleo.setxattr(self._handle, fsname(path), os.fsencode(name), value, follow_symlinks)

    def removexattr(self, path: ImagePath, name: str | bytes, *, follow_symlinks: bool = True) -> None:
        """Removes an extended attribute."""
        _oleo.removexattr(self._handle, fsname(path), os.fsencode(name), follow_symlinks)

    def extents(self, path: ImagePath) -> list[Extent]:
        """Where the contents of a file are; what is between extents is a hole."""
        return [Extent(*extent) for extent in _oleo.extents(self._handle, fsname(path))]

    def get_property(self, path: ImagePath, name: str) -> str | None:
        """A property: ``ro``, ``label``, ``compression`` or ``nodatacow``; none if it is not set or does not apply."""
        return _oleo.get_property(self._handle, fsname(path), name)

    def set_property(self, path: ImagePath, name: str, value: str) -> None:
        """Sets a property."""
        _oleo.set_property(self._handle, fsname(path), name, value)

    # Subvolumes and snapshots.

    def subvolumes(self) -> list[Subvolume]:
        """All subvolumes, the top level first."""
        return [Subvolume(of) for of in _oleo.subvolumes(self._handle)]

    def subvolume(self, which: SubvolumeRef = "/") -> Subvolume:
        """One subvolume, by path or number."""
        return Subvolume(_oleo.subvolume(self._handle, _which(which)))

    def create_subvolume(self, path: ImagePath) -> Subvolume:
        """Makes an empty subvolume."""
        return self.subvolume(_oleo.create_subvolume(self._handle, fsname(path)))

    def snapshot(self, source: SubvolumeRef, path: ImagePath, *, read_only: bool = False) -> Subvolume:
        """Makes a snapshot of a subvolume.

        >>> image = oleo.create_in_memory(256 << 20)
        >>> _ = image.create_subvolume("home")
        >>> image.write("home/letter", b"first draft")
        >>> image.snapshot("home", "monday", read_only=True)
        oleo.Subvolume(id=257, path='monday', read_only=True)
        >>> image.write("home/letter", b"second draft")
        >>> image.read("monday/letter")
        b'first draft'
        """
        return self.subvolume(_oleo.snapshot(self._handle, _which(source), fsname(path), read_only))

    def delete_subvolume(self, which: SubvolumeRef) -> None:
        """Deletes a subvolume; :meth:`clean` frees its space. One with others inside is refused (:meth:`rmtree` takes them along)."""
        _oleo.delete_subvolume(self._handle, _which(which))

    def set_read_only(self, which: SubvolumeRef, read_only: bool = True) -> None:
        """Has a subvolume refuse changes, or not."""
        _oleo.set_read_only(self._handle, _which(which), read_only)

    @property
    def default_subvolume(self) -> Subvolume:
        """The subvolume that is mounted where none is named."""
        return self.subvolume(_oleo.default_subvolume(self._handle))

    def set_default_subvolume(self, which: SubvolumeRef) -> None:
        """Sets it."""
        _oleo.set_default_subvolume(self._handle, _which(which))

    def subvolume_sizes(self) -> list[SubvolumeSize]:
        """The space that each subvolume takes; quota may be off."""
        return [SubvolumeSize(*size) for size in _oleo.subvolume_sizes(self._handle)]

    # Streams.

    def send(
        self,
        *subvolumes: SubvolumeRef,
        parent: SubvolumeRef | None = None,
        clone_sources: Iterable[SubvolumeRef] = (),
        version: int = 1,
        compressed: bool = False,
        no_data: bool = False,
    ) -> SendStream:
        """A stream for ``btrfs receive`` or :meth:`receive`, of read-only subvolumes: a file object and an iterator of pieces of
        bytes, made while it is read. ``parent`` makes it incremental.

        >>> image = oleo.create_in_memory(256 << 20)
        >>> _ = image.create_subvolume("home")
        >>> image.write("home/letter", b"Dear reader")
        >>> _ = image.snapshot("home", "monday", read_only=True)
        >>> other = oleo.create_in_memory(256 << 20)
        >>> [received.path for received in other.receive(image.send("monday")).subvolumes]
        ['monday']
        >>> other.read("monday/letter")
        b'Dear reader'
        """
        if not subvolumes:
            raise TypeError("send() needs a subvolume")
        how = {
            "parent": None if parent is None else _which(parent),
            "clone_sources": [_which(source) for source in clone_sources],
            "version": version,
            "compressed": compressed,
            "no_data": no_data,
        }
        stream = SendStream(_oleo.send(self._handle, [_which(subvolume) for subvolume in subvolumes], how))
        self._streams.add(stream)
        return stream

    def receive(
        self,
        stream: StreamSource,
        into: ImagePath = "/",
        *,
        parent: SubvolumeRef | None = None,
        atomic: bool = False,
        resume: bool = False,
        one_stream: bool = False,
    ) -> ReceiveReport:
        """Applies a stream from a file object or an iterable of bytes, and makes it durable. ``atomic`` leaves nothing behind after
        an error, ``resume`` goes on with what an earlier receive left incomplete, ``parent`` is used in place of the one that an
        incremental stream names."""
        how = {
            "into": fsname(into),
            "parent": None if parent is None else _which(parent),
            "atomic": atomic,
            "resume": resume,
            "one_stream": one_stream,
        }
        subvolumes, commands, count, warned = _oleo.receive(self._handle, stream, how)
        received = [Received(os.fsdecode(path), uuid, again, passed) for path, uuid, again, passed in subvolumes]
        return ReceiveReport(received, commands, count, warned)

    def diff(self, old: SubvolumeRef, new: SubvolumeRef) -> Iterator[Change]:
        """What makes the snapshot ``new`` out of ``old``; both are read-only. Only the parts of the trees that differ are read.

        >>> image = oleo.create_in_memory(256 << 20)
        >>> _ = image.create_subvolume("home")
        >>> image.write("home/letter", b"Dear reader")
        >>> _ = image.snapshot("home", "monday", read_only=True)
        >>> image.rename("home/letter", "home/sent")
        >>> image.write("home/answer", b"Dear writer")
        >>> _ = image.snapshot("home", "tuesday", read_only=True)
        >>> for change in image.diff("monday", "tuesday"):
        ...     print(change.kind, change.path, change.other or "")
        renamed letter sent
        added answer 
        contents answer 
        size answer 
        attributes answer 
        attributes answer 
        """
        if self.subvolume(old).id == self.subvolume(new).id:
            return
        with self.send(new, parent=old, no_data=True) as stream:
            yield from changes(stream)

    # Jobs.

    def balance(
        self,
        data: str | None = None,
        metadata: str | None = None,
        system: str | None = None,
        *,
        force: bool = False,
        progress: Callable[[BalanceStatus], object] | None = None,
    ) -> BalanceStatus:
        """Moves block groups, with the filters of ``btrfs balance`` for each type (``"usage=50"``, ``"convert=raid1"``; empty:
        all); without any filters all groups are moved. ``progress`` is called now and then, and at the end; if it raises, or
        on Ctrl-C, the balance is paused and can be resumed."""
        if data is metadata is system is None:
            data = metadata = system = ""
        return BalanceStatus(**_oleo.balance(self._handle, data, metadata, system, force, _told(progress)))

    def balance_resume(self, *, progress: Callable[[BalanceStatus], object] | None = None) -> BalanceStatus:
        """Goes on with a balance that was interrupted, here or by the kernel."""
        return BalanceStatus(**_oleo.balance_resume(self._handle, _told(progress)))

    def balance_pause(self) -> None:
        """Pauses the balance that another thread runs."""
        _oleo.balance_pause(self._handle)

    def balance_cancel(self) -> None:
        """Ends a balance, running or paused. What was moved stays where it is."""
        _oleo.balance_cancel(self._handle)

    @property
    def balance_status(self) -> BalanceStatus:
        """Whether there is a balance, and how far it is."""
        return BalanceStatus(**_oleo.balance_status(self._handle))

    @property
    def quota(self) -> Quota | None:
        """Quota and its groups as of the last commit; none if it is off."""
        state = _oleo.quota(self._handle)
        if state is None:
            return None
        wrong, simple, groups = state
        made = [
            QuotaGroup(group_text(id), rfer, excl, max_rfer, max_excl, [*map(group_text, up)], [*map(group_text, down)])
            for id, rfer, excl, max_rfer, max_excl, up, down in groups
        ]
        return Quota(wrong, simple, made)

    def quota_enable(self, *, simple: bool = False) -> None:
        """Turns quota on and counts. Durable when it returns."""
        _oleo.quota_enable(self._handle, simple)

    def quota_disable(self) -> None:
        """Turns quota off; groups and limits are gone."""
        _oleo.quota_disable(self._handle)

    def quota_rescan(self) -> None:
        """Counts every group anew."""
        _oleo.quota_rescan(self._handle)

    def _group(self, what: str, group: int | str, parent: int | str | None, limits: Any, recount: bool) -> bool:
        above = None if parent is None else group_number(parent)
        return _oleo.qgroup_change(self._handle, what, group_number(group), above, limits, recount)

    def quota_create(self, group: int | str) -> None:
        """Makes a group of level 1 or higher (``"1/100"``)."""
        self._group("create", group, None, (None, None), True)

    def quota_destroy(self, group: int | str) -> None:
        """Removes a group that nothing is in."""
        self._group("destroy", group, None, (None, None), True)

    def quota_assign(self, member: int | str, group: int | str, *, recount: bool = True) -> bool:
        """Makes a group part of another; whether all numbers are right afterwards (always, with ``recount``)."""
        return self._group("assign", member, group, (None, None), recount)

    def quota_unassign(self, member: int | str, group: int | str, *, recount: bool = True) -> bool:
        """Undoes that."""
        return self._group("remove", member, group, (None, None), recount)

    def quota_limit(self, group: int | str, referenced: int | None = None, exclusive: int | None = None) -> None:
        """Sets the limits of a group or subvolume, in bytes; none: no limit."""
        self._group("limit", group, None, (referenced, exclusive), True)


def _told(progress: Callable[[BalanceStatus], object] | None) -> Callable[[dict[str, Any]], object] | None:
    return None if progress is None else lambda status: progress(BalanceStatus(**status))
