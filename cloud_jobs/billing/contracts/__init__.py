"""Contracts: sellers, payers with their devices, and prices. Typed, versioned, and validated on entry."""

from cloud_jobs.billing.contracts.account import (
    CANARY,
    Account,
    Contact,
    DirectDebit,
    DoubtBounds,
    Endpoint,
    ExchangeRate,
    LegalEntity,
    Payer,
    Payment,
    Profile,
    is_canary,
)
from cloud_jobs.billing.contracts.errors import BlockedPayer, ContractFault, OtherCycle, UnknownPayer
from cloud_jobs.billing.contracts.fees import Fee, Proration
from cloud_jobs.billing.contracts.fields import (
    NEEDS_BUYERS_VAT_ID,
    NEEDS_SELLERS_VAT_ID,
    Address,
    Vat,
    VatCategory,
    tax_text,
)
from cloud_jobs.billing.contracts.payer_contract import (
    REACH,
    AccountContract,
    Assigned,
    FeeSpan,
    PayerContract,
    TariffSpan,
    doubtful_taxes,
)
from cloud_jobs.billing.contracts.prices import ANY_ZONE, NamedPool, Pool, PoolKey, Price, PricePlace, Span, TierMode
from cloud_jobs.billing.contracts.published import MODEL_OF, usable_contract
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.contracts.tariff import Cap, Dearest, Tariff
from cloud_jobs.billing.contracts.toml_text import StatedContract, contracts_of_toml
from cloud_jobs.billing.contracts.windows import Calendar, Window

__all__ = [
    "ANY_ZONE",
    "CANARY",
    "MODEL_OF",
    "NEEDS_BUYERS_VAT_ID",
    "NEEDS_SELLERS_VAT_ID",
    "REACH",
    "Account",
    "AccountContract",
    "Address",
    "Assigned",
    "BlockedPayer",
    "Calendar",
    "Cap",
    "Contact",
    "ContractFault",
    "Contracts",
    "Dearest",
    "DirectDebit",
    "DoubtBounds",
    "Endpoint",
    "ExchangeRate",
    "Fee",
    "FeeSpan",
    "LegalEntity",
    "NamedPool",
    "OtherCycle",
    "Payer",
    "PayerContract",
    "Payment",
    "Pool",
    "PoolKey",
    "Price",
    "PricePlace",
    "Profile",
    "Proration",
    "Span",
    "StatedContract",
    "Tariff",
    "TariffSpan",
    "TierMode",
    "UnknownPayer",
    "Vat",
    "VatCategory",
    "Window",
    "contracts_of_toml",
    "doubtful_taxes",
    "is_canary",
    "tax_text",
    "usable_contract",
]
