"""Files of devices."""

from __future__ import annotations

from collections.abc import Iterable

from identity.device_file import MAX_FILE_FAULTS, device_file_text, devices_of_toml
from identity.device_file_changes import FileChangeRefused, made_entry, planned
from tests.identity.registry_strategies import CHANGE, CLAIM, active, expected

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


def judge(data: bytes) -> None:
    """Devices and faults, each with a line of the text; what is right is a change of a device, or refused."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return
    found, faults = devices_of_toml(text, "f")
    assert len(faults) <= MAX_FILE_FAULTS
    for one in found:
        try:
            asked = planned(one.stated, None)
        except FileChangeRefused:
            continue
        claim = CLAIM if asked.needs_token else None
        if claim is not None or asked.stated.factory is None:
            assert made_entry(asked, CHANGE, claim).name == one.stated.name


def bounded(data: bytes) -> None:
    """The reading of the file, once."""
    devices_of_toml(data.decode("utf-8-sig", "replace"), "f")
