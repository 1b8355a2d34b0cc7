"""Contracts as they are published: the text of a version, judged, and the little that is kept of each."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic import ValidationError

from cloud_jobs.billing.contracts.account import Account, ExchangeRate, LegalEntity
from cloud_jobs.billing.contracts.fields import Contract
from cloud_jobs.billing.contracts.tariff import PoolKey, Tariff
from cloud_jobs.billing.errors import BadReference
from geo.reference.in_force import RefusedVersion, Usable

# Versions of one id by start, with its unusable publications.

Facts = TypeVar("Facts")
EVER: Final = (1 << 63) - 1
"""The end (µs) of what has none."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ContractVersion(NamedTuple, Generic[Facts]):
    """One version: what is known of it, its text, the publication that it is of, and from when until when (µs since
    1970, excluded) it is in force, of the time that was asked for."""

    begin_us: int
    end_us: int
    facts: Facts
    body: str
    publication_id: str


class UnusableVersion(NamedTuple):
    """A publication that cannot be used, and what of its text could be read. `begin_us` None: no beginning could."""

    begin_us: int | None
    refused: RefusedVersion
    body: dict[str, Any]


@dataclass(slots=True)
class ContractVersions(Generic[Facts]):
    """The versions of one id. `begins`, `ends`, `facts`, `bodies`, `publication_ids` are parallel, in order.

    `ends`: what a version says itself of its end (EVER: nothing); the next version ends it, too.
    """

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    publication_ids: list[str] = field(default_factory=list)
    refusals: list[UnusableVersion] = field(default_factory=list)

    def add(self, begin_us: int, facts: Facts, body: str, publication_id: str, end_us: int = EVER) -> None:
        """The next version."""
        assert not self.begins or self.begins[-1] < begin_us
        assert begin_us < end_us
        self.begins.append(begin_us)
        self.ends.append(end_us)
        self.facts.append(facts)
        self.bodies.append(body)
        self.publication_ids.append(publication_id)

    def within(self, start_us: int, end_us: int) -> Iterator[ContractVersion[Facts]]:
        """The versions in force in a time, one after the other, clipped to it; after an end there may be a hole."""
        first = max(0, bisect_right(self.begins, start_us) - 1)
        for at in range(first, bisect_left(self.begins, end_us)):
            following = self.begins[at + 1] if at + 1 < len(self.begins) else EVER
            begin, end = max(start_us, self.begins[at]), min(end_us, following, self.ends[at])
            if begin < end:
                yield ContractVersion(begin, end, self.facts[at], self.bodies[at], self.publication_ids[at])

    def at(self, moment_us: int) -> ContractVersion[Facts] | None:
        """The version in force at a moment."""
        return next(self.within(moment_us, moment_us + 1), None)

    def times_within(self, start_us: int, end_us: int) -> tuple[tuple[int, int], ...]:
        """From when until when any version is in force, of a time, in order and apart."""
        found = list[tuple[int, int]]()
        for one in self.within(start_us, end_us):
            joins = found and found[-1][1] == one.begin_us
            found.append((found.pop()[0] if joins else one.begin_us, one.end_us))
        return tuple(found)

    def refused_within(self, start_us: int, end_us: int) -> Iterator[UnusableVersion]:
        """The publications that would be in force in a time if they could be used; without a beginning: always."""
        for refusal in self.refusals:
            if refusal.begin_us is None or (refusal.begin_us < end_us and start_us < self._end_of(refusal.begin_us)):
                yield refusal

    def _end_of(self, begin_us: int) -> int:
        later = [*self.begins[bisect_right(self.begins, begin_us) :][:1]]
        later += [one.begin_us for one in self.refusals if one.begin_us is not None and one.begin_us > begin_us]
        return min(later, default=EVER)


