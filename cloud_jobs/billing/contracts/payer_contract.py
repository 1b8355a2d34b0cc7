"""What holds for one payer in one period: everything that rating takes besides usage. Small enough to be sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts.account import Account, ExchangeRate, LegalEntity, Payer, rate_id
from cloud_jobs.billing.contracts.errors import (
    ContractFault,
    NoExchangeRate,
    RefusedVersionUsed,
    SellerWithoutVatId,
    TariffNotInForce,
    UnknownLegalEntity,
    UnknownTariff,
)
from cloud_jobs.billing.contracts.fields import NEEDS_SELLERS_VAT_ID
from cloud_jobs.billing.contracts.published import (
    EVER,
    ContractVersion,
    ContractVersions,
    known,
    micros,
    moment_of,
    parsed,
)
from cloud_jobs.billing.contracts.tariff import Tariff
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
    payer's, as of the last moment, by currency. `digest`: SHA-256 (hex) over the texts of all
    versions that it is made of.
    """

    account: Account
    period: BillingPeriod
    seller: LegalEntity
    accounts: tuple[AccountContract, ...]
    assigned: tuple[Assigned, ...]
    rates: tuple[ExchangeRate, ...]
    digest: str

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


# Assembly of one payer's contract; missing parts are named.

_NONE: Final[ContractVersions[Any]] = ContractVersions()


