"""Images for fsspec, and so for pandas, dask, zarr and others: ``oleo://disk.img/path/in/it``.

The image is the first part of the path that is not a directory of the host; what follows is the path inside. Images with other names
(``s3://…``, several devices) are given as an option: ``fsspec.filesystem("oleo", image="s3://bucket/disk")``.

>>> import fsspec, tempfile
>>> scratch = tempfile.TemporaryDirectory()
>>> disk = scratch.name + "/disk.img"
>>> _ = oleo.mkfs(disk, 256 << 20)
>>> with fsspec.open(f"oleo://{disk}/table.csv", "w") as table:
...     _ = table.write("a,b\\n1,2\\n")
>>> fs = fsspec.filesystem("oleo", image=disk)
>>> fs.cat_file("/table.csv")
b'a,b\\n1,2\\n'
>>> fs.close()
>>> scratch.cleanup()
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem  # type: ignore[import-not-found,import-untyped,unused-ignore]

import oleo

from ._image import Image

#: While there is writing, everything is made durable this often.
COMMIT_SECONDS = 5.0

_KIND, _DIR, _FILE, _LINK = 0o170000, 0o040000, 0o100000, 0o120000
_PREFIX = "oleo://"


def split_url(url: str) -> tuple[str, str]:
    """The image and the path inside that a URL names."""
    whole = url.removeprefix(_PREFIX)
    parts = whole.split("/")
    for count in range(1, len(parts) + 1):
        image = "/".join(parts[:count])
        if image and not os.path.isdir(image):
            if os.path.exists(image):
                return image, "/" + "/".join(parts[count:])
            break
    raise FileNotFoundError(errno.ENOENT, "there is no image", whole)


class OleoFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A file system in an image.

    It is opened when it is first used: for reading, which others may do at the same time; and for changes (``"r+"``) from the first
    change on, when nobody else may use the image. ``mode="r"`` refuses changes, ``mode="r+"`` opens for changes from the
    beginning. Changes are durable after :meth:`close` and :meth:`sync`, at the end of the program, and otherwise every five seconds
    of writing. Other options are those of :func:`oleo.open`.
    """

    protocol = "oleo"
    root_marker = "/"

    def __init__(self, image: Any = None, mode: str = "auto", **options: Any) -> None:
        super().__init__(image=image, mode=mode, **options)
        if image is None:
            raise ValueError("which image? oleo://IMAGE/PATH, or fsspec.filesystem('oleo', image=IMAGE)")
        if mode not in ("auto", "r", "r+"):
            raise ValueError(f"mode is 'auto', 'r' or 'r+', not {mode!r}")
        names = ("devices", "scan", "degraded", "offset", "in_use", "cache_bytes", "compress")
        self._how = {name: options[name] for name in names if name in options}
        self._name, self._mode = os.fspath(image), mode
        self._opened: Image | None = None
        self._lock = threading.RLock()
        self._committed = time.monotonic()
        _instances[id(self)] = self

    # Names.

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"image": split_url(path)[0]} if path.startswith(_PREFIX) else {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        if path.startswith(_PREFIX):
            path = split_url(path)[1]
        return "/" + path.strip("/")

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return name if name.startswith(_PREFIX) else f"{_PREFIX}{self._name}{self._strip_protocol(name)}"

    # The image.

    @property
    def image(self) -> Image:
        """The image, for everything that fsspec has no words for: snapshots, for one."""
        with self._lock:
            if self._opened is None or self._opened.closed:
                mode = "r+" if self._mode == "r+" else "r"
                self._opened = oleo.open(self._name, mode, **self._how)
            return self._opened

    def _changing(self) -> Image:
        """The image, open for changes."""
        with self._lock:
            image = self.image
            if not image.writable:
                if self._mode == "r":
                    raise oleo._errors.error_of(errno.EROFS, "refusal", f"{self._name} was opened for reading", None)
                if image._handle.open_files:
                    text = f"{self._name}: files are open for reading; close them before the first change, or open with mode='r+'"
                    raise oleo._errors.error_of(errno.EBUSY, "refusal", text, None)
                image.close()
                self._opened = image = oleo.open(self._name, "r+", **self._how)
                self._committed = time.monotonic()
            elif time.monotonic() - self._committed > COMMIT_SECONDS:
                image.sync()
                self._committed = time.monotonic()
            return image

    def sync(self) -> None:
        """Makes everything durable."""
        with self._lock:
            if self._opened is not None and not self._opened.closed and self._opened.writable:
                self._opened.sync()

    def close(self) -> None:
        """Makes everything durable and gives the image up; it is opened again when it is used again."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    # Looking.

    def _info(self, image: Image, path: str) -> dict[str, Any]:
        stat = image.lstat(path)
        info: dict[str, Any] = {"islink": stat.st_mode & _KIND == _LINK}
        if info["islink"]:
            info["destination"] = image.readlink(path)
            try:
                stat = image.stat(path)
            except OSError:
                pass
        kind = {_DIR: "directory", _FILE: "file"}.get(stat.st_mode & _KIND, "other")
        info.update(name=path, type=kind, size=0 if kind == "directory" else stat.st_size, mode=stat.st_mode)
        info.update(uid=stat.st_uid, gid=stat.st_gid, ino=stat.st_ino, nlink=stat.st_nlink)
        info.update(subvolume=stat.st_dev, mtime=stat.st_mtime, created=stat.st_birthtime)
        return info

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return self._info(self.image, self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path, image = self._strip_protocol(path), self.image
        first = self._info(image, path)
        if first["type"] != "directory":
            return [first] if detail else [path]
        paths = [entry.path for entry in image.scandir(path)]
        return [self._info(image, path) for path in paths] if detail else paths

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "omit",
        **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path, image, detail = self._strip_protocol(path), self.image, kwargs.get("detail", False)

        def failed(error: OSError) -> None:
            if on_error == "raise":
                raise error
            if callable(on_error):
                on_error(error)

        def found() -> Iterator[tuple[str, Any, Any]]:
            start = path.rstrip("/").count("/")
            try:
                walked = image.walk(path, onerror=failed)
                for dir, dirs, files in walked:
                    shown: Any = list(dirs)
                    if detail:
                        full = {name: f"{dir.rstrip('/')}/{name}" for name in dirs + files}
                        shown = {name: self._info(image, full[name]) for name in dirs}
                        yield dir, shown, {name: self._info(image, full[name]) for name in files}
                    else:
                        yield dir, shown, files
                    # Whoever looks at the list may have taken out what is not to be entered.
                    deep = maxdepth is not None and dir.rstrip("/").count("/") - start + 1 >= maxdepth
                    dirs[:] = [] if deep else [name for name in dirs if name in shown]
            except (FileNotFoundError, NotADirectoryError) as error:
                failed(error)

        return found() if topdown else reversed(list(found()))

    def created(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.image.stat(self._strip_protocol(path)).st_birthtime, tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.image.stat(self._strip_protocol(path)).st_mtime, tz=timezone.utc)

    # Contents.

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **_: Any) -> Any:
        if not autocommit:
            raise NotImplementedError("there are no transactions; take a snapshot (fs.image.snapshot)")
        image = self.image if mode == "rb" else self._changing()
        path = self._strip_protocol(path)
        if mode != "rb" and self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        return image.open(path, mode)

    #: As with files of the host, directories are not made on the way unless that is asked for.
    @property
    def auto_mkdir(self) -> bool:
        return bool(self.storage_options.get("auto_mkdir", False))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path, image = self._strip_protocol(path), self.image
        if (start or 0) < 0 or (end is not None and end < 0):
            size = image.stat(path).st_size
            start = max(start + size, 0) if start is not None and start < 0 else start
            end = max(end + size, 0) if end is not None and end < 0 else end
        start = start or 0
        return image.read(path, None if end is None else max(end - start, 0), start)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        image, path = self._changing(), self._strip_protocol(path)
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        if mode == "create":
            with image.open(path, "xb", buffering=0) as file:
                file.write(value)
        else:
            image.write(path, value)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        self._changing().open(self._strip_protocol(path), "wb" if truncate else "ab", buffering=0).close()

    # Changes of names.

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        self._changing().mkdir(self._strip_protocol(path), parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if path == "/" and exist_ok:
            return
        self._changing().makedirs(path, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self._changing().rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self._changing().unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for one in path if isinstance(path, list) else [path]:
            one = self._strip_protocol(one)
            image = self._changing()
            if image.is_dir(one) and not image.is_symlink(one):
                if not recursive:
                    raise oleo._errors.error_of(errno.EISDIR, "refusal", f"{one} is a directory", "IncludeContents")
                image.rmtree(one)
            else:
                image.unlink(one)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies a file; the copy shares its data with the original."""
        source, target, image = self._strip_protocol(path1), self._strip_protocol(path2), self._changing()
        if image.is_dir(source):
            image.makedirs(target, exist_ok=True)
            return
        if image.exists(self._parent(target)) is False and self.auto_mkdir:
            image.makedirs(self._parent(target), exist_ok=True)
        image.copy(source, target, reflink=True)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **_: Any) -> None:
        self._changing().rename(self._strip_protocol(path1), self._strip_protocol(path2))

    mv_file = mv


#: By identity: what fsspec makes its hashes of is not there yet when an instance is made.
_instances: weakref.WeakValueDictionary[int, OleoFileSystem] = weakref.WeakValueDictionary()


@atexit.register
def _close_all() -> None:
    for instance in list(_instances.values()):
        instance.close()
