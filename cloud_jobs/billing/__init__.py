"""From usage to invoices: contracts, rating, certificates of devices, documents and the register. No Spark.

What the packages below share: `BillingPeriod`, meters, currencies and errors.
"""

from cloud_jobs.billing.errors import BadPeriod
from cloud_jobs.billing.units import Meter

__all__ = ["BadPeriod", "Meter"]
