"""Ids of records in JSON for programs that are not ours: as strings, as many of these read a number as a float. Pure.

An epoch has up to 63 bits, and a float of 64 bits keeps 53: JavaScript would read another epoch than was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["with_exact_ids"]

_IDS: Final = {"epoch", "seq"}
_PAIRS: Final = "seen_until"
"""Each an epoch and a seq."""


def with_exact_ids(content: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a topic, or a part of one, with epochs and seqs as strings of digits."""
    return {name: _exact(name, value) for name, value in content.items()}


def _exact(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return with_exact_ids(value)
    if name == _PAIRS:
        return [[str(one) for one in pair] for pair in value]
    return str(value) if name in _IDS else value
