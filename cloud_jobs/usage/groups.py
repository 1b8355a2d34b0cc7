"""The work of a run, cut into groups of devices with the files that each needs, by the bounds in Delta's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow.fs import FileSystem

from cloud_jobs.fence_changes import FenceChange
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import day_of
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.stored_files import Range, StoredFiles
from cloud_jobs.usage.device_group import DeviceGroup
from cloud_jobs.usage.reading import RecordFile, count_devices
from cloud_jobs.usage.touched_hours import HOUR_MS, MOST_HOURS

MOST_RECORDS: Final = 1_000_000
"""About so many records a task holds at once; a device with more is a group by itself."""
_LEAST_RECORDS: Final = 50_000
_AROUND_EACH: Final = 400
"""About so many records are read around each device that has a new one."""
_EPOCH: Final = date(1970, 1, 1)
_LAST_DAY: Final = 50_000
_DAY_MS: Final = 86_400_000


class Wanted(NamedTuple):
    """The files of a run: with new records, of days with changed fences, and of all days that have a say in these."""

    increment: tuple[int, int]
    new: StoredFiles
    changed: StoredFiles | None
    around: StoredFiles

    @property
    def listed(self) -> list[tuple[str, dict[str, Range]]]:
        """The files whose devices are to be computed, with the range of ingest numbers that counts in each."""
        low, high = self.increment
        found: dict[str, dict[str, Range]] = {path: {"ingest_number": (low, high)} for path in self.new.paths}
        if self.changed is not None:
            found |= {path: {"ingest_number": (None, high)} for path in self.changed.paths}
        return [*found.items()]


def wanted_files(
    stored: StoredFiles, increment: tuple[int, int], changes: Sequence[FenceChange], margin_ms: int
) -> Wanted:
    """The files of a run over an increment (first and last ingest number) and changes of fences.

    A new fix touches hours up to a margin away, and the fixes that have a say in those lie up to a margin further.
    """
    new = stored.between("ingest_number", *increment)
    # an hour more for each margin: hours are computed and read whole; and the hours at both ends of the longest gap
    reach = timedelta(days=-(-(2 * (margin_ms + HOUR_MS) + MOST_HOURS * HOUR_MS) // _DAY_MS))
    days = {day for path in new.paths if (day := day_of(path)) is not None}
    changed = None
    if changes:
        first, last = days_of(changes)
        changed = stored.of_days(first - timedelta(days=1), last)
        days |= {day for path in changed.paths if (day := day_of(path)) is not None}
    around = {day + shift * timedelta(days=1) for day in days for shift in range(-reach.days, reach.days + 1)}
    return Wanted(increment, new, changed, stored.on_days(around))


def days_of(changes: Sequence[FenceChange]) -> tuple[date, date]:
    """The first and the last day of changes of fences."""
    return _date(min(one.first_day for one in changes)), _date(max(one.last_day for one in changes))


def counted(files: FileSystem) -> Callable[[tuple[str, dict[str, Range]]], dict[TenantDevice, int]]:
    """A function that counts the records of each device in a file."""
    return lambda listed: count_devices(files, *listed)


def total(counts: Iterable[Mapping[TenantDevice, int]]) -> dict[TenantDevice, int]:
    """The counts of several files together."""
    found: dict[TenantDevice, int] = {}
    for one in counts:
        for name, number in one.items():
            found[name] = found.get(name, 0) + number
    return found


def device_groups(
    counts: Mapping[TenantDevice, int], wanted: Wanted, usage: StoredFiles, erasures: Erasures, *, tasks: int
) -> Iterator[DeviceGroup]:
    """Groups of neighbouring devices: about `tasks` of them, more of what is much, one of what is little."""
    weights = {name: number + _AROUND_EACH for name, number in sorted(counts.items())}
    most = min(max(sum(weights.values()) // max(tasks, 1), _LEAST_RECORDS), MOST_RECORDS)
    # these are a day more on both sides than any touched hour
    days = sorted(day for path in wanted.around.paths if (day := day_of(path)) is not None)
    usage = usage.of_days(days[0], days[-1]) if days else usage
    for names in _cut(weights, most):
        around = _of_devices(wanted.around, names)
        yield DeviceGroup(
            names=tuple(names),
            increment=wanted.increment,
            new=tuple(_of_devices(wanted.new, names).paths),
            changed=() if wanted.changed is None else tuple(_of_devices(wanted.changed, names).paths),
            around=tuple(record_files(around)),
            usage=tuple(_of_devices(usage, names).paths),
            erased_before_ms=_erased_before_ms(names, erasures),
        )


def _cut(weights: Mapping[TenantDevice, int], most: int) -> Iterator[list[TenantDevice]]:
    held: list[TenantDevice] = []
    weight = 0
    for name, more in weights.items():
        if held and weight + more > most:
            yield held
            held, weight = [], 0
        held.append(name)
        weight += more
    if held:
        yield held


def _of_devices(stored: StoredFiles, names: Sequence[TenantDevice]) -> StoredFiles:
    """The files that may hold rows of some devices, which are in order."""
    devices = [name.device for name in names]
    of_tenants = stored.between("tenant", names[0].tenant, names[-1].tenant)
    return of_tenants.between("device", min(devices), max(devices))


def record_files(stored: StoredFiles) -> Iterator[RecordFile]:
    """The files with the times of their rows, by the bounds in the log."""
    for path, (first, last) in zip(stored.paths, stored.bounds("device_time"), strict=True):
        yield RecordFile(path, _ms(first), _ms(last))


def _erased_before_ms(names: Iterable[TenantDevice], erasures: Erasures) -> dict[TenantDevice, int]:
    if not erasures:
        return {}
    found = {name: _ms(erasures.before(name.tenant, name.device)) for name in names}
    return {name: before for name, before in found.items() if before is not None}


def _ms(moment: Any) -> int | None:
    return None if moment is None else int(pa.scalar(moment, pa.timestamp("us", tz="UTC")).value // 1000)


def _date(day: int) -> date:
    # the days of records with a partition are within these
    return _EPOCH + timedelta(days=min(max(day, 0), _LAST_DAY))
