"""Usage as rating takes it: what a device used of a meter in a zone, by local day, window and version of the tariff."""

from __future__ import annotations

from datetime import date, datetime
from typing import NamedTuple

from cloud_jobs.billing.meters import Meter


class Cell(NamedTuple):
    """A quantity (in the meter's base unit) with everything that a price can depend on.

    `zone`: "" outside all zones; of a crossing its gate; "" of meters that have no zone. `day`: the local day.
    `window`: "" in none. `version`: of the account's tariff, counted from 0 in the order of their beginnings.
    """

    account: str
    tenant: str
    device: str
    region: str
    meter: Meter
    zone: str
    day: date
    window: str
    version: int
    quantity: int


class MeteredRows(NamedTuple):
    """From which rows of usage the charges of a device and zone come: their number, the first and the last hour, and
    the SHA-256 (hex) of their digests in the order of the hours."""

    rows: int
    first_hour: datetime
    last_hour: datetime
    digest: str
