"""Taxes of a payer's contract: what they need, what contradicts, and what is doubtful about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cloud_jobs.billing.contracts.errors import ContractFault
from cloud_jobs.billing.contracts.fields import NEEDS_BUYERS_VAT_ID, NEEDS_SELLERS_VAT_ID, Vat, VatCategory
from cloud_jobs.billing.contracts.payer_contract import PayerContract

_EU: Final = frozenset(
    "AT BE BG CY CZ DE DK EE ES FI FR GR HR HU IE IT LT LU LV MT NL PL PT RO SE SI SK".split()  # noqa: SIM905
)


def tax_faults(contract: PayerContract) -> Iterator[ContractFault]:
    """VAT ids that a category needs, and accounts whose prices include tax for a part of the period only."""
    account, seller = contract.id, contract.seller
    for category in sorted({vat.category for vat in contract.vats}):
        charged = f"account {account!r} is charged VAT of category {category}, for which"
        if not seller.vat_id and (rule := NEEDS_SELLERS_VAT_ID.get(category)):
            text = f"{charged} its seller, the legal entity {seller.id!r}, needs a vat_id (EN 16931, {rule})"
            yield ContractFault(text, ("account", account))
        if not contract.payer.vat_id and (rule := NEEDS_BUYERS_VAT_ID.get(category)):
            yield ContractFault(f"{charged} it needs a vat_id (EN 16931, {rule})", ("account", account))
    for terms in contract.accounts:
        if len({span.tariff.includes_tax for span in terms.spans}) > 1:
            text = (
                f"account {terms.id!r} has prices that include tax and prices that do not; change includes_tax at the "
                "start of a period, or close the two parts separately"
            )
            yield ContractFault(text, ("account", terms.id))


def doubtful_rates(vats: Iterable[Vat]) -> Iterator[str]:
    """Rates that may have been meant as a fraction."""
    for vat in vats:
        if 0 < vat.rate < 1:
            yield f"the VAT rate is {vat.rate:f} %, which looks like a fraction; {vat.rate * 100:f} is in per cent"


def doubtful_taxes(contract: PayerContract) -> Iterator[str]:
    """Doubtful rates, and categories that contradict the countries of seller and buyer."""
    yield from doubtful_rates(contract.vats)
    seller, buyer = contract.seller.address.country, contract.payer.address.country
    categories = {vat.category for vat in contract.vats}
    if VatCategory.INTRA_COMMUNITY in categories and (seller == buyer or not {seller, buyer} <= _EU | {"XI"}):
        yield f"VAT category K is for two countries of the EU, and the seller is in {seller}, the buyer in {buyer}"
    if VatCategory.EXPORT in categories and buyer in _EU:
        yield f"VAT category G is for exports out of the EU, and the buyer is in {buyer}"
