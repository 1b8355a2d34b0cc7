"""Explanation of a charge: from an invoice line to its rated hours, and to the records of each hour."""

from cloud_jobs.explain.explanation import ExplainedHour, Explanation, explain, with_hours_again
from cloud_jobs.explain.metered_again import MeteredAgain, meter_again

__all__ = [
    "ExplainedHour",
    "Explanation",
    "MeteredAgain",
    "explain",
    "meter_again",
    "with_hours_again",
]
