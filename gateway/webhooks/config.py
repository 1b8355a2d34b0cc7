"""Settings of the notifier and the addresses that it may post to. `docs/alerts.md` explains each setting."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, IPvAnyNetwork, StringConstraints, model_validator

from gateway.config import ClusterSource, ReferenceSource, Word, Words
from geo.alerts.rule import WebhookName
from waybill.daemon.logs import LogSettings
from waybill.daemon.status_reader import StatusEndpoint
from waybill.mqtt.broker_settings import Port
from waybill.settings import Settings

# Addresses that may be posted to: public ones and those of the settings. Pure.

Network = IPv4Network | IPv6Network

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""RFC 6052: its last 32 bits are the IPv4 address that a translator connects to."""
_SPECIAL: Final = (
    IPv4Network("192.0.0.0/24"),  # RFC 6890, and the instance metadata of Oracle Cloud at 192.0.0.192
    IPv4Network("192.88.99.0/24"),  # the relays of 6to4, RFC 7526
    IPv4Network("168.63.129.16/32"),  # the host of a virtual machine at Azure
    IPv4Network("100.100.100.200/32"),  # the instance metadata of Alibaba Cloud
    IPv6Network("3fff::/20"),  # documentation, RFC 9637
)
"""Not public, although `is_global` of some version of Python says so."""


def is_reachable(address: str, networks: Iterable[Network] = ()) -> bool:
    """Whether a connection to an address is allowed: it is public, or in one of `networks`."""
    found = _address(address)
    if found is None:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(_is_in(found, network) for network in networks) or _is_public(found)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _is_in(address: IPv4Address | IPv6Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if any(_is_in(address, network) for network in _SPECIAL):
        return False
    if isinstance(address, IPv4Address):
        # is_global says nothing against 224.0.0.0/4
        return address.is_global and not address.is_multicast and not address.is_reserved
    if address in _NAT64:
        return _is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    # others are local to a machine, link or site, multicast, or unassigned
    # a tunnel leads to the IPv4 address in it
    is_tunnel = address.sixtofour is not None or address.teredo is not None
    return address in _GLOBAL_UNICAST and address.is_global and not is_tunnel


AccountPattern = Annotated[str, StringConstraints(pattern=r"^[a-z0-9._-]{0,63}\*?$", min_length=1)]
# each has a client with its threads
MAX_TOPICS = 520
# each has its own threads
MAX_WEBHOOKS = 200
MAX_NETWORKS = 100
BACKOFF_MAX_S = 300.0
"""The longest wait between two attempts, unless the server asks for more."""


def _url(text: str) -> str:
    parts = urlsplit(text)
    # the URL must not change when a library parses it
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a URL has ASCII characters and no blanks; write others as %XX, and a host in its xn-- form")
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise ValueError("write https://host/path")
    # a password in an address ends up in other people's logs
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("a webhook URL has no user, no password and no #")
    if parts.port == 0:
        raise ValueError("no port 0")
    return text


class WebhookSettings(Settings):
    """One endpoint. `secret_file`: `whsec_` and base64, one secret a line.

    `accounts`: accounts whose rules may use it, as ids or prefixes with `*`. `ca`: PEM file of authorities, instead of
    the machine's. `networks`: allowed non-public networks (`10.1.0.0/16`). `parallel`: concurrent requests.
    """

    url: Annotated[str, StringConstraints(max_length=2000), AfterValidator(_url)]
    secret_file: Path
    accounts: Annotated[tuple[AccountPattern, ...], Field(min_length=1, max_length=1000)]
    ca: Path | None = None
    networks: Annotated[tuple[IPvAnyNetwork, ...], Field(max_length=MAX_NETWORKS)] = ()
    parallel: int = Field(default=4, ge=1, le=64)
    timeout_s: float = Field(default=15, ge=0.1, le=300, description="for one attempt")
    backoff_first_s: float = Field(default=1, ge=0.01, le=BACKOFF_MAX_S, description="the first wait; it doubles")
    max_age_s: float = Field(default=3600, ge=1, le=604_800, description="for all attempts")

    @model_validator(mode="after")
    def _is_reachable(self) -> Self:
        # a name is checked at each lookup, as its address may change
        host = urlsplit(self.url).hostname or ""
        if _address(host) is not None and not is_reachable(host, self.networks):
            raise ValueError(f"url: {host} is not a public address: add its network to networks to allow it")
        return self

    def is_for(self, account: str) -> bool:
        return any(account.startswith(one[:-1]) if one.endswith("*") else account == one for one in self.accounts)

    def foreign_accounts(self, rules: Iterable[str]) -> list[str]:
        """The accounts of rules (`account/name`) that may not use it."""
        return sorted({account for rule in rules if not self.is_for(account := rule.partition("/")[0])})


class NotifierSource(ClusterSource):
    """The centre's cluster. Topics are `{tenant}/alerts-{region}/alerts`, `{tenant}/events/verdicts` and
    `{tenant}/events/undelivered`."""

    subscription: Word = "notifier"


class NotifierEndpoint(StatusEndpoint):
    port: Port = 9468


class NotifierSettings(Settings):
    """Settings of the notifier, and of `waybill alerts tail`.

    `state_file`: what rules held back and how much they passed, in SQLite. `alert_max_age_s`: an alert older than this
    when it is read is not delivered. `late_max_age_s`: a verdict `late` on an older event is not delivered. `insecure`:
    allows no TLS, no authentication and unsigned rules.
    """

    tenants: Words
    regions: Words
    insecure: bool = False
    pulsar: NotifierSource
    rules: ReferenceSource
    state_file: Path
    webhooks: dict[WebhookName, WebhookSettings] = Field(default_factory=dict, max_length=MAX_WEBHOOKS)
    alert_max_age_s: float = Field(default=3600, gt=0, le=315_360_000)
    late_max_age_s: float = Field(default=86_400, gt=0, le=315_360_000)
    status: NotifierEndpoint = NotifierEndpoint()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _has_few_topics(self) -> Self:
        count = len(self.tenants) * (len(self.regions) + 1)
        if count > MAX_TOPICS:
            raise ValueError(
                f"{len(self.tenants)} tenants and {len(self.regions)} regions are {count} topics, of at most "
                f"{MAX_TOPICS}: share the tenants between notifiers, each with its own subscription"
            )
        return self

    def alerts_topic(self, tenant: str, region: str) -> str:
        return f"persistent://{tenant}/alerts-{region}/alerts"

    def verdicts_topic(self, tenant: str) -> str:
        return f"persistent://{tenant}/events/verdicts"

    def undelivered_topic(self, tenant: str) -> str:
        return f"persistent://{tenant}/events/undelivered"
