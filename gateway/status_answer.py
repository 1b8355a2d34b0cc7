"""Reading and showing the status of a running daemon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from rich.table import Table
from rich.text import Text

from gateway.errors import NoAnswer
from waybill.daemon.status_reader import StatusEndpoint, StatusUnavailable, fetch_status
from waybill.settings import one_line

_TIMEOUT_S: Final = 3.0
_LINE_CHARACTERS: Final = 1000
Read = TypeVar("Read", bound=BaseModel)


def read_answer(
    endpoint: StatusEndpoint, what: str, model: type[Read], nobody: str, called: str = "configuration"
) -> Read:
    """The answer at a path. Raises NoAnswer, which begins with `nobody`. `called`: the word for the settings."""
    url = f"http://{endpoint.host}:{endpoint.port}/{what}"
    try:
        # JSON has no enums
        values = fetch_status(endpoint.host, endpoint.port, what, timeout_s=_TIMEOUT_S)
        return model.model_validate(values, strict=False)
    except (StatusUnavailable, ValidationError) as error:
        raise NoAnswer(f"{nobody} answers at {url}: {error}; is it running with this {called}?") from error


def check_answering(endpoint: StatusEndpoint, answering: str, asked: str) -> None:
    """Check that the answering process is the one of the given settings. Raises NoAnswer."""
    # A copied file with an unchanged port would show another process's health.
    if answering != asked:
        raise NoAnswer(
            f"the process at {endpoint.host}:{endpoint.port} is {answering}, not {asked}: is that one running, with "
            "its own status.port?"
        )


def moment_text(moment_s: float) -> str:
    """Seconds since 1970 as ISO 8601."""
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def facts_table(title: str, facts: Iterable[tuple[str, object]]) -> Table:
    table = Table(title=Text(title), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        # Refused texts come from strangers: they must not move the cursor or break lines.
        table.add_row(name, Text(one_line(_words(value), _LINE_CHARACTERS)))
    return table


def _words(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(count)}" for name, count in value.items()) or "none"
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)
