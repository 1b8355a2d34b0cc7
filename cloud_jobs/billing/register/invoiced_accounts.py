"""On which payer's invoice each account stands: it is asked for once while two payers' documents change. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from cloud_jobs.billing.register.errors import AccountInvoiced
from cloud_jobs.billing.register.ledger import PostedInvoice


class _Holder(NamedTuple):
    payer: str
    number: str


class InvoicedAccounts:
    """Which accounts are on an invoice that stands and asks for something, and whose invoice that is."""

    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}

    def check(self, payer: str, accounts: Iterable[str]) -> None:
        """Raises AccountInvoiced if one of a payer's accounts (its own among them) is on an invoice of another one."""
        for account in accounts:
            holder = self._holders.get(account)
            if holder is not None and holder.payer != payer:
                raise AccountInvoiced(payer, account, holder.payer, holder.number)

    def take(self, posted: PostedInvoice, accounts: Collection[str]) -> None:
        """An invoice of a payer asks for what these accounts used, and for nothing else any more."""
        payer = posted.invoice.key.payer
        self._holders = {account: one for account, one in self._holders.items() if one.payer != payer}
        if posted.net_minor or posted.tax_minor:
            self._holders.update(dict.fromkeys(accounts, _Holder(payer, posted.invoice.number)))
