"""What was held back from a rule, summarised in one message afterwards. Pure: handed the time."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.webhooks.deciding import HOUR_MS, PassDecision
from geo.alerts import AlertRule, VerdictKind

__all__ = ["MAX_HELD", "Digest", "HeldBack", "digests_of", "is_digest_due"]

MAX_HELD: Final = 1000
"""Of a rule and a tenant so many held messages are remembered one by one; the others are counted."""
# a summary stays a message that a person reads; the rest is counted
MAX_LISTED: Final = 100
# of the counts by place: as many as fit a screen
_MAX_PLACES: Final = 50


class HeldBack(NamedTuple):
    """One message that was held back: which, when (ms since 1970), and why. `verdict`: what it says of an alert, None:
    it is one."""

    key: str
    at_ms: int
    decision: str
    tenant: str
    device: str
    kind: str | None
    place: str | None
    t_ms: int
    verdict: str | None = None

    @property
    def is_announced(self) -> bool:
        """Whether it says an event for the first time: as an alert, or as one of which no region said anything."""
        return self.verdict is None or self.verdict == VerdictKind.LATE


class Digest(NamedTuple):
    """A summary that is to be delivered. `tenant`: of all messages in it; where no webhook takes it, it is theirs."""

    key: str
    rule: str
    webhook: str
    tenant: str
    body: bytes


def is_digest_due(rule: AlertRule, held: Sequence[HeldBack], now_ms: int) -> bool:
    """Whether what was held back is summarised now: when it is not quiet, and an hour after the first that the limit
    held back: at most one summary of each tenant an hour."""
    if not held or rule.is_quiet_at(now_ms):
        return False
    limited = [one.at_ms for one in held if one.decision == PassDecision.LIMIT]
    # a clock that was set back does not keep a summary for longer than an hour
    return not limited or not min(limited) <= now_ms < min(limited) + HOUR_MS


def digests_of(rule: AlertRule, held: Iterable[HeldBack], more: Mapping[str, int]) -> list[Digest]:
    """The summaries of what was held back, one for each tenant: an account may have devices of several, and what one
    of them has is not for another to read. `more`: of each, messages that were only counted."""
    by_tenant: dict[str, list[HeldBack]] = {}
    for one in held:
        by_tenant.setdefault(one.tenant, []).append(one)
    return [_digest_of(rule, mine, more.get(tenant, 0)) for tenant, mine in sorted(by_tenant.items())]


def _digest_of(rule: AlertRule, held: Sequence[HeldBack], more: int) -> Digest:
    # the key follows from what is summarised, so a summary that is made again after a crash is the same, and not from
    # the time alone: a clock that is set back comes to the same moment again, with other messages
    first = min(held, key=lambda one: (one.at_ms, one.key))
    what = "".join(f"{one}\n" for one in sorted(one.key for one in held))
    mark = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
    key = f"digest/{rule.id}/{first.tenant}/{first.at_ms}-{mark}"
    content: dict[str, Any] = {
        "type": "digest",
        "key": key,
        "rules": [rule.id],
        "digest": {
            "since_ms": first.at_ms,
            "until_ms": max(one.at_ms for one in held),
            "held_back": len(held) + more,
            "by_reason": _counted(one.decision for one in held),
            # an alert and what the centre says of it are one event
            "by_kind": _counted(one.kind or "" for one in held if one.is_announced),
            "by_verdict": _counted(one.verdict for one in held if one.verdict is not None),
            "by_place": _counted(one.place or "" for one in held),
            "messages": [
                {name: value for name, value in one._asdict().items() if name != "decision" and value is not None}
                for one in sorted(held, key=lambda one: (one.at_ms, one.key))[:MAX_LISTED]
            ],
        },
    }
    body = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return Digest(key, rule.id, rule.webhook, first.tenant, body)


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).most_common(_MAX_PLACES)))
