"""The rules file of a region's broker (`acl_file` of Mosquitto). Pure.

A device writes and reads its own topics by patterns with its user name, which is the name in its certificate; nobody
else may anything but what is named here. What is denied is named by device, and comes before the patterns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from waybill.identity.names import PrincipalKind, principal
from waybill.record import (
    DeviceChannel,
    EnrolmentChannel,
    device_filter,
    device_topic,
    enrolment_filters,
    enrolment_rule,
)

__all__ = ["MAX_DENIED", "broker_rules", "rules_version"]

MAX_DENIED = 2_000
"""Devices that are denied by name: at each reload the broker compares with each of them its sessions and the others.

With 10,000 sessions 1,000 take 0.1 s of its only thread, 5,000 take 0.3 s and 20,000 take 2.5 s.
"""
_FIRST = re.compile(r"# waybill rules, version (\d{1,15})\b")
_FROM_DEVICES = (DeviceChannel.BATCH, DeviceChannel.CONFIG_RESULT)
_TO_DEVICES = (DeviceChannel.ACK, DeviceChannel.CONFIG)


def broker_rules(version: int, region: str, gateways: Iterable[str], denied: Collection[str]) -> str:
    """The file's text; `gateways`: their names. `denied`: devices that may nothing, at most MAX_DENIED."""
    assert len(denied) <= MAX_DENIED, len(denied)
    lines = [f"# waybill rules, version {version}: written by the access daemon of {region}, and written over"]
    # A rule for a user comes before the patterns, and # is every topic that is not of the broker itself.
    for name in sorted(denied):
        lines += [f"user {name}", "topic deny #"]
    for gateway in sorted(set(gateways)):
        lines.append(f"user {principal(PrincipalKind.GATEWAY, gateway)}")
        lines += [f"topic read {device_filter(channel)}" for channel in _FROM_DEVICES]
        lines += [f"topic write {device_filter(channel)}" for channel in _TO_DEVICES]
    lines += [f"user {principal(PrincipalKind.ACCESS, region)}"]
    _, requests = enrolment_filters(EnrolmentChannel.REQUEST)
    _, answers = enrolment_filters(EnrolmentChannel.ANSWER)
    lines += [f"topic read {requests}", f"topic write {answers}"]
    lines += [f"pattern write {_own(channel)}" for channel in _FROM_DEVICES]
    lines += [f"pattern read {_own(channel)}" for channel in _TO_DEVICES]
    lines += [f"pattern write {enrolment_rule(EnrolmentChannel.REQUEST)}"]
    lines += [f"pattern read {enrolment_rule(EnrolmentChannel.ANSWER)}"]
    return "\n".join(lines) + "\n"


def rules_version(text: str) -> int:
    """The version of a file that was written here; 0 of any other."""
    found = _FIRST.match(text)
    return int(found[1]) if found else 0


def _own(channel: DeviceChannel) -> str:
    return device_topic("t", "d", channel).replace("/t/d/", "/%u/")
