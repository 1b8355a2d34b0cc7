"""A way that nobody knows is a quantity: seen by whoever bills, and no period full of it is final unasked."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cloud_jobs.billing.contracts.makers import price
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.cloud_jobs.billing.register.observed_lake import EAST, Said, accept, close, compared, drive, fix, run, take
from tests.cloud_jobs.billing.register.observed_lake import observed_lake as lake_of
from tests.cloud_jobs.billing.register.test_unreadable import certificate

NIGHT_MIN = 10 * 60
FOUR_FIXES = [fix(0, 0.0), fix(1, EAST), fix(7, 0.062), fix(8, 0.062 - EAST)]
"""Six minutes without a fix in the middle, and another zone behind them."""


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    """Of the car all is known."""
    made = lake_of(tmp_path)
    take(made, drive(range(30)), "car")
    return made


def test_four_fixes_with_a_gap_of_six_minutes_are_final_for_nobody(billed: BilledLake) -> None:
    take(billed, FOUR_FIXES)
    found = close(billed)
    assert found["outcome"] == "provisional"
    words = "acme/van: 6.68 km and 0:06:00 h of the way are unknown, 1 entry inferred"
    assert found["reasons"] == [f"{words} (75.00 % of the driven time, 5 % are accepted)"]
    assert (found["unknown_mm"], found["inferred"]) == (certificate(billed)["unknown_mm"], 1)
    outcome, comparisons = compared(billed)
    assert outcome != "equal"
    assert [one["found"] for one in comparisons if one["name"] == "unknown ways, beeline in mm"] == [
        found["unknown_mm"]
    ] * 2
    table = " ".join(run(billed, "bill", "close", "--period", "2026-01").stdout.split())
    assert "not billed, as the way between positions is unknown: 6.68 km of beeline, inferred entries: 1" in table


def test_who_accepts_it_is_named_on_the_invoice_and_more_of_it_is_not_accepted(billed: BilledLake) -> None:
    first = take(billed, FOUR_FIXES)
    made = accept(billed)
    assert made.exit_code == 0, made.output
    found = close(billed)
    assert (found["outcome"], found["reasons"]) == ("final", [])
    issued = json.loads(run(billed, "bill", "issue", "--period", "2026-01", "--by", "A. Clerk", "--json").stdout)
    (document,) = issued["documents"]
    printed = json.loads(run(billed, "bill", "show", document["number"], "--json").stdout)["certificates"]
    assert printed["unknown"].endswith("is unknown: 6.68 km of beeline, inferred entries: 1")
    annex = run(billed, "bill", "show", document["number"], "--form", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(annex, newline="")))
    (unknown,) = [one for one in rows if one["kind"] == "unknown_way"]
    assert (unknown["device"], unknown["posted_amount"], unknown["quantity"]) == ("van", "", "")
    said = [unknown[name] for name in ("unknown_ms", "unknown_mm", "inferred_entries")]
    assert said == ["360000", str(found["unknown_mm"]), "1"]
    assert {one["unknown_mm"] for one in rows if one is not unknown} == {""}
    assert printed["decisions"] == ["acme/van: doubts, accepted by A. Clerk (decision 1): known"]
    take(billed, [fix(20, 0.2)], first=first)
    assert close(billed)["outcome"] == "provisional"


@pytest.mark.parametrize("drift", [0.0, 0.001, -0.0015])
def test_a_night_without_a_fix_at_one_place_makes_nothing_provisional(billed: BilledLake, drift: float) -> None:
    there = 29 * EAST
    back = [fix(NIGHT_MIN + 30 + minute, there + drift - minute * EAST) for minute in range(30)]
    take(billed, [*drive(range(30)), *back])
    found = close(billed)
    assert (found["outcome"], found["unknown_mm"], found["inferred"]) == ("final", 0, 0)
    assert certificate(billed)["unknown_ms"] == 0


def test_a_payer_may_agree_on_another_share(tmp_path: Path) -> None:
    made = lake_of(tmp_path, doubts={"unknown_percent": "80"})
    take(made, drive(range(3)), "car")
    take(made, FOUR_FIXES)
    found = close(made)
    assert (found["outcome"], found["inferred"]) == ("final", 1)


@pytest.mark.parametrize("is_sold", [True, False])
def test_an_entry_in_a_gap_is_charged_as_inferred_where_the_tariff_sells_it_and_else_on_no_bill(
    tmp_path: Path, *, is_sold: bool
) -> None:
    usual = [price("1.00"), price("1.00", zone="*"), price("10.00", meter="entry", unit="each", zone="*")]
    inferred = [price("10.00", meter="inferred entry", unit="each", zone="*")] if is_sold else []
    made = lake_of(tmp_path, prices=[*usual, *inferred], doubts={"unknown_percent": "80"})
    take(made, drive(range(3)), "car")
    take(made, FOUR_FIXES)
    found = close(made)
    assert (found["outcome"], found["inferred"]) == ("final", 0 if is_sold else 1)
    issued = json.loads(run(made, "bill", "issue", "--period", "2026-01", "--by", "A. Clerk", "--json").stdout)
    number = issued["documents"][0]["number"]
    document = json.loads(run(made, "bill", "show", number, "--json").stdout)
    lines = {one["item_name"]: one["invoice_line_net_amount"]["minor"] for one in document["lines"]}
    ways = {"Distance, outside all zones": 67, "Distance, zone square": 22}
    assert lines == ways | ({"Inferred entry, zone square": 1000} if is_sold else {})
    rest = "" if is_sold else ", inferred entries: 1"
    assert document["certificates"]["unknown"].endswith(f"is unknown: 6.68 km of beeline{rest}")
    outcome, comparisons = compared(made)
    assert outcome == "equal"
    rated = [(one["name"], one["found"]) for one in comparisons if one["station"] == "rated"]
    assert (("inferred entry", 1) if is_sold else ("not sold: inferred entry", 1)) in rated
    if is_sold:
        line = next(one for one in document["lines"] if one["meter"] == "inferred entry")
        words = "bill", "explain", number, str(line["invoice_line_identifier"])
        files = "--access-log", str(tmp_path / "access.jsonl"), "--picture", str(tmp_path / "line.svg")
        explained = run(made, *words, *files, "--json")
        assert explained.exit_code == 0, explained.output
        (hour,) = json.loads(explained.stdout)["hours"]
        assert (hour["quantity_base"], hour["agrees"]) == (1, True)
        # two stretches of track, and what is charged lies between them
        drawn = re.findall(r'<polyline [^>]*stroke-width="(\d)"', (tmp_path / "line.svg").read_text())
        assert drawn == ["2", "2"]


def at_origin(minute: float) -> Said:
    return fix(minute, 0.0, latitude=0.0, speed_mps=12)


def inaccurate(minute: float) -> Said:
    return fix(minute, minute * EAST, accuracy_m=150)


@pytest.mark.parametrize("refused", [at_origin, inaccurate])
def test_a_way_behind_fixes_that_no_track_takes_is_as_unknown_as_without_them(
    tmp_path: Path, refused: Callable[[float], Said]
) -> None:
    seen = [*drive(range(11)), *drive(range(150, 160))]
    absent, there = lake_of(tmp_path / "absent"), lake_of(tmp_path / "there")
    take(absent, seen)
    # in the order in which they were driven, and all that is refused later
    first = take(there, seen)
    take(there, map(refused, range(11, 150)), first=first)
    names = ("kept", "driven_ms", "unknown_ms", "unknown_mm", "inferred_entries")
    assert [certificate(there)[name] for name in names] == [certificate(absent)[name] for name in names]
    # the first minutes are no longer from a fix that is taken than any segment may be
    assert (certificate(there)["kept"], certificate(there)["refused"]) == (21, 134)
    assert {*close(absent)["reasons"]} < {*close(there)["reasons"]}


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([inaccurate(minute) for minute in range(60)], id="inaccurate"),
        pytest.param([at_origin(minute) for minute in range(60)], id="0/0"),
        pytest.param([fix(0, minute * EAST) for minute in range(60)], id="a clock that stands"),
        pytest.param([*drive(range(60)), *map(inaccurate, range(60, 300))], id="inaccurate to the end"),
    ],
)
def test_positions_that_no_track_takes_are_final_for_nobody(billed: BilledLake, said: list[Said]) -> None:
    take(billed, said)
    found = close(billed)
    assert found["outcome"] == "provisional"
    assert "positions are of no use to any track" in found["reasons"][0]
    assert accept(billed).exit_code == 0
    assert close(billed)["outcome"] == "final"
