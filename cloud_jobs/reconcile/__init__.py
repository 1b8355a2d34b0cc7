"""Comparison of a period's counts from the device to the invoice.

Stations: device, region, centre, usage, rated, invoiced. Each is compared with the one before it, by independent
counts. What is unknown is never equal.
"""

from cloud_jobs.reconcile.comparison import Comparison, ComparisonOutcome, Station, outcome_of
from cloud_jobs.reconcile.reconciling import Reconciliation, reconcile

__all__ = ["Comparison", "ComparisonOutcome", "Reconciliation", "Station", "outcome_of", "reconcile"]
