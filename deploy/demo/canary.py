"""The canary of the demo: a vehicle beside the fleet, whose answers are known beforehand, and what it says of each hop.

The centre of the demo runs the ingest all the time, usage when the drive is over, and the events at fences last of all.
So the canary watches each hop but that of events, and has no limit that a job keeps which is not running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from deploy.canary.config import CanarySettings, HopLimits
from deploy.canary.errors import CanaryNotRunning
from deploy.canary.hops import Hop
from deploy.canary.probe_at_hop import HopColour
from deploy.canary.reference_texts import contracts_text, fence_text, write_reference
from deploy.canary.status import CanaryStatus, HopStatus, money_text, read_canary_status
from deploy.demo.guarding import ExpectedDevice, expect_devices
from deploy.demo.shown_settings import show_settings
from deploy.local import DaemonProcess, LocalStack, PortBook
from deploy.local.canary_settings import CANARY_TENANT, StackCanary, canary_device, canary_settings
from waybill.settings import load

__all__ = ["CanaryFindings", "DemoCanary"]

_WATCHED: Final = tuple(hop for hop in Hop if hop is not Hop.EVENT)
_SCRIPT: Final = {"fence_m": 100, "speed_mps": 40, "period_s": 10}
_LIMITS: Final = {"region": 30, "acknowledged": 30, "centre": 30, "alert": 30, "table": 90, "coverage": 30}
"""Of a machine whose cores the fleet, three clusters and Spark share."""
_ONCE_S: Final = 3600
"""Of what a job computes that runs once: what is there has to be right, and nothing of it is late."""


@dataclass(frozen=True, slots=True)
class CanaryFindings:
    """What the canary said when all was through. `status`: None: it did not answer."""

    status: CanaryStatus | None

    @property
    def holds(self) -> bool:
        """Whether it answered, and each hop that it watches is green."""
        return self.status is not None and self.status.is_healthy is True

    @property
    def found(self) -> str:
        """In words: a hop that is not green is named, and so is one that is not watched."""
        if self.status is None:
            return "the canary did not answer"
        watched = [one for one in self.status.hops if one.colour is not HopColour.NOT_WATCHED]
        green = self.status.of(HopColour.GREEN)
        others = [f"{one.hop} {one.colour}: {one.reason}" for one in watched if one.colour is not HopColour.GREEN]
        # of the money something is said in any case
        unwatched = [f"{hop} is not watched" for hop in self.status.of(HopColour.NOT_WATCHED) if hop != Hop.RATED]
        counted = f"{len(green)} of {len(watched)} hops green{_longer_limits(watched)}"
        return "; ".join([counted, *others, *unwatched, money_text(self.status)])

    def values(self) -> dict[str, Any]:
        """For programs."""
        status = None if self.status is None else self.status.model_dump(mode="json")
        return {"green": self.holds, "status": status}


def _longer_limits(hops: Iterable[HopStatus]) -> str:
    """Which hops have more time than they have by default: green says less of them."""
    usual = HopLimits()
    longer = [f"{one.hop} {one.limit_s:g} s" for one in hops if one.limit_s and one.limit_s > usual.of(one.hop)]
    return f" (with limits longer than by default: {', '.join(longer)})" if longer else ""


class DemoCanary:
    """One canary of a region, in the stack's folder. `lake`: where the tables of the demo are."""

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
            watched=[hop.value for hop in _WATCHED],
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

        self._found = CanaryFindings(None)

    def write_reference(self) -> Path:
        """Its fence and its contracts, in force from this month on, in a folder of their own: the folder."""
        folder = self._config.parent / "reference"
        month = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        # the demo's period is over: what it closes and issues has no canary
        write_reference(folder, fence_text(self.settings), contracts_text(self.settings, month), replace=True)
        return folder

    def start(self) -> None:
        """Starts it: it enrols its vehicle, and drives as soon as somebody listens. Raises IdentityError, DemoError."""
        if self._stack.access_daemons:
            device = ExpectedDevice((CANARY_TENANT, self.settings.device), self._region, self._token_file)
            expect_devices(self._stack, [device], "is the canary of the demo")
        show_settings(self._stack.folder, f"{canary_device(self._region)}.toml", self._config)
        self._stack.add(self._process, wait=False)

    def finish(self, poll: Callable[[], None], timeout_s: float) -> CanaryFindings:
        """What it says once each hop that it watches is green, or when the time is over; then it ends."""
        ends = time.monotonic() + timeout_s
        while not (found := self.newest()).holds and time.monotonic() < ends:
            poll()
        self._stack.remove(self._process.name)
        return found

    def newest(self) -> CanaryFindings:
        """What it says now; what it said last, where it has ended."""
        if self._process.pid is not None:
            self._found = CanaryFindings(self._status())
        return self._found

    def _status(self) -> CanaryStatus | None:
        try:
            return read_canary_status(self.settings)
        except CanaryNotRunning:
            return None
