"""Errors of the gateway."""

from __future__ import annotations

import traceback

from waybill.daemon.errors import DaemonError

_MAX_TEXT = 500


class GatewayError(DaemonError):
    """Base of everything this package raises."""


class BrokerUnreachable(GatewayError):
    """There is no MQTT session now; the caller tries again."""


class SessionNotEnded(BrokerUnreachable):
    """The sessions of other devices may end."""


class PulsarUnreachable(GatewayError):
    """There is no producer now; the caller tries again and reads nothing until then."""


class EntryNotTaken(GatewayError):
    """The registry does not have the new certificate, so the device does not get it."""


class NoAnswer(GatewayError):
    """The status of a gateway cannot be read."""


class AlertsUnread(GatewayError):
    """The message names the topic, and what the cluster says."""


class CanaryError(GatewayError):
    """What a canary cannot do; the text says what is wrong."""


class ProbeCut(CanaryError):
    """A probe was not sent as a whole; the text says why."""


class AccountUnusable(GatewayError):
    """A publication of an account that says nothing of its devices."""


class AddressForbidden(GatewayError):
    """`address`: the first of those for which `host` stands, none of which is public or in a network that is named."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(
            f"{host} stands for {address}, which is not a public address: add its network to `networks` to allow it"
        )


class SecretUnusable(GatewayError):
    """A file that holds no secret; the message names it, and never what is in it."""


def last_line(error: BaseException) -> str:
    """The error and the last frame of its traceback, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f"{traceback.format_exception_only(error)[-1].strip()[:_MAX_TEXT]}{where}"
