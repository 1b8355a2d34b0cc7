"""What is refused is kept beside the batches, with its bytes and its reason, as far as the bounds allow."""

from __future__ import annotations

import traceback

from gateway.inflight import Delivery

KEPT_BYTES = 256 << 10
"""Of a message, so much is kept."""
PER_S = 10.0
"""So many dead letters a second are kept in the long run ..."""
BURST = 200.0
"""... and so many at once. Those above are refused and counted without a copy."""
MAX_ATTEMPTS = 5
"""How often a dead letter is sent to Pulsar before it is given up: it must not hold up others."""
_MAX_TEXT = 500


def properties(delivery: Delivery) -> dict[str, str]:
    """What is said of a dead letter beside its bytes. `size`: before it was cut to `KEPT_BYTES`."""
    assert delivery.refusal is not None
    return {
        "reason": delivery.refusal.reason,
        "detail": delivery.refusal.detail[:_MAX_TEXT],
        "topic": delivery.topic[:_MAX_TEXT],
        "size": str(len(delivery.payload)),
    }


def last_line(error: BaseException) -> str:
    """What was raised, and where: the last line of its traceback, and the last line of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f"{traceback.format_exception_only(error)[-1].strip()[:_MAX_TEXT]}{where}"
