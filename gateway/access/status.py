"""What an access daemon says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
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

# The status of an access daemon for people.

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


# The numbers of an access daemon.

# fine below a second, which is what is promised of a revocation
_STEP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class MirroredCounts:
    """What the registry, the enrolment and the readers of the brokers' logs count for themselves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        mirrored = partial(MirroredCounter, registry=registry)
        self.entries = mirrored(
            "waybill_access_entries_total", "Messages of the registry, by what became of them", ["outcome"]
        )
        self.entries_refused = mirrored(
            "waybill_access_entries_refused_total", "Of these refused, by reason", ["reason"]
        )
        self.published_again = mirrored(
            "waybill_access_entries_published_again_total",
            "What holds of a device, published again behind another message",
        )
        self.answers_dropped = mirrored(
            "waybill_access_answers_dropped_total",
            "Confirmations and refusals of publications for which there was no room",
        )
        self.topics_held = mirrored(
            "waybill_access_topics_held_total",
            "Publications that were refused because another producer has the topic for itself",
            ["topic"],
        )
        self.enrolments = mirrored(
            "waybill_access_enrolments_total", "Requests for certificates, by what became of them", ["outcome"]
        )
        self.connections_refused = mirrored(
            "waybill_access_connections_refused_total",
            "Connections that a broker refused, by its log",
            ["broker", "reason"],
        )
        self.publications_refused = mirrored(
            "waybill_access_publications_refused_total",
            "Publications that a broker refused, by its log",
            ["broker", "kind"],
        )

    def take(self, status: AccessStatus) -> None:
        """What the status says of this moment."""
        self.entries.set(status.entries_refused, "refused")
        self.answers_dropped.set(status.answers_dropped)
        self.published_again.set(status.entries_published_again)
        self.entries.set(status.entries_outranked, "outranked")
        for reason, count in status.entries_refused_by.items():
            self.entries_refused.set(count, reason)
        for topic, count in status.topics_held.items():
            self.topics_held.set(count, topic)
        for outcome, count in status.enrolments.items():
            self.enrolments.set(count, outcome)
        for broker, refused in status.connections_refused.items():
            for reason, count in refused.items():
                self.connections_refused.set(count, broker, reason)
        for broker, refused in status.publications_refused.items():
            # 0 from the start on: the first one is an increase for who alerts on it
            for kind in {*DeviceChannel, *refused}:
                self.publications_refused.set(refused.get(kind, 0), broker, kind)


class AccessMetrics:
    """Metrics in a registry of their own. `topics`: of the tenants' registries."""

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.mirrored = MirroredCounts(registry)
        for topic in topics:
            # 0 from the start on: the first one is an increase for who alerts on it
            self.mirrored.topics_held.set(0, topic)
        self.reloads = counter("waybill_access_reloads_total", "Signals to the broker to read its files")
        self.sessions_ended = counter("waybill_access_sessions_ended_total", "Sessions taken over so that they end")
        self.sessions_came_back = counter(
            "waybill_access_sessions_came_back_total", "Devices found connected again, and ended again"
        )
        self.steps_failed = counter("waybill_access_steps_failed_total", "Steps that are done again")
        self.changes_failed = counter(
            "waybill_access_changes_failed_total", "Changes that could not be applied, each time that they were tried"
        )
        self.lists = counter("waybill_access_lists_total", "Revocation lists of other regions, by outcome", ["outcome"])
        self.step_s = Histogram(
            "waybill_access_step_seconds",
            "From a change to the end of the sessions that it ends",
            registry=registry,
            buckets=_STEP_S,
        )
        self.closed = gauge("waybill_access_closed_devices", "Devices that may not connect")
        self.left_open = gauge(
            "waybill_access_left_open_devices", "Devices that may not connect, and whom the gateway alone keeps out"
        )
        self.revoked = gauge("waybill_access_revoked_certificates", "Certificates on the region's own list")
        self.list_bytes = gauge("waybill_access_list_bytes", "Bytes of the region's own list, of at most 5,000,000")
        self.list_ends = gauge(
            "waybill_access_list_ends_timestamp_seconds", "When the first list ends, seconds since 1970"
        )
        self.key_ends = gauge(
            "waybill_access_key_ends_timestamp_seconds", "When the daemon's own key ends, seconds since 1970; 0: never"
        )
        self.registry_up = gauge("waybill_access_registry_up", "1 while the registry is read to its end")
        self._counted = {
            "reloads": self.reloads,
            "sessions_ended": self.sessions_ended,
            "sessions_came_back": self.sessions_came_back,
            "steps_failed": self.steps_failed,
            "changes_failed": self.changes_failed,
        }
        self.healthy = gauge("waybill_access_healthy", "1 while healthy")

    @property
    def counts(self) -> dict[str, int]:
        """What was counted since the start, by the status's keys."""
        return {
            key: int(sample.value)
            for key, counter in self._counted.items()
            for metric in counter.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }

    def take(self, status: AccessStatus) -> None:
        """What the status says of this moment."""
        self.closed.set(status.devices_closed)
        self.list_bytes.set(status.list_bytes)
        self.left_open.set(status.devices_left_open)
        self.revoked.set(status.certificates_revoked)
        self.list_ends.set(min(status.lists.values(), default=0))
        self.key_ends.set(status.key_ends_s or 0)
        self.registry_up.set(status.registry_current)
        self.healthy.set(status.healthy)
        self.mirrored.take(status)


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
