"""Settings files in the folder of a local stack: one for each process that can be tried on it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deploy.local.credentials import stack_operator
from deploy.local.ports import PortBook
from deploy.local.server import DaemonProcess, http_health
from waybill.daemon.durable_file import replace_durably
from waybill.identity.operator_settings import OPERATOR_SETTINGS
from waybill.pulsar.pulsar_client import PulsarAccess

if TYPE_CHECKING:
    from deploy.local.stack import LocalStack


# Settings of a canary on a local stack.

CANARY_TENANT: Final = "canary"
"""The tenant that is reserved for canaries, as the stack's topology names it."""
_NOWHERE: Final = (54.6, 4.2)
"""In the North Sea, without vehicles."""
_APART_DEG: Final = 0.1
"""Between two canaries, 6 km: a vehicle is metered in every fence that it drives through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCanary:
    """The settings of one canary that differ from the next. Paths are absolute.

    `folder`: of its vehicle. `watched`: names of hops; none: all. `lake` None: it watches no table. `object_store`: the
    table of that name, as TOML. `script`, `limits`: settings that differ from the default.
    """

    region: str
    folder: Path
    token_file: Path
    status_port: int
    watched: Collection[str] = ()
    lake: str | None = None
    object_store: str = ""
    script: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


def canary_device(region: str) -> str:
    """The name of a region's canary, and of its account, fence and role."""
    return f"{CANARY_TENANT}-{region}"


def canary_place(region: str, regions: Iterable[str]) -> tuple[float, float]:
    """Where the canary of a region drives (latitude, longitude): away from all vehicles and other canaries."""
    latitude, longitude = _NOWHERE
    return latitude, round(longitude + _APART_DEG * sorted(regions).index(region), 6)


def canary_settings(stack: LocalStack, canary: StackCanary) -> str:
    """Settings of a canary whose uplink goes through the link of its region."""
    region, device = canary.region, canary_device(canary.region)
    (latitude, longitude), centre = canary_place(region, stack.topology.regions), stack.topology.centre
    access = stack.access(device).as_toml()
    head: dict[str, object] = {"region": region, "device": device, "folder": str(canary.folder)}
    head |= {"watched": [*canary.watched]} if canary.watched else {}
    head |= {"lake": canary.lake} if canary.lake else {}
    return f"""{_lines(head)}
[script]
{_lines({"latitude": latitude, "longitude": longitude, **canary.script})}
[limits]
{_lines(canary.limits)}
[[agent.uplinks]]
region = "{region}"
host = "127.0.0.1"
port = {stack.links[region].port}
backoff_max_s = 2
[agent.uplinks.tls]
ca = "{stack.authority.file}"
[agent.enrolment]
port = {stack.enrolment[region].port}
host = "127.0.0.1"
ca = "{stack.authority.file}"
token_file = "{canary.token_file}"
backoff_first_s = 1
backoff_max_s = 5
[regional]
service_url = "{stack.pulsar[stack.topology.regions[region].cluster].service_url}"
[regional.access]
{access}
[centre]
service_url = "{stack.pulsar[centre].service_url}"
[centre.access]
{access}
{canary.object_store}
[status]
port = {canary.status_port}
"""


def _lines(values: Mapping[str, object]) -> str:
    # numbers, texts and lists of texts: TOML writes them as JSON does
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


_NOTIFIER: Final = "notifier"
_OF_CENTRE: Final = {
    "cloud": ("jobs", "cloud-jobs ingest --config this, and with --follow: cloud-jobs geofence, cloud-jobs verdicts"),
    "publisher": ("publisher", "waybill reference put FILE --config this --key KEY --reason WHY"),
}
"""Of the file its role, and what is run with it."""
_WITHOUT_LAKE: Final = ("region", "centre", "alert")
"""What a canary can look at where no job runs."""


def write_stack_settings(stack: LocalStack) -> None:
    """Writes `operator.toml`, for each region those of gateway, alert process, agent and canary, and `notifier.toml`,
    `cloud.toml` and `publisher.toml`.

    Files are left out whose role or tenant the topology does not have.
    """
    _write_operator(stack)
    book = PortBook(stack.folder / "examples.json")
    roles = stack.credentials.roles
    for region in stack.access_daemons:
        text = gateway_settings(stack, region, book.kept(f"gateway-{region}"))
        _write(stack.folder / f"gateway-{region}.toml", f"# fleet-gateway run --config this\n{text}")
        _write(stack.folder / f"agent-{region}.toml", _agent_settings(stack, region, book))
        if f"alerts-{region}" in roles:
            text = alerts_settings(stack, region, f"{region}-alerts-1", book.kept(f"alerts-{region}"))
            _write(stack.folder / f"alerts-{region}.toml", f"# fleet-gateway alerts run --config this\n{text}")
        if canary_device(region) in roles and CANARY_TENANT in stack.topology.operators:
            _write(stack.folder / f"canary-{region}.toml", _example_canary(stack, region, book))
    if stack.access_daemons and _NOTIFIER in roles:
        _write(stack.folder / f"{_NOTIFIER}.toml", _notifier_settings(stack, book))
    for name, (role, use) in _OF_CENTRE.items():
        if stack.access_daemons and role in roles:
            _write(stack.folder / f"{name}.toml", _centre_settings(stack, role, use))


