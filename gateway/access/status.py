"""The status and metrics of an access daemon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import Histogram
from prometheus_client.registry import CollectorRegistry
from pydantic import BaseModel, ConfigDict
from rich.table import Table

from gateway.status_answer import facts_table, moment_text, read_answer
from waybill.daemon.status_reader import StatusEndpoint
from waybill.daemon.status_server import MirroredCounter, StatusGauges


def status_table(status: AccessStatus) -> Table:
    facts = status.model_dump()
    unreachable_since_s, key_ends_s = facts.pop("registry_unreachable_since_s"), facts.pop("key_ends_s")
    if unreachable_since_s is not None:
        facts["registry_unreachable_since"] = moment_text(unreachable_since_s)
    facts["key_ends"] = "never, or not known" if key_ends_s is None else moment_text(key_ends_s)
    facts["lists"] = {f"{issuer} until": moment_text(end_s) for issuer, end_s in status.lists.items()}
    return facts_table(f"access daemon of {status.region}", [(name.replace("_", " "), facts[name]) for name in facts])


_STEP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Fine below a second, the promised time of a revocation."""
# The status's key of each counter: the name of its metric, what it counts, and its labels.
_COUNTERS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "entries_refused_by": ("entries_refused_total", "Messages of the registry that were refused", ("reason",)),
    "entries_published_again": ("entries_published_again_total", "Registry entries published again", ()),
    "topics_held": ("topics_held_total", "Publications refused because of an exclusive producer", ("topic",)),
    "enrolments": ("enrolments_total", "Certificate requests by result", ("outcome",)),
    "connections_refused": ("connections_refused_total", "Connections that a broker refused", ("broker", "reason")),
    "reloads": ("reloads_total", "Signals to the broker to read its files", ()),
    "sessions_ended": ("sessions_ended_total", "Sessions ended", ()),
    "sessions_came_back": ("sessions_came_back_total", "Devices found connected again, and ended again", ()),
    "steps_failed": ("steps_failed_total", "Steps that are repeated", ()),
    "changes_failed": ("changes_failed_total", "Changes that could not be applied", ()),
}
_GAUGES: Final = {
    "devices_closed": ("closed_devices", "Devices that may not connect"),
    "devices_left_open": ("left_open_devices", "Devices that may not connect, and that only the gateway keeps out"),
    "certificates_revoked": ("revoked_certificates", "Certificates on the region's own list"),
    "list_bytes": ("list_bytes", "Bytes of the region's own list, of at most 5,000,000"),
    "first_list_ends_s": ("list_ends_timestamp_seconds", "When the first list ends, seconds since 1970"),
    "key_ends_s": ("key_ends_timestamp_seconds", "When the daemon's own key ends, seconds since 1970; NaN: never"),
    "registry_current": ("registry_up", "1 while the registry is read to its end"),
    "healthy": ("healthy", "1 while healthy"),
}


class AccessMetrics:
    """`topics`: of the tenants' registries. `counts`: what the daemon's parts count, by the status's keys."""

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self.registry = registry = CollectorRegistry()
        self.counts: Counter[str] = Counter()
        about, name = "From a change to the end of the sessions that it ends", "waybill_access_step_seconds"
        self.step_s = Histogram(name, about, registry=registry, buckets=_STEP_S)
        self._counters = {
            key: MirroredCounter(f"waybill_access_{name}", text, labels, registry=registry)
            for key, (name, text, labels) in _COUNTERS.items()
        }
        self._gauges = StatusGauges("waybill_access", _GAUGES, registry)
        for topic in topics:
            # 0 from the start, so that the first one is an increase.
            self._counters["topics_held"].set(0, topic)

    def show(self, status: AccessStatus) -> None:
        self._gauges.set(status)
        for key in _COUNTERS:
            self._count(key, getattr(status, key))

    def _count(self, key: str, count: object, *labels: str) -> None:
        if isinstance(count, Mapping):
            for label, one in count.items():
                self._count(key, one, *labels, str(label))
        elif isinstance(count, int):
            self._counters[key].set(count, *labels)


class AccessStatus(BaseModel):
    """One moment of an access daemon. Moments are seconds since 1970.

    `healthy`: the registry is read to its end, and the broker has what follows from it; `last_error` says why not.
    `registry_unreachable_since_s`: None while it is read. `lists`: by issuer, until when each list holds.
    `list_bytes`: of the region's own list, as it is sent to other regions.
    `devices_left_open`: devices that may not connect and that neither the broker's rules nor a list keep out.
    `key_ends_s`: until when the daemon's own key is trusted; None: for good.
    `entries_published_again`: entries that were displaced on the topic. `topics_held`: by topic, how often another
    producer had it exclusively. `connections_refused`: by broker (`devices`, `claims`) and reason.
    """

    model_config = ConfigDict(frozen=True)

    region: str
    pid: int
    started_at: str
    healthy: bool = False
    last_error: str = "starting"
    registry_current: bool = False
    registry_unreachable_since_s: float | None = None
    devices_known: int = 0
    devices_closed: int = 0
    devices_left_open: int = 0
    list_bytes: int = 0
    certificates_revoked: int = 0
    rules_version: int = 0
    lists: dict[str, float] = {}
    key_ends_s: float | None = None
    entries_refused_by: dict[str, int] = {}
    last_entry_refused: str = ""
    entries_published_again: int = 0
    topics_held: dict[str, int] = {}
    enrolments: dict[str, int] = {}
    connections_refused: dict[str, dict[str, int]] = {}
    sessions_ended: int = 0
    sessions_came_back: int = 0
    reloads: int = 0
    steps_failed: int = 0
    changes_failed: int = 0

    @property
    def first_list_ends_s(self) -> float:
        return min(self.lists.values(), default=0)


def read_access_status(endpoint: StatusEndpoint) -> AccessStatus:
    """Ask the daemon that runs with these settings. Raises NoAnswer."""
    return read_answer(endpoint, "status", AccessStatus, "no access daemon")
