"""Files, directories and attributes."""

import io
import os
import random
import stat

import pytest

import oleo


def test_contents(image):
    image.write("file", b"contents")
    assert image.read("file") == b"contents"
    assert image.read("/file", 3, 2) == b"nte"
    assert image.read("file", 100, 7) == b"s"
    assert image.read("file", 5, 100) == b""
    image.write("file", bytearray(b"other"))
    assert image.read(b"file") == b"other"
    image.write("file", memoryview(b"abcdef")[::2])
    assert image.read("file") == b"ace"
    with pytest.raises(TypeError):
        image.write("file", "text")
    assert image.read("file") == b"ace"


def test_names(image):
    image.mkdir("a/b/c", parents=True)
    image.mkdir("a/b/c", parents=True, exist_ok=True)
    with pytest.raises(FileExistsError):
        image.mkdir("a/b")
    image.write("a/file", b"1")
    with pytest.raises(FileExistsError):
        image.mkdir("a/file", exist_ok=True)
    image.symlink("file", "a/link")
    image.link("a/file", "a/second")
    assert image.listdir("a") == ["b", "file", "link", "second"]
    assert image.readlink("a/link") == "file"
    assert image.stat("a/link").st_size == 1
    assert stat.S_ISLNK(image.lstat("a/link").st_mode)
    assert image.stat("a/file").st_nlink == 2
    assert [entry.is_file() for entry in image.scandir("a")] == [False, True, True, True]
    assert [entry.is_symlink() for entry in image.scandir("a")] == [False, False, True, False]
    image.rename("a/second", "a/b/third")
    image.copy("a/b", "copy", recursive=True, reflink=True)
    assert list(image.walk()) == [
        ("/", ["a", "copy"], []),
        ("/a", ["b"], ["file", "link"]),
        ("/a/b", ["c"], ["third"]),
        ("/a/b/c", [], []),
        ("/copy", ["c"], ["third"]),
        ("/copy/c", [], []),
    ]
    with pytest.raises(IsADirectoryError):
        image.unlink("a")
    with pytest.raises(OSError) as full:
        image.rmdir("a")
    assert full.value.errno == 39
    image.rmtree("a")
    assert not image.exists("a") and image.is_dir("copy") and image.is_file("copy/third")


def test_walk_is_pruned(image):
    image.mkdir("a/b", parents=True)
    image.mkdir("c/d", parents=True)
    seen = []
    for dir, dirs, _ in image.walk():
        seen.append(dir)
        if "a" in dirs:
            dirs.remove("a")
    assert seen == ["/", "/c", "/c/d"]
    with pytest.raises(FileNotFoundError):
        list(image.walk("none"))
    image.create_subvolume("c/sub")
    image.write("c/sub/file", b"")
    assert [dir for dir, _, _ in image.walk("c", one_subvolume=True)] == ["c", "c/d"]
    assert [dir for dir, _, _ in image.walk("c")] == ["c", "c/d", "c/sub"]


def test_attributes(image):
    image.write("file", b"0123456789")
    image.chmod("file", 0o604)
    image.chown("file", 12, 34)
    image.chown("file", gid=35)
    image.utime("file", ns=(5, -1_500_000_000))
    image.truncate("file", 4)
    about = image.stat("file")
    assert (about.st_mode, about.st_uid, about.st_gid, about.st_size) == (0o100604, 12, 35, 4)
    assert (about.st_atime_ns, image.read("file")) == (5, b"0123")
    image.utime("file", ns=(5, -1_500_000_000))
    assert image.stat("file").st_mtime_ns == -1_500_000_000
    image.utime("file", (1.5, 2))
    assert (image.stat("file").st_atime, image.stat("file").st_mtime_ns) == (1.5, 2_000_000_000)
    image.setxattr("file", "user.colour", b"\x00blue")
    image.setxattr("file", b"user.\xff", b"")
    assert image.getxattr("file", "user.colour") == b"\x00blue"
    assert sorted(image.listxattr("file")) == sorted(["user.colour", "user.\udcff"])
    image.removexattr("file", "user.colour")
    with pytest.raises(OSError) as gone:
        image.getxattr("file", "user.colour")
    assert gone.value.errno == 61
    image.set_property("file", "compression", "zstd")
    assert image.get_property("file", "compression") == "zstd"


def test_extents(image):
    with image.open("file", "wb", buffering=0) as file:
        file.write(b"x" * 8192)
        file.seek(1 << 20)
        file.write(b"y" * 4096)
        file.sync()
    assert [(e.offset, e.length, e.kind, e.shared) for e in image.extents("file")] == [
        (0, 8192, "data", False),
        (1 << 20, 4096, "data", False),
    ]
    image.copy("file", "copy", reflink=True)
    image.sync()
    assert all(extent.shared and extent.disk for extent in image.extents("copy"))


