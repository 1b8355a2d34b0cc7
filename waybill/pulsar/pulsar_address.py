"""The address of a Pulsar cluster's brokers or admin REST, for the settings of every program.

Several hosts of one cluster follow one scheme: `pulsar://a:6650,b:6650`, `http://a:8080,b:8080`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator

_SERVICE: Final = ("pulsar://", "pulsar+ssl://")
_ADMIN: Final = ("http://", "https://")
_NAME: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_.])?"
_HOST: Final = re.compile(rf"(?P<name>{_NAME}|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]+))?")
_MAX_PORT: Final = 65_535


def each_host(url: str) -> tuple[str, ...]:
    """An address for each host: `pulsar://a:1,b:2` -> `pulsar://a:1`, `pulsar://b:2`."""
    scheme, _, hosts = url.partition("://")
    return tuple(f"{scheme}://{host}" for host in hosts.split(","))


def host_names(url: str) -> list[str]:
    """The names of the hosts: `pulsar://a:1,b:2` -> `a`, `b`."""
    return [urlsplit(one).hostname or "" for one in each_host(url)]


def _service_url(text: str) -> str:
    url = _checked(text, _SERVICE)
    if "[" in url:
        raise ValueError("the Pulsar client does not support IPv6 addresses: use the host's name")
    return url


def _admin_url(text: str) -> str:
    return _checked(text, _ADMIN)


def _checked(text: str, schemes: tuple[str, str]) -> str:
    """The address without blanks and without a final slash. Raises ValueError."""
    scheme = next((one for one in schemes if text.strip().startswith(one)), None)
    if scheme is None:
        raise ValueError(f"begin with {' or '.join(schemes)}, and go on with HOST:PORT")
    hosts = re.split(r"\s*,\s*", text.strip().removeprefix(scheme).removesuffix("/"))
    for host in hosts:
        if "@" in host:  # not shown: what stands before it may be a password
            raise ValueError("an address must not contain user and password: set them in the access")
        if "://" in host:
            raise ValueError(f"the scheme stands once, before the first host: {scheme}HOST:PORT,HOST:PORT")
        found = _HOST.fullmatch(host)
        if found is None or not 0 < int(found["port"] or 1) <= _MAX_PORT:
            raise ValueError(f"{host!r} is not HOST:PORT, of which {scheme} takes one or several, comma-separated")
    if len({*hosts}) < len(hosts):
        raise ValueError("a host is named twice")
    return scheme + ",".join(hosts)


ServiceUrl = Annotated[str, AfterValidator(_service_url)]
"""Where the brokers of a cluster are; the client tries its hosts in turn."""
AdminUrl = Annotated[str, AfterValidator(_admin_url)]
"""Where the admin REST of a cluster is; its hosts are tried in the order in which they stand."""
