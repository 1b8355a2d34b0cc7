"""Certificates as a table or JSON: whom they name, when they end, and which have another key beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waybill.identity.authority_folder import IssuedCertificate, OtherKeys
from waybill.identity.listed_revocations import NOT_REVOKED, UNKNOWN, ListedRevocations
from waybill.settings import printable

__all__ = ["console", "fact_text", "show_certificates"]

console = Console(highlight=False)
_BORDERS = 19
"""Of six columns: a line and two blanks for each, and the last line."""
_HEADINGS = "name", "what", "ends", "state", "revoked", "signed by"


def fact_text(value: object) -> str:
    """A fact for people and programs: a moment in UTC, all else as it is."""
    return f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else str(value)


def show_certificates(
    found: Sequence[IssuedCertificate],
    within: float,
    as_json: bool,
    revoked: ListedRevocations,
    others: OtherKeys | None = None,
) -> None:
    """Print them; exit status 1 where one ends within so many days, or ended so few days ago."""
    now, soon = datetime.now(UTC), timedelta(days=within)
    # One moment for all, so that two lines never contradict each other.
    listed = [revoked.state(one.issuer, one.serial, now) for one in found]
    rows = [(one, is_listed, _state(one, is_listed, now, soon)) for one, is_listed in zip(found, listed, strict=True)]
    more = {
        name: [one for one in keys if revoked.state(one.issuer, one.serial, now) in {NOT_REVOKED, UNKNOWN}]
        for name, keys in (others or {}).items()
    }
    if as_json:
        facts = [_fields(*row, more.get((row[0].name, row[0].what))) for row in rows]
        print(json.dumps(facts, indent=2))  # noqa: T201
    else:
        _print_table([_cells(*row, more.get((row[0].name, row[0].what), ())) for row in rows])
    raise typer.Exit(1 if any(state in {"ends soon", "ended"} for *_, state in rows) else 0)


def _cells(one: IssuedCertificate, is_listed: str, state: str, others: Sequence[IssuedCertificate]) -> tuple[str, ...]:
    keys = f", {len(others)} more key{'s' * (len(others) > 1)}" if others else ""
    return one.name, one.what, fact_text(one.not_after), state + keys, is_listed, one.issuer


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """What is long goes on in the next line, between words: a name or a date that is broken says nothing."""
    table = Table()
    columns = [[heading, *(printable(row[at]) for row in rows)] for at, heading in enumerate(_HEADINGS)]
    # Rich would take from each column alike; the longest words have to fit, and the rest goes to the first ones.
    least = [max(len(word) for text in column for word in text.split()) for column in columns]
    left = max(0, console.width - sum(least) - _BORDERS)
    for heading, column, width in zip(_HEADINGS, columns, least, strict=True):
        more = min(left, max(map(len, column)) - width)
        left -= more
        table.add_column(heading, overflow="fold", width=width + more)
    for row in rows:
        # as Text: Rich would read brackets in a name as markup
        table.add_row(*(Text(printable(cell)) for cell in row))
    # Where not even the words fit, it is wider than the screen.
    Console(highlight=False, width=max(console.width, sum(least) + _BORDERS)).print(table)


def _fields(
    one: IssuedCertificate, is_listed: str, state: str, others: Sequence[IssuedCertificate] | None
) -> dict[str, object]:
    # Of a file that is shown nobody knows of other keys.
    known = {} if others is None else {"other_keys": [_serial(other) for other in others]}
    return known | {
        "name": one.name,
        "what": one.what,
        "not_before": fact_text(one.not_before),
        "not_after": fact_text(one.not_after),
        "issuer": one.issuer,
        "serial": _serial(one),
        "file": str(one.file),
        "state": state,
        "revoked": is_listed,
    }


def _serial(one: IssuedCertificate) -> str:
    return f"{one.serial:040x}"


def _state(one: IssuedCertificate, is_listed: str, now: datetime, soon: timedelta) -> str:
    if one.is_refused:
        return "refused"
    if is_listed not in {NOT_REVOKED, UNKNOWN}:
        return is_listed
    if one.not_after <= now - soon:
        return "former"  # nobody renewed it for so long: whoever it named is gone
    if one.not_after <= now:
        return "ended"
    return "ends soon" if one.not_after <= now + soon else "good"
