"""Reconcile: the counts of a period from the device to the invoice, and the station at which a difference arose."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from cloud_jobs.billing.billing_period import days_text
from cloud_jobs.billing.units import MEASURE_OF, Meter, quantity_text
from cloud_jobs.lake.snapshots import read_snapshot
from cloud_jobs.reconcile import Comparison, ComparisonOutcome, Reconciliation, Station, outcome_of, reconcile
from console.bills import days_asked
from console.context import Console, Query
from console.errors import BadQuery, Busy
from console.page import Column, Fact, Field, Kind, Page, Row, Table, address
from console.pages.bills import ENGLISH, money

COLUMNS: Final = (
    Column("station", "Station"),
    Column("what", "What"),
    Column("place", "Of"),
    Column("expected", "Expected", Kind.MONEY),
    Column("found", "Found", Kind.MONEY),
    Column("difference", "Difference", Kind.MONEY),
    Column("outcome", "Outcome", Kind.STATE),
    Column("note", "Note"),
)
_COUNTED_BY: Final = {
    Station.DEVICE: "what devices stated that they made",
    Station.REGION: "what the gateways of each region brought",
    Station.CENTRE: "what the table of records has",
    Station.USAGE: "what was metered",
    Station.RATED: "what was charged",
    Station.INVOICED: "what was issued",
}
_BASE: Final = re.compile(r"(?:,| in) (mm|ms|byte)$")
"""The base unit at the end of a name."""
_HEADS: Final = ("distance, mm", "posted")
_MAX_NAMED: Final = 3
_MAX_KEPT: Final = 8
_WAIT_S: Final = 30.0

_kept: OrderedDict[tuple[Any, ...], Reconciliation] = OrderedDict()
_lock = threading.Lock()


def page(console: Console, query: Query) -> Page:
    """The stations of a period at the snapshot of its newest closing, for one payer or for all."""
    # the stations count records of all devices, and numbers of all documents
    query.viewer.require_all()
    asked = query.state("payer", "period")
    closed = console.bills.closings(None)
    form = (
        Field.choice("payer", "Payer", sorted({one.row["payer"] for one in closed})),
        Field.choice("period", "Period", dict.fromkeys(days_text(*one.days) for one in closed)),
    )
    if "period" not in asked:
        note = "Choose a period. It is compared at the snapshot of its newest closing."
        return Page("/reconcile", "Reconcile", state=asked, form=form, warnings=(note,), extra={"stations": []})
    made = _reconciled(console, asked.get("payer"), asked["period"])
    return Page(
        path="/reconcile",
        title=f"Reconcile {days_text(*made.days)}",
        tables=(Table.of("comparisons", "Comparisons", COLUMNS, made.comparisons, _row, empty="nothing to compare"),),
        facts=_facts(made, asked),
        state=asked | {"period": days_text(*made.days)},
        form=form,
        template="reconcile.html",
        extra={"stations": [*_stations(made.comparisons)]},
    )


def _reconciled(console: Console, payer: str | None, period: str) -> Reconciliation:
    """The comparison, kept until a table changes. One is computed at a time: it reads all records of the period."""
    days = days_asked(period)
    assert days is not None, "a period is asked for"
    closings = [one for one in console.bills.closings(days, payer) if one.days == days]
    if not closings:
        of = f" of {payer}" if payer else ""
        raise BadQuery(
            "period", f"nothing was closed for exactly {days_text(*days)}{of}; `waybill bill close` closes it"
        )
    newest = max(closings, key=lambda one: (one.row["snapshot"], one.row["number"]))
    versions = tuple(console.lake.version(name) for name in ("records", "closings", "documents"))
    key = str(console.lake.lake.location), newest.row["snapshot_id"], days, payer, versions
    if not _lock.acquire(timeout=_WAIT_S):
        raise Busy("another period is being reconciled; ask again in a minute")
    try:
        if key not in _kept:
            lake = console.lake.lake
            snapshot = read_snapshot(lake, newest.row["snapshot_id"])
            _kept[key] = reconcile(lake, snapshot, days, [payer] if payer else None, now=console.now())
            while len(_kept) > _MAX_KEPT:
                _kept.popitem(last=False)
        return _kept[key]
    finally:
        _lock.release()


def _facts(made: Reconciliation, asked: dict[str, str]) -> tuple[Fact, ...]:
    arose = first_difference(made.comparisons)
    is_different = made.outcome is ComparisonOutcome.DIFFERENT
    return (
        Fact("outcome", "Outcome", made.outcome.value, Kind.STATE),
        *([Fact("arose", "The difference arose at", arose and arose.value)] if is_different else []),
        Fact("payer", "Payer", asked.get("payer", "all payers")),
        Fact("snapshot", "Snapshot", made.snapshot.id, Kind.CODE),
        Fact("bills", "Bills", "closings and documents", href=address("bills", period=asked["period"])),
    )


def first_difference(comparisons: Sequence[Comparison]) -> Station | None:
    """The first station, in the order of a record's way, at which a count differs; None if none does."""
    differing = {one.station for one in comparisons if one.outcome is ComparisonOutcome.DIFFERENT}
    return next((one for one in Station if one in differing), None)


def _row(one: Comparison) -> Row:
    shown = {name: _text(one, getattr(one, name)) for name in ("expected", "found")}
    difference = one.difference
    return {
        "station": one.station.value,
        "name": one.name,
        "what": _BASE.sub("", one.name).replace("_", " "),
        "place": one.place,
        **shown,
        # nothing to compare with is not unknown
        "expected": shown["expected"] if one.expected is not None else "",
        "difference": _text(one, difference) if difference else "",
        "outcome": one.outcome.value,
        "note": one.note,
        "counts": {"expected": one.expected, "found": one.found, "difference": difference},
        "currency": one.currency,
    }


def _text(one: Comparison, count: int | None) -> str | None:
    """A count in the units that people use, without rounding."""
    if count is None:
        return None
    if one.currency:
        return money(count, one.currency)
    base = _BASE.search(one.name)
    meter = base and next(meter for meter in Meter if MEASURE_OF[meter].base == base[1])
    return f"{ENGLISH.number(quantity_text(meter, count))} {MEASURE_OF[meter].unit}" if meter else f"{count:,}"


def _head(of_station: Sequence[Comparison]) -> Comparison:
    """The comparison that stands for a station: of its main quantity, else the first."""
    return next((one for one in of_station if one.name in _HEADS and one.found is not None), of_station[0])


def _stations(comparisons: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    """Each station as a box: its outcome, what was counted there, and the first comparisons that are not equal."""
    arose = first_difference(comparisons)
    for station in Station:
        of_station = [one for one in comparisons if one.station is station]
        wrong = [one for one in of_station if one.outcome in (ComparisonOutcome.DIFFERENT, ComparisonOutcome.UNKNOWN)]
        wrong.sort(key=lambda one: one.outcome is not ComparisonOutcome.DIFFERENT)
        outcome = outcome_of(of_station).value if of_station else "unknown"
        yield {
            "name": station.value,
            "counted_by": _COUNTED_BY[station],
            "outcome": outcome,
            "arose": station is arose,
            "head": _row(_head(of_station)) if of_station else None,
            "wrong": [_row(one) for one in wrong[:_MAX_NAMED]],
            "more": max(0, len(wrong) - _MAX_NAMED),
        }
