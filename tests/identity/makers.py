"""Authorities and credentials for tests, at a fixed time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from waybill.identity.authority import Authority, KeyPair, make_regional, make_root

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOOPBACK = "localhost", "127.0.0.1"
YEAR, MONTH = timedelta(days=365), timedelta(days=30)


def root_authority(*, now: datetime = NOW, lifetime: timedelta = 10 * YEAR) -> Authority:
    return make_root("Waybill root", KeyPair.generate(), now=now, serial=1, lifetime=lifetime)


def regional_authority(root: Authority, region: str = "eu", *, lifetime: timedelta = YEAR) -> Authority:
    key = KeyPair.generate()
    issued = make_regional(root, region, key.public, servers=LOOPBACK, now=NOW, serial=2, lifetime=lifetime)
    return Authority(issued.certificate, key)
