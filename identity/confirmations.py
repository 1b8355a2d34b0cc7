"""Confirmations of the regions: which publications of devices are in force at a region's broker. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from telemetry import InvalidJson, parse_json

__all__ = ["CONFIRMATIONS_TOPIC", "RegionConfirmation", "decode_confirmation", "encode_confirmation"]

CONFIRMATIONS_TOPIC: Final = "persistent://fleet/access/confirmations"
_MAX_BYTES: Final = 1 << 20
_MAX_VALUES: Final = 10_000


class RegionConfirmation(NamedTuple):
    """At `at_s` (seconds since 1970) these publications, by device, were in force in a region."""

    region: str
    confirmed: dict[str, str]
    at_s: float


def encode_confirmation(region: str, confirmed: Iterable[tuple[str, str]], at_s: float) -> bytes:
    """The message."""
    return json.dumps({"region": region, "at_s": at_s, "confirmed": dict(confirmed)}, separators=(",", ":")).encode()


def decode_confirmation(body: bytes) -> RegionConfirmation | None:
    """What a message says; None: it is no confirmation."""
    try:
        facts = parse_json(body, max_bytes=_MAX_BYTES, max_depth=3, max_values=_MAX_VALUES)
        region, at_s, confirmed = facts["region"], facts["at_s"], facts["confirmed"]
    except (InvalidJson, KeyError, TypeError):
        return None
    # A region that says nonsense has confirmed nothing.
    texts = [region, *confirmed, *confirmed.values()] if isinstance(confirmed, dict) else [None]
    if not all(isinstance(text, str) for text in texts) or not isinstance(at_s, int | float):
        return None
    return RegionConfirmation(region, confirmed, float(at_s))
