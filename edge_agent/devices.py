"""Several devices behind one agent: each one gets the settings that an agent of its own would have.

    [[devices]]                  [device]
    id = "tracker-1"             id = "tracker-1"
    [buffer]                →    levels = { device = "tracker-1" }
    path = "buffer"              [buffer]
                                 path = "buffer/tracker-1"

`{device}` stands for the device's id in each text outside of mappings. In topics of mappings it is a named level, as
others are: `levels` says which text it is for each device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field, field_validator

from edge_agent.config import DEVICE_LEVEL, AgentSettings, BufferSettings, DeviceSettings, IntakeSettings
from edge_agent.mapping.paths import TopicPattern
from waybill.record import VEHICLE_FILTER
from waybill.settings import Settings, SettingsError, name_advice, parse_tables, read_text, validate

MAX_DEVICES: Final = 32
MAX_TOPICS: Final = 1024
"""Of all devices together: each topic of one is compared with each topic of another."""
DEVICE: Final = "{device}"
_INTAKE: Final[Mapping[str, Any]] = {
    "client_id": f"{IntakeSettings().client_id}-{DEVICE}",
    "topics": [VEHICLE_FILTER.replace("#", f"{DEVICE}/#")],
}


class DeviceConfig(NamedTuple):
    """The settings of one device, and the tables of a file with them."""

    settings: AgentSettings
    tables: Mapping[str, Any]


class DeviceList(Settings):
    """The devices behind one agent."""

    devices: tuple[DeviceSettings, ...] = Field(min_length=1, max_length=MAX_DEVICES)

    @field_validator("devices")
    @classmethod
    def _ids_differ(cls, devices: tuple[DeviceSettings, ...]) -> tuple[DeviceSettings, ...]:
        ids = [one.id for one in devices]
        if twice := next((name for name in ids if ids.count(name) > 1), None):
            raise ValueError(f"two devices have the id {twice!r}")
        return devices


def load_devices(config: Path) -> tuple[DeviceConfig, ...]:
    """The devices of a settings file; without `[[devices]]` it is one. Raises SettingsError."""
    return expand(parse_tables(read_text(config), str(config)), str(config))


def load_device(config: Path, device: str = "") -> AgentSettings:
    """The settings of one device of a file; "": of its only one. Raises SettingsError."""
    by_id = {one.settings.device.id: one.settings for one in load_devices(config)}
    if not device and len(by_id) > 1:
        raise SettingsError(str(config), [f"has {len(by_id)} devices: name one with --device: {', '.join(by_id)}"])
    if device and device not in by_id:
        advice = name_advice(device, by_id) or f"; there are {', '.join(by_id)}"
        raise SettingsError(str(config), [f"has no device {device!r}{advice}"])
    return by_id[device] if device else next(iter(by_id.values()))


def expand(tables: Mapping[str, Any], source: str) -> tuple[DeviceConfig, ...]:
    """The settings of each device of parsed tables; `source` names these in errors. Raises SettingsError."""
    if "devices" not in tables:
        return (DeviceConfig(validate(AgentSettings, dict(tables), source), tables),)
    if "device" in tables:
        raise SettingsError(source, ["device: leave it out: the file has [[devices]]"])
    shared = {name: value for name, value in tables.items() if name != "devices"}
    made: list[DeviceConfig] = []
    problems: list[str] = []
    for device in validate(DeviceList, {"devices": tables["devices"]}, source).devices:
        own = _tables_of(device, shared)
        try:
            settings = validate(AgentSettings, own, source)
        except SettingsError as error:
            problems += error.problems
            continue
        # once for all: the mappings of a preset or a DBC file take memory
        shared = {**shared, "mappings": settings.mappings}
        made.append(DeviceConfig(settings, own))
    if problems := [*dict.fromkeys(problems)] or [*_conflicts([one.settings for one in made])]:
        raise SettingsError(source, problems)
    return tuple(made)


def _tables_of(device: DeviceSettings, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a file for this device alone."""
    about = {"id": device.id, "tenant": device.tenant, "levels": device.levels or {DEVICE_LEVEL: device.id}}
    intake, buffer = shared.get("intake", {}), shared.get("buffer", {})
    if isinstance(intake, dict):
        intake = {**_INTAKE, **intake}
    if isinstance(buffer, dict) and isinstance(path := buffer.get("path", str(BufferSettings().path)), str):
        buffer = {**buffer, "path": path if DEVICE in path else str(Path(path) / DEVICE)}
    others = {name: value for name, value in shared.items() if name != "mappings"}
    return {**shared, **_filled({**others, "intake": intake, "buffer": buffer}, device.id), "device": about}


def _filled(value: Any, device: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(one, device) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, device) for one in value]
    return value.replace(DEVICE, device) if isinstance(value, str) else value


def _conflicts(devices: Sequence[AgentSettings]) -> Iterator[str]:
    """Why the devices cannot be streams of their own: a message, or a file, that two of them would take."""
    try:
        topics = {one.device.id: [*topics_of(one)] for one in devices}
    except ValueError as error:
        yield f"intake.topics: {error}"
        return
    if (count := sum(map(len, topics.values()))) > MAX_TOPICS:
        yield f"devices: they have {count} topics together, and {MAX_TOPICS} are allowed"
        return
    for one, other in combinations(devices, 2):
        for mine in topics[one.device.id]:
            if theirs := next((its for its in topics[other.device.id] if mine.overlaps(its)), None):
                yield (
                    f"devices: a message can be of both {one.device.id} and {other.device.id}: {mine.text} and"
                    f" {theirs.text}: the topic needs a level {DEVICE}, or one that is in `levels` of each device"
                )
                return
    for name, text in _own_names(devices[0]).items():
        if len(devices) > 1 and text is not None and text == _own_names(devices[1]).get(name):
            yield f"{name}: {text} is of one device: name that of each with {DEVICE}"


def topics_of(settings: AgentSettings) -> Iterator[TopicPattern]:
    """The topics of a device's messages. Raises ValueError for a filter that is none."""
    yield from map(TopicPattern, settings.intake.topics)
    yield from (TopicPattern(one.topic, settings.device.levels) for one in settings.mappings)


def _own_names(settings: AgentSettings) -> dict[str, str | Path | None]:
    """The session and the files that no two devices may share, by setting. One session gets the messages of both."""
    with_tls = ((at, one.tls) for at, one in enumerate(settings.uplinks) if one.tls is not None)
    names: dict[str, str | Path | None] = {"intake.client_id": settings.intake.client_id}
    names |= {f"uplinks.{at}.tls.certificate": tls.certificate for at, tls in with_tls}
    if (enrolment := settings.enrolment) is not None:
        names |= {"enrolment.token_file": enrolment.token_file, "enrolment.certificate": enrolment.certificate}
    return names
