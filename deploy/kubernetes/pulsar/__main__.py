"""`python -m deploy.kubernetes.pulsar NAMESPACE OFFICE`: a region's Pulsar and the centre's, replicated between them.

OFFICE gets what an operator's office has: `pki`, `tokens` (the folder of `waybill pki token`) and `topology.toml` with
the addresses of the Services. An authority that is there already is used.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.kubernetes.cluster.layout import Layout
from deploy.local.pulsar import SMALL_BROKER, small_jvm, standalone_conf, standalone_words
from deploy.local.stack import DEFAULT_TOPOLOGY
from geo.replication import Topology
from waybill.identity.broker_conf import ServerFiles, pulsar_security
from waybill.identity.errors import AuthorityMissing
from waybill.identity.pki_folder import PkiFolder
from waybill.identity.tokens import TokenIssuer
from waybill.settings import load

CHART = Path(__file__).with_name("chart")
ISSUER = "https://127.0.0.1:8444"
_PORTS = 6651, 8443
_BOOKIE_PORT = 3181
_TLS = Path("/etc/pulsar/tls")
_LIFE = timedelta(days=30)
_HEAP_MB, _DIRECT_MB = 256, 192
_INSTALL_S = 300


def host(cluster: str, namespace: str) -> str:
    """The name of a cluster's Service, as all pods reach it."""
    return f"pulsar-{cluster}.{namespace}.svc.cluster.local"


def addresses(cluster: str, namespace: str) -> tuple[str, str]:
    """Service URL and admin URL of a cluster."""
    at = host(cluster, namespace)
    return f"pulsar+ssl://{at}:{_PORTS[0]}", f"https://{at}:{_PORTS[1]}"


def office(namespace: str, folder: Path, source: Path, left_out: frozenset[str]) -> dict[str, Any]:
    """Make what is missing in an office's folder; returns the values of the chart. Raises SettingsError, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    topology = _located(source, namespace, folder / "topology.toml", left_out)
    now, pki = datetime.now(UTC), PkiFolder(folder / "pki")
    try:
        authority = pki.pulsar()
    except AuthorityMissing:
        authority = pki.create_pulsar(now=now, lifetime=_LIFE)
    issuer = TokenIssuer(folder / "tokens", ISSUER)
    brokers = {cluster: topology.role_of_brokers(cluster) or "operator" for cluster in topology.clusters}
    roles = {*topology.roles_by_name(), *brokers.values()}
    issuer.renew(roles, now_s=time.time(), life_s=_LIFE.total_seconds())
    root, clusters = authority.root_pem.decode(), {}
    secrets = {
        "pulsar-keys": {
            "openid-configuration": (issuer.published / ".well-known/openid-configuration").read_text(encoding="utf-8"),
            "keys.json": (issuer.published / "keys.json").read_text(encoding="utf-8"),
        },
        "pulsar-operator": {
            "topology.toml": (folder / "topology.toml").read_text(encoding="utf-8"),
            "operator.token": issuer.token_file("operator").read_text(encoding="ascii"),
            "ca.pem": root,
            "access.toml": 'token_file = "/etc/office/operator.token"\ntls_ca = "/etc/office/ca.pem"\n',
        },
    }
    for cluster, role in brokers.items():
        place = folder / "tls" / f"pulsar-{cluster}"
        if not place.exists():
            names = (host(cluster, namespace), "127.0.0.1")
            pki.write(None, place, f"pulsar@{cluster}", servers=names, now=now, lifetime=_LIFE)
        secrets[f"pulsar-{cluster}"] = {file.name: file.read_text(encoding="ascii") for file in place.glob("*.pem")}
        secrets[f"pulsar-{cluster}"]["broker.token"] = issuer.token_file(role).read_text(encoding="ascii")
        clusters[cluster] = _server(cluster, host(cluster, namespace), topology.superusers_of(cluster))
    return {"clusters": clusters, "secrets": secrets}


def _located(source: Path, namespace: str, file: Path, left_out: frozenset[str]) -> Topology:
    """The topology with the addresses of the Services, without the clusters that are left out and their regions."""
    text = source.read_text(encoding="utf-8")
    for name in left_out:
        text = text.replace(f"[clusters.{name}]\n", "").replace(f'[regions.{name}]\ncluster = "{name}"\n', "")
    for cluster in re.findall(r"^\[clusters\.([\w-]+)\]", text, re.MULTILINE):
        service, admin = addresses(cluster, namespace)
        text += f"""
[clusters.{cluster}.address]
service_url = "{service}"
admin_url = "{admin}"
trust_certs_file = "{_TLS}/ca.pem"
"""
    file.write_text(text, encoding="utf-8")
    return load(Topology, file)


def _server(cluster: str, address: str, superusers: tuple[str, ...]) -> dict[str, Any]:
    conf, home = Path("/etc/pulsar/conf/standalone.conf"), Path("/opt/pulsar")
    security = pulsar_security(
        ServerFiles(_TLS / "certificate.pem", _TLS / "key.pem"),
        _TLS / "ca.pem",
        issuer=ISSUER,
        broker_token=_TLS / "broker.token",
        superusers=superusers,
        ports=_PORTS,
        key_refresh_s=2,
    )
    addresses = {"clusterName": cluster, "bindAddress": "0.0.0.0", "advertisedAddress": address}  # noqa: S104 - a pod
    # Ready by /status.html once the file is there, and the broker too.
    own = {**addresses, **security, **SMALL_BROKER, "statusFilePath": str(conf)}
    places = {"home": home, "conf": conf, "logs": Path("/tmp")}  # noqa: S108 - the pod's own
    words = standalone_words(class_path=f"{home}/lib/*", bookie_port=_BOOKIE_PORT, address=address, **places)
    jvm = [*small_jvm(_HEAP_MB, _DIRECT_MB), "-XX:TieredStopAtLevel=1"]
    return {"conf": standalone_conf(own), "args": [*jvm, *words]}


def install(
    namespace: Annotated[str, typer.Argument(help="It must exist.")],
    folder: Annotated[Path, typer.Argument(metavar="OFFICE", help="Keys, tokens and topology are kept here.")],
    *,
    topology: Annotated[Path, typer.Option(help="Without addresses.")] = DEFAULT_TOPOLOGY,
    without: Annotated[list[str] | None, typer.Option(help="Regions whose cluster has the same name.")] = None,
    gateway_image: Annotated[str, typer.Option()] = "localhost/waybill-gateway:0.1.0",
) -> None:
    """Install the clusters of a topology, and wait until it is applied.

    Example: python -m deploy.kubernetes.pulsar proof /tmp/office --without us
    """
    values = office(namespace, folder, topology, frozenset(without or ())) | {"gatewayImage": gateway_image}
    layout = Layout.of_user()
    helm = [layout.program("helm"), "--kubeconfig", f"{layout.keys}/admin.conf", "-n", namespace]
    options = ["--install", "--wait", "--wait-for-jobs", "--timeout", f"{_INSTALL_S}s", "-f", "-"]
    done = subprocess.run(
        [*helm, "upgrade", "pulsar", str(CHART), *options],
        input=json.dumps(values),
        text=True,
        timeout=_INSTALL_S + 60,
        check=False,
    )
    raise typer.Exit(done.returncode)


if __name__ == "__main__":
    typer.run(install)
