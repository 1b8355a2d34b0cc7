"""Messages of alerts (from a region) and verdicts (from the centre). Pure."""

from geo.alerts.messages import (
    Alert,
    AlertError,
    AlertVerdict,
    FinalEvent,
    MalformedAlert,
    UnusableRule,
    VerdictKind,
    decode_alert,
    decode_verdict,
    encode_alert,
    encode_verdict,
)
from geo.alerts.rule import AlertRule, RuleMessages, usable_rule

__all__ = [
    "Alert",
    "AlertError",
    "AlertRule",
    "AlertVerdict",
    "FinalEvent",
    "MalformedAlert",
    "RuleMessages",
    "UnusableRule",
    "VerdictKind",
    "decode_alert",
    "decode_verdict",
    "encode_alert",
    "encode_verdict",
    "usable_rule",
]
