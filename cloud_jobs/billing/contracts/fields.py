"""The values that contracts are made of: ids, texts, amounts, moments, addresses."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

QUARTER_MINUTES: Final = 15
"""Usage is kept by the quarter of an hour, so every moment from which something holds is on one."""


class Contract(BaseModel):
    """A part of what was agreed; a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _on_a_quarter(moment: datetime) -> datetime:
    if moment.minute % QUARTER_MINUTES or moment.second or moment.microsecond:
        raise ValueError(f"{moment.isoformat()} is not on a quarter of an hour")
    return moment


Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""It stands in file names and invoice numbers, so nothing in it leads out of a folder."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1000, strip_whitespace=True)]
Country = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")]
"""ISO 3166-1 alpha-2."""
Amount = Annotated[Decimal, Field(ge=0, max_digits=24, decimal_places=12, allow_inf_nan=False)]
Moment = Annotated[AwareDatetime, AfterValidator(_on_a_quarter)]


class Address(Contract):
    """A postal address (EN 16931 BG-5, BG-8)."""

    line: Text
    city: Text
    postal_code: Annotated[str, StringConstraints(max_length=32)] = ""
    country: Country
