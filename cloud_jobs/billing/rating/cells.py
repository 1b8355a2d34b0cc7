"""Usage as rating takes it: what a device used of a meter in a zone, by local day, window and version of the tariff."""

from __future__ import annotations

from datetime import date, datetime
from typing import Final, NamedTuple

from cloud_jobs.billing.meters import MEASURE_OF, Meter, MeterZones
from cloud_jobs.lake.schemas import WHOLE_DEVICE

WITHOUT_ZONE: Final = frozenset(meter for meter in Meter if MEASURE_OF[meter].zones is MeterZones.NONE)
"""The meters of the rows of WHOLE_DEVICE: a price for them has no zone."""


class Cell(NamedTuple):
    """A quantity (in the meter's base unit) with everything that a price can depend on.

    `zone`: "" outside all zones; of a crossing its gate; "" of meters that have no zone. `day`: the local day; None
    where the account's tariff has no daily cap, so that nothing looks at it. `window`: "" in none, and of an active
    day. `version`: of the account's tariff, counted from 0 in the order of their beginnings; -1 before the first.
    """

    account: str
    tenant: str
    device: str
    region: str
    meter: Meter
    zone: str
    day: date | None
    window: str
    version: int
    quantity: int


class MeteredRows(NamedTuple):
    """From which rows of usage the charges of a device and zone come: their number, the first and the last hour, and
    the SHA-256 (hex) of their digests in the order of the hours. Rows of zeros are not among them."""

    rows: int
    first_hour: datetime
    last_hour: datetime
    digest: str


class MeteredKey(NamedTuple):
    """Whose rows of usage: of an account, a device, a zone as the rows have it (WHOLE_DEVICE too)."""

    account: str
    tenant: str
    device: str
    zone: str


def metered_key(account: str, tenant: str, device: str, meter: Meter, zone: str) -> MeteredKey:
    """The rows that a charge of a meter comes from."""
    return MeteredKey(account, tenant, device, WHOLE_DEVICE if meter in WITHOUT_ZONE else zone)
