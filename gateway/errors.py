"""What can go wrong at the front door.

GatewayError
├── BrokerUnreachable    the regional MQTT broker refuses the connection or the subscription, or does not answer
│   ├── GuardRefused     it has another password of the access daemon than the daemon
│   └── SessionNotEnded  it answers, and does not let one session be taken over
├── PulsarUnreachable    the regional Pulsar cluster does not give a producer
├── EntryNotTaken        what an access daemon published is not taken by its own reader of the registry
├── AddressTaken         metrics and status cannot be served at their address
├── ClockSetBack         what was forgotten by the clock of before has to be read again
├── NoAnswer             no gateway answers at the address of its status
├── NotForgotten         what an access daemon keeps of a device is not given up
└── ThreadEnded          a thread of this process ended by itself
"""

from __future__ import annotations

import traceback

_MAX_TEXT = 500


class GatewayError(Exception):
    """Base of everything this package raises."""


class BrokerUnreachable(GatewayError):
    """No session with the MQTT broker now; it is tried again."""


class SessionNotEnded(BrokerUnreachable):
    """Of one device: the sessions of others may end."""


class GuardRefused(BrokerUnreachable):
    """No session is ended until the broker reads its password file again."""


class PulsarUnreachable(GatewayError):
    """No producer now; it is tried again, and nothing is taken until there is one."""


class EntryNotTaken(GatewayError):
    """So the registry does not say what was to be given, and it is not given."""


class AddressTaken(GatewayError):
    """Another process listens there; give this gateway another `status.port`."""


class ClockSetBack(GatewayError):
    """The process ends, and whoever supervises it starts it again."""


class NoAnswer(GatewayError):
    """The status of a gateway cannot be read."""


class NotForgotten(GatewayError):
    """Nothing was changed in what the daemon keeps."""


class ThreadEnded(GatewayError):
    """Half a gateway is none: the process ends, and whoever supervises it starts it again."""


def last_line(error: BaseException) -> str:
    """What was raised, and where: the last line of its traceback, and the last line of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f"{traceback.format_exception_only(error)[-1].strip()[:_MAX_TEXT]}{where}"
