"""What was closed as final is changed by nothing that a device makes after the time that its certificate asks for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.certificates import certificates_from
from cloud_jobs.billing.register.closing import ClosingNotes, ClosingState
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.reconcile import ComparisonOutcome, reconcile
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import NOW, BilledLake
from tests.cloud_jobs.billing.register.metered_lake import FIXES, JANUARY, TEN, meter, metered_lake, publish, state
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of, square

END = datetime(2026, 1, 31, 23, tzinfo=UTC)
"""Midnight in Berlin."""
SECOND = timedelta(seconds=1)
EXACT = TrackSettings(rule="every_fix")
"""By which later fixes have a say in five minutes; a cleaned place waits for 24."""
NEAR, FAR, ON = (0.1, 0.1), (5.0, 5.0), (0.1 + 20 / 111.2, 0.1)


def test_a_fence_that_is_published_again_with_its_keys_in_another_order_opens_nothing(tmp_path: Path) -> None:
    made = metered_lake(tmp_path)
    assert {one.outcome for one in made.close("one", days=JANUARY)} == {ClosingState.FINAL}
    publish(made, dict(reversed(square("square").items())))
    assert {one.outcome for one in made.close("two", days=JANUARY)} == {ClosingState.FINAL}
    publish(made, square("square", lon=5.0))
    assert {one.outcome for one in made.close("three", days=JANUARY)} == {ClosingState.PROVISIONAL}


def test_what_comes_after_an_erasure_is_billed_but_for_ways_and_those_are_counted(tmp_path: Path) -> None:
    made = metered_lake(tmp_path)
    before = {one.key.payer: one.net_minor for one in made.close("one", days=JANUARY)}
    declare_erasure(made.lake, Erasure("acme", "eu-1", TEN + timedelta(days=10)), NOW)
    late = [
        LakeFix("eu-1", FIXES + 1 + n, TEN + timedelta(minutes=40, seconds=n), 0.0, 0.0, kind="event")
        for n in range(1, 101)
    ]
    position = LakeFix("eu-1", FIXES + 102, TEN + timedelta(minutes=45), 0.1, 0.1)
    ingest(made.lake, [*late, position])
    state(made.lake, "eu-1", count=FIXES + 102)
    assert made.close("received", days=JANUARY)[0].outcome is ClosingState.PROVISIONAL
    meter(made)
    after = made.close("metered", days=JANUARY)
    assert {one.outcome for one in after} == {ClosingState.FINAL}
    # an event is 5 cents
    assert {one.key.payer: one.net_minor - before[one.key.payer] for one in after} == {"acme": 500, "beta": 0}
    assert ClosingNotes.of(next(one.parties for one in after if one.key.payer == "acme")).late_positions == 1
    van, days = TenantDevice("acme", "eu-1"), BillingPeriod.parse("2026-01", "Europe/Berlin")
    found = certificates_from(made.lake, take_snapshot(made.lake, NOW), [van], (days.start, days.end))[van]
    assert (found.is_final, found.counts.late_positions) == (True, 1)
    reconciled = reconcile(made.lake, take_snapshot(made.lake, NOW), JANUARY, None, now=NOW)
    (events,) = [one for one in reconciled.comparisons if one.name == "events metered"]
    assert (events.expected, events.found) == (104, 104)
    (named,) = [one for one in reconciled.comparisons if one.name == "positions that came after an erasure"]
    assert (named.found, named.outcome) == (1, ComparisonOutcome.COUNTED)


def test_hours_that_keep_what_former_rules_made_of_them_are_counted(tmp_path: Path) -> None:
    made = metered_lake(tmp_path)
    declare_erasure(made.lake, Erasure(None, None, TEN + timedelta(days=10)), NOW)
    assert {ClosingNotes.of(one.parties).former_rules for one in made.close("one", days=JANUARY)} == {0}
    publish(made, square("square", lon=5.0))
    meter(made)
    # two hours of two devices, and of one
    found = {one.key.payer: ClosingNotes.of(one.parties).former_rules for one in made.close("two", days=JANUARY)}
    assert found == {"acme": 2, "beta": 1}


def driven(folder: Path, stated_s: int) -> BilledLake:
    """20 km before the end of January past an outlier, and a statement so many seconds after the end."""
    lake = lake_of(folder, [square("square")])
    ingest(lake, [fix(-300, 1, NEAR), fix(-299, 2, FAR), fix(-1, 3, ON)])
    state(lake, "eu-1", until=END + stated_s * SECOND, count=3)
    made = BilledLake(lake)
    publish(made, legal_entity(), tariff(price("0.45")), account("acme", device("eu-1", tenant="acme")))
    meter(made, EXACT)
    return made


def fix(at_s: int, seq: int, place: tuple[float, float]) -> LakeFix:
    return LakeFix("eu-1", seq, END + at_s * SECOND, *place)


def closed(made: BilledLake, name: str, at_s: int) -> tuple[ClosingState, int, str]:
    (found,) = made.close(name, days=JANUARY, now=END + at_s * SECOND)
    return found.outcome, found.net_minor, " ".join(found.reasons)


def test_a_month_is_final_only_when_no_fix_of_the_next_one_can_change_it(tmp_path: Path) -> None:
    made = driven(tmp_path, stated_s=1)
    early = closed(made, "early", 60)
    assert early == (
        ClosingState.PROVISIONAL,
        895,
        "acme/eu-1: silent since 2026-01-31T23:00:01Z; fixes until 2026-01-31T23:05:00Z have a say in the period",
    )
    # on time, and of February: it shows that what stood in January was the outlier
    ingest(made.lake, [fix(250, 4, FAR)])
    state(made.lake, "eu-1", until=END + 900 * SECOND, count=4)
    assert closed(made, "received", 900)[::2] == (ClosingState.PROVISIONAL, "acme/eu-1: 1 records are not metered yet")
    meter(made, EXACT)
    assert closed(made, "metered", 900) == (ClosingState.FINAL, 0, "")


def test_what_comes_on_time_after_a_month_was_final_leaves_it_as_it_was(tmp_path: Path) -> None:
    made = driven(tmp_path, stated_s=300)
    assert closed(made, "one", 300) == (ClosingState.FINAL, 895, "")
    ingest(made.lake, [fix(300, 4, FAR)])
    state(made.lake, "eu-1", until=END + 900 * SECOND, count=4)
    meter(made, EXACT)
    assert closed(made, "two", 900) == (ClosingState.FINAL, 895, "")
