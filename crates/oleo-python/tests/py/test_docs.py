"""What the documentation shows is so: doctests of the package and of docs/python.md, and the example of the README."""

import doctest
import importlib
import pathlib

import pytest

import oleo

ROOT = pathlib.Path(__file__).resolve().parents[4]
MODULES = ["oleo", "oleo._file", "oleo._image", "oleo._path", "oleo._streams", "oleo._types", "oleo.fs"]


@pytest.mark.parametrize("name", MODULES)
def test_modules(name):
    done = doctest.testmod(importlib.import_module(name), extraglobs={"oleo": oleo})
    assert done.failed == 0
    assert done.attempted > 0 or name in ("oleo._file", "oleo._types")


def test_pages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False, encoding="utf-8")
    assert done.failed == 0 and done.attempted > 20


def test_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text("utf-8")
    _, _, rest = text.partition("```python\n")
    program, _, _ = rest.partition("```")
    assert program.count("\n") >= 10
    exec(compile(program, "README.md", "exec"), {})
    assert oleo.check("disk.img").is_clean


def test_everything_is_documented():
    names = {name: getattr(oleo, name) for name in oleo.__all__}
    for name, value in names.items():
        if isinstance(value, type) or callable(value) and hasattr(value, "__module__") and value.__module__ == "oleo":
            assert value.__doc__, name
    for name, value in vars(oleo.Image).items():
        if not name.startswith("_"):
            assert value.__doc__, name