def micros(moment: datetime) -> int:
    """A moment as µs since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment_of(us: int) -> datetime:
    """µs since 1970 as a moment in UTC."""
    return EPOCH + timedelta(microseconds=us)


MODEL_OF: Final[dict[str, type[Contract]]] = {
    "account": Account,
    "exchange_rate": ExchangeRate,
    "legal_entity": LegalEntity,
    "tariff": Tariff,
}
"""Kind of reference data -> what a text of that kind makes."""
_MAX_REASONS: Final = 5
VALUE_ERROR: Final = "Value error, "
"""What pydantic writes before the reason of a validator of ours."""

_Made = TypeVar("_Made", bound=Contract)


class Pays(NamedTuple):
    """What is kept of a payer's part."""

    legal_entity: str
    currency: str
    time_zone: str


class TariffFacts(NamedTuple):
    """What is kept of a version of a tariff: the meters that have a price, those that it says are not sold, and the
    pools that have an allowance or tiers."""

    sold: frozenset[str]
    not_sold: frozenset[str]
    pools: frozenset[PoolKey]


class AccountFacts(NamedTuple):
    """What is kept of a version of an account. `pays`: of one that pays itself. `end_us`: what it says of its end.

    `devices`: three numbers for each assignment: the device's in `DeviceNumbers`, begin and end in µs since 1970.
    """

    parent: str | None
    pays: Pays | None
    tariff: str
    devices: array[int]
    end_us: int = EVER


class DeviceNumbers:
    """A number for each device that an account names, counted from 0."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def of(self, tenant: str, device: str) -> int:
        """The number of a device."""
        return self._numbers.setdefault((sys.intern(tenant), device), len(self._numbers))

    @property
    def names(self) -> list[tuple[str, str]]:
        """Tenant and device of each number."""
        return list(self._numbers)


def usable_contract(kind: str, body: str) -> Usable[Contract]:
    """A contract from its JSON text, and from when it is in force (µs since 1970). Raises BadReference."""
    made = parsed(MODEL_OF[kind], body)
    return Usable(micros(made.effective_from), made)  # type: ignore[attr-defined]


def facts_of(made: Contract, numbers: DeviceNumbers) -> AccountFacts | TariffFacts | str | None:
    """What is kept of a version: of a seller the prefix of its numbers, of a rate nothing."""
    match made:
        case Account():
            return _account_facts(made, numbers)
        case Tariff():
            return TariffFacts(
                sold=frozenset(one.meter.value for one in made.prices),
                not_sold=frozenset(made.not_sold),
                pools=frozenset(one.pool_key for one in made.prices if not one.is_flat),
            )
        case LegalEntity():
            return made.number_prefix
    return None


def _account_facts(account: Account, numbers: DeviceNumbers) -> AccountFacts:
    """What is kept of an account while a hundred thousand of them are."""
    devices = array("q")
    for one in account.devices:
        end = EVER if one.end is None else micros(one.end)
        devices.extend((numbers.of(one.tenant, one.device), micros(one.begin), end))
    payer = account.payer
    pays = None if payer is None else Pays(*map(sys.intern, (payer.legal_entity, payer.currency, payer.time_zone)))
    parent = account.parent and sys.intern(account.parent)
    end = EVER if account.effective_until is None else micros(account.effective_until)
    return AccountFacts(parent, pays, sys.intern(account.tariff), devices, end)


def parsed(model: type[_Made], body: str) -> _Made:
    """A contract from its JSON text. Raises BadReference with what is wrong, each fault behind its place."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, one['loc']))}: {message}" if one["loc"] else message
            for one in error.errors(include_url=False)
            for message in [one["msg"].removeprefix(VALUE_ERROR)]
        ]
        rest = [f"and {len(faults) - _MAX_REASONS} more faults"] if len(faults) > _MAX_REASONS else []
        raise BadReference("; ".join([*faults[:_MAX_REASONS], *rest])) from error


# price lists are few, and the accounts that have them are many
@lru_cache(maxsize=4096)
def known(model: type[_Made], body: str) -> _Made:
    """A contract from a text that could be used once."""
    return parsed(model, body)
