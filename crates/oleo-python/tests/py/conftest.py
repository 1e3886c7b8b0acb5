"""Fixtures: images in memory and in files, and the kernel's view of them."""

import contextlib
import os
import subprocess

import pytest

import oleo

MIB = 1 << 20


def pytest_terminal_summary(terminalreporter):
    """cargo shows only its own lines: this one says what ran."""
    passed = len(terminalreporter.stats.get("passed", []))
    terminalreporter.write_line(f"pytest: {passed} passed")


@pytest.fixture
def image():
    """A new volume in memory."""
    with oleo.create_in_memory(256 * MIB) as image:
        yield image


@pytest.fixture
def disk(tmp_path):
    """A new image file, its path."""
    path = tmp_path / "disk.img"
    oleo.mkfs(path, 256 * MIB)
    return path


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def mounted(disk, options="ro"):
    """Mounts an image by the kernel."""
    with contextlib.ExitStack() as stack:
        where = disk.parent / "mounted"
        where.mkdir()
        stack.callback(where.rmdir)
        device = run("losetup", "--find", "--show", disk)
        stack.callback(run, "losetup", "--detach", device)
        # The kernel remembers volumes by their UUIDs, which tests may use again.
        stack.callback(subprocess.run, ["btrfs", "device", "scan", "--forget", device], capture_output=True)
        run("mount", "-t", "btrfs", "-o", options, device, where)
        stack.callback(run, "umount", where)
        yield where


@pytest.fixture
def kernel():
    """The kernel as a reader: a function that mounts an image."""
    if "OLEO_KERNEL" not in os.environ:
        pytest.skip("no kernel oracle here")
    return mounted
