"""Oleo: btrfs without the kernel.

Images and devices that nobody has mounted are made, read, changed, checked, sent and received as an ordinary user.

>>> image = oleo.create_in_memory(256 << 20)
>>> image.write("greeting", b"hello")
>>> image.read("greeting")
b'hello'

:func:`mkfs` makes images, :func:`open` opens them, :class:`Image` has everything else; :func:`check` says whether one is sound. Errors are
:class:`OleoError`, an :class:`OSError` with ``errno``. ``oleo.fs`` is for fsspec: ``oleo://disk.img/path``.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union

from . import _oleo
from ._errors import (
    CorruptionError,
    DeviceError,
    OleoError,
)
from ._file import RawFile
from ._image import Image, ImagePath, Subvolume, SubvolumeRef
from ._oleo import Filled, Stat
from ._path import Path
from ._streams import SendStream, StreamSource, stream_commands
from ._types import (
    BalanceStatus,
    Change,
    CheckReport,
    Command,
    DirEntry,
    Extent,
    Finding,
    MkfsReport,
    Quota,
    QuotaGroup,
    Received,
    ReceiveReport,
    Sent,
    Space,
    SubvolumeSize,
)

__version__: str = _oleo.VERSION

__all__ = [
    "BalanceStatus",
    "Change",
    "CheckReport",
    "Command",
    "CorruptionError",
    "DeviceError",
    "DirEntry",
    "Extent",
    "Filled",
    "Finding",
    "Image",
    "ImagePath",
    "MkfsReport",
    "OleoError",
    "Path",
    "Quota",
    "QuotaGroup",
    "RawFile",
    "ReceiveReport",
    "Received",
    "SendStream",
    "Sent",
    "Space",
    "Stat",
    "StreamSource",
    "Subvolume",
    "SubvolumeRef",
    "SubvolumeSize",
    "check",
    "create_in_memory",
    "mkfs",
    "open",
    "stream_commands",
]

#: The name of an image: a file, a block device, or an address (``nbd://…``, ``s3://…``).
HostPath = Union[str, "os.PathLike[str]"]


def _how(
    writable: bool,
    devices: Iterable[HostPath],
    scan: Iterable[HostPath],
    degraded: bool,
    offset: int,
    **more: Any,
) -> dict[str, Any]:
    defaults = dict(
        in_use=False,
        cache_bytes=None,
        compress=None,
        use_backup_root=False,
        ignore_bad_trees=False,
        no_log_replay=False,
    )
    paths = {"devices": [os.fspath(path) for path in devices], "scan": [os.fspath(path) for path in scan]}
    return {**defaults, **more, **paths, "writable": writable, "degraded": degraded, "offset": offset}


def open(
    image: HostPath,
    mode: str = "r",
    *,
    devices: Iterable[HostPath] = (),
    scan: Iterable[HostPath] = (),
    degraded: bool = False,
    offset: int = 0,
    in_use: bool = False,
    cache_bytes: int | None = None,
    compress: str | None = None,
    use_backup_root: bool = False,
    ignore_bad_trees: bool = False,
    no_log_replay: bool = False,
) -> Image:
    """Opens an image: for reading (``"r"``), or for reading and changes (``"r+"``), which nobody else may use meanwhile.

    ``devices`` names the others of a volume on several, ``scan`` directories to look for them, ``degraded`` goes on without those
    that are missing. ``offset`` is where in the file the image begins, in bytes. ``compress`` is for new data
    (``"zstd:3"``). ``in_use`` reads although someone else may write. For damaged images: ``use_backup_root``,
    ``ignore_bad_trees``, ``no_log_replay`` (reading only). What is to be said of the devices is a warning.
    """
    if mode not in ("r", "r+"):
        raise ValueError(f"mode is 'r' or 'r+', not {mode!r}")
    how = _how(
        mode == "r+",
        devices,
        scan,
        degraded,
        offset,
        in_use=in_use,
        cache_bytes=cache_bytes,
        compress=compress,
        use_backup_root=use_backup_root,
        ignore_bad_trees=ignore_bad_trees,
        no_log_replay=no_log_replay,
    )
    return Image(_oleo.open(os.fspath(image), how), os.fspath(image))


def create_in_memory(size: int) -> Image:
    """A new volume of ``size`` bytes in memory; only what is written takes room, and all is lost with it."""
    return Image(_oleo.in_memory(size), ":memory:")


def _must_be_number(name: str, value: object) -> None:
    """Refuses what is neither an integer nor None, with the argument's name."""
    if value is None:
        return
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer (bytes as 1 << 30, not '1G'), not {value!r}") from None


