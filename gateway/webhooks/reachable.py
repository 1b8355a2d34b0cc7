"""Which addresses a message may be posted to: public ones, and those that the settings name. Pure.

A name is its owner's, who may let it stand for any address, also for one of the centre's own network or of the machine
itself. So not the name is judged but each address, and the connection goes to the one that was judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["Network", "is_address", "is_reachable"]

Network = IPv4Network | IPv6Network

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""RFC 6052: its last 32 bits are an IPv4 address, to which a translator passes the connection on."""
_SPECIAL: Final = (
    IPv4Network("192.0.0.0/24"),  # RFC 6890, and the instance metadata of Oracle Cloud at 192.0.0.192
    IPv4Network("192.88.99.0/24"),  # the relays of 6to4, RFC 7526
    IPv4Network("168.63.129.16/32"),  # the host of a virtual machine at Azure
    IPv4Network("100.100.100.200/32"),  # the instance metadata of Alibaba Cloud
    IPv6Network("3fff::/20"),  # documentation, RFC 9637
)
"""Not public, although `is_global` of some version of Python says so."""


def is_address(host: str) -> bool:
    """Whether a host is written as an address, not as a name."""
    return _address(host) is not None


def is_reachable(address: str, networks: Iterable[Network] = ()) -> bool:
    """Whether a connection to an address may be opened. False for what is no address."""
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
    # outside are those of a machine, a link or a site, multicast, and what is given to nobody
    # a tunnel ends at whatever IPv4 address is written in it
    is_tunnel = address.sixtofour is not None or address.teredo is not None
    return address in _GLOBAL_UNICAST and address.is_global and not is_tunnel
