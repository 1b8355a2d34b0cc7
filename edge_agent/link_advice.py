"""What it means that a broker takes no connection, and what an installer can do about it. Pure."""

from __future__ import annotations

from typing import Final

from paho.mqtt.reasoncodes import ReasonCode

__all__ = ["claim_refusal", "named", "refusal", "turned_away"]

_NAME: Final = "TENANT/DEVICE"
_SHOW: Final = f"`waybill device show {_NAME}`"
_NOT_AUTHORISED: Final = (
    "not authorised: the one-time token, user name or password is wrong, used or over, or the device is suspended or "
    f"revoked; ask the operator ({_SHOW}), who may give a new token (`waybill device expect --again`)"
)
_TURNED_AWAY: Final = (
    "where the broker took this certificate before, the device is suspended or revoked, or the broker is not ready "
    f"yet; if it stays so, ask the operator ({_SHOW})"
)
_VERSION: Final = "it does not speak MQTT 5: look at host and port"
_BUSY: Final = "it is busy or not ready; it is tried again"
_ADVICE: Final = {
    0x84: _VERSION,
    0x85: "it does not take the client id: look at device.id and device.tenant",
    0x86: _NOT_AUTHORISED,
    0x87: _NOT_AUTHORISED,
    0x88: _BUSY,
    0x89: _BUSY,
    0x8A: "this client is banned there; ask the operator",
    0x8C: "it asks for another way to log in; look at username, password_file and tls",
    0x9F: _BUSY,
}
"""What a CONNACK's code means and what to do: MQTT 5, 3.2.2.2."""
_ENDED_BY_THE_BROKER: Final = (
    "EOF occurred",
    "ALERT",
    " alert ",
    "Connection reset",
    "the broker closed the connection",
)
"""Of a handshake with a certificate: with TLS 1.3 the refusal arrives as an alert, or as an end before it."""


def named(advice: str, device: str) -> str:
    """An advice with the name of the device that it is for; "": that is not known."""
    return advice.replace(_NAME, device) if device else advice


def refusal(connack: ReasonCode) -> str:
    """What a CONNACK that refuses means."""
    return _ADVICE.get(connack.value, str(connack))


def turned_away(problem: str) -> str:
    """What it means that a connection with a client's certificate ended before the broker answered; "": nothing."""
    return _TURNED_AWAY if any(sign in problem for sign in _ENDED_BY_THE_BROKER) else ""


def claim_refusal(problem: str) -> str:
    """What it means that a claim got no connection; "": the problem says so itself."""
    if _SHOW in problem:
        return ""
    if "CERTIFICATE_VERIFY_FAILED" in problem:
        return "the broker's certificate is not of the authority in enrolment.ca, or this device's clock is wrong"
    if "[Errno" in problem or "timed out" in problem:
        return "the claim was not looked at: see enrolment.host and port, and the network"
    # The broker ends a connection with a password that it does not know, and not each says so in words.
    return (
        f"a claim that is used, expired or unknown is turned away there: {_SHOW} says what is expected, and "
        "`waybill device expect --again` gives another claim"
    )
