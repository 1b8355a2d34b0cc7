"""Comparison of a period's counts from the device to the invoice.

Device, region, centre, usage, rated, invoiced: each station is compared with the one before it, by counts that were
made apart from each other. What is not known is never equal.
"""

from cloud_jobs.reconcile.comparison import Comparison, ComparisonOutcome, Station, outcome_of
from cloud_jobs.reconcile.reconciling import Reconciliation, reconcile

__all__ = ["Comparison", "ComparisonOutcome", "Reconciliation", "Station", "outcome_of", "reconcile"]
