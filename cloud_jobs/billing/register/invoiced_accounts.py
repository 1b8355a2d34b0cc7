"""On which payer's invoice each account stands: it is asked for once while two payers' documents change. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from cloud_jobs.billing.register.errors import AccountInvoiced
from cloud_jobs.billing.register.ledger import PostedInvoice


class InvoicedAccounts:
    """Which accounts are on an invoice that stands and asks for something, and whose invoice that is."""

    def __init__(self) -> None:
        # by account, and by payer: of a month of very many payers each is taken once
        self._numbers: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._accounts: dict[str, Collection[str]] = {}

    def check(self, payer: str, accounts: Iterable[str]) -> None:
        """Raises AccountInvoiced if one of a payer's accounts (its own among them) is on an invoice of another one."""
        for account in accounts:
            for holder, number in self._numbers[account].items():
                if holder != payer:
                    raise AccountInvoiced(payer, account, holder, number)

    def take(self, posted: PostedInvoice, accounts: Collection[str]) -> None:
        """An invoice of a payer asks for what these accounts used, and for nothing else any more."""
        payer = posted.invoice.key.payer
        for account in self._accounts.pop(payer, ()):
            del self._numbers[account][payer]
        if posted.net_minor or posted.tax_minor:
            self._accounts[payer] = {*accounts}
            for account in self._accounts[payer]:
                self._numbers[account][payer] = posted.invoice.number
