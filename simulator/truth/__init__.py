"""An independent computation of records, usage and charges.

Nothing here comes from the packages that it judges. It is slow on purpose: exact fractions, plain loops, one page each.
"""

from simulator.truth.charging import TrueKey
from simulator.truth.contracts import TrueContracts, TrueDays, TrueQuarter, month_of, quarters_of
from simulator.truth.journal import (
    Made,
    TruePosition,
    content_bytes,
    made_canary,
    made_event,
    made_position,
    made_raw,
    made_signal,
    position_of,
)
from simulator.truth.metering import TrueUnknown, TrueUsage
from simulator.truth.owed import TrueOwed, TrueTax, owed_by
from simulator.truth.shapes import TruthError
from simulator.truth.truth import PostedCharge, TrueDocument, TrueLedger, Truth

__all__ = [
    "Made",
    "PostedCharge",
    "TrueContracts",
    "TrueDays",
    "TrueDocument",
    "TrueKey",
    "TrueLedger",
    "TrueOwed",
    "TruePosition",
    "TrueQuarter",
    "TrueTax",
    "TrueUnknown",
    "TrueUsage",
    "Truth",
    "TruthError",
    "content_bytes",
    "made_canary",
    "made_event",
    "made_position",
    "made_raw",
    "made_signal",
    "month_of",
    "owed_by",
    "position_of",
    "quarters_of",
]
