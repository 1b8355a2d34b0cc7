"""Rating: from usage and contracts to charges. Exact until one rounding per pool, and independent of input order."""

from cloud_jobs.billing.rating.cells_of_usage import PayerUsage, cell_columns, cells_of_usage, rated_columns
from cloud_jobs.billing.rating.charges import (
    VAT_INCLUDED,
    Cell,
    Charge,
    ChargeKey,
    ChargeKind,
    MeteredKey,
    MeteredRows,
    Owed,
    RatedAccount,
    TaxGroup,
    difference,
    signed_parts,
    taken_back,
    tax_group,
)
from cloud_jobs.billing.rating.pools import PriceBooks
from cloud_jobs.billing.rating.rate import PeriodUsage, rate
from cloud_jobs.billing.rating.rate_columns import UsageCharges, charges_in_columns

__all__ = [
    "VAT_INCLUDED",
    "Cell",
    "Charge",
    "ChargeKey",
    "ChargeKind",
    "MeteredKey",
    "MeteredRows",
    "Owed",
    "PayerUsage",
    "PeriodUsage",
    "PriceBooks",
    "RatedAccount",
    "TaxGroup",
    "UsageCharges",
    "cell_columns",
    "cells_of_usage",
    "charges_in_columns",
    "difference",
    "rate",
    "rated_columns",
    "signed_parts",
    "taken_back",
    "tax_group",
]
