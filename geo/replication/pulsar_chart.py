"""Values for Apache's Helm chart of Pulsar, and a topology's addresses from the Services of charts.

Keys are those of the chart's version 4.7 (Pulsar 4.0). `tls.broker` needs cert-manager in the cluster: an issuer there
signs the brokers' certificates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from geo.replication.errors import NoAddress, UnusableAccess
from geo.replication.model import Topology
from waybill.identity.broker_conf import ServerFiles, pulsar_security
from waybill.pulsar.pulsar_address import each_host
from waybill.settings import Settings

TRUST_FILE = "/pulsar/certs/ca/ca.crt"
"""Where the chart has the authority of brokers' certificates: the topology's `trust_certs_file`."""

SNAPSHOTS: Mapping[str, str | int] = {
    # Positions travel even when acknowledgements lag by minutes (10 snapshots by default).
    "replicatedSubscriptionsSnapshotFrequencyMillis": 1000,
    "replicatedSubscriptionsSnapshotTimeoutSeconds": 10,
    "replicatedSubscriptionsSnapshotMaxCachedPerSubscription": 500,
    # A cursor is persisted at most this often a second; the default is every ten seconds, all of it redelivered
    # after a kill.
    "managedLedgerDefaultMarkDeleteRateLimit": 10,
    "managedLedgerCursorPositionFlushSeconds": 1,
    # A topic stays until it is deleted.
    "brokerDeleteInactiveTopicsEnabled": "false",
}
"""What replicated subscriptions need of a broker."""

MEANINGS: Mapping[str, str] = {
    "clusterName": "as in the topology; also the label by which `waybill topology addresses` finds its Service",
    "components.proxy": "none: clients and the other clusters reach brokers directly",
    "affinity.anti_affinity": "two bookies, or two brokers, are never on one node if there are enough nodes",
    "tls.enabled": "certificates come from cert-manager",
    "tls.broker.enabled": "ports 6651 and 8443; 8080 stays open inside for probes: close it by a NetworkPolicy",
    "tls.broker.dnsNames": "names in the topology's addresses, beside those of the Services",
    "certs.internal_issuer.enabled": "the chart makes no authority of its own",
    "certs.issuers.ca.name": "the Issuer that signs the brokers' certificates",
    "certs.issuers.ca.secretName": "the Secret with its ca.crt",
    "auth.authentication.enabled": "no client without a token",
    "auth.authentication.openid.enabled": "keys of tokens are fetched from their issuer, so they can be changed",
    "auth.authentication.openid.openIDAllowedTokenIssuers": "the URL that serves the keys",
    "auth.authentication.openid.openIDAllowedAudiences": "the audience of Waybill's tokens",
    "auth.authentication.openid.openIDTokenIssuerTrustCertsFilePath": "authority of the issuer's certificate",
    "auth.authentication.openid.openIDRoleClaim": "the claim with the role",
    "auth.authentication.openid.openIDCacheRefreshAfterWriteSeconds": "a retired key is refused after this time",
    "auth.authentication.openid.openIDCacheExpirationSeconds": "how long known keys are valid without the issuer",
    "auth.authentication.openid.openIDKeyIdCacheMissRefreshSeconds": "a new key is fetched after this time",
    "auth.authorization.enabled": "no access without a right",
    "auth.superUsers": "roles that may do everything; empty ones replace those of the chart",
    "auth.useProxyRoles": "without a proxy there is no role of one",
    "bookkeeper.replicaCount": "one in each zone",
    "bookkeeper.affinity.anti_affinity_topology_key": "bookies are in different zones",
    "bookkeeper.volumes.ledgers.size": "retention and backlogs of the topology, their copies, and a quarter more",
    "broker.replicaCount": "one can be lost",
    "broker.tolerations": "a broker leaves a node that does not answer after 10 s",
    "broker.topologySpreadConstraints": "brokers are in different zones",
    "broker.ports.pulsarssl": "port of the topology's service_url",
    "broker.ports.https": "port of the topology's admin_url",
    "broker.configData": "lines of broker.conf: TLS towards others, rights, snapshots of replicated subscriptions",
    "broker.extraVolumes": "the Secret with the token of the brokers' role, read again when it changes",
    "broker.extraVolumeMounts": "where the token is",
    "broker.storageOffload": "ledgers go to object storage above the threshold; retention itself is the topology's",
}
"""Each key that is written, and why. A key below one of these belongs to it."""

_BY_CHART = (
    *("brokerServicePort", "webServicePort", "openID", "tlsEnabled", "tlsCertificateFilePath", "tlsKeyFilePath"),
    *("tlsTrustCertsFilePath", "authenticationEnabled", "authenticationProviders", "authorizationEnabled"),
    "superUserRoles",
)
_TOKEN_FOLDER = Path("/pulsar/waybill")
_KEY_REFRESH_S = 60
_COPIES, _ACKNOWLEDGED = 3, 2
_UNBOUNDED_MB = 1024
"""Counted for a namespace without limit, such as compacted reference data."""
_RESERVE = 1.25
_OPENID = ("openIDCacheRefreshAfterWriteSeconds", "openIDCacheExpirationSeconds", "openIDKeyIdCacheMissRefreshSeconds")


class ChartOptions(Settings):
    """What a topology does not say about its installation by the chart."""

    issuer: str = Field(description="the URL that serves the keys of tokens")
    credentials: str = Field("waybill-pulsar", description="the Secret with broker.token")
    ca: str = Field("waybill-pulsar", description="cert-manager's Issuer; the Secret NAME-ca has its ca.crt")
    bookies: int = Field(3, ge=_COPIES)
    offload_bucket: str = Field("", description="an S3 bucket; none: nothing is offloaded")
    offload_region: str = ""
    offload_secret: str = Field("", description="the Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    offload_above_mb: int = Field(1024, ge=0, description="of each topic")


def chart_values(topology: Topology, cluster: str, options: ChartOptions) -> dict[str, Any]:
    """The values of one cluster. Raises NoAddress, UnusableAccess."""
    found = topology.clusters.get(cluster)
    if found is None or found.address is None:
        raise NoAddress(cluster)
    urls = found.address.service_url, found.address.admin_url
    if not (urls[0].startswith("pulsar+ssl://") and urls[1].startswith("https://")):
        raise UnusableAccess(f"cluster {cluster}: its addresses must be pulsar+ssl:// and https://")
    if not options.issuer.startswith("https://"):
        raise UnusableAccess("--issuer is an https:// address")
    broker, web = (urlsplit(each_host(url)[0]) for url in urls)
    conf = pulsar_security(
        ServerFiles(Path("-"), Path("-")),
        Path(TRUST_FILE),
        issuer=options.issuer,
        broker_token=_TOKEN_FOLDER / "broker.token",
        superusers=topology.superusers_of(cluster),
        ports=(0, 0),
        key_refresh_s=_KEY_REFRESH_S,
    )
    names = sorted({urlsplit(one).hostname or "" for url in urls for one in each_host(url)})
    supers = [role for role in topology.superusers_of(cluster) if role != topology.role_of_brokers(cluster)]
    named = dict(zip(("client", *(f"waybill{number}" for number in range(1, len(supers)))), supers, strict=False))
    return {
        "clusterName": cluster,
        "components": {"proxy": False},
        "affinity": {"anti_affinity": True},
        "tls": {"enabled": True, "broker": {"enabled": True, "dnsNames": names}},
        "certs": {
            "internal_issuer": {"enabled": False},
            "issuers": {"ca": {"name": options.ca, "secretName": f"{options.ca}-ca"}},
        },
        "auth": {
            "authentication": {
                "enabled": True,
                "openid": {
                    "enabled": True,
                    "openIDAllowedTokenIssuers": [conf["openIDAllowedTokenIssuers"]],
                    "openIDAllowedAudiences": [conf["openIDAllowedAudiences"]],
                    "openIDTokenIssuerTrustCertsFilePath": TRUST_FILE,
                    "openIDRoleClaim": "sub",
                    **{key: str(conf[key]) for key in _OPENID},
                },
            },
            "authorization": {"enabled": True},
            "superUsers": {"broker": topology.role_of_brokers(cluster) or "", "proxy": "", "client": "", **named},
            "useProxyRoles": False,
        },
        "bookkeeper": {
            "replicaCount": options.bookies,
            "affinity": {"anti_affinity_topology_key": "topology.kubernetes.io/zone"},
            "volumes": {"ledgers": {"size": f"{ledgers_gib(topology, cluster, options.bookies)}Gi"}},
        },
        "broker": _brokers(conf, options, broker.port or 6651, web.port or 443, cluster),
    }


def _brokers(
    conf: Mapping[str, str | int], options: ChartOptions, broker_port: int, web_port: int, cluster: str
) -> dict[str, Any]:
    own = {key: str(value) for key, value in conf.items() if not key.startswith(_BY_CHART)}
    quorum = {"EnsembleSize": _COPIES, "WriteQuorum": _COPIES, "AckQuorum": _ACKNOWLEDGED}
    written = {
        "replicaCount": 2,
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
            for key in ("not-ready", "unreachable")
        ],
        "topologySpreadConstraints": [
            {
                "topologyKey": "topology.kubernetes.io/zone",
                "maxSkew": 1,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"component": "broker", "cluster": cluster}},
            }
        ],
        "ports": {"pulsarssl": broker_port, "https": web_port},
        "configData": {
            **own,
            **{key: str(value) for key, value in SNAPSHOTS.items()},
            **{f"managedLedgerDefault{key}": str(value) for key, value in quorum.items()},
        },
        "extraVolumes": [{"name": "waybill-token", "secret": {"secretName": options.credentials}}],
        "extraVolumeMounts": [{"name": "waybill-token", "mountPath": str(_TOKEN_FOLDER), "readOnly": True}],
    }
    if options.offload_bucket:
        written["storageOffload"] = {
            "driver": "aws-s3",
            "bucket": options.offload_bucket,
            "region": options.offload_region,
            "secret": options.offload_secret,
            "managedLedgerOffloadAutoTriggerSizeThresholdBytes": str(options.offload_above_mb << 20),
        }
    return written


def ledgers_gib(topology: Topology, cluster: str, bookies: int) -> int:
    """What each bookie must be able to keep: what may be retained and what may wait, three copies, a quarter more."""
    kept_mb = 0
    for namespace, clusters in topology.placed().values():
        if cluster in clusters:
            limit = namespace.retention.size_mb
            waiting = namespace.backlog_quota.size_mb if namespace.backlog_quota else 0
            kept_mb += (limit if limit >= 0 else _UNBOUNDED_MB) + waiting
    return max(10, math.ceil(kept_mb * _COPIES / bookies * _RESERVE / 1024))


def as_yaml(values: Mapping[str, Any]) -> str:
    """The values as YAML, each key with its meaning."""
    return "\n".join(
        ["# Values for Apache's chart of Pulsar, from `waybill topology chart-values`.", *_lines(values), ""]
    )


def _lines(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    depth = "  " * above.count(".")
    for key, value in values.items():
        path = f"{above}{key}"
        if path in MEANINGS:
            yield f"{depth}# {MEANINGS[path]}"
        if isinstance(value, dict):
            yield f"{depth}{key}:"
            yield from _lines(value, f"{path}.")
        else:
            yield f"{depth}{key}: {json.dumps(value)}"


def addresses(services: str, topology: Topology, domain: str, trust_file: str = TRUST_FILE) -> str:
    """Tables for a topology file: addresses of clusters that have none, from `kubectl get services -o json`.

    A cluster's Service has the labels `component: broker` and `cluster: NAME`, as Apache's chart writes them, and ports
    named `pulsarssl` and `https`. Raises NoAddress for a cluster without one, UnusableAccess for other input.
    """
    found: dict[str, str] = {}
    try:
        for service in json.loads(services)["items"]:
            labels, spec = service["metadata"].get("labels", {}), service["spec"]
            ports = {port["name"]: port["port"] for port in spec["ports"] if "name" in port}
            cluster = labels.get("cluster", "")
            if labels.get("component") != "broker" or not {"pulsarssl", "https"} <= ports.keys():
                continue
            # a chart's headless Service names pods one by one; where there is another, clients use that
            if cluster in found and spec.get("clusterIP") == "None":
                continue
            host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.{domain}"
            found[cluster] = f"""
[clusters.{json.dumps(cluster)}.address]
service_url = "pulsar+ssl://{host}:{ports["pulsarssl"]}"
admin_url = "https://{host}:{ports["https"]}"
trust_certs_file = {json.dumps(trust_file)}
"""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableAccess(f"this is not the output of `kubectl get services -o json`: {error!r}") from error
    wanted = [name for name, one in topology.clusters.items() if one.address is None]
    if missing := [name for name in wanted if name not in found]:
        raise NoAddress(missing[0])
    return "".join(found[name] for name in wanted)