def alerts_settings(
    stack: LocalStack, region: str, name: str, status_port: int, *, max_age_s: float | None = None
) -> str:
    """Settings of a region's alert process.

    `max_age_s`: the greatest age of an event that raises an alert; None: the default.
    """
    return f"""name = "{name}"
region = "{region}"
tenants = {json.dumps(list(stack.topology.operators))}

[pulsar]
service_url = "{stack.pulsar[stack.topology.regions[region].cluster].service_url}"

[pulsar.access]
{stack.access(f"alerts-{region}").as_toml()}
[fences]
operators = "{stack_operator(stack.folder).operators_file}"

{"" if max_age_s is None else f"[evaluation]{chr(10)}max_age_s = {max_age_s}"}

[status]
port = {status_port}
"""


def gateway_settings(stack: LocalStack, region: str, status_port: int) -> str:
    name, access = f"{region}-1", stack.access(f"gateway-{region}")
    files = stack.client_files(f"gateway@{name}", region)
    service_url = stack.pulsar[stack.topology.regions[region].cluster].service_url
    return f"""name = "{name}"
region = "{region}"

[mqtt]
host = "127.0.0.1"
port = {stack.brokers[region].port}
share_file = "{stack.authority.share(region)}"

[mqtt.tls]
ca = "{files.ca}"
certificate = "{files.certificate}"
key = "{files.key}"

[pulsar]
service_url = "{service_url}"

[pulsar.access]
{access.as_toml()}
{_registry_table(stack, region, service_url, access)}

{"".join(f"[tenants.{tenant}]{chr(10)}" for tenant in stack.topology.operators)}
[status]
port = {status_port}
"""


def _write_operator(stack: LocalStack) -> None:
    """The settings of `waybill device`: the registry, who signs, and which regions are to confirm."""
    if not stack.access_daemons:
        return
    operator, centre = stack_operator(stack.folder), stack.pulsar[stack.topology.centre]
    text = f"""service_url = "{centre.service_url}"
admin_url = "{centre.admin_url}"
regions = {json.dumps(sorted(stack.access_daemons))}
tenants = {json.dumps(sorted(stack.topology.operators or ("fleet",)))}
key = "{operator.key_file}"
operators = "{operator.operators_file}"
[access]
{stack.access(stack.credentials.operator_of_devices).as_toml()}"""
    _write(stack.folder / OPERATOR_SETTINGS, text)


def _agent_settings(stack: LocalStack, region: str, book: PortBook) -> str:
    operators = stack.topology.operators
    # the first operator by name may be the tenant of canaries, which is no customer
    tenant, device = (operators[0] if operators and "fleet" not in operators else "fleet"), "try-1"
    token = stack.folder / f"{device}-{region}.token"
    text = agent_text(
        tenant=tenant,
        device=device,
        buffer=stack.folder / f"{device}-{region}-buffer",
        broker_port=book.kept(f"vehicle-{region}"),
        region=region,
        uplink_port=stack.links[region].port,
        enrolment_port=stack.enrolment[region].port,
        ca=stack.authority.file,
        token_file=token,
        status_port=book.kept(f"agent-{region}"),
    )
    return f"""# Once, so that it is known:
#   waybill device expect {tenant}/{device} --region {region} --token-file {token} --reason "to try it"
# Also start the vehicle's own broker: mosquitto -p {book.kept(f"vehicle-{region}")}
# `waybill link {region} cut` cuts its link to the region.
{text}"""


def agent_text(
    *,
    tenant: str,
    device: str,
    buffer: Path,
    broker_port: int,
    region: str,
    uplink_port: int,
    enrolment_port: int,
    ca: Path,
    token_file: Path,
    status_port: int,
    mappings: str = "",
) -> str:
    """`agent.toml` of a device on this machine, commented: the beginning of a real set-up. `mappings`: its tables."""
    return f"""# edge-agent run --config this. On a vehicle: /etc/waybill/agent.toml

[device]
tenant = {json.dumps(tenant)}
id = {json.dumps(device)}

# The vehicle's own broker, at which sensors publish.
[intake]
host = "127.0.0.1"
port = {broker_port}

{mappings}
# Records wait here until the region acknowledges them. On a vehicle: /var/lib/edge-agent.
[buffer]
path = {json.dumps(str(buffer))}
prune_delay_s = 0.3

# The least; the default of five minutes would delay a demo.
[drain]
heartbeat_s = 60

# The region's broker. On a vehicle: its name, and port 8883.
[[uplinks]]
region = {json.dumps(region)}
host = "127.0.0.1"
port = {uplink_port}
backoff_max_s = 3

[uplinks.tls]
ca = {json.dumps(str(ca))}

# Once, the one-time token becomes a certificate: `waybill device expect` writes the token.
[enrolment]
host = "127.0.0.1"
port = {enrolment_port}
ca = {json.dumps(str(ca))}
token_file = {json.dumps(str(token_file))}
backoff_first_s = 0.5
backoff_max_s = 2

# http://127.0.0.1:PORT/status, /health and /metrics; 0: none
[status]
port = {status_port}
"""


