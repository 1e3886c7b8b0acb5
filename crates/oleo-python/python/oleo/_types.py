"""What calls return, as plain objects."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._oleo import Stat

if TYPE_CHECKING:
    from ._image import Image

_KIND = 0o170000
_DIR, _FILE, _LINK = 0o040000, 0o100000, 0o120000


class DirEntry:
    """An entry of a directory, as :func:`os.scandir` has them."""

    __slots__ = ("name", "path", "_image", "_kind", "_ino", "subvolume")

    #: The name.
    name: str
    #: The path, beginning with that of the directory.
    path: str
    #: The number of the subvolume whose root it is; none for everything else.
    subvolume: int | None

    def __init__(self, image: Image, dir: str, name: str, kind: int, ino: int, subvolume: int | None) -> None:
        self.name, self.path = name, f"{dir}/{name}" if dir and not dir.endswith("/") else dir + name
        self._image, self._kind, self._ino, self.subvolume = image, kind, ino, subvolume

    def _is(self, kind: int, follow_symlinks: bool) -> bool:
        if self._kind == _LINK and follow_symlinks:
            try:
                return self._image.stat(self.path).st_mode & _KIND == kind
            except FileNotFoundError:
                return False
        return self._kind == kind

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory or a subvolume."""
        return self._is(_DIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file."""
        return self._is(_FILE, follow_symlinks)

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self._kind == _LINK

    def inode(self) -> int:
        """The number of the inode; 0 if it leads to another subvolume."""
        return self._ino

    def stat(self, *, follow_symlinks: bool = True) -> Stat:
        """Its attributes."""
        return self._image.stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<oleo.DirEntry {self.name!r}>"


@dataclass(frozen=True)
class Extent:
    """A part of a file that is no hole."""

    #: Where in the file it begins, and how many bytes of the file it stands for.
    offset: int
    length: int
    #: ``"data"``, ``"inline"`` (in the tree), ``"unwritten"`` (reads as zeros) or ``"delayed"`` (not on disk yet).
    kind: str
    #: Its logical address; of a compressed extent that of the whole extent.
    disk: int | None
    #: ``"none"``, ``"zlib"``, ``"lzo"`` or ``"zstd"``.
    compression: str
    #: Something else refers to the extent, too.
    shared: bool


@dataclass(frozen=True)
class Command:
    """A command of a send stream: what is done with which path."""

    #: ``"mkfile"``, ``"rename"``, ``"write"`` …
    name: str
    #: The path in the subvolume; empty at the end of a stream.
    path: str
    #: Everything else that the command says, by name.
    fields: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        # Only what is not found otherwise comes here; what copies and unpickles asks before there are fields.
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"the command {self.__dict__.get('name')} has no {name}")


@dataclass(frozen=True)
class Change:
    """A difference between two snapshots."""

    #: ``"added"``, ``"removed"``, ``"renamed"``, ``"linked"``, ``"contents"``, ``"size"`` or ``"attributes"``.
    kind: str
    #: The path in the newer snapshot; of what was removed or renamed that in the older one.
    path: str
    #: Of what was renamed, the new path; of a new name of a file, the path that it had already.
    other: str | None = None
    #: Of changed contents, where; of a changed size, the new one in ``length``.
    offset: int | None = None
    length: int | None = None


@dataclass(frozen=True)
class Sent:
    """What a send wrote."""

    bytes: int
    commands: int
    data_bytes: int
    clones: int
    cloned_bytes: int


@dataclass(frozen=True)
class Received:
    """A subvolume that was received."""

    #: Where it is now, from the directory that was received into.
    path: str
    #: The UUID at the sender's.
    uuid: str
    #: It is a snapshot of one that was there.
    incremental: bool
    #: It was complete before (``resume``).
    passed_over: bool


@dataclass(frozen=True)
class ReceiveReport:
    """What a receive did."""

    subvolumes: list[Received]
    commands: int
    bytes: int
    warnings: list[str]


@dataclass(frozen=True)
class BalanceStatus:
    """A balance: whether there is one, how far it is, how the last one ended."""

    #: ``"idle"``, ``"running"`` or ``"paused"``.
    state: str
    #: ``"done"``, ``"paused"``, ``"cancelled"`` or ``"failed"``; none while it is under way.
    end: str | None
    #: Block groups to be moved, as counted at the beginning; those looked at, moved, and left for lack of space.
    expected: int
    considered: int
    completed: int
    no_space: int
    #: Used bytes of the groups to be moved, those moved, and bytes of data among them.
    bytes_expected: int
    bytes_done: int
    data_bytes: int
    elapsed_ms: int
    remaining_ms: int | None


@dataclass(frozen=True)
class QuotaGroup:
    """A quota group."""

    #: Level and number, as ``"0/256"``.
    id: str
    #: Bytes that its subvolumes reach, and those that nobody else reaches.
    referenced: int
    exclusive: int
    #: The limits of these; none: no limit.
    max_referenced: int | None
    max_exclusive: int | None
    parents: list[str]
    children: list[str]


@dataclass(frozen=True)
class Quota:
    """Quota as of the last commit."""

    #: Numbers are wrong or being counted: :meth:`Image.quota_rescan` makes them right.
    inconsistent: bool
    simple: bool
    groups: list[QuotaGroup]

    def __getitem__(self, id: int | str) -> QuotaGroup:
        """A group, by ``"level/number"`` or the number of a subvolume."""
        wanted = group_text(group_number(id))
        for group in self.groups:
            if group.id == wanted:
                return group
        raise KeyError(id)


def group_number(id: int | str) -> int:
    """The number of a quota group from ``"level/number"``, or that of a subvolume's."""
    if isinstance(id, int):
        level, number = id >> 48, id & (1 << 48) - 1
    else:
        first, slash, second = id.partition("/")
        level, number = (int(first), int(second)) if slash else (0, int(first))
    if not (0 <= level < 1 << 16 and 0 <= number < 1 << 48):
        raise ValueError(f"{id} is no quota group")
    return level << 48 | number


def group_text(number: int) -> str:
    """``"level/number"``."""
    return f"{number >> 48}/{number & (1 << 48) - 1}"


@dataclass(frozen=True)
class SubvolumeSize:
    """The space that a subvolume takes, whether quota is on or not."""

    id: int
    #: Bytes that it reaches, and those that no other subvolume reaches.
    referenced: int
    exclusive: int
    #: Bytes that the subvolumes before and after it (by number) reach, too.
    with_previous: int
    with_next: int


@dataclass(frozen=True)
class Space:
    """How full a volume is, in what files can have: copies and parity taken off."""

    total: int
    free: int
    available: int


@dataclass(frozen=True)
class Finding:
    """Something that a check found."""

    #: The name of the kind, which is stable: ``"block-checksum"`` …
    kind: str
    #: ``"error"`` or ``"warning"``.
    severity: str
    #: Where, as far as known: tree, logical address, key (object, type, offset), device.
    tree: int | None
    block: int | None
    key: tuple[int, int, int] | None
    device: int | None
    #: What is there, and what should be there.
    have: str
    want: str

    def __str__(self) -> str:
        at = [
            f"{name} {value}"
            for name, value in (("tree", self.tree), ("block", self.block), ("key", self.key), ("device", self.device))
            if value is not None
        ]
        return f"{self.severity}: {self.kind} ({', '.join(at)}): {self.have}, should be {self.want}"


@dataclass(frozen=True)
class CheckReport:
    """What a check found."""

    #: By kind and place; of each kind at most ``kept_max``.
    findings: list[Finding]
    #: How many more there are of each kind.
    left_out: dict[str, int]
    #: How much there is: ``blocks``, ``extents``, ``data_bytes``, ``inodes``, ``subvolumes``, ``verified_bytes`` …
    counts: dict[str, int]

    @property
    def is_clean(self) -> bool:
        """Nothing was found."""
        return not self.findings

    @property
    def errors(self) -> list[Finding]:
        """What is worse than a warning."""
        return [finding for finding in self.findings if finding.severity == "error"]


@dataclass(frozen=True)
class MkfsReport:
    """What was made."""

    uuid: str
    #: Bytes of all images together.
    bytes: int
    #: What was put in.
    filled: Any


def fsname(path: str | bytes | os.PathLike[Any]) -> bytes:
    """A path inside an image as bytes; text that has no UTF-8 is escaped with surrogates, as everywhere in Python."""
    return os.fsencode(path)
