"""Positions of some devices from files of the records, as arrays. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.stored_files import Range, stored_rows
from geo.spatial.ragged import run_starts

Integers = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]

PLACE: Final = ("epoch", "seq", "latitude", "longitude", "accuracy_m")
_POSITION: Final = ("position", "position")


class Devices:
    """Some devices in order; in arrays a device is its place among them."""

    def __init__(self, names: Iterable[TenantDevice]) -> None:
        self.names = sorted(names)
        self._place = {name: at for at, name in enumerate(self.names)}
        devices = [name.device for name in self.names]
        self.ranges: dict[str, Range] = {}
        if devices:
            self.ranges["tenant"] = (self.names[0].tenant, self.names[-1].tenant)
            self.ranges["device"] = (min(devices), max(devices))

    def places(self, rows: pa.Table) -> Integers:
        """The place of the device of each row; -1 for one that is none of these."""
        tenants, devices = (_encoded(rows[name]) for name in ("tenant", "device"))
        starts = np.flatnonzero(run_starts(tenants.indices.to_numpy(), devices.indices.to_numpy()))
        first = pa.array(starts)
        named = zip(tenants.take(first).to_pylist(), devices.take(first).to_pylist(), strict=True)
        # rows of a device follow on each other in a file
        found = np.array([self._place.get(TenantDevice(*name), -1) for name in named], np.int64)
        return np.repeat(found, np.diff(np.r_[starts, rows.num_rows]))

    def __len__(self) -> int:
        return len(self.names)


class PositionFile(NamedTuple):
    """A file of the records, and between what device times its rows are, in milliseconds, None where unknown."""

    path: str
    first_ms: int | None
    last_ms: int | None


def positions(
    files: FileSystem, path: str, devices: Devices, columns: Sequence[str], ranges: Mapping[str, Range]
) -> Iterator[Arrays]:
    """The positions of the devices in a file: `device` (their places), `t_ms`, and the columns that are asked for."""
    wanted = {"kind": _POSITION, **devices.ranges, **ranges}
    for rows in stored_rows(files, "records", path, ["tenant", "device", "device_time", *columns], wanted):
        place = devices.places(rows)
        mine = np.flatnonzero(place >= 0)
        if not len(mine):
            continue
        arrays = {name: rows[name].to_numpy() for name in columns}
        arrays["t_ms"] = rows["device_time"].cast(pa.int64()).to_numpy() // 1000
        yield {"device": place[mine]} | {name: array[mine] for name, array in arrays.items()}


def joined(parts: Iterable[Arrays], names: Sequence[str]) -> Arrays:
    """Arrays of several files as one of each name."""
    parts = [*parts]
    if not parts:
        return {name: np.zeros(0, np.int64) for name in names}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def count_devices(files: FileSystem, path: str, ranges: Mapping[str, Range]) -> dict[TenantDevice, int]:
    """How many positions a file has of each device."""
    counts: dict[TenantDevice, int] = {}
    for rows in stored_rows(files, "records", path, ["tenant", "device"], {"kind": _POSITION, **ranges}):
        found = rows.group_by(["tenant", "device"], use_threads=False).aggregate([([], "count_all")])
        for row in found.to_pylist():
            name = TenantDevice(row["tenant"], row["device"])
            counts[name] = counts.get(name, 0) + int(row["count_all"])
    return counts


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    found = column.combine_chunks()
    found = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    return found if pa.types.is_dictionary(found.type) else found.dictionary_encode()
