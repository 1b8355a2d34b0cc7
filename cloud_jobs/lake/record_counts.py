"""How many records the table has at a snapshot: by the log where it says all, else by what is read; and by device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshot_reads import erasures, erasures_since, of_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.stored_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.tables import Lake


def miscounted(lake: Lake, snapshot: LakeState) -> dict[TenantDevice, tuple[int, int]]:
    """The devices of which the table has not as many records as the coverage received: both counts. Of any period.

    One number for each stream and the log's counts are read, and only where these differ the records. Once positions
    were erased, records that are gone may be those: then only records too many are found. Raises LakeError.
    """
    rows = lake.coverage_rows(lake.coverage_manifest(snapshot.ingest_commit))
    received, stored = received_counts(rows), stored_at(lake, snapshot)
    expected, found = int(received.sum()), count_all(lake, snapshot, stored)
    may_be_erased = any((erasures(lake, snapshot), erasures_since(lake, snapshot)))
    if found == expected or (may_be_erased and found < expected):
        return {}
    there, known = count_by_device(lake, snapshot, stored, None), received_by_device(rows, received)
    both = {one: (known.get(one, 0), there[one]) for one in sorted({*known, *there})}
    # of fewer the others may be erased
    return {one: pair for one, pair in both.items() if pair[1] > pair[0] or (pair[1] < pair[0] and not may_be_erased)}


def received_counts(rows: pa.Table) -> NDArray[np.int64]:
    """How many records each row of coverage has received."""
    lists = rows["received"].combine_chunks()
    lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
    bounds = lists.flatten().to_numpy()
    so_far = np.r_[0, np.cumsum(bounds[1::2] - bounds[::2] + 1)]
    at = np.r_[0, np.cumsum(lists.value_lengths().to_numpy().astype(np.int64) // 2)]
    found: NDArray[np.int64] = so_far[at[1:]] - so_far[at[:-1]]
    return found


def received_by_device(rows: pa.Table, received: NDArray[np.int64]) -> dict[TenantDevice, int]:
    """The sums of `received_counts`, by device in order."""
    made = rows.select(["tenant", "device"]).append_column("received", pa.array(received))
    found = made.group_by(["tenant", "device"]).aggregate([("received", "sum")]).to_pylist()
    return {TenantDevice(row["tenant"], row["device"]): row["received_sum"] for row in found}


def stored_at(lake: Lake, snapshot: LakeState) -> StoredFiles:
    """The files that may hold records of a snapshot. Raises LakeError."""
    with lake.damage_as_error("records"):
        stored = StoredFiles.of(lake.open("records"), "records")
        return stored.between("ingest_number", high=snapshot.ingest_number) if len(stored) else stored


def count_all(lake: Lake, snapshot: LakeState, stored: StoredFiles) -> int:
    """Rows by the log; a file that holds later records as well is read."""
    if not len(stored):
        return 0
    found, files = 0, lake.files("records")
    newest = snapshot.ingest_number
    for path, rows, (_, high) in zip(stored.paths, stored.row_counts, stored.bounds("ingest_number"), strict=True):
        if high is not None and high <= newest:
            found += rows
            continue
        with lake.damage_as_error("records"):
            wanted: dict[str, Range] = {"ingest_number": (None, newest)}
            parts = stored_rows(files, "records", path, ("ingest_number",), wanted)
            found += sum(part.num_rows for part in parts)
    return found


def count_by_device(
    lake: Lake, snapshot: LakeState, stored: StoredFiles, devices: Collection[TenantDevice] | None
) -> Counter[TenantDevice]:
    """Rows of some devices, or of all."""
    found: Counter[TenantDevice] = Counter()
    bounds = {"ingest_number": (None, snapshot.ingest_number)}
    for rows in rows_within(lake, stored, ("tenant", "device"), bounds, devices):
        for row in rows.group_by(["tenant", "device"]).aggregate([([], "count_all")]).to_pylist():
            found[TenantDevice(row["tenant"], row["device"])] += row["count_all"]
    return found


def rows_within(
    lake: Lake,
    stored: StoredFiles,
    columns: Sequence[str],
    bounds: Mapping[str, Range],
    devices: Collection[TenantDevice] | None,
) -> Iterator[pc.Table]:
    """Rows within bounds, of some devices or of all, row group by row group."""
    if not len(stored) or (devices is not None and not devices):
        return
    wanted: dict[str, Range] = {}
    if devices is not None:
        names, tenants = sorted({one.device for one in devices}), sorted({one.tenant for one in devices})
        wanted = {"tenant": (tenants[0], tenants[-1]), "device": (names[0], names[-1])}
        stored = stored.within("device", [(name, name) for name in names])
        columns = [*dict.fromkeys((*columns, "tenant", "device"))]
    files = lake.files("records")
    known = {name: stored.bounds(name) for name in bounds}
    with lake.damage_as_error("records"):
        for at, path in enumerate(stored.paths):
            # what the log says of all rows of a file is not read
            open_ = {name: limit for name, limit in bounds.items() if not _is_within(known[name][at], limit)}
            for rows in stored_rows(files, "records", path, columns, wanted | open_):
                yield rows if devices is None else of_devices(rows, devices)


def _is_within(known: Range, limit: Range) -> bool:
    (lowest, highest), (low, high) = known, limit
    if lowest is None or highest is None:
        return False
    return (low is None or low <= lowest) and (high is None or highest <= high)
