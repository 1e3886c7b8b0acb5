"""mkfs, check, balance, quota, threads."""

import io
import os
import signal
import tarfile
import threading
import time

import pytest

import oleo

MIB = 1 << 20


def test_mkfs(tmp_path):
    source = tmp_path / "source"
    (source / "etc").mkdir(parents=True)
    (source / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (source / "home").mkdir()
    told = []
    report = oleo.mkfs(
        tmp_path / "a.img",
        rootdir=source,
        subvolumes=["home", ("etc", "ro,default")],
        compress="zstd:3",
        label="système",
        checksum="xxhash",
        nodesize=4096,
        shrink=True,
        seed="one",
        created=1_700_000_000,
        progress=told.append,
    )
    assert report.filled.files == 1 and report.filled.subvols == 2 and report.bytes == (tmp_path / "a.img").stat().st_size
    with oleo.open(tmp_path / "a.img") as image:
        assert (image.label, image.uuid) == ("système", report.uuid)
        assert image.subvolume("etc").read_only and image.default_subvolume.path == "etc"
        assert image.read("etc/hosts") == b"127.0.0.1 localhost\n"
        assert image.space.total > image.space.free > 0
    again = oleo.mkfs(tmp_path / "b.img", 128 * MIB, seed="one", created=5, uuid=report.uuid)
    same = oleo.mkfs(tmp_path / "c.img", 128 * MIB, seed="one", created=5, uuid=report.uuid)
    assert again.uuid == same.uuid == report.uuid
    assert (tmp_path / "b.img").read_bytes() == (tmp_path / "c.img").read_bytes()
    with pytest.raises(ValueError):
        oleo.mkfs(tmp_path / "d.img", 128 * MIB, subvolumes=[("a", "wo")])
    with pytest.raises(ValueError):
        oleo.mkfs(tmp_path / "d.img", 128 * MIB, uuid="not one")
    with pytest.raises(ValueError):
        oleo.mkfs(tmp_path / "d.img", rootdir=source, tar=io.BytesIO())
    with pytest.raises(OSError):
        oleo.mkfs(tmp_path / "d.img")
    assert not (tmp_path / "d.img").exists()


def test_mkfs_of_tar(tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        entry = tarfile.TarInfo("dir/file")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"hello"))
    archive.seek(0)
    oleo.mkfs(tmp_path / "a.img", tar=archive, shrink=True)
    with oleo.open(tmp_path / "a.img") as image:
        assert image.read("dir/file") == b"hello"

    class Broken:
        def read(self, size):
            raise KeyError("the archive")

    with pytest.raises(KeyError, match="the archive"):
        oleo.mkfs(tmp_path / "b.img", tar=Broken())


def test_several_devices(tmp_path):
    names = [tmp_path / f"{at}.img" for at in range(2)]
    oleo.mkfs(names, 256 * MIB, data="raid1", metadata="raid1")
    with oleo.open(names[0], "r+", devices=names[1:]) as image:
        image.write("file", b"twice")
    with oleo.open(names[1], scan=[tmp_path]) as image:
        assert image.read("file") == b"twice"
    missing = pytest.raises(oleo.OleoError, oleo.open, names[0]).value
    assert "degraded" in missing.hint
    with pytest.warns(UserWarning, match="is missing"):
        image = oleo.open(names[0], degraded=True)
    with image:
        assert image.read("file") == b"twice"


def test_check(disk):
    with oleo.open(disk, "r+") as image:
        image.write("file", os.urandom(1 << 20))
        disk_at = image.extents("file")
        image.sync()
        disk_at = image.extents("file")[0].disk
    told = []
    report = oleo.check(disk, data=True, progress=lambda *at: told.append(at))
    assert report.is_clean and report.errors == [] and report.counts["verified_bytes"] == 1 << 20
    assert told and told[-1][0] in ("blocks", "data")
    data = bytearray(disk.read_bytes())
    with oleo.open(disk) as image:
        where = bytes(data).find(image.read("file", 4096))
    data[where + 5000] ^= 1
    disk.write_bytes(data)
    report = oleo.check(disk, data=True)
    (finding,) = report.errors
    assert finding.severity == "error" and finding.block == disk_at + 4096 and "data" in finding.kind, finding
    assert finding.kind in str(finding)

    def fails(*_):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        oleo.check(disk, data=True, progress=fails)


def test_balance(disk):
    with oleo.open(disk, "r+") as image:
        image.write("file", os.urandom(20 * MIB))
        image.sync()
        told = []
        done = image.balance("", progress=told.append)
        assert done.end == "done" and done.completed == done.expected > 0 and told[-1] == done
        assert image.balance_status.state == "idle"
        assert image.balance(metadata="convert=single,soft", system="convert=single", force=True).end == "done"
        for wrong in ("colour=blue", "usage=x", "soft"):
            with pytest.raises(ValueError):
                image.balance(wrong)
        with pytest.raises(OSError):
            image.balance_resume()
        with pytest.raises(OSError):
            image.balance_cancel()
    assert oleo.check(disk).is_clean


