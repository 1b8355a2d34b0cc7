"""The metered way beside that of the vehicles' own odometers: a device whose two differ by much is named. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cloud_jobs.billing.certificates import Observed
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.reconcile.comparison import Comparison, Station, named

MOST_PER_CENT: Final = 10


def compare_odometers(observed: Mapping[TenantDevice, Observed]) -> Iterator[Comparison]:
    """What is metered of devices with an odometer from its first reading to its last one.

    Usage is of whole quarters of an hour: the way of the two at both ends may be in it or not. Merely counted: an
    odometer may be wrong, too.
    """
    ways = [(device, one.odometer) for device, one in sorted(observed.items()) if one.odometer is not None]
    if not ways:
        return
    wrong = []
    for device, way in ways:
        driven_mm = 1000 * way.driven_m
        is_less = 100 * way.most_mm < (100 - MOST_PER_CENT) * driven_mm
        if is_less or 100 * way.least_mm > (100 + MOST_PER_CENT) * driven_mm:
            note = f"its odometer says {way.driven_m / 1000:,.1f} km of the same time"
            place = f"{device.tenant}/{device.device}"
            wrong.append(Comparison(Station.USAGE, "way unlike its odometer's, mm", place, None, way.most_mm, note))
    note = f"the ways of {len(wrong):,} differ by more than {MOST_PER_CENT} %"
    yield Comparison(Station.USAGE, "devices with an odometer", "", None, len(ways), note)
    yield from named(wrong)
