"""From usage and contracts to charges: exact until one rounding a pool, the same for every order of its input."""

from cloud_jobs.billing.rating.agreed import rating_contract
from cloud_jobs.billing.rating.cells import Cell, MeteredKey, MeteredRows
from cloud_jobs.billing.rating.cells_of_usage import PayerUsage, cells_of_usage, rated_columns
from cloud_jobs.billing.rating.charges import Charge, ChargeKey, ChargeKind, Owed, RatedAccount, TaxGroup
from cloud_jobs.billing.rating.contract import AccountTerms, RatingContract, TariffInForce
from cloud_jobs.billing.rating.difference import (
    Posted,
    PostedSum,
    PostedTax,
    TaxKey,
    change_in_parts,
    difference,
    taken_back,
)
from cloud_jobs.billing.rating.price_book import PriceBooks
from cloud_jobs.billing.rating.rate import rate

__all__ = [
    "AccountTerms",
    "Cell",
    "Charge",
    "ChargeKey",
    "ChargeKind",
    "MeteredKey",
    "MeteredRows",
    "Owed",
    "PayerUsage",
    "Posted",
    "PostedSum",
    "PostedTax",
    "PriceBooks",
    "RatedAccount",
    "RatingContract",
    "TariffInForce",
    "TaxGroup",
    "TaxKey",
    "cells_of_usage",
    "change_in_parts",
    "difference",
    "rate",
    "rated_columns",
    "rating_contract",
    "taken_back",
]
