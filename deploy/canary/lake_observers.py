"""Observers of the lake: the records table and the coverage, and the events in force."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cloud_jobs.lake.coverage import DeviceStream, TenantDevice
from deploy.canary.device_records import DeviceRecords
from deploy.canary.hops import Hop
from deploy.canary.new_rows import NewRows
from deploy.canary.observer import Observer
from deploy.canary.script import CANARY, POSITION
from deploy.canary.shown_events import EventBook, EventOfProbe, events_in_force
from deploy.canary.watch import CanaryWatch

__all__ = ["EventObserver", "RecordsObserver", "device_of", "observed_since"]

_KEPT: Final = timedelta(hours=6)
"""Revisions of events so old are forgotten."""
_EVENTS: Final = "geofence_events"
_COMMIT: Final = "commit_number"
_EVENT_COLUMNS: Final = (
    "id",
    "revision",
    "epoch",
    "seq",
    "kind",
    "place",
    "time",
    "value",
    "retracted",
    _COMMIT,
)


def device_of(watch: CanaryWatch) -> TenantDevice:
    """The canary's device."""
    return TenantDevice(watch.settings.tenant, watch.settings.device)


def observed_since(watch: CanaryWatch) -> datetime:
    """The beginning of the quarter before the one that it is now: what is judged lies behind it."""
    now = datetime.fromtimestamp(watch.clock(), UTC)
    return now.replace(minute=now.minute - now.minute % 15, second=0, microsecond=0) - timedelta(minutes=15)


class RecordsObserver(Observer):
    """The records of the canary's device in the table, and those of them that the coverage has."""

    hops = (Hop.TABLE, Hop.COVERAGE)
    every_s = 1.0

    def __init__(self, watch: CanaryWatch) -> None:
        self._watch, self._lake, self._device = watch, watch.settings.tables, device_of(watch)
        self._records = DeviceRecords(self._lake, self._device, observed_since(watch))

    def look(self) -> None:
        """See Observer. Raises LakeError, StoreUnavailable."""
        stored = [one.record for one in self._records.read_new()]
        self._watch.show_records(Hop.TABLE, [one for one in stored if one.item.name in {POSITION, CANARY}])
        # coverage has no device times: by the record ids that showed elsewhere it is known which are missing
        if waiting := self._watch.waiting(Hop.COVERAGE):
            self._look_at_coverage(waiting)

    def _look_at_coverage(self, waiting: list[int]) -> None:
        coverage = self._lake.coverage([self._device])
        received = {stream: one.received for stream, one in coverage.items()}
        for number in waiting:
            ids = self._watch.record_ids(number)
            held = [item for item, (epoch, seq) in ids.items() if seq in received.get(self._stream(epoch), ())]
            self._watch.show(number, Hop.COVERAGE, held)

    def _stream(self, epoch: int) -> DeviceStream:
        return DeviceStream(*self._device, epoch)


class EventObserver(Observer):
    """The events at the canary's fence that are in force."""

    hops = (Hop.EVENT,)
    every_s = 2.0

    def __init__(self, watch: CanaryWatch) -> None:
        self._watch, device = watch, device_of(watch)
        self._book = EventBook(watch.script, *device)
        self._since = observed_since(watch)
        self._rows = NewRows(
            watch.settings.tables, _EVENTS, device, self._since, _EVENT_COLUMNS, writer=_EVENTS, number_column=_COMMIT
        )
        self._known: dict[str, dict[str, Any]] = {}
        # of each probe what is wrong with which event: one that is right after all takes back its own fault alone
        self._faults: dict[int, dict[str, str]] = {}

    def look(self) -> None:
        """See Observer. Raises LakeError, StoreUnavailable."""
        rows = self._rows.read()
        if not rows:
            return
        mine = [row for row in rows if row["place"] == self._watch.settings.name and row["time"] >= self._since]
        newest = {row["id"]: row for row in sorted(mine, key=lambda row: int(row["revision"]))}
        for shown in events_in_force(mine):
            self._show(shown)
        # only after what is in force: an event that moved is there again under another id
        for row in newest.values():
            if row["retracted"] and row["id"] in self._known:
                self._judge(self._number_of(row), row["id"], f"{row['kind']} was there, and was retracted")
        self._known.update(newest)
        self._forget(max(row["time"] for row in rows) - _KEPT)

    def _show(self, shown: EventOfProbe) -> None:
        number = self._watch.script.number_at(shown.event.t_ms)
        item, fault = self._book.note(number, shown)
        if item is not None:
            self._watch.show(number, Hop.EVENT, [item])
        # also one that was retracted, and is in force again
        self._judge(number, shown.id, fault)

    def _judge(self, number: int, event: str, fault: str) -> None:
        faults = self._faults.setdefault(number, {})
        if faults.get(event, "") == fault:
            return
        faults.pop(event, None)
        faults |= {event: fault} if fault else {}
        self._watch.judge(number, Hop.EVENT, next(iter(faults.values()), ""))

    def _number_of(self, row: dict[str, Any]) -> int:
        return self._watch.script.number_at(round(row["time"].timestamp() * 1000))

    def _forget(self, before: datetime) -> None:
        self._known = {name: row for name, row in self._known.items() if row["time"] >= before}
        oldest = self._watch.script.number_at(round(before.timestamp() * 1000))
        self._faults = {number: faults for number, faults in self._faults.items() if faults and number >= oldest}
