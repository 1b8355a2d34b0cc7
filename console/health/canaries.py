"""The canaries that can be asked from here, and what each says of its hops."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cloud_jobs.config import CloudSettings
from console.health.bounded import WAIT_S, Answer, BoundedReads
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.stack_folder import registrations
from waybill.daemon.status_reader import fetch_status
from waybill.settings import one_line

HOPS: Final = ("region", "centre", "alert", "table", "usage", "rated")
"""The hops in their order, up to the money."""
_MAX_FILES: Final = 50
_MAX_BYTES: Final = 64 << 10
_MAX_AGE_S: Final = 60.0
"""An answer whose own time is further from now is not about now."""
_PORT: Final = 9479
_PROGRAM: Final = "waybill canary run"
_FILES: Final = ("canary*.toml", "*/canary*.toml")


class HopAnswer(BaseModel):
    """A hop as a canary says it. Counts are of the last hour; None: unknown."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hop: str = Field(max_length=40)
    colour: Literal["green", "red", "unknown", "not watched"]
    reason: str = ""
    p50_s: float | None = None
    p99_s: float | None = None
    limit_s: float | None = None
    level: float | None = None
    consumed: int | None = None
    delayed: int | None = None
    lost: int | None = None
    wrong: int | None = None


class CanaryAnswer(BaseModel):
    """The status document of a canary. A newer one may have more fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    region: str = Field(max_length=100)
    device: str = Field(max_length=200)
    asked_s: float
    sent: int | None = None
    not_sent: str = ""
    hops: tuple[HopAnswer, ...] = Field(max_length=20)


class CanaryPlace(NamedTuple):
    """Where a canary answers. `region`, `device`: what it must say it is; "": anything.

    `known_by`: its settings file; "": the console's settings, which name any daemon.
    """

    address: str
    region: str
    device: str
    known_by: str


@dataclass(frozen=True, slots=True)
class CanaryState:
    """A canary of a region, or that there is none. `problem`: why its hops are unknown, or ""."""

    region: str
    device: str | None = None
    address: str = ""
    asked_at: datetime | None = None
    sent: int | None = None
    not_sent: str = ""
    hops: tuple[HopAnswer, ...] = ()
    problem: str = ""

    def hop(self, name: str) -> HopAnswer:
        """The hop; unknown if the canary did not say it."""
        said = next((one for one in self.hops if one.hop == name), None)
        return said or HopAnswer(hop=name, colour="unknown", reason=self.problem or "the canary does not name it")

    @property
    def colours(self) -> set[str]:
        return {self.hop(name).colour for name in HOPS}


def regions_of(settings: CloudSettings) -> list[str]:
    """The regions whose batches the ingest reads, by the names of their topics."""
    found = (re.search(r"/telemetry-([^/{}]+)/batches$", topic) for topic in settings.ingest.topics)
    return sorted({one[1] for one in found if one})


def read_canaries(
    settings: CloudSettings, folder: Path | None, reads: BoundedReads, now: datetime
) -> tuple[CanaryState, ...]:
    """Each canary that is known here, and each region without one, which is unknown. `folder`: of the settings file."""
    places = dict[str, CanaryPlace]()
    for one in _places(settings, folder):
        places.setdefault(one.address, one)
    answers = reads.ask({f"canary {address}": asking(address) for address in places})
    found = []
    for address, place in places.items():
        answer = answers[f"canary {address}"]
        # of an address of any daemon only an answer shows whether it is a canary
        if not place.known_by and not (isinstance(answer.value, dict) and "hops" in answer.value):
            continue
        found.append(state_of(place, answer, now))
    missing = {*regions_of(settings)} - {one.region for one in found}
    found += [CanaryState(region, problem="no canary of this region is known here") for region in missing]
    return tuple(sorted(found, key=lambda one: (one.region, one.device or "")))


def state_of(place: CanaryPlace, answer: Answer[Any], now: datetime) -> CanaryState:
    """What an answer says; whatever cannot be believed is unknown. Pure."""
    known = CanaryState(place.region or "unknown", place.device or None, place.address)

    def unknown(problem: str) -> CanaryState:
        return replace(known, problem=problem)

    if answer.error:
        return unknown(one_line(f"no canary answers at {place.address} ({place.known_by}): {answer.error}"))
    try:
        said = CanaryAnswer.model_validate(answer.value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"]) or "the answer"
        return unknown(one_line(f"the status at {place.address} cannot be read: {where}: {fault['msg']}"))
    if (place.region and said.region != place.region) or (place.device and said.device != place.device):
        who = f"{said.device} of {said.region}"
        return unknown(one_line(f"the canary at {place.address} is {who}, not the one of {place.known_by}"))
    try:
        asked_at = datetime.fromtimestamp(said.asked_s, UTC)
    except (ValueError, OverflowError, OSError):
        return unknown(f"the status at {place.address} has no readable time")
    if abs((now - asked_at).total_seconds()) > _MAX_AGE_S:
        return unknown(f"the status at {place.address} is of {asked_at:%Y-%m-%d %H:%M:%S} UTC, not of now")
    return CanaryState(said.region, said.device, place.address, asked_at, said.sent, said.not_sent, said.hops)


def asking(address: str, what: str = "status") -> Callable[[], dict[str, Any]]:
    """A read of what a daemon serves, also of one that says that it is not healthy."""
    host, _, port = address.rpartition(":")
    return lambda: fetch_status(host.strip("[]"), int(port), what, timeout_s=WAIT_S, also_unhealthy=what == "health")


def _places(settings: CloudSettings, folder: Path | None) -> Iterator[CanaryPlace]:
    """Of two places with one address the first counts."""
    if folder is not None:
        with suppress(OSError):
            for one in registrations(folder):
                if one.program == _PROGRAM and one.is_running and one.status:
                    yield _registered(Path(one.config), one.status)
        files = [file for pattern in _FILES for file in sorted(folder.glob(pattern))]
        for file in files[:_MAX_FILES]:
            with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
                yield _place_of(file)
    yield from (CanaryPlace(one, "", "", "") for one in settings.console.daemons)


def _registered(config: Path, address: str) -> CanaryPlace:
    try:
        return _place_of(config)._replace(address=address)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return CanaryPlace(address, "", "", config.name)


def _place_of(file: Path) -> CanaryPlace:
    """The place of a settings file. Raises OSError, ValueError, TypeError, KeyError, AttributeError."""
    given = tomllib.loads(read_bounded(file, _MAX_BYTES).decode())
    status = given.get("status", {})
    address = f"{status.get('host', '127.0.0.1')}:{int(status.get('port', _PORT))}"
    region, device = given["region"], given["device"]
    if not (isinstance(region, str) and isinstance(device, str)):
        raise TypeError(f"{file}: region and device are texts")
    return CanaryPlace(address, region, f"canary/{device}", file.name)
