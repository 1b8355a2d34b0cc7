"""The MQTT topics, built and parsed. No other module has one.

Between a device and the gateways of its region: `waybill/1/{tenant}/{device}/` and a channel:

    batch          to a gateway   a batch on the wire
    config-result  to a gateway   the result of pushed settings
    ack            to the device  persisted or refused records
    config         to the device  pushed settings

Between a client that asks for a certificate and the access daemon: `waybill/enrol/1/{name}/` and `request` or `answer`.
The name is that of the certificate or claim: `{tenant}/{device}`, or `claim@...`. For factory certificates the broker
adds the prefix `factory/`, which no client can set.

Inside a vehicle, sensors publish on `vehicle/{name}`; the names of the contract are the constants below. Each of
several sensors may have a level of its own: `vehicle/{sensor}/position`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from waybill.record.record import DEVICE_PATTERN

_VERSION = ("waybill", "1")
_ENROLMENT = "waybill/enrol/1"
FACTORY_MOUNT = "factory/"
"""The prefix that the enrolment broker adds for clients with a factory certificate; no client sees it."""
_SHARE = "$share"
_VEHICLE = "vehicle"
_LEVELS = 5
_MAX_DEVICE_TOPIC = 160
"""Slightly more characters than the longest topic of a device."""
_TOPICS_KNOWN = 4096
"""Cached, because a gateway parses the same topics again and again."""
_ENROLMENT_NAME = re.compile(rf"[a-z]+@{DEVICE_PATTERN.pattern}|{DEVICE_PATTERN.pattern}/{DEVICE_PATTERN.pattern}")
_MAX_ENROLMENT_TOPIC = 160
"""Slightly more characters than the longest enrolment topic."""


class DeviceChannel(StrEnum):
    """The last level of a topic between a device and a gateway."""

    BATCH = "batch"
    ACK = "ack"
    CONFIG = "config"
    CONFIG_RESULT = "config-result"


_CHANNELS = {channel.value: channel for channel in DeviceChannel}


class DeviceTopic(NamedTuple):
    tenant: str
    device: str
    channel: DeviceChannel


@lru_cache(maxsize=_TOPICS_KNOWN)
def device_topic(tenant: str, device: str, channel: DeviceChannel) -> str:
    """Raises ValueError for invalid names."""
    if not (DEVICE_PATTERN.fullmatch(tenant) and DEVICE_PATTERN.fullmatch(device)):
        raise ValueError(f"{tenant!r} and {device!r} are not the names of a tenant and a device")
    return "/".join((*_VERSION, tenant, device, channel))


def parse_device_topic(topic: str) -> DeviceTopic | None:
    # Checked before it is cached: a topic may have 64 kB.
    return _parsed(topic) if len(topic) <= _MAX_DEVICE_TOPIC else None


@lru_cache(maxsize=_TOPICS_KNOWN)
def _parsed(topic: str) -> DeviceTopic | None:
    levels = topic.split("/", _LEVELS)
    if len(levels) != _LEVELS or (levels[0], levels[1]) != _VERSION:
        return None
    _, _, tenant, device, last = levels
    channel = _CHANNELS.get(last)
    if channel is None or not (DEVICE_PATTERN.fullmatch(tenant) and DEVICE_PATTERN.fullmatch(device)):
        return None
    return DeviceTopic(tenant, device, channel)


def device_filter(channel: DeviceChannel, tenant: str = "+") -> str:
    """The topic filter of one channel of all devices, or of all devices of a tenant."""
    return "/".join((*_VERSION, tenant, "+", channel))


def shared_filter(channel: DeviceChannel, group: str) -> str:
    """The filter of a shared subscription: the broker gives each message to one member of the group."""
    return f"{_SHARE}/{group}/{device_filter(channel)}"


class EnrolmentChannel(StrEnum):
    REQUEST = "request"
    ANSWER = "answer"


def enrolment_topic(name: str, channel: EnrolmentChannel) -> str:
    """The topic of a client with this name. Raises ValueError for an invalid name."""
    if not _ENROLMENT_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is neither tenant/device nor the name of a claim")
    return f"{_ENROLMENT}/{name}/{channel}"


def enrolment_requester(topic: str) -> str | None:
    """The name of the client whose requests have this topic; None for any other topic."""
    begin, end = f"{_ENROLMENT}/", f"/{EnrolmentChannel.REQUEST}"
    if len(topic) > _MAX_ENROLMENT_TOPIC or not (topic.startswith(begin) and topic.endswith(end)):
        return None
    name = topic[len(begin) : -len(end)]
    return name if _ENROLMENT_NAME.fullmatch(name) else None


def enrolment_filters(channel: EnrolmentChannel) -> tuple[str, str]:
    """The topic filters of one channel: of all claims, and of all devices."""
    return f"{_ENROLMENT}/+/{channel}", f"{_ENROLMENT}/+/+/{channel}"


def enrolment_rule(channel: EnrolmentChannel) -> str:
    """The topic of a client's own channel in a broker's rules; `%u` is its user name."""
    return f"{_ENROLMENT}/%u/{channel}"


def vehicle_topic(name: str) -> str:
    """The topic of a sensor's messages inside a vehicle. Names outside the contract are carried raw."""
    return f"{_VEHICLE}/{name}"


VEHICLE_POSITION = vehicle_topic("position")
VEHICLE_SIGNAL = vehicle_topic("signal")
VEHICLE_EVENT = vehicle_topic("event")
VEHICLE_CANARY = vehicle_topic("canary")
VEHICLE_FILTER = vehicle_topic("#")
_CONTRACT = frozenset({VEHICLE_POSITION, VEHICLE_SIGNAL, VEHICLE_EVENT, VEHICLE_CANARY})
_OF_SENSORS = {f"/{topic.rpartition('/')[2]}": topic for topic in (VEHICLE_POSITION, VEHICLE_SIGNAL, VEHICLE_EVENT)}


def vehicle_contract_topic(topic: str) -> str | None:
    """The contract's topic that `topic` follows, with or without a sensor's level; None if it follows none."""
    if topic in _CONTRACT:
        return topic
    if topic.count("/") != 2 or not topic.startswith(f"{_VEHICLE}/"):
        return None
    return _OF_SENSORS.get(topic[topic.rindex("/") :])


def meant_contract_topic(topic: str) -> str | None:
    """The same, ignoring case, plurals and empty levels."""
    if topic.count("/") > _LEVELS:
        return None
    levels = (level.lower().removesuffix("s") for level in topic.split("/") if level)
    return vehicle_contract_topic(topic) or vehicle_contract_topic("/".join(levels))


def vehicle_filters(topic: str) -> tuple[str, str]:
    """The filters of all messages that follow a topic of the contract: without and with a sensor's level."""
    return topic, vehicle_topic(f"+/{topic.rpartition('/')[2]}")
