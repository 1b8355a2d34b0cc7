"""What was agreed: who sells, who pays for which devices, at which prices. Typed, dated, and judged where it enters."""

from cloud_jobs.billing.contracts.account import Account, Assignment, Payer, Vat
from cloud_jobs.billing.contracts.exchange_rate import ExchangeRate
from cloud_jobs.billing.contracts.fields import Address
from cloud_jobs.billing.contracts.legal_entity import LegalEntity, Payment
from cloud_jobs.billing.contracts.tariff import ANY_ZONE, Cap, CapSpan, Pool, Price, Tariff, Tier, TierMode, Window

__all__ = [
    "ANY_ZONE",
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
    "Window",
]
