"""Which fences and gates a viewer sees.

A publication of a fence names no owner. A viewer with limits sees the fences that the contracts of its accounts price,
and those that events of its devices name. Any other fence may be a place of another customer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles
from console.reference import FenceVersion, ReferenceState

if TYPE_CHECKING:
    from console.context import Console, Viewer

LOOK_BACK: Final = 31
"""Events of so many days that have any, the newest before a moment, say which fences concern a device."""
_MOST_KEPT: Final = 400
_DAY: Final = timedelta(days=1)

Places = Mapping[TenantDevice, frozenset[str]]
"""The fences and gates that events in force of a day name, by device."""


class FenceRights:
    """The fences of a lake as a viewer sees them. Any thread may ask. Raises LakeError, StoreUnavailable."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._days: dict[date, tuple[tuple[str, ...], Places]] = {}
        self._known: dict[tuple[Any, ...], frozenset[str]] = {}

    def versions(self, viewer: Viewer, until: datetime) -> tuple[FenceVersion, ...]:
        """All versions of the fences that a viewer sees. `until`: later events do not count."""
        fences, ids = self._console.reference.state().fences, self.ids(viewer, until)
        return fences if ids is None else tuple(one for one in fences if one.id in ids)

    def in_force(self, viewer: Viewer, moment: datetime, until: datetime | None = None) -> tuple[FenceVersion, ...]:
        """The versions in force at a moment. Weekly windows are not looked at: an area keeps its border."""
        return tuple(one for one in self.versions(viewer, until or moment) if one.holds_at(moment))

    def ids(self, viewer: Viewer, until: datetime) -> frozenset[str] | None:
        """The ids of the fences that a viewer sees; None: all."""
        if viewer.sees_all:
            return None
        lake = self._console.lake
        has_events = lake.has("geofence_events")
        versions = [lake.version(table) for table in ("reference", "geofence_events") if lake.has(table)]
        last = until.astimezone(UTC).date()
        key = viewer.tenants, viewer.accounts, last, *versions
        with self._lock:
            if key not in self._known:
                found = _priced(self._console.reference.state(), viewer)
                if has_events:
                    found |= self._met(viewer, last)
                if len(self._known) >= _MOST_KEPT:
                    self._known.clear()
                self._known[key] = frozenset(found)
            return self._known[key]

    def _met(self, viewer: Viewer, last: date) -> set[str]:
        """The places of the events of devices, on each day on which the viewer sees the device throughout."""
        stored = self._console.lake.stored("geofence_events").of_days(last=last)
        days = sorted({*stored.actions["partition.day"].to_pylist()})[-LOOK_BACK:]
        if not days:
            return set()
        met = {day: self._places(day, stored.on_days([day])) for day in days}
        devices = {device for of_day in met.values() for device in of_day if viewer.sees_tenant(device.tenant)}
        payers: Mapping[TenantDevice, set[str]] = {}
        if viewer.accounts is not None:
            payers = self._console.reference.payers_during(_midnight(days[0]), _midnight(days[-1]) + _DAY)
        always = {device for device in devices if viewer.sees(device, payers.get(device, ()))}
        # vehicles that changed the account meanwhile are few
        sometimes = {one for one in devices - always if payers.get(one, set()) & (viewer.accounts or set())}
        found: set[str] = set()
        for day, of_day in met.items():
            seen = always & of_day.keys()
            if some := sometimes & of_day.keys():
                seen |= self._console.visible(viewer, some, (_midnight(day), _midnight(day) + _DAY))
            found.update(*(of_day[device] for device in seen))
        return found

    def _places(self, day: date, files: StoredFiles) -> Places:
        paths = tuple(files.paths)
        known = self._days.get(day)
        if known is None or known[0] != paths:
            if len(self._days) >= _MOST_KEPT:
                self._days.clear()
            known = self._days[day] = paths, self._read(files)
        return known[1]

    def _read(self, files: StoredFiles) -> Places:
        columns, lake = ("tenant", "device", "place"), self._console.lake
        # later revisions are few
        revised = lake.rows_in(files, (*columns, "id", "revision", "retracted"), where=[("revision", ">", 0)])
        newest = {row["id"]: row for row in revised.sort_by("revision").to_pylist()}
        first = lake.rows_in(files, (*columns, *(["id"] if newest else [])), where=[("revision", "=", 0)])
        if newest:
            first = first.filter(pc.invert(pc.is_in(first["id"], revised["id"].combine_chunks())))
        rows = first.group_by([*columns]).aggregate([]).to_pylist()
        places: dict[TenantDevice, set[str]] = {}
        for row in (*rows, *(one for one in newest.values() if not one["retracted"])):
            places.setdefault(TenantDevice(row["tenant"], row["device"]), set()).add(row["place"])
        return {device: frozenset(names) for device, names in places.items()}


def _priced(state: ReferenceState, viewer: Viewer) -> set[str]:
    """The zones that contracts of the viewer's accounts ever had a price for; without accounts: of its devices."""
    found: set[str] = set()
    for one in state.accounts:
        account = one.account
        if viewer.accounts is not None:
            # the charges of a child are on the invoice of its parent
            concerns = not viewer.accounts.isdisjoint({account.id, account.parent})
        else:
            concerns = any(viewer.sees_tenant(device.tenant) for device in account.devices)
        if concerns:
            found |= state.zones.get(account.tariff, frozenset())
    return found


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
