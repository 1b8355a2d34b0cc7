"""What a gateway says of itself, and reading it from outside."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict
from rich.table import Table
from rich.text import Text

from gateway.config import StatusEndpoint
from gateway.inflight import Sender
from gateway.status_answer import moment_text, read_answer
from waybill.daemon.service import STUCK_AFTER_S
from waybill.record import DeviceChannel, device_filter
from waybill.settings import printable

# When each device was last seen by this gateway.

MAX_LISTED = 1000
"""So many silent devices are listed, those that are silent longest first."""


class SilentDevice(NamedTuple):
    """A device that was heard once, and not for `silent_s` of the time in which the gateway listened."""

    tenant: str
    device: str
    silent_s: float


class ListeningClock:
    """How long a gateway has listened in all. Silence is measured by it: while nobody listens, nobody is silent."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._listened_at_s: float | None = None

    def update(self, now_s: float, *, listens: bool) -> None:
        """The gateway listens now, or does not; it counts while it did the last time, too."""
        if listens and self._listened_at_s is not None:
            self.total_s += now_s - self._listened_at_s
        self._listened_at_s = now_s if listens else None


class DevicesHeard:
    """The devices that sent something here, in the order in which they were last heard. Times are a ListeningClock's.

    At most `limit`: then the one that is silent longest is forgotten, and `forgotten` says that the list is not whole.
    Forgetting changes nothing else: no acknowledgement depends on it.
    """

    def __init__(self, limit: int) -> None:
        self.forgotten = 0
        self._limit = limit
        self._heard_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heard_s)

    def on_heard(self, device: Sender, now_s: float) -> None:
        """This device sent something."""
        name = f"{device.tenant}/{device.device}"
        self._heard_s[name] = now_s
        self._heard_s.move_to_end(name)
        if len(self._heard_s) > self._limit:
            self._heard_s.popitem(last=False)
            self.forgotten += 1

    def list_silent(self, now_s: float, after_s: float) -> tuple[int, tuple[SilentDevice, ...]]:
        """How many are silent for `after_s` and more, and at most MAX_LISTED of them."""
        count = 0
        # In the order in which they were heard: behind the first that is not silent nobody is.
        for heard_s in self._heard_s.values():
            if now_s - heard_s < after_s:
                break
            count += 1
        listed = islice(self._heard_s.items(), min(count, MAX_LISTED))
        return count, tuple(_silent(name, now_s - heard_s) for name, heard_s in listed)


def _silent(name: str, silent_s: float) -> SilentDevice:
    tenant, _, device = name.partition("/")
    return SilentDevice(tenant, device, round(silent_s, 1))


# The health of a gateway, with its reason.

STALLED_AFTER_S = 60.0
"""A batch that waits so long for Pulsar is not good use of the window."""
ACK_WINDOW_S = 60.0
MAX_REFUSED_SHARE = 0.1
"""Of the publications of the last minute, the broker may refuse so many: a single device that it bars is no fault."""
_BUCKETS = 6
_TO_DEVICES = " and ".join(device_filter(channel) for channel in (DeviceChannel.ACK, DeviceChannel.CONFIG))


class PublicationResults:
    """What the broker answered to publications in the last `ACK_WINDOW_S`: taken or refused, and the newest refusal."""

    def __init__(self) -> None:
        self.refusal = ""
        self._buckets: deque[tuple[int, int, int]] = deque(maxlen=_BUCKETS + 1)

    def add(self, refusal: str, now_s: float) -> None:
        """The broker took one, or refused it with this reason."""
        number = int(now_s / ACK_WINDOW_S * _BUCKETS)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, 0, 0))
        _, taken, refused = self._buckets.pop()
        self._buckets.append((number, taken + (not refusal), refused + bool(refusal)))
        self.refusal = refusal or self.refusal

    def problem(self, now_s: float) -> str:
        """Why devices may not hear; empty when the broker took nearly all."""
        oldest = int(now_s / ACK_WINDOW_S * _BUCKETS) - _BUCKETS
        recent = [bucket for bucket in self._buckets if bucket[0] >= oldest]
        taken, refused = sum(bucket[1] for bucket in recent), sum(bucket[2] for bucket in recent)
        if refused <= MAX_REFUSED_SHARE * (taken + refused):
            return ""
        return (
            f"the MQTT broker refused {refused} of the last {taken + refused} messages to devices ({self.refusal}): "
            f"allow this gateway to publish {_TO_DEVICES}"
        )


def stall_problem(oldest_in_flight_s: float) -> str:
    """Why a connected Pulsar is still not good; empty when batches move."""
    if oldest_in_flight_s < STALLED_AFTER_S:
        return ""
    return f"a batch waits for Pulsar's receipt since {oldest_in_flight_s:.0f} s"


# Metrics, health and status over HTTP.


class StatusHolder:
    """The newest status, set by the loop and read by the server's threads."""

    def __init__(self, status: GatewayStatus, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = (status, clock())
        self.silent = SilentDevices(after_s=0)

    def set(self, status: GatewayStatus) -> None:
        """Set a newer status."""
        # One assignment: the server's threads see the status with its own time.
        self._current = (status, self._clock())

    @property
    def status(self) -> GatewayStatus:
        """The newest status."""
        return self._current[0]

    @property
    def is_alive(self) -> bool:
        """Whether the loop turned lately."""
        return self._clock() - self._current[1] < STUCK_AFTER_S


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
        return "unknown: this gateway is not connected; see `fleet-gateway status`"
    if not silent.is_known:
        return f"unknown: this gateway has listened for {silent.listening_s:.0f} s, {silent.after_s:g} s are needed"
    return (
        f"{silent.count} of {silent.known} devices seen since {silent.since} have sent nothing for "
        f"{silent.after_s:g} s; {silent.forgotten} more are no longer tracked"
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
