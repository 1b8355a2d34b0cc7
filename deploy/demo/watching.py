"""What goes wrong in the demo's drive: each fault at its place of it, and whether it happened, and for how long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pulsar

from cloud_jobs.billing.contracts import CANARY
from cloud_jobs.lake.tables import Lake
from deploy.canary.config import LIMITS_S, CanarySettings
from deploy.canary.errors import CanaryNotRunning
from deploy.canary.ledger import HopColour
from deploy.canary.reference import contracts_text, fence_text, write_reference
from deploy.canary.status import CanaryStatus, HopStatus, read_canary_status
from deploy.demo.plan import DemoError
from deploy.demo.processes import ExpectedDevice, expect_devices, show_settings
from deploy.local import DaemonProcess, LocalStack, PortBook
from deploy.local.stack_settings import CANARY_TENANT, StackCanary, alert_process, canary_device, canary_settings
from geo.alerts import Alert, MalformedAlert, VerdictKind, decode_alert
from geo.spatial.event_ids import Revision, in_force
from simulator import VehicleMessage
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.settings import load

# Alerts of the demo, compared with their verdicts.

REPLAYED_AGE_S: Final = 3_000_000_000
"""The scenario drives on a fixed day, however long ago that is."""
_WAIT_MS: Final = 100
_OPERATION_S: Final = 10
# alerts come by the hundred; the screen shows that they do
_SAID_EVERY_S: Final = 10.0


def start_alert_processes(stack: LocalStack) -> None:
    """One for each region, returned from when all turn."""
    processes = {region: alert_process(stack, region, max_age_s=REPLAYED_AGE_S) for region in stack.topology.regions}
    for region, process in processes.items():
        show_settings(stack.folder, f"alerts-{region}.toml", process.folder / "alerts.toml")
        stack.add(process, wait=False)
    for process in processes.values():
        process.wait()


@dataclass(frozen=True, slots=True)
class AlertFindings:
    """What became of the alerts. Milliseconds from the batch in its region to the alert, there and read at the centre.

    `verdicts`: in force, by kind. `provisional`: alerts without one, or with one as if there were no alert. `twice`:
    verdicts that are there again. `unannounced`: verdicts on alerts that nobody read. `is_whole`: what was announced is
    the events in force and the withdrawn ids, which have none in common.
    """

    by_kind: dict[str, int]
    region_ms: tuple[int, int]
    centre_ms: tuple[int, int]
    verdicts: dict[str, int]
    provisional: int
    twice: int
    unannounced: int
    is_whole: bool

    @property
    def alerts(self) -> int:
        """How many there were."""
        return sum(self.by_kind.values())

    @property
    def holds(self) -> bool:
        """Whether there were alerts, each has one verdict, and there is no other."""
        return bool(self.alerts) and self.is_whole and not (self.provisional or self.twice or self.unannounced)

    @property
    def found(self) -> str:
        """In words."""
        wrong = {"without one": self.provisional, "there twice": self.twice, "on no alert": self.unannounced}
        counts = [f"{count} {what}" for what, count in (self.verdicts | wrong).items() if count]
        other = [] if self.is_whole else ["they are not of the events in force and what is withdrawn"]
        return f"{self.alerts} alerts; {', '.join([*counts, *other])}"


class AlertWatch:
    """Reads the alerts of all regions at the centre, each as often as it comes."""

    def __init__(self, stack: LocalStack) -> None:
        self._client = open_pulsar_client(
            stack.pulsar["hq"].service_url, stack.access("notifier"), timeout_s=_OPERATION_S
        )
        self._readers: list[Any] = []
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._seen: dict[str, tuple[Alert, int]] = {}
        self._said_s = time.monotonic()
        self._said = 0
        try:
            # what becomes of the canary's own alerts, the canary says
            for tenant in (one for one in stack.topology.operators if one != CANARY):
                for region in stack.topology.regions:
                    topic = f"persistent://{tenant}/alerts-{region}/alerts"
                    self._readers.append(self._client.create_reader(topic, pulsar.MessageId.earliest))
        except pulsar.PulsarException as error:
            self._client.close()
            raise DemoError(f"the alerts cannot be read at the centre: {error}") from error
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
        self._thread.start()

    @property
    def alerts(self) -> dict[str, tuple[Alert, int]]:
        """What came, by id: the alert as it came first, and when it was read (ms since 1970)."""
        with self._lock:
            return dict(self._seen)

    def news(self) -> str:
        """A line about the newest alert, now and then; empty where there is none."""
        found = self.alerts
        if len(found) == self._said or time.monotonic() - self._said_s < _SAID_EVERY_S:
            return ""
        self._said, self._said_s = len(found), time.monotonic()
        alert, read_ms = next(reversed(found.values()))
        what, ms = f"{alert.tenant}/{alert.device}: {alert.kind} {alert.place}", read_ms - alert.received_ms
        return (
            f"{len(found)} alerts at the centre; the newest, {what}, {ms} ms after its batch was in the region's topic"
        )

    def close(self) -> None:
        """Read no more."""
        self._stop.set()
        self._thread.join(_OPERATION_S)
        with contextlib.suppress(pulsar.PulsarException):
            self._client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for reader in self._readers:
                with contextlib.suppress(pulsar.PulsarException):
                    self._drain(reader)

    def _drain(self, reader: Any) -> None:
        while reader.has_message_available():
            message = reader.read_next(_WAIT_MS)
            read_ms = round(time.time() * 1000)
            with contextlib.suppress(MalformedAlert):
                alert = decode_alert(message.data())
                with self._lock:
                    self._seen.setdefault(alert.id, (alert, read_ms))
        self._stop.wait(0.01)


def find_verdicts(lake: Lake, alerts: dict[str, tuple[Alert, int]]) -> AlertFindings:
    """Holds the alerts that were read against the verdicts and the events in force. Raises LakeError.

    Those of canaries are left out: of the fleet's alerts they are none.
    """
    happened, said = _rows(lake, "geofence_events", "retracted"), _rows(lake, "verdicts", "verdict")
    return judge_alerts(alerts, happened, [*said])


def judge_alerts(
    alerts: dict[str, tuple[Alert, int]], happened: Iterable[dict[str, Any]], said: Collection[dict[str, Any]]
) -> AlertFindings:
    """The same of rows of the tables `geofence_events` and `verdicts`. Pure."""
    events = in_force(Revision(row["id"], row["revision"], row["id"], row["retracted"]) for row in happened)
    verdicts = in_force(Revision(row["id"], row["revision"], row["verdict"]) for row in said)
    withdrawn = {name for name, verdict in verdicts.items() if verdict == VerdictKind.WITHDRAWN}
    counts = Counter(verdicts.values())
    region_ms = [alert.raised_ms - alert.received_ms for alert, _ in alerts.values()]
    centre_ms = [read_ms - alert.received_ms for alert, read_ms in alerts.values()]
    return AlertFindings(
        by_kind=dict(Counter(alert.kind for alert, _ in alerts.values())),
        region_ms=_median_and_p99(region_ms),
        centre_ms=_median_and_p99(centre_ms),
        verdicts={kind.value: counts[kind] for kind in VerdictKind},
        # late is said of what the region did not say
        provisional=sum(1 for name in alerts if verdicts.get(name) in (None, VerdictKind.LATE)),
        twice=len(said) - len({(row["id"], row["revision"]) for row in said}),
        unannounced=sum(1 for name, kind in verdicts.items() if kind != VerdictKind.LATE and name not in alerts),
        is_whole=verdicts.keys() == events.keys() | withdrawn and not events.keys() & withdrawn,
    )


def _rows(lake: Lake, table: str, what: str) -> Iterator[dict[str, Any]]:
    """The revisions of all but canaries."""
    rows = lake.rows(table, ["tenant", "id", "revision", what]).to_pylist()
    return (row for row in rows if row["tenant"] != CANARY)


def _median_and_p99(values: list[int]) -> tuple[int, int]:
    if not values:
        return 0, 0
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


# The canary of the demo.

_SCRIPT: Final = {"fence_m": 100, "speed_mps": 40, "period_s": 10}
_LIMITS: Final = {"region": 30, "centre": 30, "alert": 30, "table": 90}
"""Of a machine whose cores the fleet, three clusters and Spark share."""
_ONCE_S: Final = 3600
"""Of what a job computes that runs once: what is there has to be right, and nothing of it is late."""


@dataclass(frozen=True, slots=True)
class CanaryFindings:
    """What the canary said when all was through. `status`: None: it did not answer."""

    status: CanaryStatus | None

    @property
    def holds(self) -> bool:
        """Whether it answered, and each hop that it watches is green."""
        return self.status is not None and self.status.healthy is True

    @property
    def found(self) -> str:
        """In words: a hop that is not green is named, and so is one that is not watched."""
        if self.status is None:
            return "the canary did not answer"
        watched = [one for one in self.status.hops if one.colour is not HopColour.NOT_WATCHED]
        green = self.status.of(HopColour.GREEN)
        others = [f"{one.hop} {one.colour}: {one.reason}" for one in watched if one.colour is not HopColour.GREEN]
        unwatched = [f"{hop} is not watched" for hop in self.status.of(HopColour.NOT_WATCHED)]
        counted = f"{len(green)} of {len(watched)} hops green{_longer_limits(watched)}"
        return "; ".join([counted, *others, *unwatched])

    def values(self) -> dict[str, Any]:
        """For programs."""
        status = None if self.status is None else self.status.model_dump(mode="json")
        return {"green": self.holds, "status": status}


def _longer_limits(hops: Iterable[HopStatus]) -> str:
    """Which hops have more time than they have by default: green says less of them."""
    longer = [f"{one.hop} {one.limit_s:g} s" for one in hops if one.limit_s and one.limit_s > LIMITS_S[one.hop]]
    return f" (with limits longer than by default: {', '.join(longer)})" if longer else ""


class DemoCanary:
    """One canary of a region, in the stack's folder. `lake`: where the tables of the demo are."""

    def __init__(self, stack: LocalStack, region: str, lake: str) -> None:
        self._stack, self._region, folder = stack, region, stack.folder / "canary"
        folder.mkdir(parents=True, exist_ok=True)
        store, self._token_file = stack.object_store, folder / "device.token"
        self._config = folder / "canary.toml"
        plan = StackCanary(
            region=region,
            folder=folder / "vehicle",
            token_file=self._token_file,
            status_port=PortBook(folder / "ports.json").port("canary"),
            lake=lake,
            object_store=store.job_settings() if store else "",
            script=_SCRIPT,
            limits=_LIMITS | dict.fromkeys(("usage", "rated"), _ONCE_S),
        )
        self._config.write_text(canary_settings(stack, plan))
        self.settings = load(CanarySettings, self._config)
        self._process = DaemonProcess.python(
            canary_device(region), "waybill", ["canary", "run", "--config", str(self._config)], folder / "log"
        )

        self._found = CanaryFindings(None)

    def write_reference(self) -> Path:
        """Its fence and its contracts, in force from this month on, in a folder of their own: the folder."""
        folder = self._config.parent / "reference"
        month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        # the demo's period is over: what it closes and issues has no canary
        write_reference(folder, fence_text(self.settings), contracts_text(self.settings, month), replace=True)
        return folder

    def start(self) -> None:
        """Starts it: it enrols its vehicle, and drives as soon as somebody listens. Raises IdentityError, DemoError."""
        if self._stack.access_daemons:
            device = ExpectedDevice((CANARY_TENANT, self.settings.device), self._region, self._token_file)
            expect_devices(self._stack, [device], "is the canary of the demo")
        show_settings(self._stack.folder, f"{canary_device(self._region)}.toml", self._config)
        self._stack.add(self._process, wait=False)

    def finish(self, poll: Callable[[], None], timeout_s: float) -> CanaryFindings:
        """What it says once each hop that it watches is green, or when the time is over; then it ends."""
        ends = time.monotonic() + timeout_s
        while not (found := self.newest()).holds and time.monotonic() < ends:
            poll()
        self._stack.remove(self._process.name)
        return found

    def newest(self) -> CanaryFindings:
        """What it says now; what it said last, where it has ended."""
        if self._process.pid is not None:
            self._found = CanaryFindings(self._status())
        return self._found

    def _status(self) -> CanaryStatus | None:
        try:
            return read_canary_status(self.settings)
        except CanaryNotRunning:
            return None


