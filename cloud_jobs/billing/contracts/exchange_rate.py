"""What one unit of a currency is worth in another, from a moment on."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from cloud_jobs.billing.contracts.fields import Contract, Id, Moment, Text


class ExchangeRate(Contract):
    """One version of a rate: an amount in `currency` times `rate` is the amount in `into`. `source`: who stated it."""

    id: Id
    effective_from: Moment
    currency: str
    into: str
    rate: Annotated[Decimal, Field(gt=0, max_digits=24, decimal_places=12, allow_inf_nan=False)]
    source: Text
