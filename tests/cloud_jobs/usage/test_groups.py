"""A group of devices gets the files that may hold their positions, and no others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.usage.devices import device_groups, wanted_files
from tests.cloud_jobs.usage.test_any_order import START
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of


def test_devices_of_one_name_at_several_tenants_do_not_share_files(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    tenants = ["t1", "t2", "t3"]
    for tenant in tenants:
        ingest(lake, [LakeFix("van", at, START + timedelta(minutes=at), 0, 0, tenant=tenant) for at in range(1, 4)])
    wanted = wanted_files(StoredFiles.of(lake.open("records"), "records"), (1, 3), [], 0)
    counts = dict.fromkeys((TenantDevice(tenant, "van") for tenant in tenants), 1_000_000)
    usage = StoredFiles.of(lake.open("usage"), "usage")
    groups = [*device_groups(counts, wanted, usage, Erasures([]), tasks=3)]
    assert [len(group.names) for group in groups] == [1, 1, 1]
    assert sorted(path for group in groups for path in group.new) == sorted(wanted.new.paths)
    assert sorted(file.path for group in groups for file in group.around) == sorted(wanted.around.paths)
