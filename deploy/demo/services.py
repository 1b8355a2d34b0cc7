"""The regional gateways and the jobs of the centre, as processes of the stack."""

from __future__ import annotations

from pathlib import Path

from cloud_jobs.config import CloudSettings
from deploy.local import DaemonProcess, LocalStack, PortBook, http_health
from settings import load

_USAGE_TIMEOUT_S = 180.0


def start_gateways(stack: LocalStack) -> None:
    """One gateway for each region, returned from when all are connected."""
    book = PortBook(stack.folder / "gateways.json")
    gateways = [_gateway(stack, region, book.port(region)) for region in stack.topology.regions]
    for gateway in gateways:
        stack.add(gateway, wait=False)
    for gateway in gateways:
        gateway.wait()


def _gateway(stack: LocalStack, region: str, port: int) -> DaemonProcess:
    folder = stack.folder / f"gateway-{region}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "gateway.toml"
    config.write_text(f"""name = "gateway-{region}"
region = "{region}"

[mqtt]
host = "127.0.0.1"
port = {stack.brokers[region].port}

[pulsar]
service_url = "{stack.pulsar[region].service_url}"

[status]
port = {port}
""")
    return DaemonProcess.python(
        f"gateway-{region}",
        "gateway",
        ["run", "--config", str(config)],
        folder,
        healthy_when=http_health(f"http://127.0.0.1:{port}/health"),
    )


def cloud_config(stack: LocalStack) -> Path:
    """The settings of the jobs, written to the stack's folder."""
    hq = stack.pulsar["hq"]
    path = stack.folder / "cloud.toml"
    path.write_text(f"""lake = "{stack.folder / "lake"}"
checkpoints = "{stack.folder / "checkpoints"}"

[[clusters]]
name = "hq"
service_url = "{hq.service_url}"
admin_url = "{hq.admin_url}"
""")
    return path


def cloud_settings(config: Path) -> CloudSettings:
    """The settings as the jobs read them."""
    return load(CloudSettings, config)


def start_ingest(stack: LocalStack, config: Path) -> DaemonProcess:
    """The ingest, not waited for: what comes before Spark is up waits in Pulsar."""
    job = DaemonProcess.python(
        "cloud-jobs-ingest", "cloud_jobs", ["ingest", "--config", str(config)], stack.folder / "ingest"
    )
    stack.add(job, wait=False)
    return job


def usage_job(stack: LocalStack, config: Path) -> DaemonProcess:
    """The usage job, not started yet; it ends by itself."""
    return DaemonProcess.python(
        "cloud-jobs-usage", "cloud_jobs", ["usage", "--config", str(config)], stack.folder / "usage"
    )
