"""The parts of one payer's contract, put together; what is missing is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts.account import Account
from cloud_jobs.billing.contracts.errors import (
    ContractFault,
    NoExchangeRate,
    RefusedVersionUsed,
    SellerWithoutVatId,
    TariffNotInForce,
    UnknownLegalEntity,
    UnknownTariff,
)
from cloud_jobs.billing.contracts.exchange_rate import ExchangeRate, rate_id
from cloud_jobs.billing.contracts.legal_entity import LegalEntity
from cloud_jobs.billing.contracts.payer_contract import AccountContract, Assigned, PayerContract, TariffSpan
from cloud_jobs.billing.contracts.published import known, parsed
from cloud_jobs.billing.contracts.tariff import Tariff
from cloud_jobs.billing.contracts.vat import NEEDS_SELLERS_VAT_ID
from cloud_jobs.billing.contracts.versions import EVER, ContractVersion, ContractVersions, micros, moment_of

_NONE: Final[ContractVersions[Any]] = ContractVersions()


class PayerParts:
    """Puts together what holds from `start_us` until `end_us`; `faults` has what keeps it from being whole."""

    def __init__(self, of_kind: Mapping[str, Mapping[str, ContractVersions[Any]]], start_us: int, end_us: int) -> None:
        self._of_kind = of_kind
        self._start_us, self._end_us = start_us, end_us
        self._publications: set[str] = set()
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
            self._publications.update(version.publication_id for version in versions)
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
            publication_ids=tuple(self.publications),
        )

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
                self._publications.add(one.publication_id)
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
            self._publications.add(found.publication_id)
        return found, bool(refused)


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
