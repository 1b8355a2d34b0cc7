"""What all observers of a canary share: the ledger behind a lock, its status and its metrics."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import nan
from typing import Final, NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.canary.config import AT_LEAST_ONCE, CANARY_RECORD, POSITION, CanaryScript, CanarySettings, Hop, ProbeItem
from gateway.canary.ledger import CanaryLedger, HopColour
from gateway.canary.probes import canary_name
from gateway.canary.status import HOUR_S, CanaryStatus, HopStatus, status_of_hop
from geo.spatial import DayEvent, identified
from waybill.daemon.backoff import Backoff
from waybill.record import Canary, Position, decode

# Records of probes: their probe, item and record id. Pure.

_PROBES: Final = 1_000


class RecordOfProbe(NamedTuple):
    """A record of the canary's device. `place`: latitude and longitude of a fix; `name`: of a canary record."""

    item: ProbeItem
    epoch: int
    seq: int
    place: tuple[float, float] | None = None
    name: str = ""

    @property
    def record_id(self) -> tuple[int, int]:
        return self.epoch, self.seq


class RecordBook:
    """The record ids under which the items of the newest probes arrived at one place. `is_once`: each arrives once."""

    def __init__(self, *, is_once: bool) -> None:
        self._is_once = is_once
        self._probes: OrderedDict[int, dict[ProbeItem, tuple[int, int]]] = OrderedDict()

    def note(self, number: int, records: Iterable[RecordOfProbe]) -> tuple[list[ProbeItem], int]:
        """Take records of a probe; return the new items, and the number of doubles.

        A second record id of an item is a double, and in a table so is a second row of the same id.
        """
        known = self._probes.setdefault(number, {})
        while len(self._probes) > _PROBES:
            self._probes.popitem(last=False)
        new, doubles = list[ProbeItem](), 0
        for record in records:
            before = known.get(record.item)
            if before is None:
                known[record.item] = record.record_id
                new.append(record.item)
            else:
                doubles += self._is_once or before != record.record_id
        return new, doubles


def records_of_batch(data: bytes, device: str) -> list[RecordOfProbe]:
    """The fixes and canary records in a message of the device; none of another device. Raises WireError."""
    batch = decode(data)
    if batch.device != device:
        return []
    found = list[RecordOfProbe]()
    for record in batch.records:
        t_ms, ids = record.device_time_us // 1000, (batch.epoch, record.seq)
        match record.body:
            case Position(latitude=latitude, longitude=longitude):
                found.append(RecordOfProbe(ProbeItem(POSITION, t_ms), *ids, (latitude, longitude)))
            case Canary(id=name):
                found.append(RecordOfProbe(ProbeItem(CANARY_RECORD, t_ms), *ids, None, name))
    return found


def content_fault(script: CanaryScript, device: str, number: int, record: RecordOfProbe) -> str:
    """How a record differs from what was sent, or ""."""
    if record.item.name == CANARY_RECORD:
        wanted = canary_name(device, number)
        return "" if record.name == wanted else f"a canary names {record.name[:80]!r}, not {wanted!r}"
    place = _places(script, number).get(record.item.t_ms)
    # a fix at another moment is no item, and the missing one is counted elsewhere
    if place is None or record.place is None or place == record.place:
        return ""
    return f"a fix is at {record.place}, not at {place}"


@lru_cache(maxsize=64)
def _places(script: CanaryScript, number: int) -> dict[int, tuple[float, float]]:
    begins_ms = script.begins_ms(number)
    return {begins_ms + fix.after_ms: (fix.latitude, fix.longitude) for fix in script.fixes(number)}


# Events of probes in alerts. Pure.

TOLERANCE_MS: Final = 5
"""The moment of a crossing is interpolated, and rounded to a millisecond."""


class EventOfProbe(NamedTuple):
    """An event at the canary's fence, and its id."""

    id: str
    event: DayEvent


