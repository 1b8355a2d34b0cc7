"""Compares the alerts that regions raised with the verdicts of the centre: each alert has exactly one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import pulsar

from cloud_jobs.lake.tables import Lake
from deploy.local import LocalStack, PulsarCluster
from geo.alerts import AlertVerdict, VerdictKind, decode_alert, decode_verdict
from geo.spatial.event_ids import Revision, in_force
from waybill.pulsar.pulsar_client import open_pulsar_client

_OPERATION_S = 10
_READ_MS = 5_000
_Decoded = TypeVar("_Decoded")


class VerdictRow(NamedTuple):
    """A row of the table `verdicts`."""

    id: str
    revision: int
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertAudit:
    """Counts of ids, or of (id, revision).

    `in_force`: verdicts in force by kind. `without`: announced ids without a verdict, or with `late`, which is for
    events that no region announced. `twice`: revisions that the table has more than once. `unannounced`: other
    verdicts on ids that no region announced. `unpublished`: revisions that differ between the table and its topic.
    `is_whole`: the ids with a verdict are the events in force and the withdrawn ones, which have no id in common.
    """

    announced: int
    in_force: Mapping[str, int]
    without: int
    twice: int
    unannounced: int
    unpublished: int
    is_whole: bool

    @property
    def holds(self) -> bool:
        """Whether there were alerts, and each has exactly one verdict, which is published."""
        wrong = self.without + self.twice + self.unannounced + self.unpublished
        return bool(self.announced) and self.is_whole and not wrong

    @property
    def summary(self) -> str:
        wrong = {
            "without a verdict": self.without,
            "there twice": self.twice,
            "on no alert": self.unannounced,
            "not published": self.unpublished,
        }
        counts = [f"{count} {what}" for what, count in {**self.in_force, **wrong}.items() if count]
        differing = [] if self.is_whole else ["verdicts and events differ"]
        return f"{self.announced} alerts: {', '.join([*counts, *differing])}"


def audit_alerts(
    announced: Collection[str],
    events: Iterable[Revision[str]],
    verdicts: Collection[VerdictRow],
    published: Iterable[AlertVerdict],
) -> AlertAudit:
    """Compares announced ids with the tables of events and verdicts, and with the topic of verdicts. Pure."""
    ids = {*announced}
    kinds = in_force(Revision(row.id, row.revision, row.verdict) for row in verdicts)
    happened = in_force(events).keys()
    counts = Counter(kinds.values())
    withdrawn = {name for name, kind in kinds.items() if kind == VerdictKind.WITHDRAWN}
    rows = {(row.id, row.revision): row.verdict for row in verdicts}
    messages = {(one.id, one.revision): str(one.verdict) for one in published}
    return AlertAudit(
        announced=len(ids),
        in_force={kind.value: counts[kind] for kind in VerdictKind},
        without=sum(kinds.get(name) in (None, VerdictKind.LATE) for name in ids),
        twice=len(verdicts) - len(rows),
        unannounced=sum(kind != VerdictKind.LATE and name not in ids for name, kind in kinds.items()),
        unpublished=len({*rows.items()} ^ {*messages.items()}),
        is_whole=kinds.keys() == happened | withdrawn and not happened & withdrawn,
    )


def audit_stack_alerts(stack: LocalStack, lake: Lake, tenants: Collection[str]) -> AlertAudit:
    """The audit of these tenants on a running stack. Raises PulsarException, LakeError."""
    topology = stack.topology
    centres = [name for name in topology.centres if stack.pulsar[name].pid is not None]
    announced: set[str] = set()
    published: list[AlertVerdict] = []
    for tenant in tenants:
        for name in centres:
            published += _read(stack.pulsar[name], f"persistent://{tenant}/events/verdicts", decode_verdict)
        for region in topology.regions:
            topic = f"persistent://{tenant}/alerts-{region}/alerts"
            for name in {topology.regions[region].cluster, *centres}:
                announced.update(alert.id for alert in _read(stack.pulsar[name], topic, decode_alert))
    events = lake.rows("geofence_events", ["tenant", "id", "revision", "retracted"]).to_pylist()
    verdicts = lake.rows("verdicts", ["tenant", *VerdictRow._fields]).to_pylist()
    return audit_alerts(
        announced,
        [
            Revision(row["id"], row["revision"], row["id"], row["retracted"])
            for row in events
            if row["tenant"] in tenants
        ],
        [VerdictRow(row["id"], row["revision"], row["verdict"]) for row in verdicts if row["tenant"] in tenants],
        published,
    )


def _read(cluster: PulsarCluster, topic: str, decode: Callable[[bytes], _Decoded]) -> Iterator[_Decoded]:
    client = open_pulsar_client(cluster.service_url, cluster.access, timeout_s=_OPERATION_S)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            yield decode(reader.read_next(_READ_MS).data())
    finally:
        client.close()
