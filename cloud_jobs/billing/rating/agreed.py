"""What rating takes of a payer's contract."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from cloud_jobs.billing.contracts import AccountContract, Assigned, Assignment, PayerContract
from cloud_jobs.billing.rating.contract import AccountTerms, RatingContract, TariffInForce

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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
    tariffs = tuple(TariffInForce(_moment(span.begin_us), span.tariff) for span in account.spans)
    times = tuple((_moment(begin), _moment(end)) for begin, end in account.times)
    return AccountTerms(account=account.id, tariffs=tariffs, devices=tuple(devices), times=times)


def _assignment(one: Assigned) -> Assignment:
    return Assignment(
        tenant=one.tenant,
        device=one.device,
        region=one.region,
        begin=_moment(one.begin_us),
        end=_moment(one.end_us),
    )


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
