"""The faults of the demo's drive, and the demo's canary."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from deploy.demo.processes import ExpectedDevice, expect_devices, show_settings
from deploy.local import DaemonProcess, LocalStack, PortBook
from deploy.local.stack_settings import CANARY_TENANT, StackCanary, canary_device, canary_settings
from gateway.canary.config import CanarySettings
from gateway.canary.ledger import HopColour
from gateway.canary.reference import contracts_text, fence_text, write_reference
from gateway.canary.status import CanaryStatus, read_canary_status
from gateway.errors import NoAnswer
from waybill.settings import load

# The canary of the demo.

_SCRIPT: Final = {"fence_m": 100, "speed_mps": 40, "period_s": 10}
_LIMITS: Final = {"region": 30, "centre": 30, "alert": 30, "table": 90}
"""Of a machine whose cores the fleet, three clusters and Spark share."""
_ONCE_S: Final = 3600
"""Of what a job computes that runs once: what is there has to be right, and nothing of it is late."""


@dataclass(frozen=True, slots=True)
class CanaryFindings:
    """The status of the canary at the end. None: it did not answer."""

    status: CanaryStatus | None

    @property
    def holds(self) -> bool:
        """Whether it answered, and each hop that it watches is green."""
        return self.status is not None and self.status.healthy is True

    @property
    def found(self) -> str:
        if self.status is None:
            return "the canary did not answer"
        watched = [one for one in self.status.hops if one.colour is not HopColour.NOT_WATCHED]
        green = self.status.of(HopColour.GREEN)
        others = [f"{one.hop} {one.colour}: {one.reason}" for one in watched if one.colour is not HopColour.GREEN]
        unwatched = [f"{hop} is not watched" for hop in self.status.of(HopColour.NOT_WATCHED)]
        counted = f"{len(green)} of {len(watched)} hops green"
        return "; ".join([counted, *others, *unwatched])


class DemoCanary:
    """The canary of one region. `lake`: the location of the demo's tables."""

    def __init__(self, stack: LocalStack, region: str, lake: str) -> None:
        self._stack, self._region, folder = stack, region, stack.folder / "canary"
        folder.mkdir(parents=True, exist_ok=True)
        store, self._token_file = stack.object_store, folder / "device.token"
        self._config = folder / "canary.toml"
        plan = StackCanary(
            region=region,
            folder=folder / "vehicle",
            token_file=self._token_file,
            status_port=PortBook(folder / "ports.json").port("canary"),
            lake=lake,
            object_store=store.job_settings() if store else "",
            script=_SCRIPT,
            limits=_LIMITS | dict.fromkeys(("usage", "rated"), _ONCE_S),
        )
        self._config.write_text(canary_settings(stack, plan))
        self.settings = load(CanarySettings, self._config)
        self._process = DaemonProcess.python(
            canary_device(region), "waybill", ["canary", "run", "--config", str(self._config)], folder / "log"
        )

    def write_reference(self) -> Path:
        """Writes its fence and its contracts, valid from this month, into a folder of their own; returns the folder."""
        folder = self._config.parent / "reference"
        month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        # the demo's period is over: what it closes and issues has no canary
        write_reference(folder, fence_text(self.settings), contracts_text(self.settings, month), replace=True)
        return folder

    def start(self) -> None:
        """Its vehicle enrols, and drives as soon as the gateways listen. Raises IdentityError, DemoError."""
        device = ExpectedDevice((CANARY_TENANT, self.settings.device), self._region, self._token_file)
        expect_devices(self._stack.folder, [device], "is the canary of the demo")
        show_settings(self._stack.folder, f"{canary_device(self._region)}.toml", self._config)
        self._stack.add(self._process, wait=False)

    def finish(self, poll: Callable[[], None], timeout_s: float) -> CanaryFindings:
        """Its findings once each hop is green, or when the time is over; then the canary is stopped."""
        ends = time.monotonic() + timeout_s
        while not (found := self._findings()).holds and time.monotonic() < ends:
            poll()
        self._stack.remove(self._process.name)
        return found

    def _findings(self) -> CanaryFindings:
        try:
            return CanaryFindings(read_canary_status(self.settings))
        except NoAnswer:
            return CanaryFindings(None)


@dataclass(slots=True, kw_only=True)
class FaultFindings:
    """The faults of a drive, and how long they lasted. None: the fault did not happen.

    `stored_while_cut`: records that vehicles of the cut region could not deliver until the repair. `dead_s`: from the
    SIGKILL to the agent's restart. `cut_at_least_s`: how long the cut must last.
    """

    region: str
    killed: str
    silent: str
    cut_at_least_s: float
    cut_s: float | None = None
    stored_while_cut: int = 0
    dead_s: float | None = None
    is_silenced: bool = False

    @property
    def holds(self) -> bool:
        """Whether each fault happened, and the cut lasted and held records back: else the drive proves nothing."""
        return (
            self.cut_s is not None
            and self.cut_s >= self.cut_at_least_s
            and self.stored_while_cut > 0
            and self.dead_s is not None
            and self.is_silenced
        )

    @property
    def found(self) -> str:
        uplink, agent = f"uplink of {self.region}", f"agent of {self.killed}"
        cut = f"cut for {self.cut_s:.1f} s, {self.stored_while_cut:,} records waited" if self.cut_s else "never cut"
        dead = f"dead for {self.dead_s:.1f} s" if self.dead_s is not None else "never killed"
        return f"{uplink} {cut}; {agent} {dead}; {self.silent} {'' if self.is_silenced else 'never '}lost its link"