def mkfs(
    images: HostPath | Sequence[HostPath],
    size: int | None = None,
    *,
    rootdir: HostPath | None = None,
    tar: StreamSource | None = None,
    subvolumes: Iterable[str | tuple[str, str]] = (),
    compress: str | None = None,
    label: str = "",
    uuid: str | None = None,
    seed: str | None = None,
    created: int | None = None,
    checksum: str = "crc32c",
    nodesize: int | None = None,
    sectorsize: int = 4096,
    data: str | None = None,
    metadata: str | None = None,
    mixed: bool = False,
    quota: bool = False,
    simple_quota: bool = False,
    offset: int = 0,
    shrink: bool = False,
    force: bool = False,
    progress: Callable[[Filled], object] | None = None,
) -> MkfsReport:
    """Makes a file system in an image file or on a device, or over several.

    ``size`` is in bytes; with ``rootdir`` (a directory of the host) or ``tar`` (a file object of an archive, plain, gzip or zstd) an
    image grows as needed, and ``shrink`` cuts it to what it takes. ``subvolumes`` are directories of the source that
    become subvolumes; a pair adds ``"ro"``, ``"default"`` or both (``"ro,default"``). ``data`` and ``metadata`` are profiles (``"raid1"`` …).
    The same ``seed``, ``created`` and source make the same bytes. ``force`` overwrites what is there.

    >>> import tempfile
    >>> scratch = tempfile.TemporaryDirectory()
    >>> disk = scratch.name + "/disk.img"
    >>> oleo.mkfs(disk, 256 << 20, label="demo").bytes
    268435456
    >>> with oleo.open(disk, "r+") as image:
    ...     image.write("file", b"contents")
    >>> with oleo.open(disk) as image:
    ...     image.label, image.read("file")
    ('demo', b'contents')
    >>> scratch.cleanup()
    """
    several = [images] if isinstance(images, (str, os.PathLike)) else images
    names = [os.fspath(image) for image in several]

    def subvolume(of: str | tuple[str, str]) -> tuple[str, bool, bool]:
        path, words = (of, "") if isinstance(of, str) else of
        flags = set(words.split(",")) - {""}
        if flags - {"ro", "default"}:
            raise ValueError(f"a subvolume is 'ro' or 'default', not {words!r}")
        return path, "ro" in flags, "default" in flags

    want = dict(
        size=size,
        offset=offset,
        rootdir=None if rootdir is None else os.fspath(rootdir),
        label=label,
        uuid=uuid,
        seed=seed,
        created=created,
        checksum=checksum,
        nodesize=nodesize,
        sectorsize=sectorsize,
        data=data,
        metadata=metadata,
        mixed=mixed,
        quota=quota,
        simple_quota=simple_quota,
        compress=compress,
        subvols=[subvolume(of) for of in subvolumes],
        shrink=shrink,
        force=force,
    )
    for name in ("size", "offset", "created", "nodesize", "sectorsize"):
        _must_be_number(name, want[name])
    return MkfsReport(*_oleo.mkfs(names, want, tar, progress))


def check(
    image: HostPath,
    *,
    data: bool = False,
    threads: int = 0,
    kept_max: int = 100,
    devices: Iterable[HostPath] = (),
    scan: Iterable[HostPath] = (),
    degraded: bool = False,
    offset: int = 0,
    progress: Callable[[str, int, int], object] | None = None,
) -> CheckReport:
    """Checks an image that nobody has open for changes: everything is rebuilt from what is on disk and compared; nothing is changed.

    With ``data`` all data is read and verified, too. ``progress`` is called with what is being done, how much of it is done, and
    how much there may be. If it raises, or on Ctrl-C, the exception comes when the check has ended.

    >>> import tempfile
    >>> scratch = tempfile.TemporaryDirectory()
    >>> _ = oleo.mkfs(scratch.name + "/disk.img", 256 << 20)
    >>> oleo.check(scratch.name + "/disk.img").is_clean
    True
    >>> scratch.cleanup()
    """
    how = _how(False, devices, scan, degraded, offset)
    found, left_out, counts = _oleo.check(os.fspath(image), how, data, threads, kept_max, progress)
    findings = [
        Finding(kind, "error" if bad else "warning", tree, block, key, device, have, want)
        for kind, bad, tree, block, key, device, have, want in found
    ]
    return CheckReport(findings, left_out, counts)