def test_a_balance_is_paused_by_an_exception_and_goes_on(tmp_path):
    """Goal: what progress raises comes out, and the balance is as it was left. The last call of progress comes after the end, so that
    a balance too short to be interrupted still raises."""
    disk = tmp_path / "disk.img"
    oleo.mkfs(disk, 1024 * MIB)
    with oleo.open(disk, "r+") as image:
        image.write("file", os.urandom(60 * MIB))
        image.sync()

        def stop(status):
            raise InterruptedError(f"at {status.completed}")

        with pytest.raises(InterruptedError, match="at "):
            image.balance("", progress=stop)
        if image.balance_status.state == "paused":
            assert image.balance_resume().end == "done"
        assert image.balance_status.state == "idle" and len(image.read("file")) == 60 * MIB
    assert oleo.check(disk, data=True).is_clean


def test_quota(image):
    assert image.quota is None
    image.create_subvolume("home")
    image.write("home/file", os.urandom(MIB))
    image.quota_enable()
    quota = image.quota
    assert not quota.simple and not quota.inconsistent and quota[256].referenced >= MIB
    image.quota_create("1/100")
    image.quota_assign("0/256", "1/100")
    assert image.quota["1/100"].referenced == image.quota["0/256"].referenced
    assert image.quota["1/100"].children == ["0/256"] and image.quota[256].parents == ["1/100"]
    image.quota_limit("1/100", referenced=2 * MIB)
    assert image.quota["1/100"].max_referenced == 2 * MIB and image.quota["1/100"].max_exclusive is None
    with pytest.raises(OSError) as full:
        image.write("home/more", os.urandom(4 * MIB))
    assert full.value.errno == 122
    image.quota_limit("1/100")
    image.write("home/more", os.urandom(4 * MIB))
    image.quota_rescan()
    image.quota_unassign("0/256", "1/100")
    image.quota_destroy("1/100")
    with pytest.raises(KeyError):
        image.quota["1/100"]
    for wrong in ("a/b", "1/2/3", "-1/5", "70000/1"):
        with pytest.raises(ValueError):
            image.quota_create(wrong)
    image.quota_disable()
    assert image.quota is None


def test_the_interpreter_is_released(image):
    """Goal: other threads run while calls work. Method: a thread counts while another writes and reads large files."""
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.0005)

    data = os.urandom(48 * MIB)
    thread = threading.Thread(target=count)
    thread.start()
    longest, work = [], [lambda: image.write("file", data), lambda: image.sync(), lambda: image.read("file")]
    for call in work:
        before, begin = counted[0], time.monotonic()
        call()
        longest.append((counted[0] - before, time.monotonic() - begin))
    stop.set()
    thread.join()
    # The clock of the counter is coarse: a tenth of what it could do is enough, and with the interpreter held it does nothing.
    assert all(ticks >= seconds / 0.01 - 1 for ticks, seconds in longest), longest
    assert sum(ticks for ticks, _ in longest) > 3, longest


def test_many_threads(image):
    image.write("shared", bytes(64 * 4096))
    errors = []

    def work(letter):
        try:
            for at in range(letter, 64, 8):
                with image.open("shared", "rb+", buffering=0) as file:
                    file.pwrite(bytes([letter]) * 4096, at * 4096)
                    assert file.pread(4096, at * 4096) == bytes([letter]) * 4096
                image.write(f"{letter}-{at}", bytes([letter]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(letter,)) for letter in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and image.read("shared") == b"".join(bytes([at % 8]) * 4096 for at in range(64))
    assert len(image.listdir()) == 65 and image._handle.open_files == 0


def test_closing_beside_other_threads(disk):
    """Goal: a call on another thread ends with a result or says that the image is closed."""
    for _ in range(5):
        image = oleo.open(disk, "r+")
        image.write("file", bytes(MIB))
        outcome, begun = [], threading.Event()

        def work():
            try:
                while True:
                    assert image.read("file") == bytes(MIB)
                    begun.set()
            except ValueError as error:
                outcome.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        image.close()
        for thread in threads:
            thread.join()
        assert outcome == ["I/O operation on closed image"] * 3


def test_a_signal_interrupts(image):
    """Goal: Ctrl-C ends a receive that waits for more, and nothing is left of it."""
    image.create_subvolume("sub")
    image.write("sub/file", os.urandom(MIB))
    image.snapshot("sub", "snap", read_only=True)
    begin = image.send("snap").read()[:200_000]
    image.delete_subvolume("snap")

    def endless():
        yield begin
        while True:
            time.sleep(0.02)
            yield b""

    def raises(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raises)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            image.receive(endless(), atomic=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert image.listdir() == ["sub"]
