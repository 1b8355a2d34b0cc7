"""From usage to invoices: contracts, rating, certificates of devices, documents and the register. No Spark.

What the packages below share: `BillingPeriod`, meters, currencies and errors.
"""

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.errors import BadPeriod, BadReference, BillingError, UnknownCurrency
from cloud_jobs.billing.units import Meter

__all__ = ["BadPeriod", "BadReference", "BillingError", "BillingPeriod", "Meter", "UnknownCurrency"]
