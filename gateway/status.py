"""What a gateway says of itself, and reading it from outside."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict
from rich.table import Table
from rich.text import Text

from gateway.config import StatusEndpoint
from gateway.devices import SilentDevice
from gateway.status_answer import moment_text, read_answer
from waybill.settings import printable


class GatewayStatus(BaseModel):
    """One moment of a gateway. Counts are since `started_at` (ISO 8601).

    `healthy`: MQTT and Pulsar are connected, connections last, batches move, the broker takes messages to devices.
    `last_error`: why it is not. `devices_silent`: None while it is unknown. `registry_current`: whether the device
    registry is read to its end; None without one. `registry_unreachable_since_s`: since 1970, None while it is read.
    """

    model_config = ConfigDict(frozen=True)

    gateway: str
    region: str
    pid: int
    started_at: str
    state: str = "starting"
    healthy: bool = False
    mqtt_connected: bool = False
    pulsar_connected: bool = False
    last_error: str = ""
    in_flight: int = 0
    in_flight_bytes: int = 0
    oldest_in_flight_s: float = 0.0
    pending_acks: int = 0
    batches_persisted: int = 0
    heartbeats_persisted: int = 0
    records_persisted: int = 0
    bytes_persisted: int = 0
    batches_refused: int = 0
    batches_joined: int = 0
    batches_slowed_down: int = 0
    tenants_stuck: tuple[str, ...] = ()
    acks_published: int = 0
    pauses_asked: int = 0
    pushes_published: int = 0
    pushes_not_published: int = 0
    pushes_refused_by_broker: int = 0
    pushes_applied: int = 0
    pushes_refused: int = 0
    pushes_taken_back: int = 0
    pushes_unknown: int = 0
    pulsar_failures: int = 0
    acks_refused: int = 0
    acks_without_subscriber: int = 0
    acks_forgotten: int = 0
    dead_letters_not_kept: int = 0
    qos_0_dropped: int = 0
    internal_errors: int = 0
    devices_known: int = 0
    devices_silent: int | None = None
    devices_forgotten: int = 0
    registry_current: bool | None = None
    registry_unreachable_since_s: float | None = None
    registry_devices: int = 0
    registry_entries_refused_by: dict[str, int] = {}
    registry_last_refused: str = ""


class SilentDevices(BaseModel):
    """Devices that this gateway heard since it started, and not for `after_s`; those silent longest come first.

    `since`: the start; a device that was not heard since is not known here. `listening_s`: for how long since then,
    in all, it was connected to its broker and to Pulsar and took what came: so every silence is measured. None: it
    is not connected now, and cannot say who is silent. `known`: how many devices it heard; `count`: how many of
    them are silent, None while that is unknown; `listed` has at most a thousand of them. `forgotten`: how many more
    were heard and are no longer known. Another gateway of the region may have heard any of them.
    """

    model_config = ConfigDict(frozen=True)

    after_s: float
    since: str = ""
    listening_s: float | None = None
    known: int = 0
    count: int | None = None
    forgotten: int = 0
    listed: tuple[SilentDevice, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the gateway listens, and has for long enough to say who is silent."""
        return self.count is not None


def read_status(settings: StatusEndpoint) -> GatewayStatus:
    """Ask the gateway that runs with these settings. Raises NoAnswer."""
    return read_answer(settings, "status", GatewayStatus, "no gateway")


def read_silent(settings: StatusEndpoint) -> SilentDevices:
    """Ask which devices are silent. Raises NoAnswer."""
    return read_answer(settings, "silent", SilentDevices, "no gateway")


def status_table(status: GatewayStatus) -> Table:
    """The status for the terminal."""
    table = Table(title=Text(f"fleet-gateway {status.gateway}"), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _facts(status):
        table.add_row(name.replace("_", " "), Text("unknown" if value is None else printable(str(value))))
    return table


def _facts(status: GatewayStatus) -> Iterator[tuple[str, object]]:
    """Each fact with its value; what there is none of is not called unknown."""
    unread = {None: "no registry", True: "no, it is read", False: "it was not read yet"}[status.registry_current]
    for name, value in status.model_dump().items():
        if name == "registry_unreachable_since_s":
            yield name.removesuffix("_s"), unread if value is None else moment_text(value)
        elif name == "registry_current" and value is None:
            yield name, "no registry"
        else:
            yield name, value


def _silent_words(silent: SilentDevices) -> str:
    if silent.listening_s is None:
        return "unknown: this gateway is not connected, so it hears nobody; see `fleet-gateway status`"
    if not silent.is_known:
        return f"unknown: this gateway has listened for {silent.listening_s:.0f} s, {silent.after_s:g} s are needed"
    return (
        f"{silent.count} of {silent.known} devices heard since {silent.since} were not heard here for "
        f"{silent.after_s:g} s; {silent.forgotten} more are forgotten"
    )


def silent_table(silent: SilentDevices) -> Table:
    """The silent devices for the terminal."""
    table = Table(title=Text(_silent_words(silent)), title_justify="left")
    table.add_column("tenant")
    table.add_column("device")
    table.add_column("silent for s", justify="right")
    for tenant, device, silent_s in silent.listed:
        table.add_row(Text(printable(tenant)), Text(printable(device)), f"{silent_s:.0f}")
    return table
