"""Alerts and their verdicts, as they travel: what a region says at once, and what the centre says of it. Pure."""

from geo.alerts.alert import Alert, decode_alert, encode_alert
from geo.alerts.errors import AlertError, MalformedAlert
from geo.alerts.verdict import AlertVerdict, VerdictKind, decode_verdict, encode_verdict

__all__ = [
    "Alert",
    "AlertError",
    "AlertVerdict",
    "MalformedAlert",
    "VerdictKind",
    "decode_alert",
    "decode_verdict",
    "encode_alert",
    "encode_verdict",
]
