"""Which command a file of settings is for: one that was given to another command is known by its keys."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

__all__ = ["KNOWN_FILES", "KnownFile", "command_of"]


class KnownFile(NamedTuple):
    """The settings of a command: what it has to have, and what it may have besides."""

    command: str
    needed: frozenset[str]
    others: frozenset[str]


def _file(command: str, needed: str, others: str) -> KnownFile:
    return KnownFile(command, frozenset(needed.split()), frozenset(others.split()))


KNOWN_FILES: Final = {
    "AgentSettings": _file(
        "edge-agent",
        "device uplinks",
        "buffer classes drain enrolment failover insecure intake link log push status time",
    ),
    "GatewaySettings": _file(
        "fleet-gateway",
        "mqtt name pulsar region",
        "acks drain insecure log max_batch_bytes push registry status stop_timeout_s tenants",
    ),
    "AccessSettings": _file(
        "fleet-gateway access",
        "authority broker region registry",
        "enrolment gateways insecure log look_after_s settle_ms status",
    ),
    "AlertSettings": _file(
        "fleet-gateway alerts",
        "fences name pulsar region tenants",
        "batching_delay_ms evaluation events insecure log max_lag_s rewind_s sealing_keys standby status "
        "stop_timeout_s tracks",
    ),
    "NotifierSettings": _file(
        "waybill alerts",
        "pulsar regions rules state_file tenants",
        "alert_max_age_s insecure late_max_age_s log status stop_timeout_s webhooks",
    ),
    "TailSettings": _file(
        "waybill alerts",
        "pulsar regions tenants",
        "alert_max_age_s insecure late_max_age_s log rules state_file status stop_timeout_s webhooks",
    ),
    "CanarySettings": _file(
        "waybill canary",
        "agent device region script",
        "broker centre folder lake limits log lost_after_s object_store regional status watched",
    ),
    "CloudSettings": _file(
        "cloud-jobs",
        "checkpoints clusters lake",
        "access geofence ingest maintenance metrics object_store privacy proximity reference spark status "
        "tenants tracks usage verdicts",
    ),
    "OperatorSettings": _file(
        "waybill device",
        "admin_url regions service_url tenants",
        "access key operator operators unsigned",
    ),
    "Topology": _file(
        "waybill topology",
        "centre clusters regions tenants",
        "namespaces other_clusters replication_role roles standby",
    ),
}
"""By the class of the settings. A test holds each against that class: this package imports none of them."""


def command_of(keys: Collection[str]) -> str | None:
    """The one command whose settings have exactly such keys at the top; None: none, or several."""
    found = {one.command for one in KNOWN_FILES.values() if one.needed <= {*keys} <= one.needed | one.others}
    return found.pop() if len(found) == 1 else None
