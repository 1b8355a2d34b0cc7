"""Alerts and their verdicts, as they travel: what a region says at once, and what the centre says of it. Pure."""

from geo.alerts.alert import Alert, decode_alert, encode_alert
from geo.alerts.errors import AlertError, MalformedAlert, UnusableRule
from geo.alerts.rule import AlertRule, RuleMessages, usable_rule
from geo.alerts.verdict import AlertVerdict, FinalEvent, VerdictKind, decode_verdict, encode_verdict

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
