"""What a canary says about itself, as one JSON object and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil, floor
from typing import Final

from rich.table import Table
from rich.text import Text

from gateway.canary.config import CanarySettings, Hop
from gateway.canary.ledger import CanaryLedger, HopColour, HopState
from gateway.status_answer import check_answering, read_answer
from waybill.settings import Settings

HOUR_S: Final = 3600
_STYLE: Final = {
    HopColour.GREEN: "green",
    HopColour.RED: "bold red",
    HopColour.UNKNOWN: "yellow",
    HopColour.NOT_WATCHED: "dim",
}


class HopStatus(Settings):
    """One hop: latencies, counts and service level of the probes of the last hour; None: there is none.

    `limit_s`: counted from when the whole probe was at the hop before; None: the hop is not watched.
    """

    hop: Hop
    colour: HopColour
    reason: str = ""
    p50_s: float | None = None
    p99_s: float | None = None
    limit_s: float | None = None
    level: float | None = None
    consumed: int = 0
    delayed: int = 0
    lost: int = 0
    wrong: int = 0


class CanaryStatus(Settings):
    """`sent`: probes of the last hour. `not_sent`: why the newest one was not sent as a whole, or ""."""

    region: str
    device: str
    asked_s: float
    sent: int
    not_sent: str
    hops: tuple[HopStatus, ...]

    @property
    def healthy(self) -> bool | None:
        """Whether each watched hop is green; None: no hop is red, but at least one is unknown."""
        if self.of(HopColour.RED):
            return False
        return None if self.of(HopColour.UNKNOWN) or not self.of(HopColour.GREEN) else True

    def of(self, colour: HopColour) -> list[Hop]:
        return [one.hop for one in self.hops if one.colour is colour]


def status_of_hop(ledger: CanaryLedger, state: HopState, now_s: float) -> HopStatus:
    hop, since_s = state.hop, now_s - HOUR_S
    latencies, counts = ledger.latencies(hop, since_s), ledger.counts(hop, since_s, now_s)
    return HopStatus(
        hop=hop,
        colour=state.colour,
        reason=state.reason,
        p50_s=quantile(latencies, 0.5),
        p99_s=quantile(latencies, 0.99),
        limit_s=ledger.limits_s.get(hop),
        level=counts.level,
        consumed=counts.consumed,
        delayed=counts.delayed,
        lost=counts.lost,
        wrong=counts.wrong,
    )


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """The smallest value that is not below this share of the values; None without values."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)] if ascending else None


def read_canary_status(settings: CanarySettings) -> CanaryStatus:
    """Ask the canary that runs on this machine with these settings. Raises NoAnswer."""
    answer = read_answer(settings.status, "status", CanaryStatus, "no canary", called="file")
    # two files with the default port: the other canary's green is not this one's
    asked = f"canary {settings.tenant}/{settings.device} of region {settings.region}"
    check_answering(settings.status, f"canary {answer.device} of region {answer.region}", asked)
    return answer


def status_table(status: CanaryStatus) -> Table:
    """Each hop with its colour, and its figures of the last hour; the reasons stand below."""
    asked = datetime.fromtimestamp(status.asked_s, UTC)
    table = Table(title=f"canary {status.device} of region {status.region}, {asked:%Y-%m-%d %H:%M:%S} UTC")
    table.title_justify = table.caption_justify = "left"
    for name in ("hop", "state", "p50", "p99", "limit", "level", "consumed", "delayed", "lost", "wrong"):
        table.add_column(name, justify="left" if name in {"hop", "state"} else "right", no_wrap=name == "hop")
    for one in status.hops:
        table.add_row(
            one.hop.value,
            Text(one.colour.value, style=_STYLE[one.colour]),
            _seconds(one.p50_s),
            _seconds(one.p99_s),
            "" if one.limit_s is None else f"{one.limit_s:g} s",
            # 99.996 % is not 100 %
            "" if one.level is None else f"{floor(round(one.level * 10_000, 6)) / 100:g} %",
            *map(str, (one.consumed, one.delayed, one.lost, one.wrong)),
        )
    why = [f"{one.hop} is {one.colour}: {one.reason}" for one in status.hops if one.reason]
    table.caption = caption = Text()
    if status.not_sent:
        caption.append(f"the newest probe was not sent: {status.not_sent}\n", style="red")
    caption.append("\n".join([*why, f"probes sent in the last hour: {status.sent}"]))
    return table


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
