"""The hours that a change of fences would have computed anew, were their positions not erased."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.stored_files import StoredFiles, read_stored

_KEY = ("tenant", "device", "hour")


def count_erased_hours(files: FileSystem, stored: StoredFiles, erasures: Erasures, margin_ms: int) -> int:
    """How many device hours of some files of usage keep what was computed, whatever changes.

    Near which fences they lie, nobody knows any more: all are counted in which an erased position may have a say.
    """
    if not erasures:
        return 0
    margin, by_day = timedelta(milliseconds=margin_ms), dict[str, list[str]]()
    for path in stored.paths:
        by_day.setdefault(path.partition("/")[0], []).append(path)
    # a day at once: rows of an hour are all of one
    return sum(_count(files, paths, erasures, margin) for paths in by_day.values())


def _count(files: FileSystem, paths: Collection[str], erasures: Erasures, margin: timedelta) -> int:
    rows = pa.concat_tables(read_stored(files, "usage", path, _KEY, {}) for path in paths)
    erased = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for tenant, device, before, _ in erasures:
        mine = pc.less(rows["hour"], pa.scalar(before + margin, USAGE.field("hour").type))
        if device is not None:
            mine = pc.and_(mine, pc.equal(rows["device"], device))
        if tenant is not None:
            mine = pc.and_(mine, pc.equal(rows["tenant"], tenant))
        erased = pc.or_(erased, mine)
    return int(rows.filter(erased).group_by([*_KEY]).aggregate([]).num_rows)
