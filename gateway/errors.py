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
├── ThreadEnded          a thread of this process ended by itself
├── AlertsUnread         a topic of alerts or verdicts cannot be read
├── StateUnusable        the notifier's state file cannot be read or written
├── AccountUnusable      a published account does not say which devices it has
├── AddressForbidden     a webhook's name resolves to addresses that are not public
├── SecretUnusable       the secret of a webhook cannot be used
├── UndeliveredUnfit     a message that no webhook took cannot be kept
└── UndeliveredUnread    the messages that no webhook took cannot be read
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from waybill.identity.errors import IdentityError
from waybill.pulsar.pulsar_client import PulsarAccessError
from waybill.settings import SettingsError

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


class ThreadEnded(GatewayError):
    """Half a gateway is none: the process ends, and whoever supervises it starts it again."""


class AlertsUnread(GatewayError):
    """The message names the topic, and what the cluster says."""


class StateUnusable(GatewayError):
    """Nothing is acknowledged that is not noted: the process ends, and whoever supervises it starts it again."""


class AccountUnusable(GatewayError):
    """A publication of an account that says nothing of its devices."""


class AddressForbidden(GatewayError):
    """`address`: the first of those for which `host` stands, none of which is public or in a network that is named."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(
            f"{host} stands for {address}, which is no public address: name its network in `networks` if it is meant"
        )
        self.host, self.address = host, address


class SecretUnusable(GatewayError):
    """A file that holds no secret; the message names it, and never what is in it."""


class UndeliveredUnfit(GatewayError):
    """Whoever reads the topic would not take it; the message names its key, and what is wrong."""


class UndeliveredUnread(GatewayError):
    """The cluster does not give them, or another command has them now."""


@contextmanager
def alert_errors_as_messages(program: str) -> Iterator[None]:
    """Of `program`: 78 for wrong settings, 1 for whatever else the packages raise."""
    try:
        yield
    except SettingsError as error:
        typer.echo("\n".join(error.lines), err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    except (GatewayError, IdentityError, PulsarAccessError) as error:
        typer.echo(f"{program}: {error}", err=True)
        raise typer.Exit(1) from error


def last_line(error: BaseException) -> str:
    """What was raised, and where: the last line of its traceback, and the last line of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f"{traceback.format_exception_only(error)[-1].strip()[:_MAX_TEXT]}{where}"