class EventBook:
    """The events of the newest probes that arrived at one place."""

    def __init__(self, script: CanaryScript, tenant: str, device: str) -> None:
        self._script, self._tenant, self._device = script, tenant, device
        self._probes: OrderedDict[int, dict[str, str]] = OrderedDict()

    def note(self, number: int, shown: EventOfProbe) -> tuple[ProbeItem | None, str]:
        """The probe's item that an event is (None: none), and what is wrong with the event, or "".

        The id follows from the facts, so a second id is a second event: the vehicle entered or left twice.
        """
        known = self._probes.setdefault(number, {})
        while len(self._probes) > _PROBES:
            self._probes.popitem(last=False)
        kind, event = shown.event.kind, shown.event
        item = next((one for one in self._script.event_items(number) if one.name == kind), None)
        if item is None:
            return None, f"a probe has no event of the kind {kind!r}"
        before = known.setdefault(kind, shown.id)
        if before != shown.id:
            return None, f"{kind} is there under two ids, {before} and {shown.id}"
        if shown.id not in identified(self._tenant, self._device, [event]):
            return item, f"{kind} has the id {shown.id}, which does not follow from its facts"
        if abs(event.t_ms - item.t_ms) > TOLERANCE_MS:
            return item, f"{kind} is {event.t_ms - item.t_ms} ms off"
        return item, ""


# Prometheus metrics; `docs/canaries.md` lists them.

_LATENCY_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
_VALUE_OF: Final = {HopColour.GREEN: 1.0, HopColour.RED: 0.0}


class CanaryMetrics:
    """The metrics of one canary, by hop, in a registry of their own. A hop that is not watched has no samples."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._healthy = Gauge("waybill_canary_healthy", "1 green, 0 red, NaN unknown", ["hop"], registry=registry)
        self._level = Gauge(
            "waybill_canary_service_level_ratio",
            "Of the last hour: (consumed - delayed) / (consumed + lost); NaN: nothing was due",
            ["hop"],
            registry=registry,
        )
        self._items = Gauge(
            "waybill_canary_items", "Items of the last hour: consumed, delayed, lost, wrong", ["hop", "result"],
            registry=registry,
        )  # fmt: skip
        self.latency = Histogram(
            "waybill_canary_latency_seconds",
            "From an item's device time to the hop",
            ["hop"],
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.probes = Counter("waybill_canary_probes_total", "Probes sent as a whole", registry=registry)
        self.cut = Counter("waybill_canary_cut_probes_total", "Probes that were cut", registry=registry)
        self.last_s = Gauge(
            "waybill_canary_last_probe_timestamp_seconds", "When the last whole probe was sent", registry=registry
        )
        self.last_s.set(nan)
        self.started_s = Gauge("waybill_canary_started_timestamp_seconds", "When this process began", registry=registry)

    def set_hop(self, status: HopStatus) -> None:
        hop = status.hop.value
        self._healthy.labels(hop).set(_VALUE_OF.get(status.colour, nan))
        self._level.labels(hop).set(nan if status.level is None else status.level)
        for result in ("consumed", "delayed", "lost", "wrong"):
            self._items.labels(hop, result).set(getattr(status, result))


STALE_PERIODS: Final = 3
"""After so many periods without a probe no hop is green."""
SILENT_S: Final = 30.0
"""An observer that has not returned for so long counts as unable to read its hop."""


class CanaryWatch:
    """One canary's ledger. Any thread may call; `clock` is that of device times (seconds since 1970)."""

    def __init__(self, settings: CanarySettings, clock: Callable[[], float] = time.time) -> None:
        self.settings, self.script = settings, CanaryScript(settings.script)
        self.clock = clock
        self.metrics = CanaryMetrics()
        self.metrics.started_s.set(clock())
        limits_s = {hop: settings.limit_s(hop) for hop in settings.watched}
        self._ledger = CanaryLedger(limits_s, settings.lost_after_s, STALE_PERIODS * settings.script.period_s)
        self._lock = threading.RLock()
        self._books = {hop: RecordBook(is_once=hop not in AT_LEAST_ONCE) for hop in (Hop.REGION, Hop.CENTRE, Hop.TABLE)}
        self._blind: dict[Hop, str] = {}
        self._looked_s: dict[Hop, float] = {}
        self.not_sent = ""

    @lru_cache(maxsize=1_024)  # noqa: B019 - there is one for the life of the process
    def record_items(self, number: int) -> tuple[ProbeItem, ...]:
        return self.script.record_items(number)

    @contextmanager
    def ledger(self) -> Iterator[CanaryLedger]:
        with self._lock:
            yield self._ledger

    def send(self, number: int) -> None:
        begins_s = self.script.begins_ms(number) / 1000
        with self.ledger() as ledger:
            ledger.send(number, self.script.items(number), begins_s, begins_s + self.script.driven_ms / 1000)
        self.not_sent = ""

    def drop(self, number: int, why: str) -> None:
        with self.ledger() as ledger:
            ledger.drop(number)
        self.not_sent = why

    def show_records(self, hop: Hop, records: Iterable[RecordOfProbe]) -> None:
        of_probe: dict[int, list[RecordOfProbe]] = {}
        for record in records:
            of_probe.setdefault(self.script.number_at(record.item.t_ms), []).append(record)
        with self.ledger() as ledger:
            for number, found in of_probe.items():
                # a probe from before this process is not known
                if number not in ledger:
                    continue
                new, doubles = self._books[hop].note(number, found)
                self.show(number, hop, new)
                ledger.note_doubles(number, hop, doubles)
                for record in found:
                    if fault := content_fault(self.script, self.settings.device, number, record):
                        ledger.judge(number, hop, fault)

    def show(self, number: int, hop: Hop, items: Sequence[ProbeItem]) -> None:
        with self.ledger() as ledger:
            for latency_s in ledger.see(number, hop, items, self.clock()):
                self.metrics.latency.labels(hop.value).observe(latency_s)

    @contextmanager
    def looking(self, hops: Iterable[Hop]) -> Iterator[None]:
        """Around each look of an observer: after an error its hops count as unreadable until a look succeeds."""
        try:
            yield
        except Exception as error:
            with self._lock:
                self._blind |= dict.fromkeys(hops, (str(error) or type(error).__name__).splitlines()[0][:300])
            raise
        with self._lock:
            for hop in hops:
                self._blind.pop(hop, None)
                self._looked_s[hop] = time.monotonic()

    def has_looked(self, hop: Hop) -> bool:
        """Whether a hop was read, and can be read now."""
        with self._lock:
            return hop in self._looked_s and hop not in self._blind

    def status(self) -> CanaryStatus:
        now_s, now_monotonic_s = self.clock(), time.monotonic()
        with self.ledger() as ledger:
            # an observer that hangs raises nothing
            silent_s = {hop: now_monotonic_s - at_s for hop, at_s in self._looked_s.items()}
            blind = {hop: f"no answer for {for_s:.0f} s" for hop, for_s in silent_s.items() if for_s > SILENT_S}
            return CanaryStatus(
                region=self.settings.region,
                device=f"{self.settings.tenant}/{self.settings.device}",
                asked_s=now_s,
                sent=ledger.sent_since(now_s - HOUR_S),
                not_sent=self.not_sent,
                hops=tuple(status_of_hop(ledger, state, now_s) for state in ledger.states(now_s, blind | self._blind)),
            )

    def update_metrics(self) -> None:
        for one in self.status().hops:
            if one.colour is not HopColour.NOT_WATCHED:
                self.metrics.set_hop(one)


