"""What all observers of a canary write to, and its status reads from: the ledger, behind one lock, and its metrics."""

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

from deploy.canary.config import AT_LEAST_ONCE, CANARY_RECORD, POSITION, CanaryScript, CanarySettings, Hop, ProbeItem
from deploy.canary.ledger import CanaryLedger, HopColour, HopCounts, HopState
from deploy.canary.probes import canary_name
from deploy.canary.status import HOUR_S, CanaryStatus, HopStatus, status_of_hop
from geo.spatial import DayEvent, identified
from waybill.daemon.backoff import Backoff
from waybill.record import Canary, Position, decode

# Records of probes: their probe, item and record id. Pure.

_PROBES: Final = 1_000
"""So many probes are remembered."""


class RecordOfProbe(NamedTuple):
    """A record of the canary's device. `place`: latitude and longitude of a fix; `name`: of a canary."""

    item: ProbeItem
    epoch: int
    seq: int
    place: tuple[float, float] | None = None
    name: str = ""

    @property
    def record_id(self) -> tuple[int, int]:
        """Epoch and seq: of one device these are its record id."""
        return self.epoch, self.seq


class Showing(NamedTuple):
    """What some records are to a place: items that are new there, how many came again under their record id, and how
    many were there under another id."""

    new: list[ProbeItem]
    again: int
    under_other_ids: int


class RecordBook:
    """Under which record ids the records of the newest probes showed at one place."""

    def __init__(self) -> None:
        self._probes: OrderedDict[int, dict[ProbeItem, tuple[int, int]]] = OrderedDict()

    def note(self, number: int, records: Iterable[RecordOfProbe]) -> Showing:
        """Takes in what shows of a probe."""
        known = self._probes.setdefault(number, {})
        while len(self._probes) > _PROBES:
            self._probes.popitem(last=False)
        new, again, others = list[ProbeItem](), 0, 0
        for record in records:
            before = known.get(record.item)
            # the first id that an item shows with is its own; whichever came later is the double
            if before is None:
                known[record.item] = record.record_id
                new.append(record.item)
            elif before == record.record_id:
                again += 1
            else:
                others += 1
        return Showing(new, again, others)


def records_of_batch(data: bytes, device: str) -> list[RecordOfProbe]:
    """The fixes and canaries in a message; of another device none. Raises WireError."""
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
    """How a record differs from what was sent; "": it does not."""
    if record.item.name == CANARY_RECORD:
        wanted = canary_name(device, number)
        return "" if record.name == wanted else f"a canary names {record.name[:80]!r}, not {wanted!r}"
    place = _places(script, number).get(record.item.t_ms)
    # a moment at which no fix was due is no item, and missing ones are counted elsewhere
    if place is None or record.place is None or place == record.place:
        return ""
    return f"a fix is at {record.place}, not at {place}"


@lru_cache(maxsize=64)
def _places(script: CanaryScript, number: int) -> dict[int, tuple[float, float]]:
    begins_ms = script.begins_ms(number)
    return {begins_ms + fix.after_ms: (fix.latitude, fix.longitude) for fix in script.fixes(number)}


# Events of probes in alerts and in the centre's table. Pure.

TOLERANCE_MS: Final = 5
"""The moment of a crossing is interpolated, and rounded to a millisecond."""


class EventOfProbe(NamedTuple):
    """An event at the canary's fence, and the id that it shows with."""

    id: str
    event: DayEvent


