"""An explained line as Rich tables and as JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from cloud_jobs.billing.rating import Charge, ChargeKind
from cloud_jobs.billing.units import FACTS, MEASURE_OF, Meter, amount_text, place_text, quantity_text
from cloud_jobs.explain.explanation import ExplainedHour
from cloud_jobs.explain.issued_line import ExplainedLine
from cloud_jobs.terminal import Column, FittedTable
from geo.reference.moments import stamp
from geo.spatial import ENGINE_VERSION

_WORDS: Final = {True: "yes", False: "NO", None: "unknown"}


def line_values(line: ExplainedLine, limit: int) -> dict[str, Any]:
    found = line.explanation
    key = found.charge.key
    return {
        "document": line.number,
        "line": line.line,
        "snapshot": line.snapshot.id,
        "account": key.account,
        "tenant": key.tenant,
        "device": key.device,
        "region": key.region,
        "meter": key.meter and key.meter.value,
        "zone": key.zone,
        "window": key.window,
        "kind": key.kind.value,
        "parts": (found.charge.parts or "").split(),
        "price": key.price,
        "currency": line.currency,
        "charge": _charge_values(found.charge),
        "posted_before": None if line.posted is None else _charge_values(line.posted),
        "is_void": line.is_void,
        "arithmetic": [{"step": step, "figure": figure} for step, figure in found.arithmetic],
        "hours": [
            {
                "hour": stamp(one.hour),
                "quantity_base": one.quantity,
                "seq_ranges": one.seq_ranges.document(),
                "digest": one.digest,
                "again": one.again,
                "agrees": one.agrees,
            }
            for one in found.hours[:limit]
        ],
        "hours_in_all": len(found.hours),
        "sum": {"quantity_base": found.quantity, "agrees": found.quantity_agrees},
        "digest": {"sha256": found.digest, "agrees": found.digest_agrees},
        "amount": {"minor": found.amount_minor, "agrees": found.amount_agrees},
        "engine_version": None if line.again is None else line.again.engine_version,
        "positions_erased_before": None if line.erased_before is None else stamp(line.erased_before),
        "agrees": found.agrees,
    }


def line_tables(line: ExplainedLine, limit: int) -> RenderableType:
    arithmetic = [made] if (made := _arithmetic_table(line)) else []
    key = line.explanation.charge.key
    hours = [_hours_table(line, limit)] if key.kind is ChargeKind.USAGE and key.meter not in FACTS else []
    return Group(*hours, *arithmetic, _checks_table(line), *map(Text, notes_of(line)))


def records_table(hour: datetime, records: Sequence[dict[str, Any]], count: int) -> FittedTable:
    """The first records of an hour; `count`: all of them. Without any mapping that column is left out."""
    if all(row["mapping"] is None for row in records):
        records = [{name: value for name, value in row.items() if name != "mapping"} for row in records]
    mapping = ("mapping",) if records and "mapping" in records[0] else ()
    names = ("epoch", "seq", "kind", "device time", "latitude", "longitude", "accuracy m", *mapping, "received")
    title = f"Records of the hour {stamp(hour)}"
    table = FittedTable(*(Column(name) for name in names), title=title)
    for row in records:
        table.add(*("" if value is None else _shown(value) for value in row.values()))
    if count > len(records):
        table.add("", "", f"and {count - len(records)} more")
    return table


def record_values(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: stamp(value) if isinstance(value, datetime) else value for name, value in row.items()} for row in records
    ]


def _hours_table(line: ExplainedLine, limit: int) -> FittedTable:
    found = line.explanation
    key, meter = found.charge.key, Meter(found.charge.key.meter or "")
    parts = (f"{key.tenant}/{key.device}", meter.value, place_text(meter, key.zone), f"at {key.price}")
    title = f"{line.number}, line {line.line}: {', '.join(part for part in parts if part)}"
    table = FittedTable(
        *(Column("hour (UTC)"), Column.number(MEASURE_OF[meter].unit), Column.text("records")),
        *(Column("digest"), Column.text("matches the records")),
        title=title,
    )
    for one in found.hours[:limit]:
        table.add(
            stamp(one.hour),
            quantity_text(meter, one.quantity),
            _ranges_text(one),
            one.digest,
            _WORDS[one.agrees],
        )
    if len(found.hours) > limit:
        table.add(f"and {len(found.hours) - limit} more")
    return table


def _arithmetic_table(line: ExplainedLine) -> FittedTable | None:
    """None if the arithmetic is unknown."""
    table = FittedTable(Column.text("step"), Column.number("figure"), title="How the amount is computed")
    found = line.explanation.arithmetic
    for step, figure in found:
        table.add(step, figure)
    return table if found else None


class Check(NamedTuple):
    """A value as it was charged and as it was found again, as text. `agrees`: None if unknown."""

    what: str
    charged: str
    found: str
    agrees: bool | None


def checks_of(line: ExplainedLine) -> tuple[Check, ...]:
    """Each value of the charge, held against what its hours give; only the amount, if it has none."""
    found = line.explanation
    charge, meter = found.charge, _meter(found.charge)
    amounts = (charge.amount_minor, found.amount_minor)
    stated, again = (
        "unknown" if one is None else f"{amount_text(one, line.currency)} {line.currency}" for one in amounts
    )
    amount = Check("amount", stated, again, found.amount_agrees)
    if meter is None:
        return (amount,)
    unit = MEASURE_OF[meter].unit
    hours = Check(
        "hours; recomputed the same",
        str(len(found.hours)),
        str(sum(one.agrees is True for one in found.hours)),
        _all(line),
    )
    return (
        Check(
            "sum of the events" if meter in FACTS else "sum of the hours",
            f"{quantity_text(meter, charge.quantity)} {unit}",
            f"{quantity_text(meter, found.quantity)} {unit}",
            found.quantity_agrees,
        ),
        Check(
            "digest of the events" if meter in FACTS else "digest of the rows of usage",
            "" if charge.metered is None else charge.metered.digest[:16],
            found.digest[:16],
            found.digest_agrees,
        ),
        *(() if meter in FACTS else (hours,)),
        amount,
    )


def _checks_table(line: ExplainedLine) -> FittedTable:
    # a note posts a difference; the newer closing is explained
    title, owed = (
        ("Comparison with the charge", "charged")
        if line.posted is None
        else ("Comparison with the amount owed", "owed")
    )
    table = FittedTable(Column.text("what"), Column(owed), Column("found"), Column("agrees"), title=title)
    for what, was, is_now, agrees in checks_of(line):
        table.add(what, was, is_now, Text(_WORDS[agrees], style="red" if agrees is False else ""))
    return table


def _all(line: ExplainedLine) -> bool | None:
    found = [one.agrees for one in line.explanation.hours]
    return False if False in found else None if None in found else True


def notes_of(line: ExplainedLine) -> Iterable[str]:
    """What a reader must know of the comparison: what was posted before, erased, or metered by another engine."""
    owed, before = line.explanation.charge, line.posted
    if line.is_void:
        yield "This note takes back what is explained here: all that was posted to its invoice."
    if before is not None:
        change = owed._replace(
            quantity=owed.quantity - before.quantity, amount_minor=owed.amount_minor - before.amount_minor
        )
        now, was, by_note = (_charge_text(one, line.currency) for one in (owed, before, change))
        yield f"Owed: {now}; posted before this note: {was}; posted by this note, the difference: {by_note}."
    if line.erased_before is not None:
        yield (
            f"Positions before {stamp(line.erased_before)} are erased: what was metered of them stands, and cannot be"
            " computed again."
        )
    if line.again is not None and line.again.is_of_other_engine:
        yield (
            f"Usage was metered by engine version {line.again.engine_version}; version {ENGINE_VERSION} is installed."
            " An hour that gives the same row agrees; others are unknown."
        )


def _charge_text(charge: Charge, currency: str) -> str:
    meter, amount = _meter(charge), f"{amount_text(charge.amount_minor, currency)} {currency}"
    return f"{quantity_text(meter, charge.quantity)} {MEASURE_OF[meter].unit}, {amount}" if meter else amount


def _ranges_text(hour: ExplainedHour) -> str:
    ranges = [(first, last) for _, seqs in hour.seq_ranges for first, last in seqs.ranges]
    shown = ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in ranges[:3])
    more = f", … ({len(ranges)} ranges)" if len(ranges) > 3 else ""
    return f"{hour.seq_ranges.count}: {shown}{more}"


def _charge_values(charge: Charge) -> dict[str, Any]:
    return {
        "quantity_base": charge.quantity,
        "free_base": charge.free,
        "amount_minor": charge.amount_minor,
        "digest": None if charge.metered is None else charge.metered.digest,
    }


def _meter(charge: Charge) -> Meter | None:
    """What a usage charge measures; None for other charges, which measure nothing."""
    return charge.key.meter if charge.key.kind is ChargeKind.USAGE else None


def _shown(value: Any) -> str:
    return stamp(value) if isinstance(value, datetime) else str(value)
