"""What is wrong with a text that people wrote, and where: a line, and a column where the parser says it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["TextFault", "toml_fault"]

MAX_REASON_CHARACTERS: Final = 400
_AT_END: Final = "(at end of document)"
_AT: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")


class TextFault(NamedTuple):
    """What is wrong with a text: where (line from 1, 0: unknown; column from 1, 0: unknown), and why."""

    line: int
    column: int
    reason: str

    @property
    def place(self) -> str:
        """`:LINE:COLUMN` as far as known, to stand behind the name of a file."""
        return "".join(f":{number}" for number in (self.line, self.column) if number)

    def __str__(self) -> str:
        return f"{self.place[1:]}: {self.reason}" if self.place else self.reason


def toml_fault(text: str, error: ValueError) -> TextFault:
    """Where `parse_toml` found a text to be no TOML, and why."""
    # The parser says it in words only.
    said = str(error)
    at = _AT.search(said)
    line = int(at[1]) if at else text.count("\n") + 1 if said.endswith(_AT_END) else 0
    reason = f"is not valid TOML: {_AT.sub('', said)}"[:MAX_REASON_CHARACTERS]
    return TextFault(line, int(at[2]) if at else 0, reason)