class EventBook:
    """Which events of the newest probes showed at one place."""

    def __init__(self, script: CanaryScript, tenant: str, device: str) -> None:
        self._script, self._tenant, self._device = script, tenant, device
        self._probes: OrderedDict[int, dict[str, str]] = OrderedDict()

    def knows(self, number: int, shown: EventOfProbe) -> bool:
        """Whether this event of a probe showed before, under the same id."""
        return self._probes.get(number, {}).get(shown.event.kind) == shown.id

    def note(self, number: int, shown: EventOfProbe) -> tuple[ProbeItem | None, str]:
        """The item of a probe that an event is, None if it was there before; and what is wrong with it ("": nothing).

        An event under another id than before is another event: the vehicle came in or went out twice.
        """
        known = self._probes.setdefault(number, {})
        while len(self._probes) > _PROBES:
            self._probes.popitem(last=False)
        kind, event = shown.event.kind, shown.event
        item = next((one for one in self._script.event_items(number) if one.name == kind), None)
        if item is None:
            return None, f"a probe has no event of the kind {kind!r}"
        before = known.setdefault(kind, shown.id)
        # the id follows from the facts: two ids are two facts
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
_COUNTERS: Final = (
    ("consumed", "waybill_canary_consumed_items_total", "Items that came"),
    ("delayed", "waybill_canary_delayed_items_total", "Of these, items of probes that were whole after the limit"),
    ("lost", "waybill_canary_lost_items_total", "Items that were at the hop before and did not come"),
    ("not_reached", "waybill_canary_not_reached_items_total", "Items that never came to the hop before"),
    ("doubled", "waybill_canary_doubled_items_total", "Items that are there twice where each is there once"),
    ("wrong", "waybill_canary_wrong_items_total", "Items of probes that are not what they should be"),
    ("repeated", "waybill_canary_repeated_items_total", "Items that came again in a topic, as they may"),
)


class CanaryMetrics:
    """The metrics of one canary, in a registry of their own. The label is the hop; the region is that of the target.

    A hop that is not watched has no samples.
    """

    def __init__(self, watched: Iterable[Hop] = tuple(Hop)) -> None:
        self.registry = registry = CollectorRegistry()
        self._healthy = Gauge("waybill_canary_healthy", "1 green, 0 red, NaN unknown", ["hop"], registry=registry)
        self._level = Gauge(
            "waybill_canary_service_level_ratio",
            "Of the last hour, or since it began: (consumed - delayed) / (consumed + lost); NaN: nothing was due",
            ["hop"],
            registry=registry,
        )
        self._counters = {name: Counter(metric, text, ["hop"], registry=registry) for name, metric, text in _COUNTERS}
        self._latency = Histogram(
            "waybill_canary_latency_seconds",
            "From an item's device time to the hop",
            ["hop"],
            buckets=_LATENCY_S,
            registry=registry,
        )
        self._probes = Counter("waybill_canary_probes_total", "Probes that were sent as a whole", registry=registry)
        self._cut = Counter("waybill_canary_cut_probes_total", "Probes that were not", registry=registry)
        self._last = Gauge(
            "waybill_canary_last_probe_timestamp_seconds",
            "When the newest probe was sent as a whole; NaN: none was since this process began",
            registry=registry,
        )
        self._last.set(nan)
        self._started = Gauge(
            "waybill_canary_started_timestamp_seconds",
            "When this process began: from then on probes are expected",
            registry=registry,
        )
        # from the start: a counter that appears with its first fault shows no increase
        for hop in watched:
            self.set_hop(HopState(hop, HopColour.UNKNOWN), HopCounts(), None)

    def set_hop(self, state: HopState, news: HopCounts, level: float | None) -> None:
        """A hop as it is now, and what its counts have grown by."""
        hop = state.hop.value
        self._healthy.labels(hop).set(_VALUE_OF.get(state.colour, nan))
        self._level.labels(hop).set(nan if level is None else level)
        for name, counter in self._counters.items():
            counter.labels(hop).inc(getattr(news, name))

    def on_latencies(self, hop: Hop, values_s: Iterable[float]) -> None:
        """So long items took to a hop."""
        histogram = self._latency.labels(hop.value)
        for value_s in values_s:
            histogram.observe(value_s)

    def on_begin(self, now_s: float) -> None:
        """The canary begins: from now on probes are expected."""
        self._started.set(now_s)

    def on_probe(self, now_s: float, *, is_whole: bool) -> None:
        """A probe was sent, or cut."""
        # a canary that cuts each probe is silent, too
        if not is_whole:
            self._cut.inc()
            return
        self._probes.inc()
        self._last.set(now_s)


STALE_PERIODS: Final = 3
"""After so many periods without a probe no hop is green."""
SILENT_S: Final = 30.0
"""An observer that has said nothing for so long cannot look."""


