"""What was agreed: who sells, who pays for which devices, at which prices. Typed, dated, and judged where it enters."""

from cloud_jobs.billing.contracts.account import Account, Assignment, DoubtBounds, Payer
from cloud_jobs.billing.contracts.canaries import CANARY, is_canary
from cloud_jobs.billing.contracts.check import CheckedContracts, check_contracts
from cloud_jobs.billing.contracts.errors import (
    AccountCycle,
    BlockedPayer,
    ChangesInsidePeriod,
    ContractFault,
    DeviceInTwoAccounts,
    MetersForgotten,
    MissingParent,
    NoExchangeRate,
    OtherTimeZone,
    OtherZoneThanBefore,
    RefusedVersionUsed,
    SellerWithoutVatId,
    SharedNumberPrefix,
    TariffNotInForce,
    TreeTooDeep,
    UnknownLegalEntity,
    UnknownPayer,
    UnknownTariff,
)
from cloud_jobs.billing.contracts.exchange_rate import ExchangeRate, rate_id
from cloud_jobs.billing.contracts.fields import Address
from cloud_jobs.billing.contracts.legal_entity import LegalEntity, Payment
from cloud_jobs.billing.contracts.payer_contract import AccountContract, Assigned, PayerContract, TariffSpan
from cloud_jobs.billing.contracts.price import ANY_ZONE, Pool, PoolKey, Price, Tier, TierMode
from cloud_jobs.billing.contracts.published import MODEL_OF, usable_contract
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.contracts.tariff import Cap, CapSpan, Proration, Tariff
from cloud_jobs.billing.contracts.toml_text import StatedContract, contracts_of_toml
from cloud_jobs.billing.contracts.vat import NEEDS_BUYERS_VAT_ID, NEEDS_SELLERS_VAT_ID, Vat, VatCategory
from cloud_jobs.billing.contracts.what_if import BillChange, Bills, BothContracts, KnownBill, NetAndTax, what_if
from cloud_jobs.billing.contracts.window import QUARTERS_OF_A_WEEK, Window, window_of_quarters

__all__ = [
    "ANY_ZONE",
    "CANARY",
    "MODEL_OF",
    "NEEDS_BUYERS_VAT_ID",
    "NEEDS_SELLERS_VAT_ID",
    "QUARTERS_OF_A_WEEK",
    "Account",
    "AccountContract",
    "AccountCycle",
    "Address",
    "Assigned",
    "Assignment",
    "BillChange",
    "Bills",
    "BlockedPayer",
    "BothContracts",
    "Cap",
    "CapSpan",
    "ChangesInsidePeriod",
    "CheckedContracts",
    "ContractFault",
    "Contracts",
    "DeviceInTwoAccounts",
    "DoubtBounds",
    "ExchangeRate",
    "KnownBill",
    "LegalEntity",
    "MetersForgotten",
    "MissingParent",
    "NetAndTax",
    "NoExchangeRate",
    "OtherTimeZone",
    "OtherZoneThanBefore",
    "Payer",
    "PayerContract",
    "Payment",
    "Pool",
    "PoolKey",
    "Price",
    "Proration",
    "RefusedVersionUsed",
    "SellerWithoutVatId",
    "SharedNumberPrefix",
    "StatedContract",
    "Tariff",
    "TariffNotInForce",
    "TariffSpan",
    "Tier",
    "TierMode",
    "TreeTooDeep",
    "UnknownLegalEntity",
    "UnknownPayer",
    "UnknownTariff",
    "Vat",
    "VatCategory",
    "Window",
    "check_contracts",
    "contracts_of_toml",
    "is_canary",
    "rate_id",
    "usable_contract",
    "what_if",
    "window_of_quarters",
]
