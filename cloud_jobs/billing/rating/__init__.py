"""From usage and contracts to charges: exact until one rounding a charge, the same for every order of its input."""

from cloud_jobs.billing.rating.cells import Cell, MeteredRows
from cloud_jobs.billing.rating.charges import Charge, ChargeKey, ChargeKind, RatedAccount, TaxGroup

__all__ = ["Cell", "Charge", "ChargeKey", "ChargeKind", "MeteredRows", "RatedAccount", "TaxGroup"]
