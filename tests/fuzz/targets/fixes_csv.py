"""Files of fixes: every row is used, or named with its line."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np

from geo.spatial import FixError, FixFile, bounded_lines, read_fixes

HEADER = b"device_id,t_ms,lat,lon,speed_mps,accuracy_m\n"


def seeds() -> Iterable[bytes]:
    """Plain and quoted rows, columns in another order, and cells that are long, odd or missing."""
    yield HEADER + b"007,0,50.005,9.995,1.5,4\n007,60000,50.005,10.005,,\n"
    yield b'lat,lon,device_id,t_ms\n-90,180,"a, b",-5\n+.5e1,1.,x,9007199254740991\n'
    yield HEADER + b"d,1,1,1,nan,NaN\nd,2,91,1,,\nd,3,1e400,1,,\nd,99999999999999999999,1,1,,\n\xff,4,1,1,,\n"
    yield HEADER + b"d," + b"0" * 5000 + b",1,1,,\n" * 3
    yield HEADER + b"d,1,1,1,,\n" * 3000 + b'"\n,,,,,\nd,1\n'
    yield b"device_id,t_ms,lat,lon,lat\n"
    yield b"\xef\xbb\xbf" + HEADER + b"x,0,0,0,0,0\r\nx,1,0,0,0,0\r\n"


def lines_of(data: bytes) -> list[str]:
    """As the commands read a file."""
    file = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", errors="surrogateescape")
    return list(bounded_lines(file))


def judge(data: bytes) -> None:
    """Refused by its header; or each line that is not blank is a fix or a fault, alike in a block and by itself."""
    lines = lines_of(data)
    try:
        read = read_fixes(lines)
    except FixError:
        return
    rows = sum(bool(line.strip("\r\n").strip()) for line in lines)
    assert len(read.fixes) + read.fault_count + read.device_fault_count == rows - 1
    # one malformed row more, and no block is taken as a whole
    by_row = read_fixes([*lines, "\n", '"\n'])
    assert by_row.fault_count == read.fault_count + 1
    same(read, by_row)


def same(one: FixFile, other: FixFile) -> None:
    """Asserts that both have the same devices and fixes, bit for bit."""
    assert one.devices == other.devices
    for name in ("device", "t_ms", "lat", "lon", "speed_mps", "accuracy_m"):
        np.testing.assert_array_equal(getattr(one.fixes, name), getattr(other.fixes, name))
