"""The status of an access daemon for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.table import Table
from rich.text import Text

from gateway.access.status import AccessStatus
from gateway.status_answer import moment_text
from waybill.settings import one_line

__all__ = ["status_table"]

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
