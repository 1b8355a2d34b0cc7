"""Published contracts: versions by id and time, and the facts that are kept of each text."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from pydantic import ValidationError

from cloud_jobs.billing.billing_period import Cycle
from cloud_jobs.billing.contracts.account import Account, ExchangeRate, LegalEntity
from cloud_jobs.billing.contracts.fields import Contract
from cloud_jobs.billing.contracts.prices import Span
from cloud_jobs.billing.contracts.tariff import Tariff
from cloud_jobs.billing.contracts.windows import Calendar
from cloud_jobs.billing.errors import BillingError
from geo.reference.in_force import Usable

# Versions of one id by start.

Facts = TypeVar("Facts")
EVER: Final = (1 << 63) - 1
"""The end (µs) of a version without end."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ContractVersion(NamedTuple, Generic[Facts]):
    """One version, in force from `begin_us` until `end_us` (µs since 1970, excluded)."""

    begin_us: int
    end_us: int
    facts: Facts
    body: str
    publication_id: str


class ContractVersions(Generic[Facts]):
    """The versions of one id in order of time. Each ends at its stated end or where the next one begins."""

    def __init__(self) -> None:
        self.all: list[ContractVersion[Facts]] = []
        self._begins: list[int] = []

    def add(self, version: ContractVersion[Facts]) -> None:
        assert version.begin_us < version.end_us
        if self.all:
            before = self.all[-1]
            assert before.begin_us < version.begin_us
            self.all[-1] = before._replace(end_us=min(before.end_us, version.begin_us))
        self.all.append(version)
        self._begins.append(version.begin_us)

    def within(self, start_us: int, end_us: int) -> Iterator[ContractVersion[Facts]]:
        """The versions in force within a time, in order, clipped to it. There may be gaps."""
        first = max(0, bisect_right(self._begins, start_us) - 1)
        for one in self.all[first : bisect_left(self._begins, end_us)]:
            begin, end = max(start_us, one.begin_us), min(end_us, one.end_us)
            if begin < end:
                yield one._replace(begin_us=begin, end_us=end)

    def at(self, moment_us: int) -> ContractVersion[Facts] | None:
        return next(self.within(moment_us, moment_us + 1), None)

    def times_within(self, start_us: int, end_us: int) -> tuple[tuple[int, int], ...]:
        """The spans in which some version is in force, in order; adjacent versions make one span."""
        found = list[tuple[int, int]]()
        for one in self.within(start_us, end_us):
            joins = found and found[-1][1] == one.begin_us
            found.append((found.pop()[0] if joins else one.begin_us, one.end_us))
        return tuple(found)


# hardly any device begins and ends at a moment of its own
@lru_cache(maxsize=4096)
def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment_of(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


MODEL_OF: Final[dict[str, type[Contract]]] = {
    "account": Account,
    "calendar": Calendar,
    "exchange_rate": ExchangeRate,
    "legal_entity": LegalEntity,
    "tariff": Tariff,
}
"""Kind of reference data -> model."""
_MAX_REASONS: Final = 5
VALUE_ERROR: Final = "Value error, "
"""Pydantic's prefix of messages of our validators."""

_Made = TypeVar("_Made", bound=Contract)


NEW_YEAR: Final = date(2000, 1, 1)
"""From where cycles are counted if nothing else is agreed."""


class Pays(NamedTuple):
    legal_entity: str
    currency: str
    time_zone: str
    cycle: Cycle | None = None


class TariffFacts(NamedTuple):
    """The meters that a version of a tariff has prices for, those that it states are not sold, and its calendar."""

    sold: frozenset[str]
    not_sold: frozenset[str]
    calendar: str | None = None
    has_year: bool = False


class AccountFacts(NamedTuple):
    """The facts of an account version. `pays`: None for a child.

    `devices`: three numbers for each assignment: the device's number, begin and end in µs since 1970.
    """

    parent: str | None
    pays: Pays | None
    tariff: str
    devices: array[int]
    end_us: int = EVER
    year_begins: date | None = None

    @property
    def anchor(self) -> date:
        """The day from which cycles are counted."""
        return self.year_begins or NEW_YEAR


def usable_contract(kind: str, body: str) -> Usable[Contract]:
    """The contract of a JSON text, and its start (µs since 1970). Raises BillingError."""
    made = parsed(MODEL_OF[kind], body)
    return Usable(micros(made.effective_from), made)  # type: ignore[attr-defined]


def facts_of(made: Contract, numbers: dict[tuple[str, str], int]) -> AccountFacts | TariffFacts | str | None:
    """The facts of a version; for a seller its number prefix, for a rate or a calendar None.

    `numbers`: of devices, from 0; new devices are added.
    """
    match made:
        case Account():
            return _account_facts(made, numbers)
        case Tariff():
            return TariffFacts(
                sold=frozenset(one.meter.value for one in made.prices),
                not_sold=frozenset(made.not_sold),
                calendar=made.calendar,
                has_year=Span.YEAR in made.spans,
            )
        case LegalEntity():
            return made.number_prefix
    return None


def _account_facts(account: Account, numbers: dict[tuple[str, str], int]) -> AccountFacts:
    """Compact, because there may be a hundred thousand accounts."""
    devices = array("q")
    for one in account.devices:
        end = EVER if one.end is None else micros(one.end)
        number = numbers.setdefault((sys.intern(one.tenant), one.device), len(numbers))
        devices.extend((number, micros(one.begin), end))
    payer, pays = account.payer, None
    if payer is not None:
        seller, currency, zone = map(sys.intern, (payer.legal_entity, payer.currency, payer.time_zone))
        pays = Pays(seller, currency, zone, payer.cycle)
    parent = account.parent and sys.intern(account.parent)
    end = EVER if account.effective_until is None else micros(account.effective_until)
    return AccountFacts(parent, pays, sys.intern(account.tariff), devices, end, account.year_begins)


def parsed(model: type[_Made], body: str) -> _Made:
    """The contract of a JSON text. Raises BillingError with each fault and its place."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, one['loc']))}: {message}" if one["loc"] else message
            for one in error.errors(include_url=False)
            for message in one["msg"].removeprefix(VALUE_ERROR).split("\n")
        ]
        rest = [f"and {len(faults) - _MAX_REASONS} more faults"] if len(faults) > _MAX_REASONS else []
        raise BillingError("; ".join([*faults[:_MAX_REASONS], *rest])) from error


# price lists are few, and the accounts that have them are many
@lru_cache(maxsize=4096)
def known(model: type[_Made], body: str) -> _Made:
    """Cached, because few price lists are shared by many accounts. The text must be valid."""
    return parsed(model, body)
