"""oleo://disk.img/path for pandas, zarr and dask, which only `scripts/test --all` installs."""

import os

import fsspec
import pytest

import oleo


@pytest.mark.filterwarnings("ignore")
def test_pandas(disk):
    import pandas

    table = pandas.DataFrame({"city": ["Oslo", "Zürich"], "people": [709_037, 436_332]})
    table.to_csv(f"oleo://{disk}/cities.csv", index=False)
    assert pandas.read_csv(f"oleo://{disk}/cities.csv").equals(table)
    table.to_json(f"oleo://{disk}/cities.json")
    assert pandas.read_json(f"oleo://{disk}/cities.json").equals(table)
    fsspec.url_to_fs(f"oleo://{disk}/")[0].close()
    with oleo.open(disk) as image:
        assert image.read("cities.csv").startswith("city,people\nOslo".encode())


@pytest.mark.filterwarnings("ignore")
def test_zarr(disk):
    import numpy
    import zarr

    fs = fsspec.filesystem("oleo", image=str(disk), auto_mkdir=True)
    store = zarr.storage.FsspecStore.from_url(f"oleo://{disk}/array", storage_options={"auto_mkdir": True})
    array = zarr.create_array(store, shape=(300, 200), chunks=(100, 100), dtype="i4")
    array[:] = numpy.arange(60_000).reshape(300, 200)
    again = zarr.open_array(store, mode="r")
    assert (again[150:160, 20:30] == numpy.arange(60_000).reshape(300, 200)[150:160, 20:30]).all()
    fs.close()


@pytest.mark.filterwarnings("ignore")
def test_dask(disk):
    from dask.bytes import read_bytes

    data = os.urandom(300_000)
    with oleo.open(disk, "r+") as image:
        image.write("data", data)
    _, blocks = read_bytes(f"oleo://{disk}/data", blocksize=100_000, sample=False)
    assert b"".join(part.compute(scheduler="threads") for part in blocks[0]) == data
    fsspec.url_to_fs(f"oleo://{disk}/")[0].close()
