"""Fees: amounts and percentages, of a tariff or of one account."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from cloud_jobs.billing.contracts.attributes import Selector
from cloud_jobs.billing.contracts.fields import Id, PrintedName, SignedAmount, SignedPercent, Vat
from cloud_jobs.billing.contracts.prices import Pool, Selects


class Proration(StrEnum):
    """What is agreed for part of a period: charged whole, or in proportion to the local days."""

    WHOLE = "whole"
    BY_DAY = "by_day"


def _local_day(given: object) -> date:
    try:
        made = given if isinstance(given, date) else date.fromisoformat(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError("write a local day, for instance 2026-03-01") from None
    if isinstance(made, datetime):
        raise ValueError(f"{made.isoformat()} is a moment; write a local day, for instance 2026-03-01")
    return made


LocalDay = Annotated[
    date, PlainValidator(_local_day), PlainSerializer(lambda one: one.isoformat(), return_type=str, when_used="json")
]


class Every(StrEnum):
    """How often a fee is charged: in each billing period, or in the one that has its first day."""

    PERIOD = "period"
    ONCE = "once"


class Fee(Selects):
    """An amount, or a per cent of usage charges after caps; below 0 it is a credit. It is a charge of its own.

    `name`: printed on documents. `scope`: of the account, or of each of its devices. `begin`, `end` (excluded): local
    days on which it is in force; a fee that is charged once is so in the period that has `begin`. `meters`, `zones`:
    the usage that a per cent is of; (): all. A tariff's amount is in its currency, an account's in the payer's. `vat`:
    None: that of the usage for a per cent, of what it takes from for a credit, otherwise the payer's. `devices`: only
    devices with these attributes, while they have them.
    """

    id: Id
    name: PrintedName
    amount: SignedAmount | None = None
    percent: SignedPercent | None = None
    scope: Literal[Pool.DEVICE, Pool.ACCOUNT] = Pool.ACCOUNT
    every: Every = Every.PERIOD
    proration: Proration = Proration.BY_DAY
    begin: LocalDay | None = None
    end: LocalDay | None = None
    vat: Vat | None = None
    devices: Selector = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.id, self.amount, self.percent))

    @property
    def is_whole(self) -> bool:
        """Whether a day in force is enough for all of it."""
        return self.every is Every.ONCE or self.proration is Proration.WHOLE

    @property
    def is_by_cycle(self) -> bool:
        """Whether it is an amount for each period."""
        return self.amount is not None and self.every is Every.PERIOD

    def holds_on(self, day: date) -> bool:
        if self.every is Every.ONCE:
            return day == self.begin
        return (self.begin is None or self.begin <= day) and (self.end is None or day < self.end)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.amount is None) == (self.percent is None):
            raise ValueError(f"fee {self.id!r} needs either an amount or a percent")
        if self.percent is None and (self.meters or self.zones):
            raise ValueError(f"fee {self.id!r} is an amount; meters and zones choose the usage of a percent")
        if self.devices and (self.percent is not None or self.scope is Pool.ACCOUNT):
            raise ValueError(f'fee {self.id!r} selects devices, so it needs an amount and scope = "device"')
        if self.every is Every.ONCE and (self.begin is None or self.end is not None):
            raise ValueError(f"fee {self.id!r} is charged once, on its begin: write a begin and no end")
        if self.begin and self.end and self.end <= self.begin:
            raise ValueError(f"fee {self.id!r} ends on {self.end}, which is not after its begin, {self.begin}")
        return self


Fees = Annotated[tuple[Fee, ...], Field(max_length=100)]


def repeated_ids(what: str, ids: Iterable[str]) -> Iterator[str]:
    """A fault for each id that two of them have."""
    listed = sorted(ids)
    yield from (f"two {what} have the id {one!r}" for one in dict.fromkeys(listed) if listed.count(one) > 1)
