"""The draft of a trial: each amount computed twice, and what it says when the two differ."""

from __future__ import annotations

from pathlib import Path

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.lake.coverage import TenantDevice
from deploy.trial.centre import draft
from tests.cloud_jobs.billing.register.metered_lake import TEN, metered_lake

DEVICE = TenantDevice("acme", "eu-1")
PERIOD = BillingPeriod.parse("2026-01", "Europe/Berlin")


def test_a_record_that_was_changed_between_the_computations_makes_the_draft_unequal(tmp_path: Path) -> None:
    lake = metered_lake(tmp_path).lake
    before = draft(lake, "acme", DEVICE, PERIOD)
    assert (before.agrees, before.doubt, len(before.lines)) == (True, "", 3)
    lake.open("records").delete("device = 'eu-1' and seq = 7")
    after = draft(lake, "acme", DEVICE, PERIOD)
    assert (after.agrees, after.net_minor) == (False, before.net_minor)
    assert after.doubt.endswith(f"the records of {TEN:%Y-%m-%d %H:00} give another usage"), after.doubt
