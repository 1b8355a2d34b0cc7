"""What a canary says of itself, as one JSON object and as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import Final

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from deploy.canary.errors import CanaryNotRunning
from deploy.canary.expected_bill import amount_text, expected_minor
from deploy.canary.hops import Hop
from deploy.canary.ledger import NOT_WATCHED, CanaryLedger
from deploy.canary.probe_at_hop import HopColour, HopState
from runtime.status_reader import StatusUnavailable, fetch_status
from settings import Settings

__all__ = [
    "CanaryStatus",
    "HopStatus",
    "LevelBucket",
    "buckets_table",
    "exit_status",
    "read_canary_status",
    "regions_table",
    "status_of_hop",
    "status_table",
]

_HOUR_S: Final = 3600
_BUCKET_S: Final = 60
_TIMEOUT_S: Final = 5.0
_STYLE: Final = {HopColour.GREEN: "green", HopColour.RED: "bold red", HopColour.UNKNOWN: "yellow"}


class LevelBucket(Settings):
    """A minute of device time: the service level of the probes that began in it. None: nothing was due."""

    begins_s: int
    level: float | None


class HopStatus(Settings):
    """One hop. Latencies, counts and the level are those of the probes of the last hour; None: there is none."""

    hop: Hop
    colour: HopColour
    reason: str
    p50_s: float | None
    p99_s: float | None
    level: float | None
    consumed: int
    delayed: int
    lost: int
    doubled: int
    wrong: int
    repeated: int
    buckets: tuple[LevelBucket, ...] = ()


class CanaryStatus(Settings):
    """Everything that a canary says. `not_sent`: why the newest probe was not sent as a whole; "": it was."""

    region: str
    device: str
    asked_s: float
    not_sent: str
    hops: tuple[HopStatus, ...]

    @property
    def is_healthy(self) -> bool | None:
        """Whether each hop that is watched is green; None: none is red, and of one or more it is not known."""
        if self.of(HopColour.RED):
            return False
        unknown = [one for one in self.hops if one.colour is HopColour.UNKNOWN and one.reason != NOT_WATCHED]
        return None if unknown or not self.of(HopColour.GREEN) else True

    def of(self, colour: HopColour) -> list[Hop]:
        """The hops of a colour."""
        return [one.hop for one in self.hops if one.colour is colour]


def status_of_hop(ledger: CanaryLedger, state: HopState, *, now_s: float, with_buckets: bool) -> HopStatus:
    """A hop with its figures of the last hour."""
    hop, since_s = state.hop, now_s - _HOUR_S
    latencies, counts = ledger.latencies(hop, since_s), ledger.counts(hop, since_s, now_s, now_s)
    first = int(since_s) // _BUCKET_S + 1
    begins = [(first + at) * _BUCKET_S for at in range(_HOUR_S // _BUCKET_S)] if with_buckets else []
    buckets = (LevelBucket(begins_s=one, level=ledger.counts(hop, one, one + _BUCKET_S, now_s).level) for one in begins)
    return HopStatus(
        hop=hop,
        colour=state.colour,
        reason=state.reason,
        p50_s=quantile(latencies, 0.5),
        p99_s=quantile(latencies, 0.99),
        level=counts.level,
        consumed=counts.consumed,
        delayed=counts.delayed,
        lost=counts.lost,
        doubled=counts.doubled,
        wrong=counts.wrong,
        repeated=counts.repeated,
        buckets=tuple(buckets),
    )


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """The value that at least this share of the values does not exceed; None of none."""
    if not ascending:
        return None
    return ascending[max(0, ceil(share * len(ascending)) - 1)]


def read_canary_status(port: int) -> CanaryStatus:
    """What the canary on this machine says whose status is at a port. Raises CanaryNotRunning."""
    try:
        return CanaryStatus.model_validate(
            fetch_status("127.0.0.1", port, "status", timeout_s=_TIMEOUT_S), strict=False
        )
    except (StatusUnavailable, ValidationError) as error:
        raise CanaryNotRunning(f"no canary answers at port {port}: {error}") from error


def exit_status(statuses: Sequence[CanaryStatus | None]) -> int:
    """0: each hop that is watched is green. 1: one is red. 3: none is, and of one it is unknown, or no canary runs."""
    # no answer is no sign of health
    said = [None if one is None else one.is_healthy for one in statuses]
    return 1 if False in said else 3 if None in said else 0


def regions_table(statuses: Mapping[str, CanaryStatus | None]) -> Table:
    """The colour of each hop in each region. None: no canary answers there."""
    table = Table(title="canaries: hops of each region", title_justify="left")
    table.add_column("hop", no_wrap=True)
    for region in statuses:
        table.add_column(region, no_wrap=True)
    for hop in Hop:
        table.add_row(hop.value, *(_colour_of(status, hop) for status in statuses.values()))
    return table


def _colour_of(status: CanaryStatus | None, hop: Hop) -> Text:
    if status is None:
        return Text("no canary", style=_STYLE[HopColour.UNKNOWN])
    one = next(one for one in status.hops if one.hop is hop)
    colour = NOT_WATCHED if one.reason == NOT_WATCHED else one.colour.value
    return Text(f"{colour} {_percent(one.level)}".strip(), style=_STYLE[one.colour])


def status_table(status: CanaryStatus) -> Table:
    """Each hop with its colour, why, and its figures of the last hour."""
    asked = datetime.fromtimestamp(status.asked_s, UTC)
    table = Table(title=f"canary {status.device} of region {status.region}, {asked:%Y-%m-%d %H:%M:%S} UTC")
    table.title_justify = table.caption_justify = "left"
    for name in ("hop", "state", "p50", "p99", "level", "items", "late", "missing", "double", "wrong"):
        table.add_column(name, justify="left" if name in {"hop", "state"} else "right", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=12)
    for one in status.hops:
        table.add_row(
            one.hop.value,
            Text(one.colour.value, style=_STYLE[one.colour]),
            _seconds(one.p50_s),
            _seconds(one.p99_s),
            _percent(one.level),
            *(str(count) if one.level is not None else "" for count in _counts(one)),
            Text(one.reason),
        )
    table.caption = Text(_money(status))
    if status.not_sent:
        table.caption = Text(f"the newest probe was not sent: {status.not_sent}", style="red")
    return table


def _counts(one: HopStatus) -> tuple[int, ...]:
    return one.consumed, one.delayed, one.lost, one.doubled, one.wrong


def _money(status: CanaryStatus) -> str:
    """The service level of the amounts: each item of the last hop is one."""
    rated = next(one for one in status.hops if one.hop is Hop.RATED)
    if rated.level is None:
        return "of the last hour; nothing was due at rated"
    came, due = expected_minor(rated.consumed - rated.delayed), expected_minor(rated.consumed + rated.lost)
    return f"of the last hour; rated right and in time: {amount_text(came)} of {amount_text(due)}"


def buckets_table(status: CanaryStatus) -> Table:
    """The service level of each minute of the last hour in which something was due, by device time."""
    table = Table(title=f"service level of region {status.region} by device time (UTC)", title_justify="left")
    table.add_column("minute", no_wrap=True)
    for one in status.hops:
        table.add_column(one.hop.value, justify="right", no_wrap=True)
    for minute in zip(*(one.buckets for one in status.hops), strict=True):
        # a minute in which nothing was due is no row
        if any(bucket.level is not None for bucket in minute):
            begins = datetime.fromtimestamp(minute[0].begins_s, UTC)
            table.add_row(f"{begins:%H:%M}", *(_percent(bucket.level) for bucket in minute))
    return table


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _percent(level: float | None) -> str:
    # 99.996 % is not 100 %
    return "" if level is None else f"{int(level * 10_000) / 100:g} %"
