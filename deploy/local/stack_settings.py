"""Settings for whoever works on a local stack, in its folder: the operator's, those of a gateway and of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploy.local.ports import PortBook
from deploy.local.stack_operator import stack_operator
from identity.operator_settings import OPERATOR_SETTINGS
from runtime.durable_file import replace_durably

if TYPE_CHECKING:
    from deploy.local.mosquitto import TlsFiles
    from deploy.local.stack import LocalStack

__all__ = ["gateway_settings", "write_stack_settings"]


def write_stack_settings(stack: LocalStack) -> None:
    """`operator.toml`, and for each region `gateway-REGION.toml` and `agent-REGION.toml`, with the ports of now."""
    _write_operator(stack)
    book = PortBook(stack.folder / "examples.json")
    for region in stack.access_daemons:
        text = gateway_settings(stack, region, book.port(f"gateway-{region}"))
        _write(stack.folder / f"gateway-{region}.toml", f"# fleet-gateway run --config this\n{text}")
        _write(stack.folder / f"agent-{region}.toml", _agent_settings(stack, region, book))


def gateway_settings(stack: LocalStack, region: str, status_port: int) -> str:
    """Of the first gateway of a region."""
    name, role = f"{region}-1", f"gateway-{region}"
    return f"""name = "{name}"
region = "{region}"
{"insecure = true" if stack.settings.insecure else ""}

[mqtt]
host = "127.0.0.1"
port = {stack.brokers[region].port}
{_share_line(stack, region)}
{_tls_table("mqtt", stack.client_files(f"gateway@{name}", region))}
[pulsar]
service_url = "{stack.pulsar[stack.topology.regions[region].cluster].service_url}"
{_pulsar_access(stack, role)}
{_registry_table(stack, region, role)}

{"".join(f"[tenants.{tenant}]{chr(10)}" for tenant in stack.topology.operators)}
[status]
port = {status_port}
"""


def _write_operator(stack: LocalStack) -> None:
    """What `waybill device` takes by itself: the registry, who signs, and which regions are to confirm."""
    operator, centre = stack_operator(stack.folder), stack.pulsar[stack.topology.centre]
    tenants = stack.topology.operators or ("fleet",)
    text = operator.settings(centre.service_url, centre.admin_url, stack.access_daemons, tenants)
    role = stack.credentials.operator_of_devices if stack.credentials else ""
    if stack.access_daemons:
        _write(stack.folder / OPERATOR_SETTINGS, f"{text}[access]\n{stack.access(role).as_toml()}")


def _agent_settings(stack: LocalStack, region: str, book: PortBook) -> str:
    operators = stack.topology.operators
    # the tenant of canaries comes first by its name, and is no customer
    tenant, device = (operators[0] if operators and "fleet" not in operators else "fleet"), "try-1"
    assert stack.authority is not None, "a region that is guarded has one"
    token = stack.folder / f"{device}-{region}.token"
    return f"""# Once, so that it is known:
#   waybill device expect {tenant}/{device} --region {region} --token-file {token} --reason "to try it"
# Beside it the broker of the vehicle: mosquitto -p {book.port(f"vehicle-{region}")}
# edge-agent run --config this

[device]
tenant = "{tenant}"
id = "{device}"

[intake]
port = {book.port(f"vehicle-{region}")}

[buffer]
path = "{stack.folder / f"{device}-{region}-buffer"}"

[[uplinks]]
region = "{region}"
host = "127.0.0.1"
port = {stack.brokers[region].port}
[uplinks.tls]
ca = "{stack.authority.file}"

[enrolment]
host = "127.0.0.1"
port = {stack.enrolment[region].port}
ca = "{stack.authority.file}"
token_file = "{token}"

[status]
port = {book.port(f"agent-{region}")}
"""


def _tls_table(table: str, files: TlsFiles | None) -> str:
    """How to show the broker who one is; nothing where nobody is asked."""
    if files is None:
        return ""
    return f"""
[{table}.tls]
ca = "{files.ca}"
certificate = "{files.certificate}"
key = "{files.key}"
"""


def _share_line(stack: LocalStack, region: str) -> str:
    """How the gateways of a region share batches; as anybody can where the stack is insecure."""
    return "" if stack.authority is None else f'share_file = "{stack.authority.share(region)}"'


def _pulsar_access(stack: LocalStack, role: str) -> str:
    """What `[pulsar]` says of tokens and TLS; nothing where the stack is insecure."""
    access = stack.access(role)
    return "" if access.tls_ca is None else f'token_file = "{access.token_file}"\ntls = {{ ca = "{access.tls_ca}" }}\n'


def _registry_table(stack: LocalStack, region: str, role: str) -> str:
    """Where a gateway reads which devices are known; nothing where the stack is insecure."""
    if region not in stack.access_daemons:
        return ""
    return f"""[registry]
service_url = "{stack.pulsar[stack.topology.regions[region].cluster].service_url}"
operators = "{stack_operator(stack.folder).operators_file}"

[registry.access]
{stack.access(role).as_toml()}"""


def _write(file: Path, text: str) -> None:
    # For its owner alone: it names tokens and keys.
    replace_durably(file, text.encode(), mode=0o600)
