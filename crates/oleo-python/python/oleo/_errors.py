"""Exceptions: every error of the library is an ``OleoError``, which is an ``OSError`` with its ``errno``."""

from __future__ import annotations

import errno as _errno

#: What to try after an error, by the name of the hint (:attr:`OleoError.hint` has the sentence).
HINTS = {
    "EndOtherUser": "unmount the image, or end the program that uses it",
    "NameOtherDevices": "name the other devices (devices=, scan=), or read without them (degraded=True)",
    "MakeRoom": "make the image larger, or delete something",
    "ChooseOtherName": "choose another name, or remove what has it",
    "CopyInstead": "copy in place of moving or linking: two subvolumes are concerned",
    "MakeWritable": "make the subvolume writable (set_read_only)",
    "RemoveContents": "remove the directory with everything in it (rmtree)",
    "IncludeContents": "it is a directory: ask for everything in it, too",
    "SkipOrDropLog": "read without the log (no_log_replay=True), or drop it (oleo rescue zero-log)",
    "GiveSize": "give a size",
    "Overwrite": "ask for what is there to be overwritten (force=True)",
    "AllowFewerCopies": "the profile gives up copies: ask for that (force=True)",
    "WriteToSnapshot": "write to a snapshot of it: incremental streams build on what was received",
    "NameParent": "name the parent of the incremental stream (parent=)",
    "Scrub": "it is mounted: verify it with oleo scrub",
    "StillMounted": "not everything could be written, and it is still mounted",
    "KeptInMemory": "not everything could be written, and its server goes on trying",
    "RestIsOnDisk": "some bytes of files are lost; everything else is on disk",
    "GiveOffset": "the image is a partition: say where it begins (offset=)",
    "UseNbd": "serve the image with qemu-nbd, and open nbd+unix:///?socket=SOCKET",
    "OpenForChanges": 'open the image for changes (mode "r+")',
    "MakeAgain": "mkfs did not finish: make the file system again",
}


class OleoError(OSError):
    """An error of the library.

    ``errno`` is what a system call would say, ``kind`` which of four kinds it is (``"refusal"``, ``"usage"``, ``"corruption"``,
    ``"device"``), ``hint`` what to try, if there is something. Errors whose errno has a class in Python are of that class,
    too: what is not there raises an error that ``except FileNotFoundError`` catches.
    """

    kind: str = "refusal"
    hint: str | None = None

    # OSError would choose a class by itself, and leave out what is set here when it is pickled.
    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.errno, self.strerror), {"kind": self.kind, "hint": self.hint})


class CorruptionError(OleoError):
    """The image is damaged: what it says contradicts the format or itself."""


class DeviceError(OleoError):
    """What the image lies on failed."""


def _with(name: str, base: type[OSError]) -> type[OleoError]:
    made = type(name, (OleoError, base), {"__doc__": f"An OleoError that is also a {base.__name__}.", "__module__": __name__})
    globals()[name] = made
    return made


_CLASSES: dict[int, type[OleoError]] = {
    _errno.ENOENT: _with("NotFound", FileNotFoundError),
    _errno.EEXIST: _with("Exists", FileExistsError),
    _errno.ENOTDIR: _with("NotADirectory", NotADirectoryError),
    _errno.EISDIR: _with("IsADirectory", IsADirectoryError),
    _errno.EACCES: (_permission := _with("Permission", PermissionError)),
    _errno.EPERM: _permission,
    _errno.EINTR: _with("Interrupted", InterruptedError),
    _errno.ETIMEDOUT: _with("Timeout", TimeoutError),
}


def error_of(errno: int, kind: str, text: str, hint: str | None) -> OleoError:
    """The exception for an error of the library."""
    kinds = {"corruption": CorruptionError, "device": DeviceError}
    made = (kinds.get(kind) or _CLASSES.get(errno, OleoError))(errno, text)
    made.kind = kind
    made.hint = None if hint is None else HINTS.get(hint, hint)
    return made
