"""What becomes of an alert: confirmed, corrected, withdrawn; and of an event that no region announced: late."""

import json
import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry

from cloud_jobs.job_settings import VerdictSettings
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.tables import Lake
from cloud_jobs.verdicts.run import VerdictMetrics, verdict_message
from cloud_jobs.verdicts.subscription import OpenedTable
from gateway.webhooks.notification import verdict_notification
from gateway.webhooks.rule_book import AccountDevices, RuleBook, routes, usable_devices
from geo.alerts import usable_rule
from geo.reference.in_force import HeldVersion
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
from tests.cloud_jobs.geofence.test_event_revisions import NOON, THROUGH
from tests.cloud_jobs.verdicts.centre import TOPIC, VerdictCentre, alert_of


@pytest.fixture
def centre(tmp_path: Path) -> VerdictCentre:
    return VerdictCentre(tmp_path / "lake", rules(dwell_s=None))


def seen(*fixes: GeofenceFix) -> list[dict[str, Any]]:
    region = GeofenceCentre(rules(dwell_s=None))
    region.take(fixes)
    return region.table


def said(centre: VerdictCentre) -> dict[str, tuple[str, str | None, int]]:
    """By the id: verdict, reason, revision."""
    return {name: (row["verdict"], row["reason"], row["revision"]) for name, row in centre.in_force().items()}


def test_what_the_region_saw_is_confirmed_and_what_it_missed_is_late(centre: VerdictCentre) -> None:
    enter, exits, gate = seen(*THROUGH)
    assert centre.collect(alert_of(enter), alert_of(exits)).added == 2
    centre.ingest(THROUGH)
    assert centre.decide().provisional == 2, "events are not computed yet"
    centre.compute_events()
    run = centre.decide()
    assert (run.confirmed, run.late, run.provisional) == (2, 1, 0)
    assert said(centre)[gate["id"]] == ("late", None, 0)


def test_an_alert_with_another_time_or_value_is_corrected_with_what_is_so(centre: VerdictCentre) -> None:
    enter, exits, _ = seen(*THROUGH)
    centre.collect(alert_of(exits, value=1.5))
    centre.ingest(THROUGH)
    centre.compute_events()
    centre.decide()
    row = centre.in_force()[exits["id"]]
    assert (row["verdict"], row["reason"], row["value"]) == ("corrected", "incorrect_data", exits["value"])
    assert enter["id"] in centre.in_force()


def test_an_alert_of_what_did_not_happen_is_withdrawn_and_says_what_the_region_had_said(centre: VerdictCentre) -> None:
    enter, *_ = seen(THROUGH[0], THROUGH[2])
    centre.collect(*(alert_of(row) for row in seen(THROUGH[0], THROUGH[2]) if row["kind"] == "enter"))
    centre.ingest(THROUGH)
    centre.compute_events()
    centre.decide()
    row = centre.in_force()[enter["id"]]
    assert (row["verdict"], row["reason"]) == ("withdrawn", "did_not_occur")
    message = verdict_message(row)
    assert "event" not in message
    said = message["alerted"]
    assert (said["kind"], said["place"], said["epoch"], said["seq"]) == tuple(
        enter[name] for name in ("kind", "place", "epoch", "seq")
    )


def test_an_alert_whose_record_never_comes_is_withdrawn_at_the_bound_and_confirmed_if_it_comes_after_all(
    tmp_path: Path,
) -> None:
    centre = VerdictCentre(tmp_path / "lake", rules(dwell_s=None), VerdictSettings(max_provisional_s=5.0))
    enter, *_ = seen(*THROUGH)
    centre.collect(alert_of(enter))
    centre.compute_events()
    for _ in range(4):
        run = centre.decide()
        assert (run.provisional, bool(run)) == (1, False)
    assert run.oldest_provisional_s == 4
    assert centre.decide().withdrawn == 1
    assert said(centre)[enter["id"]] == ("withdrawn", "not_received", 0)
    centre.ingest(THROUGH)
    centre.compute_events()
    centre.decide()
    assert said(centre)[enter["id"]] == ("confirmed", None, 1)


