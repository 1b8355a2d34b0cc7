"""From a message of a topic of batches to the fixes in it, or why it is passed over. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gateway.alerts.live_fixes import BatchFixes
from identity import Unsealable, Unsealer, is_sealed
from telemetry import DEVICE_PATTERN, Kind, WireError
from telemetry.columns import RecordColumns, decode_columns

__all__ = ["MAX_AHEAD_MS", "PassedOver", "read_fixes"]

MAX_AHEAD_MS = 86_400_000
"""A device time so long after its batch came is far off: at the centre it is of no day, and makes no event."""
MAX_AGE_MS = 400 * 86_400_000
"""The same for one so long before: the defaults of the ingest."""
_MICROSECONDS = 1000


class PassedOver(Exception):
    """A message that gives no fixes; `reason` is a short word that many share."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def read_fixes(
    payload: bytes, properties: Mapping[str, str], *, received_ms: int, tenants: frozenset[str], unsealer: Unsealer
) -> BatchFixes:
    """The fixes of a batch, none where it has none. Raises PassedOver, and nothing else for any bytes.

    `tenants`: whose batches its topic may have.
    """
    tenant = properties.get("tenant", "")
    if tenant not in tenants:
        raise PassedOver("tenant", f"a batch of {tenant[:100]!r} on a topic of {', '.join(sorted(tenants))}")
    if is_sealed(payload):
        region = properties.get("region", "")
        if not DEVICE_PATTERN.fullmatch(region):
            raise PassedOver("region", "a sealed batch without the name of a region")
        try:
            payload = unsealer.unseal(payload, tenant, region)
        except Unsealable as error:
            raise PassedOver("sealed", str(error)) from error
    try:
        columns = decode_columns(payload)
    except WireError as error:
        raise PassedOver(error.reason, str(error)) from error
    return _fixes_of(tenant, columns, received_ms)


def _fixes_of(tenant: str, columns: RecordColumns, received_ms: int) -> BatchFixes:
    t_ms = columns.device_time_us // _MICROSECONDS
    is_near = (t_ms <= received_ms + MAX_AHEAD_MS) & (t_ms >= received_ms - MAX_AGE_MS)
    rows = np.flatnonzero((columns.kind == Kind.POSITION) & is_near)
    return BatchFixes(
        tenant=tenant,
        device=columns.header.device,
        epoch=columns.header.epoch,
        seq=columns.seq[rows],
        t_ms=t_ms[rows],
        latitude=columns.latitude[rows],
        longitude=columns.longitude[rows],
        accuracy_m=columns.accuracy_m[rows],
        speed_mps=columns.speed_mps[rows],
    )