_ASKED_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFindings:
    """Which faults happened in a drive, and for how long. None: it did not happen.

    `stored_while_cut`: records that the vehicles of the cut region had and could not deliver when it was healed.
    `dead_s`: from the SIGKILL until the agent was started again. `cut_at_least_s`: so long the cut was meant to be.
    """

    region: str
    killed: str
    silent: str
    cut_at_least_s: float
    cut_s: float | None = None
    stored_while_cut: int = 0
    dead_s: float | None = None
    is_silenced: bool = False

    @property
    def holds(self) -> bool:
        """Whether each fault happened, and the cut lasted and kept something back: else the drive proves nothing."""
        return (
            self.cut_s is not None
            and self.cut_s >= self.cut_at_least_s
            and self.stored_while_cut > 0
            and self.dead_s is not None
            and self.is_silenced
        )

    @property
    def found(self) -> str:
        """In words."""
        uplink, agent = f"uplink of {self.region}", f"agent of {self.killed}"
        cut = f"cut for {self.cut_s:.1f} s, {self.stored_while_cut:,} records waited" if self.cut_s else "never cut"
        dead = f"dead for {self.dead_s:.1f} s" if self.dead_s is not None else "never killed"
        return f"{uplink} {cut}; {agent} {dead}; {self.silent} {'' if self.is_silenced else 'never '}lost its link"