def test_host_files(image, tmp_path):
    source = tmp_path / "source"
    (source / "dir").mkdir(parents=True)
    (source / "dir" / "file").write_bytes(b"contents")
    (source / "link").symlink_to("dir/file")
    os.chmod(source / "dir" / "file", 0o640)
    put = image.put(source, "/into")
    assert (put.files, put.links, put.others, put.data_bytes, put.warnings) == (1, 0, 1, 8, [])
    assert image.read("into/link") == b"contents"
    restored = image.restore("into", tmp_path / "back")
    assert restored.files == 1
    assert (tmp_path / "back" / "dir" / "file").read_bytes() == b"contents"
    assert (tmp_path / "back" / "dir" / "file").stat().st_mode == 0o100640
    image.restore("into/dir/file", tmp_path / "one")
    assert (tmp_path / "one" / "file").read_bytes() == b"contents"
    with pytest.raises(OSError):
        image.restore("into", tmp_path / "back")


@pytest.mark.parametrize("seed", range(6))
def test_like_files_of_the_host(image, tmp_path, seed):
    """Goal: file objects do what those of the host do. Method: random calls on both, in every mode, buffered or not; results,
    exceptions and contents are compared."""
    rng = random.Random(seed)
    (tmp_path / "file").write_bytes(b"begin" * 50)
    image.write("file", b"begin" * 50)
    for _ in range(25):
        mode = rng.choice(["rb", "rb+", "wb", "wb+", "ab", "ab+"])
        # The same buffer on both sides: when it is written decides where an append is.
        buffering = rng.choice([0, 64, 8192])
        ours, theirs = image.open("file", mode, buffering), open(tmp_path / "file", mode, buffering)
        assert (ours.readable(), ours.writable(), ours.seekable()) == (
            theirs.readable(),
            theirs.writable(),
            theirs.seekable(),
        )
        for _ in range(30):
            call = rng.choice(["read", "write", "seek", "tell", "truncate", "readinto", "readline", "flush", "readall"])
            if call == "read":
                arguments = (rng.choice([0, 1, 10, 1000, -1]),)
            elif call == "write":
                arguments = (rng.randbytes(rng.choice([0, 1, 30, 5000])),)
            elif call == "seek":
                arguments = (rng.randrange(-20, 4000), rng.choice([0, 1, 2]))
            elif call == "truncate":
                arguments = rng.choice([(), (rng.randrange(3000),)])
            else:
                arguments = ()
            results = []
            for file in (ours, theirs):
                buffer = bytearray(b"?" * 40)
                try:
                    if call == "readinto":
                        results.append((file.readinto(buffer), bytes(buffer)))
                    elif call == "readall":
                        results.append(file.read())
                    else:
                        results.append(getattr(file, call)(*arguments))
                except (ValueError, OSError) as error:
                    results.append(ValueError if isinstance(error, ValueError) else error.errno)
            # The host says EINVAL for a position before the beginning; the io module's own classes say ValueError.
            results = [22 if result is ValueError and call == "seek" else result for result in results]
            assert results[0] == results[1], (mode, buffering, call, arguments)
        ours.close()
        theirs.close()
        assert image.read("file") == (tmp_path / "file").read_bytes()


def test_modes(image):
    with pytest.raises(FileNotFoundError):
        image.open("file")
    with image.open("file", "x") as file:
        assert isinstance(file, io.TextIOWrapper)
        file.write("Grüße\n")
    with pytest.raises(FileExistsError):
        image.open("file", "x")
    assert image.read("file") == "Grüße\n".encode()
    with image.open("file", encoding="latin-1") as file:
        assert file.read() == "Grüße\n".encode().decode("latin-1")
    raw = image.open("file", "rb", buffering=0)
    assert isinstance(raw, oleo.RawFile) and isinstance(raw, io.RawIOBase)
    assert raw.pread(2, 1) == b"r\xc3" and raw.tell() == 0
    with pytest.raises(io.UnsupportedOperation):
        raw.fileno()
    with pytest.raises(io.UnsupportedOperation):
        raw.write(b"")
    for wrong in ["", "rw", "rb+t", "b", "rr", "z", "r+b+"]:
        with pytest.raises(ValueError):
            image.open("file", wrong)
    with pytest.raises(ValueError):
        image.open("file", "r", buffering=0)
    with pytest.raises(ValueError):
        image.open("file", "rb", encoding="utf-8")
    image.mkdir("dir")
    with pytest.raises(IsADirectoryError):
        image.open("dir", "rb")


def test_paths(image):
    top = image.path()
    assert str(top / "a" / "b.txt") == "/a/b.txt"
    (top / "a").mkdir()
    path = top / "a" / "b.txt"
    path.write_text("text")
    assert (path.name, path.stem, path.suffix, path.parent) == ("b.txt", "b", ".txt", top / "a")
    assert path.read_text() == "text" and path.exists() and path.is_file() and not path.is_dir()
    assert list(top.rglob("*.txt")) == [path]
    moved = path.rename("/a/c.txt")
    assert [p.name for p in (top / "a").iterdir()] == ["c.txt"] and moved.read_bytes() == b"text"
    with path.open("w") as file:
        file.write("again")
    path.with_name("link").symlink_to("b.txt")
    assert path.with_name("link").read_text() == "again" and path.with_name("link").readlink() == "b.txt"
    path.unlink()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        path.unlink()
    assert len({top / "a", top / "a", top / "b"}) == 2
    with image.open(top / "a" / "c.txt") as file:
        assert file.read() == "text"
