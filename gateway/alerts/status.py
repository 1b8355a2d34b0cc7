"""Status of an alert process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict
from rich.table import Table

from gateway.alerts.config import MAX_LAG_S
from gateway.status_answer import facts_table, moment_text, read_answer
from waybill.daemon.status_reader import StatusEndpoint

# Lag of a process behind its partitions. Pure.

CLOCKS_APART_S: Final = 5.0
"""The age of a batch from further in the future is unknown: the clocks differ."""


class Lag(NamedTuple):
    """The lag of a process. `known_s`: the largest known lag, of partition `furthest`. `unknown`: partitions without
    one.
    """

    known_s: float | None
    furthest: str
    unknown: tuple[str, ...]

    @property
    def said_s(self) -> float | None:
        """The lag to show: None if a lag is unknown, unless a known one is too large already."""
        if self.known_s is None or (self.unknown and self.known_s <= MAX_LAG_S):
            return None
        return round(self.known_s, 3)

    @property
    def problem(self) -> str:
        """That alerts are late, or ""."""
        if self.known_s is None or self.known_s <= MAX_LAG_S:
            return ""
        return f"{self.furthest}: batches are read {self.known_s:.0f} s after they were published: alerts are late"

    @property
    def doubt(self) -> str:
        """That a lag is unknown, or ""."""
        if not self.unknown:
            return ""
        return (
            f"{self.unknown[0]}: how late it is is not known: the subscription is not connected or gets nothing of "
            "what there is, or batches come from the future, by a clock that is not ours"
        )


def age_s(published_ms: int, now_s: float) -> float | None:
    """The age of a batch; None if the publisher's clock is ahead of ours."""
    found_s = now_s - published_ms / 1000
    return None if found_s < -CLOCKS_APART_S else max(found_s, 0.0)


def lag_of(partitions: Iterable[tuple[str, float | None]]) -> Lag:
    each: Mapping[str, float | None] = dict(partitions)
    known = {name: lag_s for name, lag_s in each.items() if lag_s is not None}
    furthest = max(known, key=lambda name: known[name], default="")
    return Lag(known.get(furthest), furthest, tuple(sorted(each.keys() - known.keys())))


class AlertsStatus(BaseModel):
    """Counts are since `started_at` (ISO 8601). `docs/alerts-operation.md` explains each field.

    `healthy`: fences are current, every partition has an owner, and our partitions are rebuilt, no later than MAX_LAG_S
    and publish their alerts. None: we hold no partition, or a lag is unknown.
    """

    model_config = ConfigDict(frozen=True)

    process: str
    region: str
    pid: int
    started_at: str
    state: str = "starting"
    healthy: bool | None = False
    last_error: str = "starting"
    processes: int = 1
    partitions_held: tuple[str, ...] = ()
    partitions_of_others: tuple[str, ...] = ()
    partitions_unowned: tuple[str, ...] = ()
    partitions_standby: tuple[str, ...] = ()
    partitions_ready: tuple[str, ...] = ()
    standby_problem: str = ""
    lag_s: float | None = None
    fixes_evaluated: int = 0
    fixes_passed_over: dict[str, int] = {}
    devices_known: int = 0
    alerts_published: int = 0
    alerts_waiting: int = 0
    fences_current: bool = False
    fences_unreachable_since_s: float | None = None
    fences: int = 0
    gates: int = 0
    fences_refused: int = 0
    fence_last_refused: str = ""


def read_alerts_status(endpoint: StatusEndpoint) -> AlertsStatus:
    """Ask the process that runs with these settings. Raises NoAnswer."""
    return read_answer(endpoint, "status", AlertsStatus, "no alert process")


def alerts_table(status: AlertsStatus) -> Table:
    return facts_table(f"alert process {status.process}", _facts(status))


def _facts(status: AlertsStatus) -> Iterator[tuple[str, object]]:
    """Each fact with its value: what does not exist is not called unknown."""
    unread = "no, they are read" if status.fences_current else "they were not read yet"
    for name, value in status.model_dump(exclude={"process"}).items():
        said = name.replace("_", " ")
        if name == "fences_unreachable_since_s":
            yield said.removesuffix(" s"), unread if value is None else moment_text(value)
        elif name == "lag_s" and not status.partitions_held:
            yield said, "no partition is held"
        else:
            yield said, value