def _example_canary(stack: LocalStack, region: str, book: PortBook) -> str:
    device = canary_device(region)
    token, reference = stack.folder / f"{device}.token", stack.folder / f"{device}-reference"
    key = stack_operator(stack.folder).key_file
    plan = StackCanary(
        region=region,
        folder=stack.folder / f"{device}-vehicle",
        token_file=token,
        status_port=book.kept(device),
        watched=_WITHOUT_LAKE,
    )
    publisher = stack.folder / "publisher.toml"
    return f"""# Once, so that it is known, and that its fence is:
#   waybill device expect {CANARY_TENANT}/{device} --region {region} --token-file {token} --reason "the canary"
#   waybill canary setup --config this --out {reference}
#   waybill reference put {reference} --config {publisher} --key {key} --reason "the canary"
# With a gateway and an alert process of the region running:
#   waybill canary run --config this
# Without `watched`, and with `lake`, it also checks the tables of the jobs.
{canary_settings(stack, plan)}"""


def _notifier_settings(stack: LocalStack, book: PortBook) -> str:
    customers = [one for one in stack.topology.operators if one != CANARY_TENANT] or ["fleet"]
    return f"""# waybill alerts tail --config this
# waybill alerts deliver --config this
tenants = {json.dumps(customers)}
regions = {json.dumps(list(stack.topology.regions))}
state_file = "{stack.folder / f"{_NOTIFIER}.sqlite"}"

[pulsar]
service_url = "{stack.pulsar[stack.topology.centre].service_url}"

[pulsar.access]
{stack.access(_NOTIFIER).as_toml()}
[rules]
operators = "{stack_operator(stack.folder).operators_file}"

# A webhook that rules may name:
# [webhooks.ops]
# url = "https://hooks.example/waybill"
# secret_file = "ops.secret"
# accounts = ["*"]

[status]
port = {book.kept(_NOTIFIER)}
"""


def _centre_settings(stack: LocalStack, role: str, use: str) -> str:
    centre, operator = stack.pulsar[stack.topology.centre], stack_operator(stack.folder)
    topics = [f"persistent://{{tenant}}/telemetry-{region}/batches" for region in stack.topology.regions]
    store = stack.object_store
    return f"""# {use.replace("KEY", str(operator.key_file))}
lake = "{store.lake("lake") if store else stack.folder / "lake"}"
checkpoints = "{stack.folder / "lake-checkpoints"}"
tenants = {json.dumps(list(stack.topology.operators) or ["fleet"])}

[[clusters]]
name = "{stack.topology.centre}"
service_url = "{centre.service_url}"
admin_url = "{centre.admin_url}"

[access]
{stack.access(role).as_toml()}
[ingest]
topics = {json.dumps(topics)}

{operator.reference_settings()}
{store.job_settings() if store else ""}"""


def _registry_table(stack: LocalStack, region: str, service_url: str, access: PulsarAccess) -> str:
    """The device registry of a gateway; nothing where the region has no access daemon."""
    if region not in stack.access_daemons:
        return ""
    return f"""[registry]
service_url = "{service_url}"
tenants = {json.dumps(list(stack.topology.operators))}
operators = "{stack_operator(stack.folder).operators_file}"

[registry.access]
{access.as_toml()}"""


def _write(file: Path, text: str) -> None:
    # For its owner alone: it names tokens and keys.
    replace_durably(file, text.encode(), mode=0o600)


# Settings and process of a region's alert process.


def alert_settings(stack: LocalStack, region: str, number: int = 1, *, max_age_s: float | None = None) -> Path:
    """The settings of `fleet-gateway alerts`, written to the stack's folder.

    `max_age_s`: the greatest age of an event that raises an alert; None: the default.
    """
    name = f"{region}-alerts-{number}"
    folder = stack.folder / f"alerts-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "alerts.toml"
    config.write_text(alerts_settings(stack, region, name, _port(stack, name), max_age_s=max_age_s))
    return config


def alert_process(stack: LocalStack, region: str, number: int = 1, *, max_age_s: float | None = None) -> DaemonProcess:
    """A process with these settings; a standby counts as healthy, too."""
    config = alert_settings(stack, region, number, max_age_s=max_age_s)
    url = f"http://127.0.0.1:{_port(stack, f'{region}-alerts-{number}')}"
    return DaemonProcess.python(
        f"alerts-{region}-{number}",
        "gateway",
        ["alerts", "run", "--config", str(config)],
        config.parent,
        healthy_when=http_health(f"{url}/alive"),
    )


def _port(stack: LocalStack, name: str) -> int:
    return PortBook(stack.folder / "alert-processes.json").port(name)
