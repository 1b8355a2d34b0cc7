"""Weekly price windows in local time."""

from __future__ import annotations

from datetime import time
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import PlainSerializer, PlainValidator, model_validator

from cloud_jobs.billing.contracts.fields import Contract, Id

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
QUARTERS_OF_A_DAY: Final = 96
QUARTERS_OF_A_WEEK: Final = 7 * QUARTERS_OF_A_DAY
_MINUTES: Final = 15
_NUMBER_OF: Final[dict[Weekday, int]] = {day: number for number, day in enumerate(get_args(Weekday))}


def _on_a_quarter(given: object) -> time:
    try:
        made = given if isinstance(given, time) else time.fromisoformat(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError("write a time of the day, for instance 22:00:00") from None
    if made.tzinfo is not None:
        raise ValueError(f"{made} has an offset; windows use the payer's local time")
    if made.minute % _MINUTES or made.second or made.microsecond:
        raise ValueError(f"{made} is not on a quarter of an hour, the unit of usage")
    return made


TimeOfDay = Annotated[
    time, PlainValidator(_on_a_quarter), PlainSerializer(lambda one: one.isoformat(), return_type=str, when_used="json")
]


class Window(Contract):
    """A weekly window of local time, on quarters of an hour. `days`: the days on which it begins.

    If `end` is not after `begin`, the window ends on the next day.
    """

    id: Id
    days: tuple[Weekday, ...]
    begin: TimeOfDay
    end: TimeOfDay

    @model_validator(mode="after")
    def _has_days(self) -> Self:
        if not self.days:
            raise ValueError(f'window {self.id!r} has no days; write days = ["mon", "tue"], or so')
        if len(set(self.days)) != len(self.days):
            raise ValueError(f"window {self.id!r} names a day twice")
        return self

    @property
    def quarters(self) -> frozenset[int]:
        """Its quarters of the week, counted from Monday 00:00."""
        begin, end = (one.hour * 4 + one.minute // _MINUTES for one in (self.begin, self.end))
        length = (end - begin) % QUARTERS_OF_A_DAY or QUARTERS_OF_A_DAY
        starts = (_NUMBER_OF[day] * QUARTERS_OF_A_DAY + begin for day in self.days)
        return frozenset((start + number) % QUARTERS_OF_A_WEEK for start in starts for number in range(length))


def quarter_text(quarter: int) -> str:
    """A quarter of the week as text: `mon 06:15`."""
    day, of_day = divmod(quarter, QUARTERS_OF_A_DAY)
    return f"{get_args(Weekday)[day]} {of_day // 4:02}:{of_day % 4 * _MINUTES:02}"
