"""What a canary says of itself, as one JSON object and as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, floor
from typing import Final

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from deploy.canary.config import CanarySettings, Hop
from deploy.canary.errors import CanaryNotRunning
from deploy.canary.ledger import CanaryLedger, HopColour, HopState
from deploy.canary.reference import amount_text, expected_minor
from waybill.daemon.status_reader import StatusUnavailable, fetch_status
from waybill.settings import Settings

HOUR_S: Final = 3600
_BUCKET_S: Final = 60
_TIMEOUT_S: Final = 5.0
_IN_SECONDS_S: Final = 120
"""A shorter time is said in seconds."""
_STYLE: Final = {
    HopColour.GREEN: "green",
    HopColour.RED: "bold red",
    HopColour.UNKNOWN: "yellow",
    HopColour.NOT_WATCHED: "dim",
}
_LEGEND: Final = (
    "state: of the newest probe that was due at the hop; all else is of the last hour, or since it began",
    "p50, p99: from an item's device time until it was seen at the hop",
    "limit: from when all of a probe was at the hop before, until all of it has to be at this one",
    "level: (consumed - delayed) / (consumed + lost); not reached: did not come through the hop before; not counted",
)
"""What the columns say that their names do not."""
_COUNTED: Final = {
    "consumed": "consumed",
    "delayed": "delayed",
    "lost": "lost",
    "not_reached": "not\nreached",
    "doubled": "doubled",
    "wrong": "wrong",
}
"""The columns of counts, under the words that metrics have, too."""


class LevelBucket(Settings):
    """A minute of device time: the service level of the probes that began in it. None: nothing was due."""

    begins_s: int
    level: float | None


class HopStatus(Settings):
    """One hop. Latencies, counts and the level are those of the probes of the last hour; None: there is none.

    `limit_s`: from when all of a probe was at the hop before; None: the hop is not watched.
    """

    hop: Hop
    colour: HopColour
    reason: str
    p50_s: float | None
    p99_s: float | None
    limit_s: float | None
    level: float | None
    consumed: int
    delayed: int
    lost: int
    not_reached: int
    doubled: int
    wrong: int
    repeated: int
    buckets: tuple[LevelBucket, ...] = ()


class CanaryStatus(Settings):
    """Everything that a canary says. `started_s`: when this process began, before which it knows of no probe.
    `sent`: the probes of the last hour. `not_sent`: why the newest one was not sent as a whole, or what the
    first one waits for; "": it was sent."""

    region: str
    device: str
    asked_s: float
    started_s: float
    sent: int
    not_sent: str
    hops: tuple[HopStatus, ...]

    @property
    def is_healthy(self) -> bool | None:
        """Whether each hop that is watched is green; None: none is red, and of one or more it is not known."""
        if self.of(HopColour.RED):
            return False
        return None if self.of(HopColour.UNKNOWN) or not self.of(HopColour.GREEN) else True

    def of(self, colour: HopColour) -> list[Hop]:
        """The hops of a colour."""
        return [one.hop for one in self.hops if one.colour is colour]


def status_of_hop(ledger: CanaryLedger, state: HopState, *, now_s: float, with_buckets: bool) -> HopStatus:
    """A hop with its figures of the last hour."""
    hop, since_s = state.hop, now_s - HOUR_S
    latencies, counts = ledger.latencies(hop, since_s), ledger.counts(hop, since_s, now_s, now_s)
    first = int(since_s) // _BUCKET_S + 1
    begins = [(first + at) * _BUCKET_S for at in range(HOUR_S // _BUCKET_S)] if with_buckets else []
    buckets = (LevelBucket(begins_s=one, level=ledger.counts(hop, one, one + _BUCKET_S, now_s).level) for one in begins)
    return HopStatus(
        hop=hop,
        colour=state.colour,
        reason=state.reason,
        p50_s=quantile(latencies, 0.5),
        p99_s=quantile(latencies, 0.99),
        limit_s=ledger.limit_s(hop),
        level=counts.level,
        consumed=counts.consumed,
        delayed=counts.delayed,
        lost=counts.lost,
        not_reached=counts.not_reached,
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


def read_canary_status(settings: CanarySettings) -> CanaryStatus:
    """What the canary says that runs on this machine with these settings. Raises CanaryNotRunning."""
    host, port, device = settings.status.host, settings.status.port, f"{settings.tenant}/{settings.device}"
    if not port:
        raise CanaryNotRunning(f"the canary {device} has no status: its status.port is 0; set a port")
    try:
        answer = CanaryStatus.model_validate(fetch_status(host, port, "status", timeout_s=_TIMEOUT_S), strict=False)
    except (StatusUnavailable, ValidationError) as error:
        raise CanaryNotRunning(
            f"no canary answers at http://{host}:{port}/status: {error}; is it running with this file?"
        ) from error
    # two files with the port that is there by default: the other canary's green is not this one's
    if (answer.region, answer.device) != (settings.region, device):
        raise CanaryNotRunning(
            f"at {host}:{port} answers the canary {answer.device} of region {answer.region}, not {device} of "
            f"{settings.region}: give each canary of this machine its own status.port"
        )
    return answer


def exit_status(statuses: Sequence[CanaryStatus | None]) -> int:
    """0: each hop that is watched is green. 1: one is red. 3: none is, and of one it is unknown, or no canary runs."""
    # no answer is no sign of health
    said = [None if one is None else one.is_healthy for one in statuses]
    return 1 if False in said else 3 if None in said else 0


def regions_table(statuses: Mapping[str, CanaryStatus | None]) -> Table:
    """The colour of each hop of several canaries, each under its name. None: it does not answer."""
    table = Table(title="canaries: hops of each region", title_justify="left")
    table.add_column("hop", no_wrap=True)
    for name in statuses:
        table.add_column(name, no_wrap=True)
    for hop in Hop:
        table.add_row(hop.value, *(_colour_of(status, hop) for status in statuses.values()))
    return table


def _colour_of(status: CanaryStatus | None, hop: Hop) -> Text:
    if status is None:
        return Text("no canary", style=_STYLE[HopColour.UNKNOWN])
    one = next(one for one in status.hops if one.hop is hop)
    return Text(f"{one.colour} {_percent(one.level)}".strip(), style=_STYLE[one.colour])


def status_table(status: CanaryStatus) -> Table:
    """Each hop with its colour, why, and its figures of the last hour."""
    asked = datetime.fromtimestamp(status.asked_s, UTC)
    table = Table(title=f"canary {status.device} of region {status.region}, {asked:%Y-%m-%d %H:%M:%S} UTC")
    table.title_justify = table.caption_justify = "left"
    for name in ("hop", "state", "p50", "p99", "limit", "level", *_COUNTED.values()):
        table.add_column(name, justify="left" if name in {"hop", "state"} else "right", no_wrap=name == "hop")
    for one in status.hops:
        counts = [getattr(one, name) for name in _COUNTED]
        table.add_row(
            one.hop.value,
            Text(one.colour.value, style=_STYLE[one.colour]),
            _seconds(one.p50_s),
            _seconds(one.p99_s),
            _limit(one.limit_s),
            _percent(one.level),
            *(str(count) if any(counts) else "" for count in counts),
        )
    # below it: a sentence in a narrow column is ten lines
    why = [f"{one.hop} is {one.colour}: {one.reason}" for one in status.hops if one.reason]
    sent = f"of {_span(status)}: {_probes(status.sent)}; {money_text(status)}"
    table.caption = caption = Text()
    if status.not_sent:
        caption.append(f"the newest probe was not sent: {status.not_sent}\n", style="red")
    caption.append("\n".join([*why, sent, *_LEGEND]))
    return table


def _span(status: CanaryStatus) -> str:
    """Of which time the figures are."""
    ran_s = max(status.asked_s - status.started_s, 0.0)
    # what came before is not known any more: it may have been lost
    if ran_s >= HOUR_S:
        return "the last hour"
    return f"the {f'{ran_s:.0f} s' if ran_s < _IN_SECONDS_S else f'{ran_s / 60:.0f} min'} since it began"


def money_text(status: CanaryStatus) -> str:
    """The service level of the amounts: each item of the last hop is one."""
    rated = next(one for one in status.hops if one.hop is Hop.RATED)
    owed = rated.consumed + rated.lost + rated.not_reached
    if rated.colour is HopColour.NOT_WATCHED:
        return "rated is not watched"
    if not owed:
        return "nothing was due at rated"
    text = f"rated right and in time: {_amount(rated.consumed - rated.delayed)} of {_amount(owed)}"
    return f"{text}, of which {_amount(rated.not_reached)} did not reach it" if rated.not_reached else text


def _amount(items: int) -> str:
    return amount_text(expected_minor(items))


def _probes(count: int) -> str:
    return "1 probe sent" if count == 1 else f"{count} probes sent"


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


def _limit(value: float | None) -> str:
    return "" if value is None else f"{value:g} s"


def _percent(level: float | None) -> str:
    # 99.996 % is not 100 %; and 0.57 times 10,000 is less than 5,700 to a float
    return "" if level is None else f"{floor(round(level * 10_000, 6)) / 100:g} %"