# Observers: each reads its hops in its own thread.

_FIRST_S: Final = 0.5
_MAX_S: Final = 10.0
_STOP_S: Final = 5.0
_LOG = structlog.get_logger("canary")


class Observer(ABC):
    """Reads `hops` every `every_s` seconds. A look that raises is repeated with back-off."""

    hops: Collection[Hop]
    every_s: float = 0.5

    @abstractmethod
    def look(self) -> None:
        """Write what arrived to the ledger; bounded in time."""

    def close(self) -> None:  # noqa: B027 - most observers hold nothing
        """Release connections."""


class ObserverThread:
    """Runs one observer until `stop` is set."""

    def __init__(self, observer: Observer, watch: CanaryWatch, stop: threading.Event) -> None:
        self._observer, self._watch, self._stop = observer, watch, stop
        name = "+".join(observer.hops)
        self._thread = threading.Thread(target=self._run, name=f"observer-{name}", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait a while for its end; one that hangs ends with the process."""
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        backoff, hops = Backoff(_FIRST_S, _MAX_S, random.random), [hop.value for hop in self._observer.hops]
        while not self._stop.is_set():
            try:
                with self._watch.looking(self._observer.hops):
                    self._observer.look()
                backoff.reset()
                wait_s = self._observer.every_s
            except Exception as error:  # noqa: BLE001 - whatever it is: this hop is unreadable, and the others are read
                wait_s = backoff.take_delay_s()
                _LOG.warning("cannot read", hops=hops, error=str(error) or type(error).__name__)
            self._stop.wait(wait_s)
        self._observer.close()
