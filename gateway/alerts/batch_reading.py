"""From a message of a topic of batches to the records in it, or why it is passed over. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from waybill.identity.errors import Unsealable
from waybill.identity.sealing import Unsealer, is_sealed
from waybill.record import DEVICE_PATTERN, WireError
from waybill.record.columns import RecordColumns, decode_columns

__all__ = ["UnusableBatch", "read_batch"]


class UnusableBatch(Exception):
    """A message that is no batch of a tenant of its topic; `reason` is a short word that many share."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def read_batch(
    payload: bytes, properties: Mapping[str, str], *, tenants: frozenset[str], unsealer: Unsealer
) -> tuple[str, RecordColumns]:
    """The tenant and the records of a batch. Raises UnusableBatch, and nothing else for any bytes.

    `tenants`: whose batches its topic may have.
    """
    tenant = properties.get("tenant", "")
    # Before a key is used: what names another tenant must not choose the one that it is opened for.
    if tenant not in tenants:
        raise UnusableBatch("tenant", f"a batch of {tenant[:100]!r} on a topic of {', '.join(sorted(tenants))}")
    if is_sealed(payload):
        region = properties.get("region", "")
        if not DEVICE_PATTERN.fullmatch(region):
            raise UnusableBatch("region", "a sealed batch without the name of a region")
        try:
            payload = unsealer.unseal(payload, tenant, region)
        except Unsealable as error:
            raise UnusableBatch("sealed", str(error)) from error
    try:
        return tenant, decode_columns(payload)
    except WireError as error:
        raise UnusableBatch(error.reason, str(error)) from error
