"""A month that is hard to bill: vehicles, late messages, changed contracts, and the correct bill."""

from tests.month.expected import ExpectedBilling, expected_billing
from tests.month.script import (
    PERIODS,
    Adjust,
    ArrivedBatch,
    Close,
    Decide,
    Deliver,
    Issue,
    Month,
    Publish,
    hard_month,
)

__all__ = [
    "PERIODS",
    "Adjust",
    "ArrivedBatch",
    "Close",
    "Decide",
    "Deliver",
    "ExpectedBilling",
    "Issue",
    "Month",
    "Publish",
    "expected_billing",
    "hard_month",
]
