"""An erasure is declared when nothing that is computed from the positions is lost by it, and of a device that there is.

From its declaration on no job computes what lies before it. So it waits for those that have not read all of it yet.
"""

from __future__ import annotations

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure, read_erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.covered import Covered
from cloud_jobs.maintenance.erasing import not_covered


def is_declared(lake: Lake, erasure: Erasure) -> bool:
    """Whether the erasures that are there say as much already. Raises LakeError."""
    return read_erasures(lake).say(erasure)


def of_a_known_device(lake: Lake, erasure: Erasure) -> Erasure:
    """The erasure with the tenant of its device. Raises LakeError if there is no such device, or if several tenants
    have one."""
    if erasure.device is None:
        return erasure
    tenant, device = erasure.tenant, erasure.device
    asked = None if tenant is None else [TenantDevice(tenant, device)]
    rows = lake.coverage_rows(lake.coverage_manifest(lake.ingest_commit()), asked)
    names = zip(rows["tenant"].to_pylist(), rows["device"].to_pylist(), strict=True)
    tenants = sorted({one for one, name in names if name == device})
    if not tenants:
        whose = "" if tenant is None else f" of {tenant}"
        raise LakeError(f"no record of a device {device}{whose} was ever received, so nothing was done")
    if len(tenants) > 1:
        raise LakeError(f"{', '.join(tenants)} each have a device {device}: say whose positions go, by --tenant")
    return erasure._replace(tenant=tenants[0])


def check_covered(lake: Lake, erasure: Erasure, covered: Covered) -> None:
    """Raises LakeError if positions of an erasure are not computed from yet."""
    if waiting := not_covered(lake, erasure, covered.ingest_number):
        whose = "all devices" if erasure.device is None else f"{erasure.tenant or 'any tenant'}/{erasure.device}"
        raise LakeError(
            f"positions of {whose} before {erasure.before.isoformat()} wait: {waiting:,} of them are not computed from"
            f" yet; run `{covered.last}`, and this again"
        )
