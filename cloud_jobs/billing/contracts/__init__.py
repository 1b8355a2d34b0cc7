"""What was agreed: who sells, who pays for which devices, at which prices. Typed, dated, and judged where it enters."""

from cloud_jobs.billing.contracts.account import Account, Assignment, Payer, Vat, VatCategory
from cloud_jobs.billing.contracts.exchange_rate import ExchangeRate, rate_id
from cloud_jobs.billing.contracts.fields import Address
from cloud_jobs.billing.contracts.legal_entity import LegalEntity, Payment
from cloud_jobs.billing.contracts.price import ANY_ZONE, Pool, Price, Tier, TierMode
from cloud_jobs.billing.contracts.tariff import Cap, CapSpan, Tariff
from cloud_jobs.billing.contracts.window import QUARTERS_OF_A_WEEK, Window, window_of_quarters

__all__ = [
    "ANY_ZONE",
    "QUARTERS_OF_A_WEEK",
    "Account",
    "Address",
    "Assignment",
    "Cap",
    "CapSpan",
    "ExchangeRate",
    "LegalEntity",
    "Payer",
    "Payment",
    "Pool",
    "Price",
    "Tariff",
    "Tier",
    "TierMode",
    "Vat",
    "VatCategory",
    "Window",
    "rate_id",
    "window_of_quarters",
]
