"""Thousands of devices with a session each: their certificates, and their connections to a region's broker."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from benchmarks.gateway.servers import REGION, MeasuredRegion
from deploy.demo.guarding import open_session
from waybill.identity.authority import issue_device
from waybill.identity.requests import KeyPair, make_request

TENANT = "acme"
LIFE = timedelta(days=30)
_AT_ONCE = 4
"""Handshakes under way: the broker has one thread, and one of ours does not keep it busy."""
_TIMEOUT_S = 30.0


def credentials_file(place: MeasuredRegion, key: KeyPair, device: str) -> Path:
    """A device's certificate and key in one file; the certificate is among those that the region's authority issued."""
    authority = place.credentials.authority.region(REGION)
    issued = issue_device(
        authority.authority,
        make_request(key, f"{TENANT}/{device}"),
        TENANT,
        device,
        now=datetime.now(UTC),
        serial=x509.random_serial_number(),
        lifetime=LIFE,
    )
    # Not durably, as `AuthorityFolder.device` would: syncing thousands of files took longer than all else here.
    (authority.folder / "issued" / f"{issued.serial:040x}.pem").write_bytes(issued.chain_pem)
    file = place.folder / f"{device}.pem"
    file.write_bytes(issued.chain_pem + key.private_pem())
    return file


def open_sessions(place: MeasuredRegion, key: KeyPair, devices: Iterable[str]) -> dict[str, socket.socket]:
    """A session with mutual TLS for each device; all have one key, and a certificate each."""
    trusted = place.credentials.authority.file

    def session(device: str) -> tuple[str, socket.socket]:
        file = credentials_file(place, key, device)
        context = ssl.create_default_context(cafile=str(trusted))
        context.load_cert_chain(file)
        file.unlink()
        return device, open_session(place.mqtt.port, context, _TIMEOUT_S)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(pool.map(session, devices))
