"""What one unit of a currency is worth in another, from a moment on."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from cloud_jobs.billing.contracts.fields import Contract, Currency, Id, Number, Text
from geo.reference.moments import Moment


class ExchangeRate(Contract):
    """One version of a rate: an amount in `currency` times `rate` is the amount in `into`. `source`: who stated it.

    Its id is both currencies, `usd-eur`, so that no two rates of a pair hold at one moment.
    """

    id: Id
    effective_from: Moment
    currency: Currency
    into: Currency
    rate: Annotated[Number, Field(gt=0)]
    source: Text

    @model_validator(mode="after")
    def _named_by_its_currencies(self) -> Self:
        if self.currency == self.into:
            raise ValueError(f"a rate is between two currencies, and both are {self.into}")
        if self.id != rate_id(self.currency, self.into):
            raise ValueError(
                f"the id of a rate from {self.currency} into {self.into} is {rate_id(self.currency, self.into)!r}, "
                f"not {self.id!r}"
            )
        return self


def rate_id(currency: str, into: str) -> str:
    """The id of the rate by which amounts in `currency` become amounts in `into`."""
    return f"{currency}-{into}".lower()
