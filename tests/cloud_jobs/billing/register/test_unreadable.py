"""What agents could not read is in no sum, and seen by whoever bills: no period full of it is final unasked."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.certificates import Observed, certificates_from
from cloud_jobs.billing.contracts import DoubtBounds
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.values import counters_texts
from cloud_jobs.usage.reading import REASONS
from tests.cloud_jobs.billing.contracts.makers import price
from tests.cloud_jobs.billing.register.billed_lake import NOW, BilledLake
from tests.cloud_jobs.billing.register.observed_lake import (
    EAST,
    TEN,
    Said,
    accept,
    close,
    compared,
    drive,
    fix,
    observed_lake,
    own_tracks,
    run,
    take,
)
from tests.cloud_jobs.billing.register.observed_lake import observed_lake as lake_of
from waybill.record import NO_FAULTS, Event


def certificate(billed: BilledLake, period: str = "2026-01", name: str = "van") -> dict[str, Any]:
    days, of = BillingPeriod.parse(period, "Europe/Berlin"), TenantDevice("acme", name)
    return certificates_from(billed.lake, take_snapshot(billed.lake, NOW), [of], (days.start, days.end))[of].document()


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    made = observed_lake(tmp_path)
    take(made, drive(range(30)), "car")
    return made


def test_a_day_in_a_phones_own_format_is_final_for_nobody(billed: BilledLake) -> None:
    take(billed, own_tracks(range(60)))
    found = close(billed)
    assert (found["outcome"], found["unreadable"]) == ("provisional", 60)
    assert found["reasons"] == ["acme/van: none of its messages could be read: position/wrong-fields 60"]
    said = certificate(billed)
    assert (said["state"], said["messages"], said["unreadable"]) == ("complete", 0, {"position/wrong-fields": 60})
    outcome, comparisons = compared(billed)
    assert outcome != "equal"
    assert [(one["place"], one["found"], one["note"]) for one in comparisons if "could not be read" in one["name"]] == [
        ("all devices", 60, "of 1 devices; in no sum"),
        ("acme/van", 60, "position/wrong-fields 60"),
    ]


def test_who_accepts_it_is_named_and_what_comes_later_is_not_accepted(billed: BilledLake) -> None:
    first = take(billed, [*drive(range(60)), *own_tracks(range(60, 63))])
    (reason,) = close(billed)["reasons"]
    assert reason == "acme/van: 3 of 63 positions could not be read (4.76 %, 1 % are accepted): wrong-fields 3"
    made = accept(billed)
    assert made.exit_code == 0, made.output
    assert "the doubts on acme/van are accepted" in " ".join(made.stdout.split())
    found = close(billed)
    assert (found["outcome"], found["reasons"]) == ("final", [])
    assert found["decisions"] == ["acme/van: doubts, accepted by A. Clerk (decision 1): known"]
    assert found["doubtful"] == [reason]
    assert certificate(billed)["accepted"]["accepts"]["unreadable"] == 3
    shown = json.loads(run(billed, "bill", "issue", "--period", "2026-01", "--by", "A. Clerk", "--json").stdout)
    (document,) = shown["documents"]
    printed = json.loads(run(billed, "bill", "show", document["number"], "--json").stdout)
    assert printed["certificates"]["doubtful"] == [reason]
    # a message more that nobody could read is not what was accepted
    take(billed, own_tracks([70]), first=first)
    assert close(billed)["outcome"] == "provisional"
    assert accept(billed).exit_code == 0
    assert close(billed)["outcome"] == "final"
    assert run(billed, "decisions", "withdraw", "2", "--by", "A. Clerk", "--reason", "a mistake").exit_code == 0
    assert close(billed)["outcome"] == "provisional"


def test_a_garage_and_topics_of_nobody_are_no_faults_while_something_is_read(billed: BilledLake) -> None:
    no_fix = b'{"time": 1767607200000, "latitude": null, "longitude": null}'
    first = take(billed, [*drive(range(3)), *(Said(9 + n, no_fix) for n in range(50)), Said(70, b"x", "vehicle/can")])
    found = close(billed)
    assert (found["outcome"], found["unreadable"], found["no_faults"]) == ("final", 0, 51)
    assert certificate(billed)["unreadable"] == {"no-fix": 50, "unknown-topic": 1}
    assert (
        "value or known topic: no-fix 50, unknown-topic 1" in run(billed, "bill", "close", "--period", "2026-01").stdout
    )
    _, comparisons = compared(billed)
    shown = [(one["place"], one["found"], one["note"]) for one in comparisons if "known topic" in one["name"]]
    assert ("acme/van", 51, "no-fix 50, unknown-topic 1") in shown
    # on the day before everything went to a topic that nobody reads
    take(billed, [Said(n - 1500, b"x", "owntracks/me/phone") for n in range(50)], first=first)
    assert close(billed, "2026-01-05")["outcome"] == "final"
    assert close(billed, "2026-01-04")["reasons"] == ["acme/van: none of its messages could be read: unknown-topic 50"]


def test_positions_that_go_on_under_an_unknown_topic_are_final_for_nobody(billed: BilledLake) -> None:
    renamed = [one._replace(topic="vehicle/gps") for one in drive(range(60, 200))]
    first = take(billed, [*drive(range(50)), *renamed])
    words = "no position could be read after 2026-01-05T11:00:00Z, although 140 messages on unknown topics came"
    assert close(billed)["reasons"] == [f"acme/van: {words}"]
    assert accept(billed).exit_code == 0
    assert close(billed)["outcome"] == "final"
    first = take(billed, [Said(210, b"x", "vehicle/gps")], first=first)
    assert close(billed)["outcome"] == "provisional"
    # what was there beside positions is not their new name
    take(billed, [Said(at / 10, b"x", "vehicle/can") for at in range(200)], first=first)
    assert close(billed)["outcome"] == "final"


def signal(minute: float, value: float | None = 1.0) -> Said:
    time_ms = round((TEN + timedelta(minutes=minute)).timestamp() * 1000)
    payload = json.dumps({"time": time_ms, "path": "Vehicle.Speed", "value": value}).encode()
    return Said(minute, payload, "vehicle/signal")


def test_each_kind_is_judged_by_its_own_share(billed: BilledLake) -> None:
    first = take(billed, [signal(at / 100) for at in range(6_000)])
    assert close(billed)["outcome"] == "final"
    first = take(billed, [*drive(range(50)), *own_tracks(range(50, 60))], first=first)
    position = "acme/van: 10 of 60 positions could not be read (16.67 %, 1 % are accepted): wrong-fields 10"
    assert close(billed)["reasons"] == [position]
    take(billed, [Said(1, b"{}", "vehicle/event"), Said(2, b"{}", "vehicle/left/signal")], first=first)
    event = "acme/van: 1 of 1 events could not be read (100.00 %, 1 % are accepted): wrong-fields 1"
    assert close(billed)["reasons"] == [event, position]


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([Said(at, b"{}", "gps/fix") for at in range(60)], "unknown-topic 60"),
        ([Said(at, b'{"latitude": null, "longitude": null}') for at in range(60)], "no-fix 60"),
    ],
)
def test_signals_that_can_be_read_do_not_stand_for_positions(
    billed: BilledLake, others: list[Said], reason: str
) -> None:
    take(billed, [*map(signal, range(60)), *others])
    assert close(billed)["reasons"] == [f"acme/van: none of its positions could be read: {reason}"]
    assert accept(billed).exit_code == 0
    assert close(billed)["outcome"] == "final"


@pytest.mark.parametrize(
    "clock_ms",
    [
        pytest.param(lambda ms: ms + 1 - round(TEN.timestamp() * 1000), id="since power-on", marks=pytest.mark.nightly),
        pytest.param(lambda ms: ms - 315_964_800_000, id="since 1980", marks=pytest.mark.nightly),
        pytest.param(lambda ms: ms // 100, id="tenths of a second", marks=pytest.mark.nightly),
        pytest.param(lambda ms: ms - 1024 * 7 * 86_400_000, id="a week counter that began again"),
    ],
)
def test_a_drive_at_another_time_is_final_for_nobody(billed: BilledLake, clock_ms: Callable[[int], int]) -> None:
    first = take(billed, [_at(one, clock_ms) for one in drive(range(60))])
    found = close(billed)
    assert (found["outcome"], found["far_off"], certificate(billed)["far_off"]) == ("provisional", 60, 60)
    words = "60 of 60 messages have an unusable time (wrong clock) (100.00 %, 1 % are accepted)"
    assert found["reasons"] == [f"acme/van: {words}"]
    # of no time that is over when they came, and of each one after that
    assert close(billed, "2026-01-01")["far_off"] == 60
    assert close(billed, "2026-02-15")["far_off"] == 0
    assert accept(billed).exit_code == 0
    assert close(billed)["outcome"] == "final"
    take(billed, [_at(one, clock_ms) for one in drive([70])], first=first)
    assert close(billed)["outcome"] == "provisional"


def _at(said: Said, clock_ms: Callable[[int], int]) -> Said:
    assert isinstance(said.payload, bytes)
    members = json.loads(said.payload)
    return said._replace(payload=json.dumps({**members, "time": clock_ms(members["time"])}).encode())


def dropped(minute: float, messages: int) -> Said:
    about = json.dumps({"messages": messages, "since": None})
    return Said(minute, Event(name="waybill.broker_dropped", attributes=about))


def test_what_the_vehicles_broker_dropped_is_said_beside_complete_and_beyond_the_bound_it_is_a_doubt(
    billed: BilledLake,
) -> None:
    first = take(billed, [*drive(range(200)), dropped(199.5, 2)])
    said, found = certificate(billed), close(billed)
    assert (found["outcome"], found["dropped"], said["state"]) == ("final", 2, "complete")
    assert said["remarks"] == ["2 messages dropped by the vehicle's broker before the agent"]
    assert (
        "brokers dropped them before the agents: 2 messages"
        in run(billed, "bill", "close", "--period", "2026-01").stdout
    )
    first = take(billed, [dropped(210, 1)], first=first)
    words = "3 messages dropped by the vehicle's broker before the agent"
    assert close(billed)["reasons"] == [f"acme/van: {words} (1.48 %, 1 % are accepted)"]
    # it is the system's, and no event that anybody pays for
    assert (certificate(billed)["events"], certificate(billed)["messages"]) == (0, 200)
    _, comparisons = compared(billed)
    assert ("acme/van", 3) in [(one["place"], one["found"]) for one in comparisons if "brokers dropped" in one["name"]]
    made = accept(billed, "--closes", "doubts")
    assert made.exit_code == 0, made.output
    assert words in " ".join(made.stdout.split())
    assert close(billed)["outcome"] == "final"
    take(billed, [dropped(220, 1)], first=first)
    assert close(billed)["outcome"] == "provisional"


def reading(minute: float, value: object) -> Said:
    time_ms = round((TEN + timedelta(minutes=minute)).timestamp() * 1000)
    payload = json.dumps({"time": time_ms, "path": "Vehicle.TraveledDistance", "value": value}).encode()
    return Said(minute, payload, "vehicle/signal")


def test_the_certificate_shows_the_odometer_beside_the_metered_way_of_the_same_time(billed: BilledLake) -> None:
    first = take(billed, [*drive(range(61)), reading(7, 1_000.0)])
    # one reading says nothing of a way
    assert certificate(billed)["odometer"] is None
    # from 10:07 to 10:52 the way is 10.02 km, of which 6.68 are of the two quarters between
    first = take(billed, [reading(20, 0), reading(40, "1007.3 km"), reading(52, 1_010.02)], first=first)
    said = certificate(billed)
    shown = {"start": "2026-01-05T10:00:00Z", "end": "2026-01-05T11:00:00Z", "driven_m": 10_020}
    assert {name: said["odometer"][name] for name in shown} == shown
    least, most = said["odometer"]["percent"]
    assert least < 0 < most
    assert said["remarks"] == [
        f"6.7 km to 13.1 km are metered of 10.0 km by its odometer, {least:+.1f} % to {most:+.1f} %"
    ]
    assert certificate(billed, "2026-01-06")["odometer"] is None
    # what went back says nothing either
    take(billed, [reading(58, 900.0)], first=first)
    assert certificate(billed)["odometer"] is None


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.integers(0, 9))), st.data())
def test_what_counters_say_is_the_same_in_any_order_and_in_any_parts(
    said: list[tuple[int, bool, int]], data: st.DataObject
) -> None:
    def added(before: list[str], some: list[tuple[int, bool, int]]) -> list[str]:
        slot, is_odometer, value = (np.array([one[at] for one in some], np.int64) for at in range(3))
        return counters_texts(before, slot, is_odometer == 1, value)

    shuffled = data.draw(st.permutations(said))
    cut = data.draw(st.integers(0, len(said)))
    assert added(added(["", ""], shuffled[:cut]), shuffled[cut:]) == added(["", ""], said)


def test_a_period_counts_the_quarters_of_its_own_days(billed: BilledLake) -> None:
    # midnight in Berlin is at 23:00 UTC: 13 hours after the first message
    take(billed, [*drive(range(30)), *own_tracks([780 - 1, 780, 780 + 1]), *drive(range(800, 830))])
    assert certificate(billed, "2026-01-05")["unreadable"] == {"position/wrong-fields": 1}
    assert certificate(billed, "2026-01-06")["unreadable"] == {"position/wrong-fields": 2}


counts = st.lists(st.tuples(st.sampled_from(REASONS), st.integers(1, 1000)), max_size=4, unique_by=lambda it: it[0])


@given(st.tuples(*[st.integers(0, 300)] * 3), counts, st.integers(0, 100))
def test_no_share_beyond_the_bound_goes_without_a_doubt(
    read: tuple[int, int, int], raw: list[tuple[str, int]], percent: int
) -> None:
    readable = dict(zip(("position", "event", "signal"), read, strict=True))
    of_any = sum(read)
    # without any position, or any signal, what is no fault is a doubt by itself
    raw = raw if read[0] and read[2] else [one for one in raw if one[0] not in NO_FAULTS]
    kept = Observed(of_any, positions=read[0], events=read[1], unreadable=tuple(sorted(raw)))
    found = kept.doubts(DoubtBounds.model_validate({"unreadable_percent": percent}))
    faults: Counter[str] = Counter()
    for name, count in raw:
        kind, _, reason = name.rpartition("/")
        faults[kind if kind in readable else "any"] += 0 if reason in NO_FAULTS else count
    expected = any(count * 100 > percent * (readable.get(kind, of_any) + count) for kind, count in faults.items())
    assert bool(found) == (expected or (bool(raw) and not of_any))


NIGHT_MIN = 10 * 60
FOUR_FIXES = [fix(0, 0.0), fix(1, EAST), fix(7, 0.062), fix(8, 0.062 - EAST)]
"""Six minutes without a fix in the middle, and another zone behind them."""


@pytest.fixture
def billed_way(tmp_path: Path) -> BilledLake:
    made = lake_of(tmp_path)
    take(made, drive(range(30)), "car")
    return made


def test_four_fixes_with_a_gap_of_six_minutes_are_final_for_nobody(billed_way: BilledLake) -> None:
    take(billed_way, FOUR_FIXES)
    found = close(billed_way)
    assert found["outcome"] == "provisional"
    words = "acme/van: 6.68 km and 0:06:00 h of the way are unknown, 1 entry inferred"
    assert found["reasons"] == [f"{words} (75.00 % of the driven time, 5 % are accepted)"]
    assert (found["unknown_mm"], found["inferred"]) == (certificate(billed_way)["unknown_mm"], 1)
    outcome, comparisons = compared(billed_way)
    assert outcome != "equal"
    assert [one["found"] for one in comparisons if one["name"] == "unknown distance, straight line in mm"] == [
        found["unknown_mm"]
    ] * 2
    table = " ".join(run(billed_way, "bill", "close", "--period", "2026-01").stdout.split())
    assert "not billed, as the way between positions is unknown: 6.68 km of beeline, inferred entries: 1" in table


def test_who_accepts_it_is_named_on_the_invoice_and_more_of_it_is_not_accepted(billed_way: BilledLake) -> None:
    first = take(billed_way, FOUR_FIXES)
    made = accept(billed_way)
    assert made.exit_code == 0, made.output
    found = close(billed_way)
    assert (found["outcome"], found["reasons"]) == ("final", [])
    issued = json.loads(run(billed_way, "bill", "issue", "--period", "2026-01", "--by", "A. Clerk", "--json").stdout)
    (document,) = issued["documents"]
    printed = json.loads(run(billed_way, "bill", "show", document["number"], "--json").stdout)["certificates"]
    assert printed["unknown"].endswith("is unknown: 6.68 km of beeline, inferred entries: 1")
    assert printed["decisions"] == ["acme/van: doubts, accepted by A. Clerk (decision 1): known"]
    take(billed_way, [fix(20, 0.2)], first=first)
    assert close(billed_way)["outcome"] == "provisional"


@pytest.mark.parametrize("drift", [0.0, 0.001, -0.0015])
def test_a_night_without_a_fix_at_one_place_makes_nothing_provisional(billed_way: BilledLake, drift: float) -> None:
    there = 29 * EAST
    back = [fix(NIGHT_MIN + 30 + minute, there + drift - minute * EAST) for minute in range(30)]
    take(billed_way, [*drive(range(30)), *back])
    found = close(billed_way)
    assert (found["outcome"], found["unknown_mm"], found["inferred"]) == ("final", 0, 0)
    assert certificate(billed_way)["unknown_ms"] == 0


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
        explained = run(made, *words, "--access-log", str(tmp_path / "access.jsonl"), "--json")
        assert explained.exit_code == 0, explained.output
        (hour,) = json.loads(explained.stdout)["hours"]
        assert (hour["quantity_base"], hour["agrees"]) == (1, True)


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
def test_positions_that_no_track_takes_are_final_for_nobody(billed_way: BilledLake, said: list[Said]) -> None:
    take(billed_way, said)
    found = close(billed_way)
    assert found["outcome"] == "provisional"
    assert "positions cannot be used for any track" in found["reasons"][0]
    assert accept(billed_way).exit_code == 0
    assert close(billed_way)["outcome"] == "final"
