"""The bill: what an account owes for a period, computed from usage, tariffs and the moment of knowledge. No Spark.

Everything but `lake_reader` and `cli` is pure: no I/O, no clock.
"""

from cloud_jobs.billing.adjustment import Adjustment, AdjustmentLine, Direction, adjustment
from cloud_jobs.billing.bill import Bill, BillStatus, bill
from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.completeness import Certificate, certify
from cloud_jobs.billing.document import adjustment_document, bill_document, read_bill, to_json
from cloud_jobs.billing.errors import (
    BadPeriod,
    BadReference,
    BillingError,
    ContradictoryUsage,
    NoTariffInForce,
    NotMetered,
    NotTheSameBill,
    UnknownAccount,
    UnknownCurrency,
    UnknownLine,
)
from cloud_jobs.billing.invoice import to_html
from cloud_jobs.billing.lines import Line, LineKey
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.period import Period
from cloud_jobs.billing.reference import Account, BilledVehicle, Price, Tariff, parse, usable_account, usable_tariff
from cloud_jobs.billing.usage import UsageRow
from cloud_jobs.lake.coverage import Completeness
from cloud_jobs.lake.seq_ranges import SeqRanges

__all__ = [
    "Account",
    "Adjustment",
    "AdjustmentLine",
    "BadPeriod",
    "BadReference",
    "Bill",
    "BillStatus",
    "BilledVehicle",
    "BillingError",
    "BillingPeriod",
    "Certificate",
    "Completeness",
    "ContradictoryUsage",
    "Direction",
    "Line",
    "LineKey",
    "Meter",
    "NoTariffInForce",
    "NotMetered",
    "NotTheSameBill",
    "Period",
    "Price",
    "SeqRanges",
    "Tariff",
    "UnknownAccount",
    "UnknownCurrency",
    "UnknownLine",
    "UsageRow",
    "adjustment",
    "adjustment_document",
    "bill",
    "bill_document",
    "certify",
    "parse",
    "read_bill",
    "to_html",
    "to_json",
    "usable_account",
    "usable_tariff",
]
