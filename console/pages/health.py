"""The health of everything on one page, and the canaries by region and hop."""

from __future__ import annotations

from typing import Final

from console.context import Console, Query
from console.health.canaries import HOPS, CanaryState
from console.health.checks import Check, Health, LinkLag, Outcome
from console.page import Column, Fact, Kind, Page, Row, Table

_ORDER: Final = (Outcome.WRONG, Outcome.UNKNOWN, Outcome.FINE)

CHECKS: Final = (
    Column("title", "What"),
    Column("outcome", "State", Kind.STATE),
    Column("found", "Found"),
    Column("since", "Since", Kind.TIME),
    Column("affects", "Affects"),
    Column("runbook", "Runbook"),
    Column("step", "What to do"),
    Column("command", "Shows more", Kind.CODE, optional=True),
)
FINE: Final = (Column("title", "What"), Column("outcome", "State", Kind.STATE), Column("found", "Found"))
LINKS: Final = (
    Column("source", "From"),
    Column("target", "To"),
    Column("state", "State", Kind.STATE),
    Column("backlog", "Messages waiting", Kind.COUNT),
    Column("delay_s", "Lag", Kind.DURATION),
    Column("problem", "Problem"),
)
HOP_COLUMNS: Final = (
    Column("region", "Region"),
    Column("device", "Canary"),
    Column("hop", "Hop"),
    Column("colour", "State", Kind.STATE),
    Column("reason", "Reason"),
    Column("p50_s", "p50", Kind.DURATION),
    Column("p99_s", "p99", Kind.DURATION),
    Column("limit_s", "Limit", Kind.DURATION),
    Column("level_percent", "Level %", Kind.NUMBER),
    *(Column(name, name.capitalize(), Kind.COUNT) for name in ("consumed", "delayed", "lost", "wrong")),
)
CANARIES: Final = (
    Column("region", "Region"),
    Column("device", "Canary"),
    *(Column(f"hop_{hop}", hop.capitalize(), Kind.STATE) for hop in HOPS),
    Column("asked_at", "Asked", Kind.TIME),
    Column("sent", "Probes in an hour", Kind.COUNT),
    Column("problem", "Problem"),
)


def page(console: Console, query: Query) -> Page:
    """What is wrong now, since when, what it affects, and what to do."""
    query.viewer.require_all()
    return health_page(console.health.read(), query.zone)


def health_page(health: Health, zone: str = "") -> Page:
    """The page of some checks; those that are not fine come first. Pure."""
    ordered = sorted(health.checks, key=lambda one: _ORDER.index(one.outcome))
    attention = [one for one in ordered if one.outcome is not Outcome.FINE]
    fine = [one for one in ordered if one.outcome is Outcome.FINE]
    counts = {kind: sum(one.outcome is kind for one in health.checks) for kind in _ORDER}
    tables = [
        Table.of("attention", "Wrong or unknown", CHECKS, attention, _row, empty="nothing is wrong or unknown"),
        Table.of("fine", "Fine", FINE, fine, _row),
    ]
    if health.links:
        tables.append(Table.of("links", "Replication links", LINKS, health.links, _link_row))
    tables.append(
        Table.of("not_checked", "Not checked", (Column("what", "What"),), health.not_checked, lambda one: {"what": one})
    )
    return Page(
        path="/health",
        title=f"Health: {health.headline}",
        tables=tuple(tables),
        facts=(
            Fact("outcome", "State", health.outcome.value, Kind.STATE),
            Fact("at", "Asked", health.now, Kind.TIME),
            *(Fact(kind.value, kind.value.capitalize(), counts[kind], Kind.COUNT) for kind in _ORDER),
        ),
        state={"zone": zone} if zone else {},
    )


def _row(one: Check) -> Row:
    is_wrong = one.outcome is Outcome.WRONG
    return {
        "id": one.id,
        "title": one.title,
        "outcome": one.outcome.value,
        "found": one.found,
        "since": one.since,
        "affects": one.affects if is_wrong else None,
        "runbook": one.runbook_text,
        "step": one.step or "see the runbook",
        "command": one.command,
    }


def _link_row(one: LinkLag) -> Row:
    state = "unknown" if one.connected is None else "connected" if one.connected else "not connected"
    return {
        "source": one.source,
        "target": one.target,
        "state": state,
        "backlog": one.backlog,
        "delay_s": one.delay_s,
        "problem": one.problem,
    }


def canaries_page(console: Console, query: Query) -> Page:
    """Regions and hops up to the money."""
    query.viewer.require_all()
    states = console.health.canaries()
    hops = [(one, hop) for one in states for hop in HOPS]
    note = "A hop is green if the newest due probe arrived there whole, once, on time and correct."
    red = sum("red" in one.colours for one in states)
    unknown = sum("unknown" in one.colours and "red" not in one.colours for one in states)
    return Page(
        path="/canaries",
        title="Canaries",
        tables=(
            Table.of("canaries", "Regions and hops", CANARIES, states, _canary_row, note=note, empty="no region"),
            Table.of("hops", "Hops in the last hour", HOP_COLUMNS, hops, lambda pair: _hop_row(*pair)),
        ),
        facts=(
            Fact("regions", "Regions", len({one.region for one in states}), Kind.COUNT),
            Fact("red", "Canaries with a red hop", red, Kind.COUNT),
            Fact("unknown", "Canaries with an unknown hop", unknown, Kind.COUNT),
        ),
        state=query.state(),
    )


def _canary_row(one: CanaryState) -> Row:
    problem = one.problem or one.not_sent
    colours = {f"hop_{name}": one.hop(name).colour for name in HOPS}
    known = {"region": one.region, "device": one.device, "asked_at": one.asked_at, "sent": one.sent}
    return {"id": f"{one.region}/{one.device}", **known, **colours, "problem": problem}


def _hop_row(one: CanaryState, name: str) -> Row:
    hop = one.hop(name)
    level = None if hop.level is None else hop.level * 100
    known = {"region": one.region, "device": one.device, "level_percent": level}
    return hop.model_dump(exclude={"level"}) | known
