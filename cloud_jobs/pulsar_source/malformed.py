"""What of a message cannot be held by its column: the reason, and the bytes, instead of an exception.

A producer sets every field of a message as it likes, and a broker looks at none of them. Pure.
"""

from collections.abc import Callable, Sequence
from typing import Any

LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: Python and Spark's text form of a timestamp know none after it."""

ENCRYPTED = "value is encrypted"

_MAX_BYTES = 256
"""Most bytes of a field that a reason shows."""


class MalformedFields:
    """The reasons by row, for the rows that have one."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}

    def note(self, row: int, reason: str) -> None:
        """One more reason for a row."""
        known = self.reasons.get(row)
        self.reasons[row] = f"{known}; {reason}" if known else reason

    def texts(
        self, field: str, read: Callable[[Sequence[Any]], list[Any]], messages: Sequence[Any], row: int
    ) -> list[Any]:
        """What `read` gives of the messages, the first of which is that row; None where a text is not UTF-8."""
        try:
            return read(messages)
        except UnicodeDecodeError:
            return [self._text(field, read, message, row + index) for index, message in enumerate(messages)]

    def _text(self, field: str, read: Callable[[Sequence[Any]], list[Any]], message: Any, row: int) -> Any:
        try:
            return read([message])[0]
        except UnicodeDecodeError as error:
            self.note(row, f"{field} not UTF-8: {_shown(error.object)}")
            return None

    def times(self, field: str, times_ms: list[int], row: int) -> list[int]:
        """Times that a timestamp holds; 0 (none) in the place of others."""
        if not times_ms or (min(times_ms) >= 0 and max(times_ms) <= LAST_MS):
            return times_ms
        for index, time_ms in enumerate(times_ms):
            if not 0 <= time_ms <= LAST_MS:
                self.note_time(row + index, field, time_ms)
        return [time_ms if 0 <= time_ms <= LAST_MS else 0 for time_ms in times_ms]

    def note_time(self, row: int, field: str, time_ms: int) -> None:
        """The row's time is none that a timestamp holds."""
        self.note(row, f"{field} not a time of the years 1970 to 9999: {time_ms} ms")


def _shown(data: bytes) -> str:
    return data[:_MAX_BYTES].hex() + (f"... ({len(data)} bytes)" if len(data) > _MAX_BYTES else "")
