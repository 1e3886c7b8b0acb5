"""oleo://disk.img/path for fsspec."""

import errno
import os
import subprocess
import sys

import fsspec
import pytest

import oleo
from oleo.fs import OleoFileSystem, split_url


@pytest.fixture
def fs(disk):
    fs = fsspec.filesystem("oleo", image=str(disk), skip_instance_cache=True)
    yield fs
    fs.close()


def test_it_is_registered(disk):
    """Method: another process, so that nothing here has registered it."""
    program = "import fsspec, sys; print(fsspec.get_filesystem_class('oleo').__module__)"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "oleo.fs"


def test_urls(disk, monkeypatch):
    assert split_url(f"oleo://{disk}/a/b") == (str(disk), "/a/b")
    assert split_url(f"oleo://{disk}") == (str(disk), "/")
    monkeypatch.chdir(disk.parent)
    assert split_url("oleo://disk.img/a/b") == ("disk.img", "/a/b")
    for none in ("oleo://none.img/a", f"oleo://{disk.parent}", "oleo://"):
        with pytest.raises(FileNotFoundError):
            split_url(none)
    with fsspec.open("oleo://disk.img/hello", "w") as file:
        file.write("hello")
    fs, path = fsspec.url_to_fs("oleo://disk.img/hello")
    assert (path, fs.cat(path), fs.unstrip_protocol(path)) == ("/hello", b"hello", "oleo://disk.img/hello")
    assert fs.open(path, "r").read() == "hello"
    fs.close()
    with oleo.open(disk) as image:
        assert image.read("hello") == b"hello"
    with pytest.raises(ValueError):
        OleoFileSystem()


def test_like_files_of_the_host(fs, tmp_path):
    """Goal: what fsspec does with files of the host it does with ours. Method: the same calls on both."""
    host = fsspec.filesystem("file")
    tops = [(fs, "/top"), (host, str(tmp_path / "top"))]
    results = []
    for each, top in tops:

        def short(value, top=top):
            if isinstance(value, str):
                return value.removeprefix(top)
            if isinstance(value, dict):
                return {short(key): short(of) for key, of in value.items()}
            if isinstance(value, (list, tuple)):
                return [short(of) for of in value]
            return value

        said = []

        def say(call, *arguments, top=top, each=each, said=said, short=short, **options):
            try:
                value = getattr(each, call)(*(a if a is None else top + a for a in arguments), **options)
                said.append(short(sorted(value, key=str) if isinstance(value, list) else value))
            except (OSError, ValueError) as error:
                # fsspec's own errors have no errno.
                kinds = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError)
                said.append(next((kind for kind in kinds if isinstance(error, kind)), getattr(error, "errno", None)))

        say("mkdir", "/a/b")
        say("mkdir", "/a/b")
        say("makedirs", "/a/b", exist_ok=True)
        say("pipe_file", "/a/one", value=b"0123456789")
        say("pipe_file", "/none/one", value=b"")
        for start, end in [(None, None), (2, 5), (-3, None), (None, -4), (8, 100)]:
            say("cat_file", "/a/one", start=start, end=end)
        say("touch", "/a/two")
        say("touch", "/a/one", truncate=False)
        say("ls", "/a", detail=False)
        say("ls", "/none", detail=False)
        say("find", "/a")
        say("find", "/a", withdirs=True)
        say("glob", "/*/t*")
        say("exists", "/a/one")
        say("isdir", "/a")
        say("isfile", "/a")
        say("size", "/a/one")
        said.append(each.info(top + "/a")["type"])
        said.append({short(f["name"]): (f["type"], f["size"]) for f in each.ls(top + "/a", detail=True) if f["type"] == "file"})
        for options in ({}, {"maxdepth": 1}, {"topdown": False}):
            said.append(sorted(short([[dir, sorted(dirs), sorted(files)] for dir, dirs, files in each.walk(top, **options)])))
        each.cp(top + "/a/one", top + "/a/three")
        each.mv(top + "/a/three", top + "/a/b/four")
        say("cat_file", "/a/b/four")
        say("rm_file", "/a/none")
        say("rm", "/a/two")
        say("rmdir", "/a")
        say("find", "")
        with each.open(top + "/a/text", "w") as file:
            file.write("one\ntwo\n")
        with each.open(top + "/a/text", "a") as file:
            file.write("three\n")
        with each.open(top + "/a/text", "rb") as file:
            file.seek(4)
            said.append(file.read(3))
        say("head", "/a/text", size=3)
        say("tail", "/a/text", size=3)
        say("checksum", "/none")
        said.append(each.modified(top + "/a/text").timestamp() > 1e9)
        say("rm", "/a", recursive=True)
        say("find", "")
        results.append(said)
    for ours, theirs in zip(*results, strict=True):
        assert ours == theirs


def test_put_and_get(fs, tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file").write_bytes(b"contents")
    fs.put(str(tmp_path / "in"), "/there", recursive=True)
    fs.get("/there", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out" / "deep" / "file").read_bytes() == b"contents"


def test_opened_for_changes_when_needed(disk):
    with oleo.open(disk, "r+") as image:
        image.write("file", b"contents")
    fs = OleoFileSystem(image=disk, skip_instance_cache=True)
    reading = fs.open("/file")
    with oleo.open(disk) as other:
        assert other.read("file") == reading.read() == b"contents"
    with pytest.raises(OSError) as busy:
        fs.touch("/new")
    assert busy.value.errno == errno.EBUSY
    reading.close()
    fs.touch("/new")
    with pytest.raises(OSError) as busy:
        oleo.open(disk)
    assert busy.value.errno == errno.EBUSY
    fs.image.create_subvolume("sub")
    fs.image.snapshot("sub", "snap", read_only=True)
    fs.close()
    refused = OleoFileSystem(image=disk, mode="r", skip_instance_cache=True)
    assert refused.ls("/", detail=False) == ["/file", "/new", "/sub", "/snap"]
    with pytest.raises(OSError) as read_only:
        refused.touch("/more")
    assert read_only.value.errno == errno.EROFS
    refused.close()


def test_it_is_closed_at_the_end(disk):
    program = f"import fsspec; f = fsspec.open('oleo://{disk}/file', 'wb').open(); f.write(b'kept'); f.close()"
    subprocess.run([sys.executable, "-c", program], check=True)
    with oleo.open(disk) as image:
        assert image.read("file") == b"kept"


def test_damaged_directories_end(fs):
    fs.makedirs("/a/b")
    assert [dir for dir, _, _ in fs.walk("/", topdown=False)] == ["/a/b", "/a", "/"]
    assert list(fs.walk("/none")) == []
    with pytest.raises(FileNotFoundError):
        list(fs.walk("/none", on_error="raise"))
