"""What a topology says to the configuration of a cluster's brokers: its ports, and which roles may do everything."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from geo.replication.errors import NoAddress, UnusableAccess
from geo.replication.model import Topology
from waybill.identity.broker_conf import ServerFiles
from waybill.identity.pulsar_conf import pulsar_security
from waybill.pulsar.pulsar_address import each_host

__all__ = ["broker_conf_lines"]

_KEY_REFRESH_S = 60
"""A key of tokens that is retired is refused after so long."""


def broker_conf_lines(topology: Topology, cluster: str, issuer: str, tls: Path, token_file: Path) -> list[str]:
    """Lines of broker.conf. `tls`, `token_file`: paths on the brokers' machines. Raises NoAddress, UnusableAccess."""
    found = topology.clusters.get(cluster)
    if found is None or found.address is None:
        raise NoAddress(cluster)
    if not (tls.is_absolute() and token_file.is_absolute() and issuer.startswith("https://")):
        raise UnusableAccess("--tls and --token-file are whole paths (/etc/...), --issuer is an https:// address")
    urls = found.address.service_url, found.address.admin_url
    if not (urls[0].startswith("pulsar+ssl://") and urls[1].startswith("https://")):
        raise UnusableAccess(f"cluster {cluster}: its addresses must be pulsar+ssl:// and https://")
    broker_port, web_port = (urlsplit(each_host(url)[0]).port for url in urls)
    conf = pulsar_security(
        ServerFiles(tls / "certificate.pem", tls / "key.pem"),
        tls / "ca.pem",
        issuer=issuer,
        broker_token=token_file,
        superusers=topology.superusers_of(cluster),
        ports=(broker_port or 6651, web_port or 443),
        key_refresh_s=_KEY_REFRESH_S,
    )
    return [f"{name}={value}" for name, value in conf.items()]
