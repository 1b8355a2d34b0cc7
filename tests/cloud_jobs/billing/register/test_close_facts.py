"""Visits and passages in a closing: read at its snapshot, complete or not final, and corrected by a note."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register.closing import Closing, ClosingNotes
from cloud_jobs.billing.register.errors import RegisterDamaged
from cloud_jobs.billing.units import Meter
from cloud_jobs.explain.issued_line import explain_line
from cloud_jobs.explain.terminal import line_tables, line_values
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.snapshots import note_fences, note_tracks, take_snapshot
from cloud_jobs.lake.tables import FENCES, KEPT_FROM, TRACKS
from cloud_jobs.reference.tables import fences_in
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import NOW, BilledLake, used
from tests.system.lake_of_fixes import derive

MARCH = datetime(2026, 3, 1, tzinfo=UTC) - timedelta(hours=1)
"""Midnight in Berlin."""
VISITS = [
    price("2.00", meter="visit", unit="each", zone="*"),
    price("0.10", meter="stay", unit="min", zone="*"),
    price("0.50", meter="passage", unit="each", zone="*"),
]
DRIVEN = [price("18.00", meter="driven day", unit="day", zone="*")]


def event(kind: str, days: float, value: float = 0.0, **changes: Any) -> dict[str, Any]:
    moment = MARCH + timedelta(days=days)
    row = {"id": f"{kind} {days}", "revision": 0, "tenant": "fleet", "device": "van-1", "epoch": 1, "seq": 1}
    row |= {"kind": kind, "place": "bridge" if kind in {"forward", "backward"} else "port", "time": moment}
    return row | {"value": value, "retracted": False, "day": moment.date(), "emitted_at": NOW} | changes


def visit(enter: float, minutes: float) -> list[dict[str, Any]]:
    return [event("enter", enter), event("exit", enter + minutes / 1440, 60 * minutes)]


def happen(billed: BilledLake, *events: dict[str, Any]) -> None:
    """One run of the geofence job."""
    derive(billed.lake, "geofence_events", events, {FENCES: note_fences(billed.lake, fences_in(billed.lake).features)})


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    return lake_with(tmp_path, VISITS)


def lake_with(folder: Path, prices: Sequence[dict[str, Any]], *usage: dict[str, Any]) -> BilledLake:
    made = BilledLake.create(folder, "van-1", "van-2")
    made.publish(legal_entity(), tariff(*prices), account("acme", device(), device("van-2")))
    made.use(*usage)
    return made


def charges(billed: BilledLake, name: str = "one") -> list[tuple[str, int, int, int]]:
    """Meter, quantity, amount and number of events of each charge of a final closing."""
    (closing,) = billed.close(name)
    assert (closing.outcome, closing.reasons) == ("final", ())
    return [
        (str(one.key.meter), one.quantity, one.amount_minor, one.metered.rows if one.metered else 0)
        for one in charges_of(billed, closing)
    ]


def charges_of(billed: BilledLake, closing: Closing) -> tuple[Charge, ...]:
    found = billed.register.charges_or_damage([closing])[closing.id]
    assert not isinstance(found, RegisterDamaged)
    return found


def test_visits_and_passages_are_charges_that_name_their_events(billed: BilledLake) -> None:
    happen(billed, *visit(3, 30), *visit(5, 10), event("forward", 4), event("backward", 6), event("speeding", 3.01))
    assert charges(billed) == [("visit", 2, 400, 4), ("stay", 2_400_000, 400, 4), ("passage", 2, 100, 2)]
    # as often as one looks
    assert charges(billed, "two") == charges(billed, "three")


def test_a_visit_over_the_end_of_a_period_is_charged_once(billed: BilledLake) -> None:
    long = [row | {"place": "quay", "id": f"quay {row['id']}"} for row in visit(-20, 30 * 1440)]
    happen(billed, *visit(-0.25, 600), *visit(30.5, 1440), *long)
    stays = [("stay", 36_000_000, 6_000, 2), ("stay", 30 * 86_400_000, 432_000, 2)]
    assert charges(billed) == [("visit", 1, 200, 1), *stays]
    (april,) = billed.close("april", days=(date(2026, 4, 1), date(2026, 4, 30)))
    (stay,) = charges_of(billed, april)
    assert (stay.key.meter, stay.quantity) == ("stay", 86_400_000)


@pytest.mark.parametrize("before", [2, 20, 55])
def test_the_enter_of_a_visit_is_looked_for_in_the_quarter_before(billed: BilledLake, before: int) -> None:
    happen(billed, *visit(-before, (before + 1) * 1440))
    assert charges(billed) == [("stay", (before + 1) * 86_400_000, (before + 1) * 14_400, 2)]


def test_an_end_that_was_not_seen_is_the_holders_who_is_billed_for_it(tmp_path: Path) -> None:
    made, until = BilledLake.create(tmp_path, "van-1"), "2026-03-16T00:00:00+01:00"
    beta = account("beta", device(begin=until))
    made.publish(legal_entity(), tariff(*VISITS), account("acme", device(end=until)), beta)
    made.use()
    happen(made, event("enter", 10), event("dwell", 10.5, 43_200.0), *visit(20, 10))
    counts = {one.key.payer: ClosingNotes.of(one.parties).counts for one in made.close("one")}
    assert [counts[name]["unseen_ends"] for name in ("acme", "beta")] == [1, 0]


def test_a_payer_chooses_whether_nothing_or_0_00_is_invoiced(tmp_path: Path) -> None:
    chosen = {"used": None, "used-none": False, "unused": None, "unused-all": True}
    made = BilledLake.create(tmp_path, *chosen)
    payers = [account(name, device(name), payer=payer(zero_documents=of)) for name, of in chosen.items()]
    made.publish(legal_entity(), tariff(price("0")), *payers)
    made.use(used("used", 1000), used("used-none", 1000))
    assert {closing.net_minor for closing in made.close("one")} == {0}
    assert sorted(one.key.payer for one in made.issue("one").documents) == ["unused-all", "used"]


def test_a_clerk_sees_how_many_visits_were_not_seen_whole(billed: BilledLake) -> None:
    lost = [event("enter", 2), event("dwell", 2 + 5 / 1440, 300.0), *visit(4, 10)]
    happen(billed, *visit(-400, 410 * 1440), event("exit", 20, 600.0, place="quay"), *lost)
    (closing,) = billed.close("one")
    assert [note for note in notes(closing) if "visits" in note] == [
        "visits whose begin was not seen, billed from the first moment that is known: 2",
        "visits whose end was not seen, billed until the last moment that is known: 1",
    ]
    assert closing.outcome == "final"


def test_a_stay_is_charged_when_its_device_is_given_away_inside(billed: BilledLake) -> None:
    kept = account("acme", device("van-2"), device(end="2026-03-15T23:00:00Z"))
    billed.publish(legal_entity(), tariff(*VISITS), account("acme", device(), device("van-2")), kept)
    happen(billed, *(event("enter", -9, device=name, id=name) for name in ("van-1", "van-2")))
    (closing,) = billed.close("one")
    assert [(one.key.device, one.quantity) for one in charges_of(billed, closing)] == [("van-1", 24 * 86_400_000)]
    assert [note for note in notes(closing) if "visits" in note] == [
        "visits whose end was not seen, billed until the last moment that is known: 1",
        "visits that have not ended, whose time is billed later: 1",
    ]


def test_a_stay_is_charged_when_stays_are_sold_no_more_whatever_else_its_device_crosses(billed: BilledLake) -> None:
    unsold = tariff(VISITS[0], VISITS[2], effective_from="2026-03-15T23:00:00Z", not_sold=["stay"])
    billed.publish(legal_entity(), tariff(*VISITS), account("acme", device(), device("van-2")), unsold)
    inner = [event(one["kind"], -0.5, place="inner", id=f"inner {one['kind']}") for one in visit(1, 1)]
    happen(billed, event("enter", -9), *inner)
    (closing,) = billed.close("one")
    stayed = [one for one in charges_of(billed, closing) if one.key.meter == Meter.STAY]
    assert [one.quantity for one in stayed] == [24 * 86_400_000]


def test_a_closing_is_as_final_as_the_earlier_months_of_its_year(tmp_path: Path) -> None:
    billed = BilledLake.create(tmp_path, "van-1")
    capped = tariff(*VISITS, caps=[{"scope": "account", "span": "year", "amount": "1000"}])
    # nothing was ever heard of van-2, which acme had in January
    had = device(), device("van-2", end="2026-01-31T23:00:00Z")
    billed.publish(legal_entity(), capped, account("acme", *had, payer=payer(cycle="month")))
    billed.use()
    fences = note_fences(billed.lake, fences_in(billed.lake).features)
    derive(billed.lake, "geofence_events", states={FENCES: fences, KEPT_FROM: date(2026, 2, 5).toordinal()})
    (closing,) = billed.close("one")
    old = "events before 2026-02-05 are erased, and with them visits; what is posted stays"
    assert closing.outcome == "provisional"
    assert closing.reasons[0].startswith("2026-01: fleet/van-2: ")
    assert closing.reasons[1:] == (f"2026-01: {old}", f"2026-02: {old}")


def notes(closing: Closing) -> list[str]:
    return [*ClosingNotes.of(closing.parties).notes]


def test_a_closing_with_facts_is_not_final_without_all_events(billed: BilledLake) -> None:
    def reasons(name: str) -> tuple[str, ...]:
        (closing,) = billed.close(name)
        assert closing.outcome == ("provisional" if closing.reasons else "final")
        return closing.reasons

    again = "run `cloud-jobs geofence`, then close again"
    assert reasons("one") == (f"visits and passages were never computed; {again}",)
    happen(billed)
    assert reasons("two") == ()
    billed.hear("van-1")
    billed.use()
    assert reasons("three") == (f"visits and passages cover 1 commits of the ingest, and usage 2; {again}",)
    derive(billed.lake, "geofence_events", states={FENCES: 1})
    (reason,) = reasons("four")
    assert reason == f"visits and passages were computed with other fences than those of the snapshot; {again}"
    happen(billed)
    declare_erasure(billed.lake, Erasure("fleet", "van-2", MARCH + timedelta(days=9), MARCH), NOW)
    request = "fleet/van-2: events are erased at a person's request; what is posted stays"
    assert reasons("five") == (request,)
    # the retention states first what it erases
    fences = note_fences(billed.lake, fences_in(billed.lake).features)
    derive(billed.lake, "geofence_events", states={FENCES: fences, KEPT_FROM: date(2026, 3, 5).toordinal()})
    old = "events before 2026-03-05 are erased, and with them visits; what is posted stays"
    assert reasons("six") == (old, request)


def test_a_line_of_facts_names_each_visit_and_its_events(billed: BilledLake) -> None:
    happen(billed, *visit(3, 30), *visit(5, 10), event("forward", 4))
    derive(billed.lake, "usage", states={TRACKS: note_tracks(billed.lake, TrackSettings().model_dump())})
    charges(billed)
    billed.issue("invoice")
    number, shown = "WB-EU-00000001", []
    for line in (1, 2, 3):
        found = explain_line(billed.register, number, line)
        assert (found.explanation.agrees, line_values(found, 3)["agrees"]) == (True, True)
        Console(file=StringIO()).print(line_tables(found, 3))
        shown.append(found.explanation.arithmetic)
    assert shown[1] == (
        (
            (
                "2026-03-04 00:00:00+01:00 to 2026-03-04 00:30:00+01:00, 30.000000 min, "
                "events enter 3, exit 3.0208333333333335"
            ),
            "3.00 EUR",
        ),
        ("- 30.00 min × 0.10 EUR", "3.00 EUR"),
        (
            (
                "2026-03-06 00:00:00+01:00 to 2026-03-06 00:10:00+01:00, 10.000000 min, "
                "events enter 5, exit 5.006944444444445"
            ),
            "1.00 EUR",
        ),
        ("- 10.00 min × 0.10 EUR", "1.00 EUR"),
    )
    assert shown[2] == (("2026-03-05 00:00:00+01:00 forward, event forward 4", "0.50 EUR"),)


def test_a_late_correction_makes_a_note(billed: BilledLake) -> None:
    happen(billed, *visit(3, 30), *visit(5, 10))
    before = take_snapshot(billed.lake, NOW)
    assert charges(billed) == [("visit", 2, 400, 4), ("stay", 2_400_000, 400, 4)]
    billed.issue("invoice")
    # the first visit began five minutes later, and the second one did not happen
    moved = event("enter", 3 + 5 / 1440, id="enter 3", revision=1)
    happen(billed, moved, *(row | {"revision": 1, "retracted": True} for row in visit(5, 10)))
    assert charges(billed, "two") == [("visit", 1, 200, 2), ("stay", 1_500_000, 250, 2)]
    billed.adjust("note")
    assert [one.net_minor for one in billed.register.documents(["acme"])] == [800, -350]
    assert take_snapshot(billed.lake, NOW) != before


def test_a_driven_day_is_that_of_whoever_is_inside_all_month(tmp_path: Path) -> None:
    hours = [MARCH + timedelta(days=at, hours=8) for at in (0, 3, 4)]
    driven = [used("van-1", 10, hour, "port") for hour in hours] + [used("van-1", 10, MARCH + timedelta(days=9))]
    billed = lake_with(tmp_path, [*DRIVEN, price("0"), price("0", zone="*")], *driven)
    # long before what is looked back for if nothing says where it drove
    happen(billed, event("enter", -200))
    assert ("driven day", 3, 5400, 1) in charges(billed)
