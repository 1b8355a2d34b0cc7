"""`cloud-jobs close` for a lake that has usage, and none of the records that it counts: SETTINGS PERIOD."""

import sys
from pathlib import Path

from cloud_jobs.billing.register.commands import days_of
from cloud_jobs.billing.register.terminal import closings_table
from cloud_jobs.commands import load_settings
from cloud_jobs.jobs import run_close
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.terminal import screen

if __name__ == "__main__":
    settings, unbilled = load_settings(Path(sys.argv[1])), list[TenantDevice]()
    closings = run_close(settings, days_of(sys.argv[2]), None, None, against_records=False, unbilled=unbilled.extend)
    assert not unbilled
    screen().print(closings_table(closings))
