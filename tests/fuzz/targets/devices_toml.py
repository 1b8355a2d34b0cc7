"""Files of devices."""

from __future__ import annotations

from collections.abc import Iterable

from tests.identity.held_devices import OPERATOR, HeldDevices, on_lines
from tests.identity.registry_strategies import CHANGE, active, expected
from waybill.identity.device_files import (
    MAX_FILE_FAULTS,
    PlacedDevice,
    StatedDevice,
    device_file_text,
    devices_of_toml,
    judged,
)
from waybill.identity.registry import DeviceEntry, DeviceState

MAX_SECONDS = 0.15
FUZZED_BYTES = 4096


def seeds() -> Iterable[bytes]:
    """Devices, and texts that are repeated, of wrong types, or full of faults."""
    good = device_file_text([active(), expected("acme", "bus-2")]).encode()
    yield good
    yield good.replace(b'"active"', b'"revoked"').replace(b'"eu"', b'"us"')
    yield b"[[device]]\ntenant = 1\n" * 2000
    yield b"[[devce]]\n[device]\n'a b'.\"c\".d = 1e99\n"
    yield b"device = [" + b"{tenant = 'a'}, " * 3000 + b"]"
    yield on_lines(
        [StatedDevice(tenant="acme", device=f"b-{n}", state=DeviceState.REVOKED) for n in range(9)], 3
    ).encode()


def judge(data: bytes) -> None:
    """Devices and faults, each with a line of the text; what is right is a change of a device, or refused."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return
    found, faults = devices_of_toml(text, "f")
    assert len(faults) <= MAX_FILE_FAULTS
    if len({one.stated.name for one in found}) < len(found):
        return
    for registry in (HeldDevices(), HeldDevices(map(_active, found))):
        changes, faults = judged(found, registry, OPERATOR)
        assert len(changes) + len(faults) == len(found) or len(faults) == MAX_FILE_FAULTS
        for one in changes:
            entry = one.make(CHANGE, None)(one.held)
            assert (entry is not None) is one.is_change


def _active(one: PlacedDevice) -> DeviceEntry:
    return active(one.stated.tenant, one.stated.device)


def bounded(data: bytes) -> None:
    """The reading of the file, once."""
    devices_of_toml(data.decode("utf-8-sig", "replace"), "f")
