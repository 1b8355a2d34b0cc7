"""Where servers are reached, and which names a regional authority permits its servers (RFC 5280, 4.2.1.10)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from cryptography import x509
from cryptography.x509.oid import NameOID

from waybill.identity.errors import NameRefused

__all__ = ["check_permitted", "name_constraints", "permitted_servers", "server_name", "server_names"]

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}")
_NO_HOST = "waybill.invalid"
"""Permitted where no DNS name is: a list of permitted names that is empty would permit all of them."""
_ALL_ADDRESSES = ip_network("0.0.0.0/0"), ip_network("::/0")


def check_permitted(authority: x509.Certificate, names: Sequence[str]) -> None:
    """Raises NameRefused for a name that the servers of this authority may not have."""
    who = str(authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    permitted = permitted_servers(authority)
    for name in names if permitted is not None else ():
        if not any(_is_within(server_name(name), _permitted(one)) for one in permitted or ()):
            may = f"may sign servers of {', '.join(permitted)}" if permitted else "may sign no server"
            what = f"{who} {may}, and not of {name}: `waybill pki region --renew --servers` permits others"
            raise NameRefused(what)


def server_names(certificate: x509.Certificate) -> list[str]:
    """Where the server of a certificate is reached; nothing for a client's."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def permitted_servers(certificate: x509.Certificate) -> tuple[str, ...] | None:
    """The names and networks that an authority's servers may have; None: it is not restricted."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or ()
    except x509.ExtensionNotFound:
        return None
    return tuple(str(one.value) for one in names if one.value != _NO_HOST)


def name_constraints(servers: Sequence[str]) -> x509.NameConstraints:
    """What permits these names and networks, and no others. Raises NameRefused."""
    permitted = [_permitted(one) for one in servers]
    if not any(isinstance(one, x509.DNSName) for one in permitted):
        permitted.append(x509.DNSName(_NO_HOST))
    versions = {one.value.version for one in permitted if isinstance(one, x509.IPAddress)}
    # Of the versions of which no network is permitted none may be: some verifiers compare like with like.
    excluded = [x509.IPAddress(one) for one in _ALL_ADDRESSES if one.version not in versions]
    return x509.NameConstraints(permitted, excluded or None)


def _permitted(name: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ip_network(name))
    except ValueError:
        pass
    if "*" in name or not _HOST.fullmatch(name):
        raise NameRefused(f"{name!r:.80} is neither a DNS name nor an IP network: write eu.example or 10.0.0.0/8")
    return x509.DNSName(name)


def _is_within(name: x509.GeneralName, permitted: x509.GeneralName) -> bool:
    if isinstance(name, x509.IPAddress) and isinstance(permitted, x509.IPAddress):
        return name.value in permitted.value  # type: ignore[operator]  # an address and a network
    if isinstance(name, x509.DNSName) and isinstance(permitted, x509.DNSName):
        return f".{name.value.lower()}".endswith(f".{permitted.value.lower()}")
    return False


def server_name(name: str) -> x509.GeneralName:
    """A name as certificates have it. Raises NameRefused for what is none."""
    # An address in a DNS entry is believed by nobody.
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    if not _HOST.fullmatch(name):
        raise NameRefused(
            f"{name!r:.80} is neither a DNS name nor an IP address: write one alone, as broker.eu.example"
        )
    return x509.DNSName(name)
