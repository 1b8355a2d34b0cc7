"""Explanation of a charge: from an invoice line to its rated hours, and to the records of each hour."""

from cloud_jobs.explain.explanation import explain, with_hours_again
from cloud_jobs.explain.metered_again import meter_again

__all__ = [
    "explain",
    "meter_again",
    "with_hours_again",
]