def test_a_late_fix_that_takes_an_event_back_withdraws_what_was_confirmed(centre: VerdictCentre) -> None:
    enter, *_ = seen(THROUGH[0], THROUGH[2])
    centre.collect(alert_of(enter))
    centre.ingest([THROUGH[0], THROUGH[2]])
    centre.compute_events()
    centre.decide()
    assert said(centre)[enter["id"]] == ("confirmed", None, 0)
    centre.ingest([THROUGH[1]])
    centre.compute_events()
    run = centre.decide()
    assert said(centre)[enter["id"]] == ("withdrawn", "did_not_occur", 1)
    assert run.late


def test_repeated_alerts_are_there_once_and_what_is_none_is_counted(centre: VerdictCentre) -> None:
    enter, *_ = seen(*THROUGH)
    alert = alert_of(enter)
    found = centre.collect(alert, alert, alert_of(enter, tenant="kaze"), alert_of(enter, t_ms=NOON + 9 * 10**10))
    assert (found.added, found.repeated, dict(found.refused)) == (1, 1, {"wrong-tenant": 1, "far-off": 1})
    assert TOPIC in found.last_refused
    assert (centre.collect(alert).repeated, centre.lake.open("alerts").count()) == (1, 1)


def drained(*, seen_until: int = 3) -> tuple[Any, list[GeofenceFix]]:
    """An alert that names the second fix and was seen by a later one, and what the centre has, which says otherwise."""
    enter, *_ = seen(*THROUGH)
    return alert_of(enter, seen_until=((7, seen_until),)), [fix._replace(longitude=-0.01) for fix in THROUGH]


def test_an_alert_is_not_withdrawn_before_the_records_are_there_by_which_the_region_saw_it(tmp_path: Path) -> None:
    centre = VerdictCentre(tmp_path / "lake", rules(dwell_s=None))
    alert, there = drained()
    centre.collect(alert)
    # a backlog drains for an hour, with what the alert names in it, and time decides nothing
    for at, fixes in enumerate((there[1:2], there[2:3], there[3:4]), 1):
        centre.now += timedelta(minutes=20 * (at > 1))
        centre.ingest(fixes)
        centre.compute_events()
        run = centre.decide()
        assert (run.provisional, bool(run)) == (1, False)
        assert run.oldest_provisional_s >= 1200 * (at - 1)
    centre.ingest(there[:1])
    centre.compute_events()
    assert centre.decide().withdrawn == 1
    assert said(centre)[alert.id] == ("withdrawn", "did_not_occur", 0)


@pytest.mark.parametrize("seen_until", [((7, 3),), ((7, 2), (8, 1)), ()])
def test_at_the_bound_it_is_said_that_records_are_missing_not_that_it_did_not_happen(
    tmp_path: Path, seen_until: tuple[tuple[int, int], ...]
) -> None:
    centre = VerdictCentre(tmp_path / "lake", rules(dwell_s=None), VerdictSettings(max_provisional_s=3.0))
    alert, there = drained()
    centre.collect(alert.model_copy(update={"seen_until": seen_until}))
    # of the other epoch nothing ever comes; an alert that does not say by what it was seen is not known to be whole
    centre.ingest(there[1:2] if seen_until == ((7, 3),) else there)
    centre.compute_events()
    assert [centre.decide().provisional for _ in range(2)] == [1, 1]
    assert centre.decide().withdrawn == 1
    assert said(centre)[alert.id] == ("withdrawn", "incomplete", 0)


def looked_up(centre: VerdictCentre, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], int]:
    """Of which devices the next run reads rows, and how many new alerts it reads."""
    devices, rows = set[str](), [0]
    of_devices, since = OpenedTable.of_devices, OpenedTable.since

    def of(table: OpenedTable, days: Any, asked: Any) -> Any:
        devices.update(one.device for one in asked)
        return of_devices(table, days, asked)

    def read(table: OpenedTable, commit: int, until: int) -> Any:
        found = since(table, commit, until)
        rows[0] += found.num_rows if table.name == "alerts" else 0
        return found

    with monkeypatch.context() as patched:
        patched.setattr(OpenedTable, "of_devices", of)
        patched.setattr(OpenedTable, "since", read)
        centre.decide()
    return devices, rows[0]


def one_that_waits_and_many_that_do_not(centre: VerdictCentre) -> list[GeofenceFix]:
    waiting = [fix._replace(device="waits") for fix in THROUGH]
    centre.collect(alert_of(seen(*waiting)[0]))
    for name in "abc":
        fixes = [fix._replace(device=name) for fix in THROUGH]
        centre.collect(*map(alert_of, seen(*fixes)))
        centre.ingest(fixes)
        centre.compute_events()
        centre.decide()
    return waiting


