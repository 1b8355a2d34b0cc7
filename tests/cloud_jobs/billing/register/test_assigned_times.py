"""A payer answers for a device in the time in which it is the payer's: what others have in the period is theirs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloud_jobs.billing.register.closing import Closing, ClosingState
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import HOUR, BilledLake, used

MOVED, BACK = "2026-03-20T00:00:00Z", "2026-03-25T00:00:00Z"
OFTEN = datetime(2026, 3, 22, tzinfo=UTC)
NEW_YORK = payer(time_zone="America/New_York")


def lake_of(folder: Path, *accounts: dict[str, Any], until: datetime) -> BilledLake:
    """A device that stated what it has until a moment and then fell silent."""
    made = BilledLake.create(folder)
    made.hear("van-1", until=until)
    made.publish(legal_entity(), tariff(price("0.45")), *accounts)
    made.use(used("van-1", 1_000, HOUR))
    return made


def certified(made: BilledLake, closing: Closing) -> list[tuple[str, str, str]]:
    """From when until when the closing's certificates are, and what they say."""
    rows = made.lake.rows("certificates", where=[("run", "=", closing.run), ("payer", "=", closing.key.payer)])
    found = map(json.loads, rows["certificate"].to_pylist())
    return [(one["start"], one["end"], one["state"]) for one in found]


def test_who_gave_a_device_away_has_a_final_bill_though_it_fell_silent_with_the_next_one(tmp_path: Path) -> None:
    given = account("acme", device("van-1", end=MOVED))
    made = lake_of(tmp_path, given, account("beta", device("van-1", begin=MOVED), payer=NEW_YORK), until=OFTEN)
    acme, beta = made.close("one")
    assert (acme.outcome, acme.net_minor, acme.reasons) == (ClosingState.FINAL, 45, ())
    assert (beta.outcome, beta.reasons) == (
        ClosingState.PROVISIONAL,
        ("fleet/van-1: silent since 2026-03-22T00:00:00Z",),
    )
    assert certified(made, acme) == [("2026-02-28T23:00:00Z", MOVED, "complete")]
    assert certified(made, beta) == [(MOVED, "2026-04-01T04:00:00Z", "silent")]


def test_who_has_a_device_again_answers_for_it_from_the_first_day_to_the_last(tmp_path: Path) -> None:
    twice = account("acme", device("van-1", end=MOVED), device("van-1", begin=BACK))
    made = lake_of(tmp_path, twice, account("beta", device("van-1", begin=MOVED, end=BACK)), until=OFTEN)
    acme, beta = made.close("one")
    assert [acme.outcome, beta.outcome] == [ClosingState.PROVISIONAL, ClosingState.PROVISIONAL]
    assert certified(made, acme) == [("2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z", "silent")]
    assert certified(made, beta) == [(MOVED, BACK, "silent")]
