"""The notification of an alert or a verdict: its body, and the facts that rules match. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from geo.alerts import VerdictKind, decode_alert, decode_verdict

# Record ids as JSON strings, because many programs read numbers as floats. Pure.

_IDS: Final = {"epoch", "seq"}
_PAIRS: Final = "seen_until"
"""Pairs of an epoch and a seq."""


def with_exact_ids(content: Mapping[str, Any]) -> dict[str, Any]:
    """A message with epochs and seqs as strings of digits."""
    return {name: _exact(name, value) for name, value in content.items()}


def _exact(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return with_exact_ids(value)
    if name == _PAIRS:
        return [[str(one) for one in pair] for pair in value]
    return str(value) if name in _IDS else value


PROVISIONAL: Final = "provisional"
MAX_NAMED_RULES: Final = 1000
"""The most rules that a message names."""


class Notification(NamedTuple):
    """`key`: the idempotency key: the id and `provisional`, or the id and the verdict's revision.

    `kind` and `place`: of the event; None if a withdrawn alert's verdict does not name them. `t_ms`: device time of the
    event, or the time of the decision. `said_ms`: when the region or the centre said it. `earlier_ms`: times of the
    event by earlier messages about it.
    """

    key: str
    tenant: str
    device: str
    kind: str | None
    place: str | None
    t_ms: int
    said_ms: int
    is_verdict: bool
    content: dict[str, Any]
    earlier_ms: tuple[int, ...] = ()

    @property
    def verdict(self) -> str | None:
        return self.content["verdict"] if self.is_verdict else None

    def is_stale(self, now_ms: int, *, alert_max_age_s: float, late_max_age_s: float) -> bool:
        """Whether it is too old to deliver.

        That is an alert that was raised before `alert_max_age_s`: its verdict says what is true. It is also a verdict
        `late` on an event that happened `late_max_age_s` before the verdict.
        """
        if not self.is_verdict:
            return now_ms - self.said_ms > 1000 * alert_max_age_s
        return self.verdict == VerdictKind.LATE and self.said_ms - self.t_ms > 1000 * late_max_age_s


def alert_notification(data: bytes) -> Notification:
    """The notification of an alert. Raises MalformedAlert, and nothing else for any bytes."""
    alert = decode_alert(data)
    return Notification(
        key=f"{alert.id}/{PROVISIONAL}",
        tenant=alert.tenant,
        device=alert.device,
        kind=alert.kind,
        place=alert.place,
        t_ms=alert.t_ms,
        said_ms=alert.raised_ms,
        is_verdict=False,
        content=with_exact_ids(alert.model_dump(mode="json", exclude_none=True)),
    )


def verdict_notification(data: bytes) -> Notification:
    """The notification of a verdict. Raises MalformedAlert, and nothing else for any bytes."""
    verdict = decode_verdict(data)
    # a withdrawal is matched by what the region had said
    about = verdict.event or verdict.alerted
    return Notification(
        key=f"{verdict.id}/verdict-{verdict.revision}",
        tenant=verdict.tenant,
        device=verdict.device,
        kind=None if about is None else about.kind,
        place=None if about is None else about.place,
        t_ms=verdict.decided_ms if about is None else about.t_ms,
        said_ms=verdict.decided_ms,
        is_verdict=True,
        content=with_exact_ids(verdict.model_dump(mode="json", exclude_none=True)),
        earlier_ms=tuple(one.t_ms for one in (verdict.alerted, verdict.previous) if one is not None),
    )


def body_of(notification: Notification, rules: Iterable[str], more_rules: int = 0) -> bytes:
    """The JSON body: the same bytes for the same notification and rules. `more_rules`: number of rules that are not
    named.
    """
    kind = "verdict" if notification.is_verdict else "alert"
    # sorted and without blanks, so that the bytes are always the same
    content: dict[str, Any] = {
        "type": kind,
        "key": notification.key,
        "rules": sorted(rules),
        kind: notification.content,
    }
    if more_rules:
        content["more_rules"] = more_rules
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
