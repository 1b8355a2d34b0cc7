"""Thousands of devices with a session each: their certificates, and their connections to a region's broker."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from identity import issue_device, make_request
from tests.system.access_region import LIFE, AccessRegion

TENANT = "acme"
_AT_ONCE = 4
"""Handshakes under way: the broker has one thread, and one of ours does not keep it busy."""


def credentials_file(region: AccessRegion, device: str) -> Path:
    """A device's certificate and key in one file; the certificate is among those that the region's authority issued."""
    name, key = f"{TENANT}/{device}", region.device_key
    issued = issue_device(
        region.authority.authority,
        make_request(key, name),
        TENANT,
        device,
        now=datetime.now(UTC),
        serial=x509.random_serial_number(),
        lifetime=LIFE,
    )
    # Not durably, as `AuthorityFolder.device` would: syncing thousands of files took longer than all else here.
    (region.authority.folder / "issued" / f"{issued.serial:040x}.pem").write_bytes(issued.chain_pem)
    file = region.folder / f"{device}.pem"
    file.write_bytes(issued.chain_pem + key.private_pem())
    return file


def open_sessions(region: AccessRegion, devices: Iterable[str]) -> dict[str, socket.socket]:
    """A session with mutual TLS for each device."""

    def session(device: str) -> tuple[str, socket.socket]:
        file = credentials_file(region, device)
        context = ssl.create_default_context(cadata=region.authority.root_pem.decode())
        context.load_cert_chain(file)
        file.unlink()
        return device, region.connect(context)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(pool.map(session, devices))