class CanaryWatch:
    """One canary's ledger. Any thread may call; the clock (seconds since 1970) is that of device times."""

    def __init__(self, settings: CanarySettings, clock: Callable[[], float] = time.time) -> None:
        self.settings, self.script = settings, CanaryScript(settings.script)
        self.clock = clock
        self.metrics = CanaryMetrics(settings.watched)
        self._started_s = clock()
        self.metrics.on_begin(self._started_s)
        limits = {hop: settings.limits.of(hop) for hop in settings.watched}
        stale_s = STALE_PERIODS * settings.script.period_s
        self._ledger = CanaryLedger(limits, settings.lost_after_s, stale_s)
        self._lock = threading.RLock()
        self._books = {hop: RecordBook() for hop in (Hop.REGION, Hop.CENTRE, Hop.TABLE)}
        self._blind: dict[Hop, str] = {}
        self._looked_s: dict[Hop, float] = {}
        self._not_sent = ""

    @lru_cache(maxsize=1_024)  # noqa: B019 - there is one for the life of the process
    def record_items(self, number: int) -> tuple[ProbeItem, ...]:
        """The records of a probe."""
        return self.script.record_items(number)

    def send(self, number: int) -> None:
        """A probe begins."""
        begins_s = self.script.begins_ms(number) / 1000
        with self._lock:
            self._ledger.send(number, self.script.items(number), begins_s, begins_s + self.script.driven_ms / 1000)
            self._not_sent = ""

    def hold(self, why: str) -> None:
        """No probe is sent yet."""
        with self._lock:
            self._not_sent = why

    def drop(self, number: int, why: str) -> None:
        """A probe was not sent as a whole."""
        with self._lock:
            self._ledger.drop(number)
            self._not_sent = why

    def show_records(self, hop: Hop, records: Iterable[RecordOfProbe]) -> None:
        """Records of the device are there: of each probe those that are new, again, or under another id."""
        of_probe: dict[int, list[RecordOfProbe]] = {}
        for record in records:
            of_probe.setdefault(self.script.number_at(record.item.t_ms), []).append(record)
        now_s = self.clock()
        with self._lock:
            for number, found in of_probe.items():
                # of a probe from before this process nothing is known
                if number not in self._ledger:
                    continue
                showing = self._books[hop].note(number, found)
                self._see(number, hop, showing.new, now_s)
                is_double = hop not in AT_LEAST_ONCE
                self._ledger.note_repeats(number, hop, 0 if is_double else showing.again)
                self._ledger.note_doubles(number, hop, showing.under_other_ids + (showing.again if is_double else 0))
                for record in found:
                    if fault := content_fault(self.script, self.settings.device, number, record):
                        self._ledger.judge(number, hop, fault)

    def show(self, number: int, hop: Hop, items: Sequence[ProbeItem]) -> None:
        """Items of a probe are there."""
        with self._lock:
            self._see(number, hop, items, self.clock())

    def judge(self, number: int, hop: Hop, why: str) -> None:
        """What is there of a probe is wrong; "": it is right after all."""
        with self._lock:
            self._ledger.judge(number, hop, why)

    def cannot_know(self, number: int, hop: Hop, why: str) -> None:
        """Nobody knows what should be there of a probe."""
        with self._lock:
            self._ledger.cannot_know(number, hop, why)

    def note_repeat(self, number: int, hop: Hop) -> None:
        """A message of a probe came again."""
        with self._lock:
            self._ledger.note_repeats(number, hop, 1)

    def is_short(self, number: int, hop: Hop) -> bool:
        """Whether something of a probe that has to show at a hop has not, or is wrong there."""
        with self._lock:
            return self._ledger.is_short(number, hop)

    def waiting(self, hop: Hop) -> list[int]:
        """The probes of which something is still to show at a hop, or is wrong there."""
        with self._lock:
            return self._ledger.waiting(hop)

    def numbers(self) -> list[int]:
        """The probes that are kept."""
        with self._lock:
            return self._ledger.numbers

    @contextmanager
    def looking(self, hops: Iterable[Hop]) -> Iterator[None]:
        """Around each look of an observer at its hops: what it raises makes them blind, until a look succeeds."""
        try:
            yield
        except Exception as error:
            self.cannot_look(hops, str(error) or type(error).__name__)
            raise
        with self._lock:
            for hop in hops:
                self._blind.pop(hop, None)
                self._looked_s[hop] = time.monotonic()

    def has_looked(self, hops: Iterable[Hop]) -> bool:
        """Whether each of some hops was looked at, and can be now."""
        with self._lock:
            return all(hop in self._looked_s and hop not in self._blind for hop in hops)

    def cannot_look(self, hops: Iterable[Hop], why: str) -> None:
        """Hops cannot be looked at."""
        with self._lock:
            for hop in hops:
                self._blind[hop] = why.splitlines()[0][:300]

    def status(self, *, buckets: bool = True) -> CanaryStatus:
        """What can be said of each hop now."""
        now_s = self.clock()
        with self._lock:
            states = self._ledger.states(now_s, self._all_blind())
            hops: list[HopStatus] = [
                status_of_hop(self._ledger, state, now_s=now_s, with_buckets=buckets) for state in states
            ]
            return CanaryStatus(
                region=self.settings.region,
                device=f"{self.settings.tenant}/{self.settings.device}",
                asked_s=now_s,
                started_s=self._started_s,
                sent=self._ledger.sent_since(now_s - HOUR_S),
                not_sent=self._not_sent,
                hops=tuple(hops),
            )

    def count(self) -> None:
        """Brings the metrics up to date; to be called once a second or so."""
        now_s = self.clock()
        with self._lock:
            states = self._ledger.states(now_s, self._all_blind())
            for state in (one for one in states if one.hop in self.settings.watched):
                news = self._ledger.take_news(state.hop, now_s)
                level = self._ledger.counts(state.hop, now_s - HOUR_S, now_s, now_s).level
                self.metrics.set_hop(state, news, level)

    def _see(self, number: int, hop: Hop, items: Sequence[ProbeItem], now_s: float) -> None:
        self.metrics.on_latencies(hop, self._ledger.see(number, hop, items, now_s))

    def _all_blind(self) -> dict[Hop, str]:
        now_s = time.monotonic()
        # an observer that hangs raises nothing
        silent = {hop: now_s - at_s for hop, at_s in self._looked_s.items() if now_s - at_s > SILENT_S}
        return {hop: f"no answer for {for_s:.0f} s" for hop, for_s in silent.items()} | self._blind


