"""What can go wrong where alerts are delivered.

GatewayError
├── AlertsUnread          a topic of alerts or verdicts cannot be read by whoever shows them
├── StateUnusable         what was held back, and how much was sent, cannot be read or written
├── AccountUnusable       a text is no account whose devices are known
├── AddressForbidden      the name of a webhook's server stands for addresses that may not be reached
├── SecretUnusable        the secret of a webhook cannot be used
├── UndeliveredUnfit      a message that no webhook took cannot be kept
└── UndeliveredUnread     the messages that no webhook took cannot be read
"""

from __future__ import annotations

from gateway.errors import GatewayError

__all__ = [
    "AccountUnusable",
    "AddressForbidden",
    "AlertsUnread",
    "SecretUnusable",
    "StateUnusable",
    "UndeliveredUnfit",
    "UndeliveredUnread",
]


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
