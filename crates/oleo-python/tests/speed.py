"""Reads every file of an image; prints how many bytes and seconds that were. `tests/python.rs` compares it with the library."""

import sys
import time

import oleo

begin = time.perf_counter()
count = 0
with oleo.open(sys.argv[1]) as image:
    for dir, _, files in image.walk():
        for name in files:
            count += len(image.read(f"{dir}/{name}"))
print(count, time.perf_counter() - begin)