class FaultSchedule:
    """Faults, each at its share of a drive. The drive's thread stops at each until the thread that makes them did.

    So a fault has its place among the messages however late the drive is. `steps`: pairs of share and act.
    """

    def __init__(self, steps: Iterable[tuple[float, Callable[[], None]]]) -> None:
        self._steps = sorted(steps, key=lambda step: step[0])
        self._awaited = threading.Event()
        self._made = threading.Event()
        self._ended = threading.Event()

    def through(self, messages: Iterable[VehicleMessage], duration_s: float) -> Iterator[VehicleMessage]:
        """The messages, for the drive's thread: it waits where a fault is due, also behind the last one."""
        remaining = [share for share, _ in self._steps]
        for message in messages:
            while remaining and message.offset_s >= remaining[0] * duration_s:
                self._wait()
                del remaining[0]
            yield message
        for _ in remaining:
            self._wait()

    def make_due(self) -> None:
        """Makes the fault that the drive waits for, if it waits: for the other thread."""
        if self._awaited.is_set():
            self._awaited.clear()
            self._steps.pop(0)[1]()
            self._made.set()

    def end(self) -> None:
        """Nobody makes faults any more: who waits for one goes on."""
        self._ended.set()

    def _wait(self) -> None:
        self._made.clear()
        self._awaited.set()
        while not self._made.wait(_ASKED_EVERY_S):
            if self._ended.is_set():
                return
