"""Subvolumes, snapshots, send, receive, diff."""

import contextlib
import errno
import io
import os
import time

import pytest

import oleo

MIB = 1 << 20


@pytest.fixture
def history(image):
    """A subvolume with two snapshots."""
    image.create_subvolume("home")
    for at in range(20):
        image.write(f"home/{at}", os.urandom(200_000))
    image.write("home/kept", b"as it was")
    image.snapshot("home", "monday", read_only=True)
    image.write("home/7", b"changed on tuesday")
    image.rename("home/8", "home/eight")
    image.unlink("home/9")
    image.symlink("7", "home/link")
    image.snapshot("home", "tuesday", read_only=True)
    return image


def contents(image, top):
    return {
        (dir.removeprefix(top), name): image.read(f"{dir}/{name}")
        for dir, _, files in image.walk(top)
        for name in files
        if not image.is_symlink(f"{dir}/{name}")
    }


def test_subvolumes(image):
    home = image.create_subvolume("home")
    assert (home.id, home.parent_id, home.path, home.read_only) == (256, 5, "home", False)
    assert home.uuid and home.parent_uuid is None and home.received_uuid is None
    snap = image.snapshot(home, "snap", read_only=True)
    assert (snap.parent_uuid, snap.read_only) == (home.uuid, True)
    assert [subvolume.path for subvolume in image.subvolumes()] == ["", "home", "snap"]
    assert image.subvolume(257).path == image.subvolume("snap").path == image.subvolume(snap).path
    assert [entry.subvolume for entry in image.scandir()] == [256, 257]
    with pytest.raises(OSError) as refused:
        image.write("snap/file", b"")
    assert refused.value.errno == errno.EROFS
    image.set_read_only("snap", False)
    image.write("snap/file", b"now")
    image.set_default_subvolume("home")
    assert image.default_subvolume.id == 256
    assert {size.id for size in image.subvolume_sizes()} == {5, 256, 257}
    with pytest.raises(OSError):
        image.delete_subvolume("home")
    image.delete_subvolume(snap)
    image.clean()
    assert not image.exists("snap")
    image.mkdir("dir")
    for which in ("dir", "none", 300):
        with pytest.raises(OSError):
            image.snapshot(which, "new")


def test_send_and_receive(history):
    whole = history.send("monday").read()
    other = oleo.create_in_memory(256 * MIB)
    report = other.receive(io.BytesIO(whole))
    assert [received.path for received in report.subvolumes] == ["monday"] and report.bytes == len(whole)
    assert contents(other, "monday") == contents(history, "monday")
    # An iterator of pieces, a file object, and a pipe.
    stream = history.send("tuesday", parent="monday", version=2)
    assert stream.report is None
    report = other.receive(piece for piece in stream)
    assert report.subvolumes[0].incremental and stream.report.bytes == report.bytes < len(whole) / 2
    assert contents(other, "tuesday") == contents(history, "tuesday")
    assert other.readlink("tuesday/link") == "7"
    third = oleo.create_in_memory(256 * MIB)
    third.mkdir("backup")
    third.receive(history.send("monday", "tuesday"), "backup")
    assert contents(third, "backup/tuesday") == contents(history, "tuesday")
    assert third.subvolume("backup/monday").received_uuid == history.subvolume("monday").uuid


def test_pieces_and_reads_are_the_same(history):
    whole = b"".join(history.send("monday"))
    stream = io.BufferedReader(history.send("monday"), 1000)
    parts = []
    while part := stream.read(777):
        parts.append(part)
    assert b"".join(parts) == whole
    buffer = bytearray(10)
    with history.send("monday") as stream:
        assert stream.readinto(buffer) == 10 and bytes(buffer) == whole[:10]
        piece = next(stream)
        assert piece and whole[10 : 10 + len(piece)] == piece


def test_a_stream_that_is_given_up_ends_its_thread(history):
    def senders():
        """Threads of streams, by their name; one that has ended is listed for a moment longer."""
        found = 0
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as name:
                found += name.read() == "oleo-send\n"
        return found

    def all_end():
        end = time.monotonic() + 20
        while senders() > 0 and time.monotonic() < end:
            time.sleep(0.01)
        return senders() == 0

    history.send("monday").read()
    assert all_end()
    for _ in range(5):
        stream = history.send("monday")
        next(stream)
        stream.close()
        with pytest.raises(ValueError, match="closed"):
            next(stream)
        next(history.send("monday"))
    assert all_end()
    begin = time.monotonic()
    history.close()
    assert time.monotonic() - begin < 30


def test_send_is_refused(history):
    for arguments in (("home",), ("none",), (999,)):
        with pytest.raises(OSError):
            history.send(*arguments).read()
    with pytest.raises(OSError):
        history.send("tuesday", parent="home").read()
    with pytest.raises(OSError):
        history.send("monday", version=9).read()
    with pytest.raises(TypeError):
        history.send()


def test_receive_is_refused(history):
    whole = history.send("monday").read()
    target = oleo.create_in_memory(256 * MIB)
    with pytest.raises(OSError) as cut:
        target.receive(io.BytesIO(whole[:-5000]), atomic=True)
    assert cut.value.errno == errno.EINVAL and target.listdir() == []
    for wrong in (b"", b"no stream", whole[:100], whole[:20] + b"?" * 100):
        with pytest.raises(OSError):
            target.receive([wrong] if wrong else io.BytesIO(b""), atomic=True)
    with pytest.raises(TypeError):
        target.receive(whole)
    with pytest.raises(TypeError):
        target.receive(5)
    with pytest.raises(TypeError):
        target.receive(["text"])

    class Broken(io.RawIOBase):
        def readinto(self, buffer):
            raise KeyError("what the source raises")

    with pytest.raises(KeyError, match="what the source raises"):
        target.receive(Broken())

    def pieces():
        yield whole[:1000]
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        target.receive(pieces(), atomic=True)
    assert target.listdir() == []
    with pytest.raises(FileNotFoundError):
        target.receive(io.BytesIO(whole), "none")
    with pytest.raises(OSError):
        target.receive(history.send("tuesday", parent="monday"), atomic=True)
    target.receive(io.BytesIO(whole))
    assert target.read("monday/kept") == b"as it was"


def test_diff(history):
    changes = list(history.diff("monday", "tuesday"))
    said = {(change.kind, change.path) for change in changes}
    assert {("contents", "7"), ("renamed", "8"), ("removed", "9"), ("added", "link")} <= said
    assert [change.other for change in changes if change.kind == "renamed"] == ["eight"]
    assert not any("kept" in change.path for change in changes)
    assert list(history.diff("monday", "monday")) == []
    with pytest.raises(OSError):
        list(history.diff("home", "monday"))
    first = history.diff("monday", "tuesday")
    next(first)
    first.close()


def test_commands(history):
    commands = list(oleo.stream_commands(history.send("tuesday", parent="monday")))
    assert [commands[0].name, commands[-1].name] == ["snapshot", "end"]
    assert commands[0].clone_uuid == history.subvolume("monday").uuid
    write = [command for command in commands if command.name == "write"]
    assert [(command.path, command.data, command.offset) for command in write] == [("7", b"changed on tuesday", 0)]
    with pytest.raises(AttributeError):
        write[0].uuid
    with pytest.raises(OSError):
        list(oleo.stream_commands(io.BytesIO(b"no stream")))

    def pieces():
        yield from ()
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        list(oleo.stream_commands(pieces()))
