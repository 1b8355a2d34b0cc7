"""Explanation of a charge: from an invoice line to its rated hours, and to the records of each hour."""

from cloud_jobs.explain.explanation import ExplainedHour, Explanation, explain, with_hours_again
from cloud_jobs.explain.metered_again import MeteredAgain, meter_again, stretches_of
from cloud_jobs.explain.picture import Border, Stretch, track_picture

__all__ = [
    "Border",
    "ExplainedHour",
    "Explanation",
    "MeteredAgain",
    "Stretch",
    "explain",
    "meter_again",
    "stretches_of",
    "track_picture",
    "with_hours_again",
]
