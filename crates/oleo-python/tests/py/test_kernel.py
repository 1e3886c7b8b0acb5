"""Against the kernel: it reads what we write, and we read what it writes."""

import os
import random
import stat
import subprocess

import oleo


def shown_by_kernel(top):
    for dir, dirs, files in os.walk(os.fsencode(top)):
        for name in dirs + files:
            path = os.path.join(dir, name)
            at, about = os.path.relpath(path, os.fsencode(top)), os.lstat(path)
            if stat.S_ISLNK(about.st_mode):
                data = os.readlink(path)
            elif stat.S_ISREG(about.st_mode):
                with open(path, "rb") as file:
                    data = file.read()
            else:
                data = None
            xattrs = {name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)}
            size = about.st_size if stat.S_ISREG(about.st_mode) else 0
            yield at, (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, size, data, xattrs)


def shown_by_us(image):
    for dir, dirs, files in image.walk():
        for name in dirs + files:
            path = os.path.join(dir, name)
            about = image.lstat(path)
            if stat.S_ISLNK(about.st_mode):
                data = os.fsencode(image.readlink(path))
            elif stat.S_ISREG(about.st_mode):
                with image.open(path, "rb") as file:
                    data = file.read()
            else:
                data = None
            xattrs = {
                name: image.getxattr(path, name, follow_symlinks=False)
                for name in image.listxattr(path, follow_symlinks=False)
            }
            size = about.st_size if stat.S_ISREG(about.st_mode) else 0
            at = os.path.relpath(os.fsencode(path), b"/")
            yield at, (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns, size, data, xattrs)


def fill(root, rng, write, mkdir, symlink, chmod, chown, setxattr, utime):
    """Makes the same tree by whatever these functions write to."""
    dirs = [root]
    for at in range(120):
        name = rng.choice([f"file {at}", f"fil\udcff{at}", f"Grüße {at}"])
        path = f"{rng.choice(dirs)}/{name}"
        kind = rng.choice(["file"] * 4 + ["dir", "link"])
        if kind == "dir":
            mkdir(path)
            dirs.append(path)
        elif kind == "link":
            symlink(f"../{name}", path)
            continue
        else:
            write(path, rng.randbytes(rng.choice([0, 10, 3000, 70_000])))
        chmod(path, rng.choice([0o755, 0o600, 0o4711]))
        chown(path, rng.randrange(2000), rng.randrange(2000))
        if rng.random() < 0.3:
            setxattr(path, "user.what", rng.randbytes(20))
    for path in reversed(dirs[1:]):
        utime(path, (1, rng.randrange(10**18)))


def test_the_kernel_reads_what_python_writes(kernel, disk):
    rng = random.Random(1)
    with oleo.open(disk, "r+", compress="zstd") as image:
        image.create_subvolume("sub")
        fill(
            "/sub",
            rng,
            image.write,
            image.mkdir,
            image.symlink,
            lambda path, mode: None,
            image.chown,
            image.setxattr,
            lambda path, times: image.utime(path, ns=times),
        )
        image.snapshot("sub", "snap", read_only=True)
        image.rmtree("sub/" + image.listdir("sub")[0])
        with image.open("log", "a") as log:
            for line in range(1000):
                print("line", line, file=log)
        ours = dict(shown_by_us(image))
    with kernel(disk) as where:
        theirs = dict(shown_by_kernel(where))
    assert ours.keys() == theirs.keys() and len(ours) > 150
    for path in ours:
        assert ours[path] == theirs[path], path
    subprocess.run(["btrfs", "check", disk], check=True, capture_output=True)


def test_python_reads_what_the_kernel_writes(kernel, disk):
    rng = random.Random(2)
    with kernel(disk, "compress=zstd") as where:
        subprocess.run(["btrfs", "subvolume", "create", where / "sub"], check=True, capture_output=True)

        def write(path, data):
            with open(path, "wb") as file:
                file.write(data)

        def mtime(path, times):
            os.utime(path, ns=times)

        fill(str(where / "sub"), rng, write, os.mkdir, os.symlink, os.chmod, os.chown, os.setxattr, mtime)
        subprocess.run(["btrfs", "subvolume", "snapshot", "-r", where / "sub", where / "snap"], check=True, capture_output=True)
        theirs = dict(shown_by_kernel(where))
    with oleo.open(disk) as image:
        ours = dict(shown_by_us(image))
        assert ours == theirs and len(ours) > 150
        stream = image.send("snap").read()
    # What Python sends, btrfs receives.
    with kernel(disk, "rw") as where:
        (where / "in").mkdir()
        subprocess.run(["btrfs", "receive", where / "in"], input=stream, check=True, capture_output=True)
        received = dict(shown_by_kernel(where / "in" / "snap"))
        # What btrfs sends, Python receives.
        sent = subprocess.run(["btrfs", "send", where / "snap"], check=True, capture_output=True).stdout
    assert received == {
        os.path.relpath(path, b"snap"): of for path, of in theirs.items() if path.startswith(b"snap/")
    }
    with oleo.create_in_memory(256 << 20) as image:
        image.receive([sent])
        assert {os.path.relpath(path, b"snap"): of for path, of in shown_by_us(image) if path != b"snap"} == received
