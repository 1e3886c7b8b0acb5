"""Paths of an image, as ``pathlib`` has them."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ._file import as_bytes
from ._oleo import Stat

if TYPE_CHECKING:
    from ._image import Image


class Path:
    """A path in an image: what :class:`pathlib.Path` is for the file system of the host.

    >>> image = oleo.create_in_memory(256 << 20)
    >>> top = image.path()
    >>> (top / "logs").mkdir()
    >>> (top / "logs" / "today").write_text("up since monday")
    15
    >>> [path.name for path in (top / "logs").iterdir()]
    ['today']
    >>> (top / "logs/today").read_text()
    'up since monday'
    """

    __slots__ = ("image", "pure")

    #: The image that it is a path of.
    image: Image
    #: The path alone.
    pure: PurePosixPath

    def __init__(self, image: Image, *parts: str | os.PathLike[str]) -> None:
        self.image, self.pure = image, PurePosixPath("/", *parts)

    def _other(self, pure: PurePosixPath) -> Path:
        return Path(self.image, pure)

    def __fspath__(self) -> str:
        return str(self.pure)

    def __str__(self) -> str:
        return str(self.pure)

    def __repr__(self) -> str:
        return f"oleo.Path({str(self.pure)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and (self.image, self.pure) == (other.image, other.pure)

    def __hash__(self) -> int:
        return hash((id(self.image), self.pure))

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self._other(self.pure / name)

    def joinpath(self, *parts: str | os.PathLike[str]) -> Path:
        """The path of something below."""
        return self._other(self.pure.joinpath(*parts))

    @property
    def name(self) -> str:
        """The last name."""
        return self.pure.name

    @property
    def stem(self) -> str:
        """The last name without its suffix."""
        return self.pure.stem

    @property
    def suffix(self) -> str:
        """The suffix of the last name."""
        return self.pure.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """All names."""
        return self.pure.parts

    @property
    def parent(self) -> Path:
        """The directory that it is in."""
        return self._other(self.pure.parent)

    def with_name(self, name: str) -> Path:
        """The same with another last name."""
        return self._other(self.pure.with_name(name))

    def with_suffix(self, suffix: str) -> Path:
        """The same with another suffix."""
        return self._other(self.pure.with_suffix(suffix))

    def stat(self, *, follow_symlinks: bool = True) -> Stat:
        """Its attributes."""
        return self.image.stat(self, follow_symlinks=follow_symlinks)

    def exists(self) -> bool:
        """Whether there is something."""
        return self.image.exists(self)

    def is_dir(self) -> bool:
        """Whether there is a directory."""
        return self.image.is_dir(self)

    def is_file(self) -> bool:
        """Whether there is a regular file."""
        return self.image.is_file(self)

    def is_symlink(self) -> bool:
        """Whether there is a symbolic link."""
        return self.image.is_symlink(self)

    def iterdir(self) -> Iterator[Path]:
        """What is in the directory."""
        for entry in self.image.scandir(self):
            yield self / entry.name

    def rglob(self, pattern: str) -> Iterator[Path]:
        """Everything below whose last name matches."""
        for dir, dirs, files in self.image.walk(self):
            for name in dirs + files:
                if fnmatch.fnmatchcase(name, pattern):
                    yield self._other(PurePosixPath(dir, name))

    def open(self, mode: str = "r", buffering: int = -1, **options: Any) -> Any:
        """Opens the file: see :meth:`Image.open`."""
        return self.image.open(self, mode, buffering, **options)

    def read_bytes(self) -> bytes:
        """All of the file."""
        return self.image.read(self)

    def write_bytes(self, data: Any) -> int:
        """Makes or replaces the file."""
        data = as_bytes(data)
        self.image.write(self, data)
        return len(data)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """All of the file, as text."""
        return self.read_bytes().decode(encoding, errors)

    def write_text(self, text: str, encoding: str = "utf-8", errors: str = "strict") -> int:
        """Makes or replaces the file."""
        self.write_bytes(text.encode(encoding, errors))
        return len(text)

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory."""
        self.image.mkdir(self, mode, parents=parents, exist_ok=exist_ok)

    def touch(self) -> None:
        """Makes an empty file, if there is nothing."""
        self.image.open(self, "ab").close()

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes a file."""
        try:
            self.image.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Removes an empty directory."""
        self.image.rmdir(self)

    def rename(self, target: str | os.PathLike[str]) -> Path:
        """Renames; returns the new path."""
        self.image.rename(self, target)
        return Path(self.image, target)

    def symlink_to(self, target: str | os.PathLike[str]) -> None:
        """Makes it a symbolic link."""
        self.image.symlink(target, self)

    def readlink(self) -> str:
        """The target of the symbolic link."""
        return self.image.readlink(self)