class PayerParts:
    """Puts together what holds from `start_us` until `end_us`; `faults` has what keeps it from being whole."""

    def __init__(self, of_kind: Mapping[str, Mapping[str, ContractVersions[Any]]], start_us: int, end_us: int) -> None:
        self._of_kind = of_kind
        self._start_us, self._end_us = start_us, end_us
        self._publications: dict[str, str] = {}
        self.faults: list[ContractFault] = []

    @property
    def publications(self) -> list[str]:
        """The publications that the contract is made of, sorted."""
        return sorted(self._publications)

    def contract(self, payer_id: str, names: Sequence[str], period: BillingPeriod) -> PayerContract | None:
        """The contract of a payer with the accounts of these names; None where a fault leaves it without a part."""
        accounts, assigned = list[AccountContract](), list[Assigned]()
        payers: dict[str, Account] = {}
        for name in names:
            versions = list(self._of_kind["account"][name].within(self._start_us, self._end_us))
            made = [parsed(Account, version.body) for version in versions]
            self._publications.update((version.publication_id, version.body) for version in versions)
            mine = sorted(_joined(_assigned(versions, made)))
            spans = tuple(self._spans(name, versions, mine))
            last = payers[name] = made[-1]
            times = self._of_kind["account"][name].times_within(self._start_us, self._end_us)
            accounts.append(AccountContract(id=name, name=last.name, parent=last.parent, times=times, spans=spans))
            assigned += mine
        account = payers[payer_id]
        assert account.payer is not None
        seller = self._seller(payer_id, account.payer.legal_entity)
        category = account.payer.vat.category
        if seller and not seller.vat_id and (rule := NEEDS_SELLERS_VAT_ID.get(category)):
            self.faults.append(SellerWithoutVatId(payer_id, seller.id, category, rule))
        rates = tuple(self._rates(accounts, account.payer.currency))
        if seller is None:
            return None
        return PayerContract(
            account=account.model_copy(update={"devices": ()}),
            period=period,
            seller=seller,
            accounts=tuple(accounts),
            assigned=tuple(sorted(assigned)),
            rates=rates,
            digest=self._digest(period.time_zone),
        )

    def _digest(self, time_zone: str) -> str:
        # what was published again as it was is the same contract
        texts = sorted({_text_digest(body) for body in self._publications.values()})
        return sha256("".join([time_zone, *texts]).encode()).hexdigest()

    def _spans(
        self, account: str, versions: Sequence[ContractVersion[Any]], assigned: Sequence[Assigned]
    ) -> Iterator[TariffSpan]:
        """The tariff's versions of an account, one after the other; a version that goes on is one span."""
        open_span: TariffSpan | None = None
        for version in versions:
            tariff = version.facts.tariff
            mine = self._of_kind["tariff"].get(tariff, _NONE)
            refused = list(mine.refused_within(version.begin_us, version.end_us))
            self.faults.extend(RefusedVersionUsed(one.refused) for one in refused)
            if not mine.begins and not refused:
                self.faults.append(UnknownTariff(account, tariff))
            reached = version.begin_us
            for one in mine.within(version.begin_us, version.end_us):
                self._check_hole(account, tariff, (reached, one.begin_us), assigned)
                reached = one.end_us
                self._publications[one.publication_id] = one.body
                span = TariffSpan(one.begin_us, one.end_us, known(Tariff, one.body))
                if open_span and open_span.end_us == span.begin_us and open_span.tariff == span.tariff:
                    span = span._replace(begin_us=open_span.begin_us)
                elif open_span:
                    yield open_span
                open_span = span
            if mine.begins:
                self._check_hole(account, tariff, (reached, version.end_us), assigned)
        if open_span:
            yield open_span

    def _check_hole(self, account: str, tariff: str, hole: tuple[int, int], assigned: Sequence[Assigned]) -> None:
        begin, end = hole
        within = [one for one in assigned if one.begin_us < end and begin < one.end_us]
        if begin < end and within:
            first = max(begin, min(one.begin_us for one in within))
            until = min(end, max(one.end_us for one in within))
            self.faults.append(TariffNotInForce(account, tariff, moment_of(first), moment_of(until)))

    def _seller(self, payer: str, name: str) -> LegalEntity | None:
        versions = self._of_kind["legal_entity"].get(name, _NONE)
        found, is_refused = self._at_the_end(versions)
        if found is None and not is_refused:
            self.faults.append(UnknownLegalEntity(payer, name))
        return found and known(LegalEntity, found.body)

    def _rates(self, accounts: Sequence[AccountContract], into: str) -> Iterator[ExchangeRate]:
        """The rates of the currencies of the tariffs, each once, by currency."""
        needed = {span.tariff.currency: account.id for account in reversed(accounts) for span in account.spans}
        for currency, account in sorted(needed.items()):
            if currency != into:
                name = rate_id(currency, into)
                versions = self._of_kind["exchange_rate"].get(name, _NONE)
                found, is_refused = self._at_the_end(versions)
                if found:
                    yield known(ExchangeRate, found.body)
                elif not is_refused:
                    self.faults.append(NoExchangeRate(account, currency, into, name))

    def _at_the_end(self, versions: ContractVersions[Any]) -> tuple[ContractVersion[Any] | None, bool]:
        """The version in force at the last moment, and whether there is one that cannot be used."""
        refused = list(versions.refused_within(self._end_us - 1, self._end_us))
        self.faults.extend(RefusedVersionUsed(one.refused) for one in refused)
        found = versions.at(self._end_us - 1)
        if found:
            self._publications[found.publication_id] = found.body
        return found, bool(refused)


# price lists are few, long, and of many payers
@lru_cache(maxsize=4096)
def _text_digest(body: str) -> str:
    return sha256(body.encode()).hexdigest()


def _assigned(versions: Sequence[ContractVersion[Any]], made: Sequence[Account]) -> Iterator[Assigned]:
    """What each version says of devices, for as long as it is in force."""
    for version, account in zip(versions, made, strict=True):
        for one in account.devices:
            begin = max(micros(one.begin), version.begin_us)
            end = min(EVER if one.end is None else micros(one.end), version.end_us)
            if begin < end:
                yield Assigned(one.tenant, one.device, begin, end, account.id, one.region)


def _joined(assigned: Iterator[Assigned]) -> Iterator[Assigned]:
    """With one entry where versions that follow each other say the same."""
    last: Assigned | None = None
    for one in sorted(assigned):
        if last and last.end_us == one.begin_us and last._replace(begin_us=one.begin_us, end_us=one.end_us) == one:
            last = last._replace(end_us=one.end_us)
            continue
        if last:
            yield last
        last = one
    if last:
        yield last
