"""Alerts of the demo as they happen: read at the centre while the vehicles drive, and held against their verdicts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pulsar

from cloud_jobs.billing.contracts import CANARY
from cloud_jobs.lake.tables import Lake
from deploy.demo.errors import DemoError
from deploy.demo.shown_settings import show_settings
from deploy.local import LocalStack
from deploy.local.alert_process import alert_process
from geo.alerts import Alert, MalformedAlert, VerdictKind, decode_alert
from geo.spatial.event_ids import Revision, in_force
from waybill.pulsar.pulsar_client import open_pulsar_client

__all__ = ["AlertFindings", "AlertWatch", "find_verdicts", "judge_alerts", "start_alert_processes"]

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
