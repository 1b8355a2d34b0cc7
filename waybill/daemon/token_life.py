"""How long a token (JWT, RFC 7519) is good, by what it says of itself. Pure: its signature is checked by who takes it.

A cluster that is shown a token that has ended answers nothing over its own protocol, and over HTTP a page. So who has
a token looks here first, and says whose it is, in which file, and when it ended.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, datetime
from typing import Final, NamedTuple

__all__ = ["TokenLife", "soon_before_end_s", "token_life"]

_ENDS_SOON_S: Final = 2 * 86_400.0
_SOON_SHARE: Final = 0.2
"""Whoever renews tokens in the first half of their life never comes to this share of it."""
_CLOCKS_APART_S: Final = 60.0
"""By so much may our clock be behind that of who made it."""
_MAX_TOKEN: Final = 16 << 10
_LATEST_S: Final = 253_402_300_799.0
"""The last second of the year 9999, after which no moment has a name."""


class TokenLife(NamedTuple):
    """Whose a token is ("": it does not say), and from when to when it is good (seconds since 1970)."""

    role: str
    begins_s: float = -math.inf
    ends_s: float = math.inf

    def problem(self, now_s: float) -> str:
        """Why nobody takes it now, as the end of a sentence about it; "": nothing is known against it."""
        if now_s >= self.ends_s:
            return f"ended at {_moment(self.ends_s)} (it is {_moment(now_s)} here): ask for a new one"
        if now_s < self.begins_s - _CLOCKS_APART_S:
            here = f"it is {_moment(now_s)} here"
            return f"is not good before {_moment(self.begins_s)} ({here}): set this machine's clock, or ask for another"
        return ""

    def ends_soon(self, now_s: float) -> str:
        """That it ends soon, as the end of a sentence about it; "": it does not, or it has ended."""
        # Of one that does not say since when it is good nobody knows whether an hour is much of it.
        soon_s = soon_before_end_s(self.ends_s - self.begins_s) if math.isfinite(self.begins_s) else 0.0
        if not 0 < self.ends_s - now_s <= soon_s:
            return ""
        return f"ends at {_moment(self.ends_s)}, and nobody has renewed it: ask for a new one"


def soon_before_end_s(life_s: float) -> float:
    """So long before its end a token of this life is said to end soon."""
    return min(_ENDS_SOON_S, _SOON_SHARE * life_s)


def token_life(token: str) -> TokenLife | None:
    """What a token says of its life; None: it is no JWT, and only who takes it knows."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _MAX_TOKEN:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        role = claims.get("sub")
        begins_s = [_moment_s(claims[name]) for name in ("nbf", "iat") if name in claims]
        ends_s = _moment_s(claims["exp"]) if "exp" in claims else math.inf
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return TokenLife(role if isinstance(role, str) else "", min(begins_s, default=-math.inf), ends_s)


def _moment_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LATEST_S:
        raise ValueError("is no moment")
    return float(value)


def _moment(moment_s: float) -> str:
    return f"{datetime.fromtimestamp(min(moment_s, _LATEST_S), UTC):%Y-%m-%dT%H:%M:%SZ}"