# Observers: each reads its hops in its own thread.

_FIRST_S: Final = 0.5
_MAX_S: Final = 10.0
"""The longest wait before a hop is looked at again that could not be."""
_STOP_S: Final = 5.0
_LOG = structlog.get_logger("canary")


class Observer(ABC):
    """What looks at `hops`, every `every_s` seconds. A look that raises is tried again, later and later."""

    hops: Collection[Hop]
    every_s: float = 0.5

    @abstractmethod
    def look(self) -> None:
        """Writes what it sees to the ledger; bounded in time."""

    def close(self) -> None:  # noqa: B027 - most observers hold nothing
        """Lets go of what it holds."""


class ObserverThread:
    """Runs one observer until `stop` is set."""

    def __init__(self, observer: Observer, watch: CanaryWatch, stop: threading.Event) -> None:
        self._observer, self._watch, self._stop = observer, watch, stop
        name = "+".join(observer.hops)
        self._thread = threading.Thread(target=self._run, name=f"observer-{name}", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def join(self) -> None:
        """Waits a while for its end; one that hangs ends with the process."""
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        backoff, hops = Backoff(_FIRST_S, _MAX_S, random.random), [hop.value for hop in self._observer.hops]
        while not self._stop.is_set():
            try:
                with self._watch.looking(self._observer.hops):
                    self._observer.look()
                backoff.reset()
                wait_s = self._observer.every_s
            except Exception as error:  # noqa: BLE001 - whatever it is: the hop is blind, and the others are looked at
                wait_s = backoff.take_delay_s()
                _LOG.warning("cannot look", hops=hops, error=str(error) or type(error).__name__)
            # not a sleep: a stop ends it at once
            self._stop.wait(wait_s)
        self._observer.close()
