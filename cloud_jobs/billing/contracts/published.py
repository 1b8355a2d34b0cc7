"""Contracts as they are published: the text of a version, judged, and the little that is kept of each."""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from pydantic import ValidationError

from cloud_jobs.billing.contracts.account import Account
from cloud_jobs.billing.contracts.exchange_rate import ExchangeRate
from cloud_jobs.billing.contracts.fields import Contract
from cloud_jobs.billing.contracts.legal_entity import LegalEntity
from cloud_jobs.billing.contracts.price import PoolKey
from cloud_jobs.billing.contracts.tariff import Tariff
from cloud_jobs.billing.contracts.versions import EVER, micros
from cloud_jobs.billing.errors import BadReference
from geo.reference.in_force import Usable

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
