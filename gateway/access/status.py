"""What an access daemon says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import Gauge, Histogram
from prometheus_client.registry import CollectorRegistry
from pydantic import BaseModel, ConfigDict
from rich.table import Table
from rich.text import Text

from gateway.access.config import AccessEndpoint
from gateway.access.enrolment import RefusedRequest
from gateway.status_answer import moment_text, read_answer
from waybill.daemon.status_server import MirroredCounter
from waybill.record import DeviceChannel
from waybill.settings import one_line

# The status as Rich tables.

_SHOWN: Final = 5
"""Of refusals, the last ones; `--json` has all that are kept."""
_LINE_CHARACTERS: Final = 1000


def status_table(status: AccessStatus) -> Table:
    """A line for each thing that is known; refusals a line each, the last ones last."""
    table = Table(title=Text(f"access daemon of {status.region}"), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, lines in _rows(status):
        # Names and details are of whoever was refused: nothing in them moves a cursor or makes a line.
        shown = (one_line(line, _LINE_CHARACTERS) for line in lines or ["none"])
        table.add_row(name.replace("_", " "), Text("\n".join(shown)))
    return table


def _rows(status: AccessStatus) -> Iterator[tuple[str, list[str]]]:
    refused = {"enrolments_refused", "last_publications_refused"}
    yield "healthy", ["yes" if status.healthy else f"no: {status.last_error}"]
    unread = "no, it is read" if status.registry_current else "it was not read yet"
    moments = {"registry_unreachable_since_s": unread, "key_ends_s": "never, or not known"}
    for name, value in status.model_dump(exclude={"region", "healthy", "last_error", *refused}).items():
        if name in moments:
            yield name.removesuffix("_s"), [moments[name] if value is None else moment_text(value)]
        elif name == "lists":
            yield "lists_end", [f"{issuer}: {moment_text(end_s)}" for issuer, end_s in value.items()]
        else:
            yield name, [_counts(value) if isinstance(value, Mapping) else str(value)]
    asked = [f"{moment_text(one.at_s)} {one.sender}: {one.reason}: {one.detail}" for one in status.enrolments_refused]
    yield "enrolments_refused", _last(asked)
    sent = [
        f"{one.at} {one.sender} at {one.broker}: {one.kind}, {one.times} times, {one.topic}"
        for one in status.last_publications_refused
    ]
    yield "publications_refused_last", _last(sent)


def _counts(value: Mapping[str, object]) -> str:
    parts = ((name, _counts(one) if isinstance(one, Mapping) else str(one)) for name, one in value.items())
    return ", ".join(f"{name} {text}" for name, text in parts) or "none"


def _last(lines: list[str]) -> list[str]:
    left_out = [f"{len(lines) - _SHOWN} before that, see --json"] if len(lines) > _SHOWN else []
    return left_out + lines[-_SHOWN:]


# Metrics of an access daemon.

# fine below a second, which is what is promised of a revocation
_STEP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "entries": ("Messages of the registry, by what became of them", ("outcome",)),
    "entries_refused": ("Of these refused, by reason", ("reason",)),
    "entries_published_again": ("Entries published again because another message came last", ()),
    "answers_dropped": ("Confirmations and refusals of publications for which there was no room", ()),
    "topics_held": ("Publications that were refused because another producer has the topic for itself", ("topic",)),
    "enrolments": ("Requests for certificates, by what became of them", ("outcome",)),
    "connections_refused": ("Connections that a broker refused, by its log", ("broker", "reason")),
    "publications_refused": ("Publications that a broker refused, by its log", ("broker", "kind")),
    "lists": ("Revocation lists of other regions, by outcome", ("outcome",)),
    "reloads": ("Signals to the broker to read its files", ()),
    "sessions_ended": ("Sessions taken over so that they end", ()),
    "sessions_came_back": ("Devices found connected again, and ended again", ()),
    "steps_failed": ("Steps that are done again", ()),
    "changes_failed": ("Changes that could not be applied", ()),
}
_GAUGES: Final = {
    "closed_devices": "Devices that may not connect",
    "left_open_devices": "Devices that may not connect, and whom the gateway alone keeps out",
    "revoked_certificates": "Certificates on the region's own list",
    "list_bytes": "Bytes of the region's own list, of at most 5,000,000",
    "list_ends_timestamp_seconds": "When the first list ends, seconds since 1970",
    "key_ends_timestamp_seconds": "When the daemon's own key ends, seconds since 1970; 0: never",
    "registry_up": "1 while the registry is read to its end",
    "healthy": "1 while healthy",
}
_OWN_COUNTS: Final = ("reloads", "sessions_ended", "sessions_came_back", "steps_failed", "changes_failed")


class AccessMetrics:
    """Metrics in a registry of their own. `topics`: of the tenants' registries.

    `counts`: what the parts of the daemon count, by the status's keys; `lists`: of other regions, by outcome.
    """

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self.registry = registry = CollectorRegistry()
        self.counts: Counter[str] = Counter(dict.fromkeys(_OWN_COUNTS, 0))
        self.lists: Counter[str] = Counter()
        about, name = "From a change to the end of the sessions that it ends", "waybill_access_step_seconds"
        self.step_s = Histogram(name, about, registry=registry, buckets=_STEP_S)
        self._counters = {
            key: MirroredCounter(f"waybill_access_{key}_total", text, labels, registry=registry)
            for key, (text, labels) in _COUNTERS.items()
        }
        self._gauges = {key: Gauge(f"waybill_access_{key}", text, registry=registry) for key, text in _GAUGES.items()}
        for topic in topics:
            # 0 from the start on: the first one is an increase for who alerts on it
            self._counters["topics_held"].set(0, topic)

    def take(self, status: AccessStatus, entries_taken: int = 0) -> None:
        """What the status says of this moment."""
        refused_publications = {
            # 0 from the start on, see above
            broker: {kind: refused.get(kind, 0) for kind in {*DeviceChannel, *refused}}
            for broker, refused in status.publications_refused.items()
        }
        counted: dict[str, object] = {
            "entries": {
                "taken": entries_taken,
                "refused": status.entries_refused,
                "outranked": status.entries_outranked,
            },
            "entries_refused": status.entries_refused_by,
            "entries_published_again": status.entries_published_again,
            "answers_dropped": status.answers_dropped,
            "topics_held": status.topics_held,
            "enrolments": status.enrolments,
            "connections_refused": status.connections_refused,
            "publications_refused": refused_publications,
            "lists": self.lists,
            **self.counts,
        }
        for key, count in counted.items():
            self._count(key, count)
        gauges = {
            "closed_devices": status.devices_closed,
            "left_open_devices": status.devices_left_open,
            "revoked_certificates": status.certificates_revoked,
            "list_bytes": status.list_bytes,
            "list_ends_timestamp_seconds": min(status.lists.values(), default=0),
            "key_ends_timestamp_seconds": status.key_ends_s or 0,
            "registry_up": status.registry_current,
            "healthy": status.healthy,
        }
        for key, value in gauges.items():
            self._gauges[key].set(value)

    def _count(self, key: str, count: object, *labels: str) -> None:
        if isinstance(count, Mapping):
            for label, one in count.items():
                self._count(key, one, *labels, str(label))
        elif isinstance(count, int):
            self._counters[key].set(count, *labels)


SHOWN_CHARACTERS = 200


class RefusedEnrolment(BaseModel):
    """A request for a certificate that was refused: when (seconds since 1970), who asked, and why."""

    model_config = ConfigDict(frozen=True)

    at_s: float
    sender: str
    reason: str
    detail: str

    @classmethod
    def of(cls, refused: RefusedRequest) -> RefusedEnrolment:
        """As the status has it; what a sender wrote is cut."""
        return cls(
            at_s=refused.at.timestamp(),
            sender=refused.sender[:SHOWN_CHARACTERS],
            reason=refused.reason,
            detail=refused.detail[:SHOWN_CHARACTERS],
        )


class RefusedPublications(BaseModel):
    """Publications that a broker's rules refused: when (its local time), the sender's true name, and how many."""

    model_config = ConfigDict(frozen=True)

    broker: str
    at: str
    sender: str
    kind: str
    topic: str
    times: int


class AccessStatus(BaseModel):
    """One moment of an access daemon. Moments are seconds since 1970.

    `healthy`: the registry is read to its end, and the broker has what follows from it. `last_error`: why it is not.
    `entries_refused_by`: messages of the registry that are no entries or that nobody signed who may, by reason.
    `entries_published_again`: what holds of a device, because another message came last.
    `topics_held`: how often another producer had a topic for itself, so that nothing was published there, by topic.
    `list_bytes`: of the region's own list, as it is sent to other regions: at most 5 MB.
    `devices_left_open`: those that may not connect, and whom neither a name in the rules nor a list keeps out.
    `answers_dropped`: confirmations and refusals of publications that nobody hears, for want of room.
    `registry_unreachable_since_s`: None while it is read. `lists`: by issuer, until when each list holds.
    `key_ends_s`: until when the daemon's own key is trusted, None for good.
    `enrolments`: requests for certificates by what became of them; `enrolments_refused`: the last that were refused.
    `changes_failed`: how often one could not be applied to what the broker is to have; it is tried again.
    `connections_refused`: by broker (`devices`, `claims`) and reason, since the logs that are there begin.
    `publications_refused`: by broker and kind, as long; `last_publications_refused`: the last of them.
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
    entries_refused: int = 0
    entries_refused_by: dict[str, int] = {}
    entries_outranked: int = 0
    entries_published_again: int = 0
    topics_held: dict[str, int] = {}
    answers_dropped: int = 0
    last_entry_refused: str = ""
    enrolments: dict[str, int] = {}
    enrolments_refused: list[RefusedEnrolment] = []
    connections_refused: dict[str, dict[str, int]] = {}
    publications_refused: dict[str, dict[str, int]] = {}
    last_publications_refused: list[RefusedPublications] = []
    sessions_ended: int = 0
    sessions_came_back: int = 0
    reloads: int = 0
    steps_failed: int = 0
    changes_failed: int = 0


def read_access_status(endpoint: AccessEndpoint) -> AccessStatus:
    """Ask the daemon that runs with these settings. Raises NoAnswer."""
    return read_answer(endpoint, "status", AccessStatus, "no access daemon")