def test_after_a_restart_all_since_the_oldest_that_waits_are_looked_at_once_and_said_as_before(
    centre: VerdictCentre, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_that_waits_and_many_that_do_not(centre)
    before = said(centre)
    centre.left = None
    assert looked_up(centre, monkeypatch) == ({"waits", *"abc"}, 10)
    assert looked_up(centre, monkeypatch) == (set(), 0)
    assert said(centre) == before


HOUR = timedelta(hours=1)


@pytest.fixture
def centre_of_after_the_bound(tmp_path: Path) -> VerdictCentre:
    return VerdictCentre(tmp_path / "lake", rules(dwell_s=None), VerdictSettings(max_provisional_s=600.0))


def without_the_second(device: str = "d") -> dict[str, Any]:
    """An enter as a region saw it that missed a fix; the centre's has another id."""
    fixes = [fix._replace(device=device) for fix in THROUGH]
    return next(row for row in seen(fixes[0], fixes[2]) if row["kind"] == "enter")


def withdrawn_at_the_bound(centre: VerdictCentre, *devices: str) -> list[str]:
    rows = [without_the_second(device) for device in devices or ("d",)]
    centre.collect(*map(alert_of, rows))
    centre.now += HOUR
    assert centre.decide().withdrawn == len(rows)
    return [row["id"] for row in rows]


def drive(device: str = "d") -> list[GeofenceFix]:
    return [fix._replace(device=device) for fix in THROUGH]


def test_records_that_come_after_the_bound_say_what_was_so(
    centre_of_after_the_bound: VerdictCentre,
) -> None:
    (name,) = withdrawn_at_the_bound(centre_of_after_the_bound)
    assert said(centre_of_after_the_bound)[name] == ("withdrawn", "not_received", 0)
    centre_of_after_the_bound.ingest(drive())
    centre_of_after_the_bound.compute_events()
    run = centre_of_after_the_bound.decide()
    assert (run.withdrawn, run.late) == (1, 3)
    assert said(centre_of_after_the_bound)[name] == ("withdrawn", "did_not_occur", 1)
    assert not centre_of_after_the_bound.decide()


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found, of_devices = set[str](), OpenedTable.of_devices

    def noted(self: OpenedTable, days: Any, devices: Collection[TenantDevice]) -> Any:
        found.update(one.device for one in devices)
        return of_devices(self, days, devices)

    monkeypatch.setattr(OpenedTable, "of_devices", noted)
    return found


def of(device: str, fixes: Sequence[GeofenceFix] = THROUGH) -> list[GeofenceFix]:
    return [fix._replace(device=device) for fix in fixes]


def come(centre: VerdictCentre, *fixes: GeofenceFix) -> None:
    centre.ingest(fixes)
    centre.compute_events()


@pytest.mark.parametrize("is_swept", [False, True])
def test_what_waits_is_looked_at_once_more_is_known_of_it(
    centre: VerdictCentre, looked_at: set[str], monkeypatch: pytest.MonkeyPatch, *, is_swept: bool
) -> None:
    if is_swept:
        monkeypatch.setattr(Lake, "devices_changed", lambda *_: None)
    enter, exits, _ = seen(*of("d"))
    centre.collect(alert_of(enter), alert_of(exits))
    come(centre, *of("e"))
    assert centre.decide().provisional == 2
    for at in range(3):
        looked_at.clear()
        come(centre, *of(f"x{at}"))
        run = centre.decide()
        assert (run.late, run.provisional) == (3, 2)
        assert looked_at == {f"x{at}"}
    looked_at.clear()
    come(centre, *of("d"))
    run = centre.decide()
    assert (run.confirmed, run.provisional) == (2, 0)


def test_what_did_not_occur_is_withdrawn_as_soon_as_its_records_are_there(
    centre: VerdictCentre, looked_at: set[str]
) -> None:
    first, second, third, *rest = of("d")
    (wrong,) = [row for row in seen(first, third) if row["kind"] == "enter"]
    centre.collect(alert_of(wrong, seen_until=((7, third.seq),)))
    come(centre, *of("e"))
    assert centre.decide().provisional == 1
    come(centre, third, *rest)
    looked_at.clear()
    run = centre.decide()
    assert (run.withdrawn, run.provisional) == (0, 1), "a record is missing"
    come(centre, first, second)
    run = centre.decide()
    assert (run.withdrawn, run.provisional) == (1, 0)
    assert centre.in_force()[wrong["id"]]["reason"] == "did_not_occur"


EARLIER_MS = 120_000
"""So a region sees something before noon, where a device changes hands, that happened after it."""
QUARTER_MS = 900_000
LONG_AGO = "2000-01-01T00:00:00Z"


def newest_message(centre: VerdictCentre, name: str) -> dict[str, Any]:
    return verdict_message(centre.in_force()[name])


def hear(message: dict[str, Any], until_ms: int) -> list[str]:
    """The accounts that hear of a message where `a` had the device until a moment, and `b` from then on."""
    assigned = {"tenant": "acme", "device": "d", "region": "eu"}
    spans = {"a": {"begin": LONG_AGO, "end": _moment(until_ms)}, "b": {"begin": _moment(until_ms)}}
    accounts, book = [], []
    for name, span in spans.items():
        body = {"id": name, "effective_from": LONG_AGO, "devices": [assigned | span]}
        begin_ms, made = usable_devices(json.dumps(body))
        accounts.append(HeldVersion({}, made, begin_ms))
        rule = {"id": f"{name}/all", "effective_from": LONG_AGO, "webhook": name}
        begin_ms, by = usable_rule(json.dumps(rule))
        book.append(HeldVersion({}, by, begin_ms))
    return sorted(routes(verdict_notification(json.dumps(message).encode()), RuleBook(book), AccountDevices(accounts)))


def _moment(t_ms: int) -> str:
    return datetime.fromtimestamp(t_ms / 1000, UTC).isoformat()


def decided(centre: VerdictCentre, *fixes: GeofenceFix) -> None:
    centre.ingest(fixes)
    centre.compute_events()
    centre.decide()


def test_a_corrected_verdict_says_what_the_region_had_said_and_both_owners_hear_of_it(centre: VerdictCentre) -> None:
    enter, *_ = seen(*THROUGH)
    so_ms = enter["time"] // 1000
    centre.collect(alert_of(enter, t_ms=so_ms - EARLIER_MS))
    decided(centre, *THROUGH)
    message = newest_message(centre, enter["id"])
    assert (message["verdict"], message["event"]["t_ms"]) == ("corrected", so_ms)
    assert message["alerted"]["t_ms"] == so_ms - EARLIER_MS
    assert hear(message, NOON) == ["a", "b"]
    assert (hear(message, NOON - QUARTER_MS), hear(message, NOON + QUARTER_MS)) == (["b"], ["a"])


class Watched:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self._registry = CollectorRegistry()
        self.metrics = VerdictMetrics(self._registry, 3600.0, now=lambda: self.now_s)

    def took(self, *, is_published: bool = True, **counts: int) -> None:
        given = ("confirmed", "corrected", "withdrawn", "late", "provisional", "oldest_provisional_s")
        taken = ("alerts", "repeated", "refused", "left_out", "unfinished")
        whole: dict[str, Any] = dict.fromkeys((*given, *taken), 0) | counts
        self.metrics.take(whole)
        if is_published:
            self.metrics.on_published(whole, self.now_s)

    def shown(self, name: str, **labels: str) -> float:
        value = self._registry.get_sample_value(f"waybill_verdicts_{name}", labels)
        assert value is not None
        return value

    @property
    def oldest_s(self) -> float:
        return self.shown("oldest_provisional_seconds")


def test_before_the_first_run_nothing_is_known_but_the_bound() -> None:
    seen = Watched()
    assert math.isnan(seen.oldest_s)
    assert math.isnan(seen.shown("provisional_alerts"))
    assert seen.shown("max_provisional_seconds") == 3600


def test_while_no_run_ends_the_age_grows_also_where_nothing_waited() -> None:
    seen = Watched()
    seen.took()
    assert seen.oldest_s == 0
    seen.now_s += 4000
    assert seen.oldest_s == 4000
    seen.took(provisional=2, oldest_provisional_s=30)
    assert seen.oldest_s == 30
    seen.now_s += 5000
    assert seen.oldest_s == 5030


def test_what_is_decided_and_was_not_published_is_still_provisional_to_everybody() -> None:
    seen = Watched()
    seen.took()
    seen.now_s += 4000
    seen.took(is_published=False, confirmed=3)
    assert seen.oldest_s == 4000
    seen.took()
    assert seen.oldest_s == 0
