"""What was closed as final is changed by nothing that a device makes after the time that its certificate asks for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cloud_jobs.billing.register.closing import ClosingState
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.cloud_jobs.billing.register.metered_lake import JANUARY, meter, metered_lake, publish, state
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of, square

END = datetime(2026, 1, 31, 23, tzinfo=UTC)
"""Midnight in Berlin."""
SECOND = timedelta(seconds=1)
NEAR, FAR, ON = (0.1, 0.1), (5.0, 5.0), (0.1 + 20 / 111.2, 0.1)


def test_a_fence_that_is_published_again_with_its_keys_in_another_order_opens_nothing(tmp_path: Path) -> None:
    made = metered_lake(tmp_path)
    assert {one.outcome for one in made.close("one", days=JANUARY)} == {ClosingState.FINAL}
    publish(made, dict(reversed(square("square").items())))
    assert {one.outcome for one in made.close("two", days=JANUARY)} == {ClosingState.FINAL}
    publish(made, square("square", lon=5.0))
    assert {one.outcome for one in made.close("three", days=JANUARY)} == {ClosingState.PROVISIONAL}


def driven(folder: Path, stated_s: int) -> BilledLake:
    """20 km before the end of January past an outlier, and a statement so many seconds after the end."""
    lake = lake_of(folder, [square("square")])
    ingest(lake, [fix(-300, 1, NEAR), fix(-299, 2, FAR), fix(-1, 3, ON)])
    state(lake, "eu-1", until=END + stated_s * SECOND, count=3)
    made = BilledLake(lake)
    publish(made, legal_entity(), tariff(price("0.45")), account("acme", device("eu-1", tenant="acme")))
    meter(made)
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
    meter(made)
    assert closed(made, "metered", 900) == (ClosingState.FINAL, 0, "")


def test_what_comes_on_time_after_a_month_was_final_leaves_it_as_it_was(tmp_path: Path) -> None:
    made = driven(tmp_path, stated_s=300)
    assert closed(made, "one", 300) == (ClosingState.FINAL, 895, "")
    ingest(made.lake, [fix(300, 4, FAR)])
    state(made.lake, "eu-1", until=END + 900 * SECOND, count=4)
    meter(made)
    assert closed(made, "two", 900) == (ClosingState.FINAL, 895, "")
