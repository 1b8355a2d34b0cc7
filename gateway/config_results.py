"""What a device says of settings that were pushed to it."""

from __future__ import annotations

from typing import NamedTuple

from telemetry import InvalidJson, parse_json

OUTCOMES = ("applied", "refused", "taken back")
UNKNOWN = "unknown"
MAX_BYTES = 16 << 10
MAX_DEPTH = 4
_MAX_REASON = 500


class ConfigResult(NamedTuple):
    """`outcome`: one of OUTCOMES, or UNKNOWN for an answer that cannot be read; then `reason` says why."""

    outcome: str
    reason: str


def parse_config_result(payload: bytes) -> ConfigResult:
    """The answer in a `config-result`. Never raises: an answer decides nothing, it is counted and logged."""
    try:
        answer = parse_json(payload, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH)
    except InvalidJson as error:
        return ConfigResult(UNKNOWN, f"not an answer: {error}"[:_MAX_REASON])
    if not isinstance(answer, dict) or answer.get("outcome") not in OUTCOMES:
        return ConfigResult(UNKNOWN, f"not one of the outcomes that are known: {payload[:100]!r}")
    return ConfigResult(answer["outcome"], str(answer.get("reason", ""))[:_MAX_REASON])
