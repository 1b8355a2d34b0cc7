"""What holds for one payer in one period: everything that rating takes besides usage. Small enough to be sent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts.account import Account, Payer
from cloud_jobs.billing.contracts.exchange_rate import ExchangeRate
from cloud_jobs.billing.contracts.legal_entity import LegalEntity
from cloud_jobs.billing.contracts.tariff import Tariff
from cloud_jobs.billing.contracts.versions import micros, moment_of
from cloud_jobs.lake.coverage import TenantDevice


class Assigned(NamedTuple):
    """A device of an account for a time of the period, from `begin_us` until `end_us` (excluded; µs since 1970).

    The times of one device do not overlap, whichever accounts they are of. All are on quarters of an hour.
    """

    tenant: str
    device: str
    begin_us: int
    end_us: int
    account: str
    region: str

    @property
    def of_device(self) -> TenantDevice:
        """Which device it is."""
        return TenantDevice(self.tenant, self.device)


class TariffSpan(NamedTuple):
    """For how long (µs since 1970, `end_us` excluded) a version of a tariff is that of an account."""

    begin_us: int
    end_us: int
    tariff: Tariff


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountContract:
    """One account of a payer's tree. `times`: from when until when it is in force (µs since 1970), in order, apart.
    `spans`: in order, apart, and one for each time in which it has a device."""

    id: str
    name: str
    parent: str | None
    times: tuple[tuple[int, int], ...]
    spans: tuple[TariffSpan, ...]


@dataclass(frozen=True, kw_only=True)
class PayerContract:
    """The contract of a payer for a period.

    `account`: the version in force at the period's last moment, without its devices. `accounts`: the payer and those
    below it, by id. `assigned`: by tenant, device and begin. `rates`: of each other currency of a tariff into the
    payer's, as of the last moment, by currency. `publication_ids`: of all versions that it is made of, sorted.
    """

    account: Account
    period: BillingPeriod
    seller: LegalEntity
    accounts: tuple[AccountContract, ...]
    assigned: tuple[Assigned, ...]
    rates: tuple[ExchangeRate, ...]
    publication_ids: tuple[str, ...]

    @property
    def id(self) -> str:
        """The id of the payer's account."""
        return self.account.id

    @property
    def payer(self) -> Payer:
        """Who buys: currency, time zone, address, VAT."""
        assert self.account.payer is not None
        return self.account.payer

    @property
    def once_a_period(self) -> tuple[str, ...]:
        """What its tariffs count from the period's first day to its last, and anew in the next one, in words."""
        found = {words for account in self.accounts for span in account.spans for words in span.tariff.once_a_period}
        return tuple(sorted(found))

    @cached_property
    def devices(self) -> tuple[TenantDevice, ...]:
        """Every device that is assigned for some of the period, once, sorted."""
        return tuple(sorted({one.of_device for one in self.assigned}))

    @cached_property
    def spans(self) -> dict[TenantDevice, tuple[datetime, datetime]]:
        """Of each device from when until when (excluded) it is the payer's: of the period, also where it is somebody
        else's in between."""
        first, end = micros(self.period.start), micros(self.period.end)
        found: dict[TenantDevice, tuple[int, int]] = {}
        for one in self.assigned:
            before = found.get(one.of_device, (end, first))
            found[one.of_device] = min(before[0], max(one.begin_us, first)), max(before[1], min(one.end_us, end))
        # of nearly all devices it is the whole period
        moments = {us: moment_of(us) for span in {*found.values()} for us in span}
        return {device: (moments[begin], moments[until]) for device, (begin, until) in found.items()}
