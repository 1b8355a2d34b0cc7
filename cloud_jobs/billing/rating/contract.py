"""What rating takes of what was agreed: a payer's tree of accounts in one period, with all that is in force in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import NamedTuple

from cloud_jobs.billing.contracts import AccountContract, Assigned, Assignment, CapSpan, PayerContract, Tariff, Vat
from cloud_jobs.billing.contracts.published import moment_of
from cloud_jobs.billing.units import Meter


class TariffInForce(NamedTuple):
    """A version of a tariff and the moment (on a quarter of an hour) from which it is the account's, until the next."""

    begin: datetime
    tariff: Tariff


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountTerms:
    """An account of the payer's tree in one period: its tariff's versions in order, its devices.

    `tariffs`: also the one in force at the period's start, if there is one; a `Cell.version` counts them from 0.
    `times`: from when until when the account is in force; None: for the whole period.
    """

    account: str
    tariffs: tuple[TariffInForce, ...]
    devices: tuple[Assignment, ...] = ()
    times: tuple[tuple[datetime, datetime], ...] | None = None

    @property
    def looks_at_days(self) -> bool:
        """Whether a price depends on the day of a use: a daily cap does."""
        return any(cap.per is CapSpan.DAY for one in self.tariffs for cap in one.tariff.caps)

    @property
    def sells_inferred_entries(self) -> bool:
        """Whether a version has a price for them. Where none has, nothing that was inferred has a say in a charge."""
        return any(price.meter is Meter.INFERRED_ENTRY for one in self.tariffs for price in one.tariff.prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingContract:
    """Everything that a payer agreed to for the period from `start` to `end` (excluded; local midnights, in UTC).

    `accounts`: the payer's own and those of its children. `rates`: for each foreign currency of a tariff what one unit
    is worth in `currency`, at the period's last moment.
    """

    payer: str
    currency: str
    time_zone: str
    start: datetime
    end: datetime
    vat: Vat
    accounts: tuple[AccountTerms, ...]
    rates: Mapping[str, Decimal] = field(default_factory=lambda: MappingProxyType({}))


# The parts of a payer's contract that rating uses.


def rating_contract(contract: PayerContract) -> RatingContract:
    """The contract of a payer and period, as `rate` and `cells_of_usage` take it."""
    devices: dict[str, list[Assignment]] = {account.id: [] for account in contract.accounts}
    for one in contract.assigned:
        devices[one.account].append(_assignment(one))
    return RatingContract(
        payer=contract.id,
        currency=contract.payer.currency,
        time_zone=contract.period.time_zone,
        start=contract.period.start,
        end=contract.period.end,
        vat=contract.payer.vat,
        accounts=tuple(_terms(account, devices[account.id]) for account in contract.accounts),
        rates={rate.currency: rate.rate for rate in contract.rates},
    )


def _terms(account: AccountContract, devices: list[Assignment]) -> AccountTerms:
    tariffs = tuple(TariffInForce(moment_of(span.begin_us), span.tariff) for span in account.spans)
    times = tuple((moment_of(begin), moment_of(end)) for begin, end in account.times)
    return AccountTerms(account=account.id, tariffs=tariffs, devices=tuple(devices), times=times)


def _assignment(one: Assigned) -> Assignment:
    return Assignment(
        tenant=one.tenant,
        device=one.device,
        region=one.region,
        begin=moment_of(one.begin_us),
        end=moment_of(one.end_us),
    )
