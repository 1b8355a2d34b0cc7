"""Alert rules: which account is notified of what, when and where. Reference data, like fences and tariffs. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, get_args

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from geo.alerts.messages import UnusableRule
from geo.reference.in_force import Usable
from geo.reference.moments import Moment
from geo.spatial.event_ids import Kind
from geo.spatial.ids import id_fault
from geo.spatial.weekly import Weekly
from waybill.settings import Settings, problem_text, without_consequences

__all__ = ["AlertRule", "RuleMessages", "matches_place", "usable_rule"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MAX_PLACES: Final = 1000
MAX_PER_HOUR: Final = 10_000
_MAX_REASONS: Final = 5
_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,62}"


class RuleMessages(StrEnum):
    ALERTS = "alerts"
    """Alerts of a region, at once."""
    VERDICTS = "verdicts"
    """The centre's verdicts on alerts and on events without an alert."""
    BOTH = "both"


def _place(pattern: str) -> str:
    # in an id an asterisk can only begin it, where it stands for a crowd
    if fault := id_fault(pattern.removesuffix("*") or "*"):
        raise ValueError(f"no fence or gate has this id: {fault}")
    return pattern


PlacePattern = Annotated[str, AfterValidator(_place)]
"""The id of a fence or gate, or the beginning of ids and a `*`."""
WebhookName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$")]


class AlertRule(Settings):
    """One version of a rule. `id`: the account, a slash, and a name: `acme/yard`.

    `kinds` and `places`: of which events; empty means all. `webhook`: its name in the settings of the notifier.
    `max_per_hour`: messages in any 60 minutes. `quiet`: windows of the local week in which nothing is sent. Messages
    held back by a window or the limit are summarised in one message afterwards (`digest`), or only counted. `enabled` =
    false: from this version on the rule sends nothing.
    """

    id: Annotated[str, StringConstraints(pattern=rf"^{_NAME}/{_NAME}$")]
    effective_from: Moment
    webhook: WebhookName
    messages: RuleMessages = RuleMessages.BOTH
    kinds: Annotated[tuple[Kind, ...], Field(max_length=len(KINDS))] = ()
    places: Annotated[tuple[PlacePattern, ...], Field(max_length=MAX_PLACES)] = ()
    max_per_hour: Annotated[int, Field(ge=1, le=MAX_PER_HOUR, strict=True)] | None = None
    quiet: Weekly | None = None
    digest: bool = True
    enabled: bool = True

    @property
    def account(self) -> str:
        return self.id.partition("/")[0]

    def hears(self, *, is_verdict: bool) -> bool:
        """Whether alerts, or verdicts, are sent by this rule."""
        return self.messages in {RuleMessages.BOTH, RuleMessages.VERDICTS if is_verdict else RuleMessages.ALERTS}

    def matches(self, kind: str, place: str) -> bool:
        return (not self.kinds or kind in self.kinds) and (
            not self.places or any(matches_place(one, place) for one in self.places)
        )

    def is_quiet_at(self, t_ms: int) -> bool:
        """Whether nothing may be sent at a moment (ms since 1970)."""
        return self.quiet is not None and self.quiet.is_open_at(t_ms)


def matches_place(pattern: str, place: str) -> bool:
    """Whether a pattern is the id of a place, or its beginning and a `*`."""
    return place.startswith(pattern[:-1]) if pattern.endswith("*") else place == pattern


def usable_rule(body: str) -> Usable[AlertRule]:
    """The rule of a JSON text, and from when it is in force (ms since 1970). Raises UnusableRule."""
    try:
        made = AlertRule.model_validate_json(body)
    except ValidationError as error:
        details = without_consequences(error.errors(include_url=False))[:_MAX_REASONS]
        raise UnusableRule("; ".join(problem_text(AlertRule, one) for one in details)) from error
    return Usable(round(made.effective_from.timestamp() * 1000), made)
