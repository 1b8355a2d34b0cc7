"""Lines of issued documents, taken apart in a lake: notes, publications that cannot be used, the longest month."""

from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cloud_jobs.billing.register.close import close_period
from cloud_jobs.billing.register.closer import ClosingRun
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.billing.register.operations import Clerk, adjust_period, issue_period
from cloud_jobs.explain.explanation import ExplainedHour
from cloud_jobs.explain.issued_line import explain_line, records_of_hour
from cloud_jobs.explain.terminal import line_tables, line_values, records_table
from cloud_jobs.lake.coverage import SeqRanges, TenantDevice
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.usage import job
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import BilledLake, clerk
from tests.cloud_jobs.billing.register.metered_lake import JANUARY, meter, metered_lake, publish, state
from tests.system.lake_of_fixes import NOON, LakeFix, ingest, lake_of, square


def issued(made: BilledLake) -> BilledLake:
    made.close("one", days=JANUARY)
    assert len(made.issue("clerk", JANUARY).documents) == 2
    return made


def every_line(billed: BilledLake, number: str) -> list[bool | None]:
    made, found = issued_document(billed.register, number), []
    for one in made["annex"]:
        line = explain_line(billed.register, number, one["line"], TenantDevice(one["tenant"], one["device"]))
        Console(file=StringIO()).print(line_tables(line, 3))
        assert line_values(line, 3)["agrees"] is line.explanation.agrees
        found.append(line.explanation.agrees)
    return found


def test_a_line_of_a_note_that_takes_a_whole_charge_back_agrees(tmp_path: Path) -> None:
    billed = metered_lake(tmp_path)
    prices = price("0.45"), price("0.20", zone="square"), price("0.05", meter="event", unit="each")
    rate = {"id": "rate", "name": "Rate", "amount": "12.90", "scope": "device", "begin": "2026-01-15"}
    diesel = {"id": "diesel", "name": "Diesel", "percent": "3.7", "zones": ["square"]}
    publish(billed, tariff(*prices, fees=[rate, diesel]))
    assert {*every_line(issued(billed), "WB-EU-00000001")} == {True}
    # the zone moves away: what was charged in it goes, and the way outside grows
    publish(billed, square("square", lon=5.0))
    meter(billed)
    billed.close("two", days=JANUARY)
    notes = adjust_period(billed.register, JANUARY, None, clerk=clerk("adjust")).documents
    found = [one for note in notes for one in every_line(billed, note.number)]
    assert (len(found) > 2, {*found}) == (True, {True})


def test_every_hour_of_the_longest_month_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # many files, each with an hour: all computed in this process
    monkeypatch.setattr(job, "run_on_executors", lambda _, work, items: [work(one) for one in items])
    begin, hours = datetime(2026, 9, 30, 22, 5, tzinfo=UTC), 745
    lake = lake_of(tmp_path, [square("square")])
    moments = (begin + timedelta(hours=at) for at in range(hours))
    ingest(lake, [LakeFix("eu-1", seq, moment, 0.0, 0.0, kind="event") for seq, moment in enumerate(moments, 1)])
    now = datetime(2026, 11, 5, tzinfo=UTC)
    state(lake, "eu-1", until=now, count=hours)
    billed, days = BilledLake(lake), (date(2026, 10, 1), date(2026, 10, 31))
    prices = tariff(price("0.05", meter="event", unit="each"))
    publish(billed, legal_entity(), prices, account("acme", device("eu-1", tenant="acme")))
    meter(billed)
    snapshot = take_snapshot(lake, now)
    run = ClosingRun(name="one", snapshot=snapshot.number, snapshot_id=snapshot.id, now=now)
    close_period(lake, snapshot, days, None, run=run)
    by = Clerk(by="A. Clerk", now=now, attempt="one")
    issue_period(billed.register, days, None, clerk=by)
    explanation = explain_line(billed.register, "WB-EU-00000001", 1).explanation
    assert (len(explanation.hours), explanation.agrees) == (hours, True)


@pytest.mark.parametrize(("mapping", "shown"), [("buses@0a1b2c3d", True), (None, False)])
def test_a_fix_of_a_mapping_is_shown_with_it(tmp_path: Path, mapping: str | None, shown: bool) -> None:
    lake = lake_of(tmp_path)
    ingest(lake, [LakeFix("eu-1", 1, NOON, 53.5, 10.0, mapping=mapping), LakeFix("eu-1", 2, NOON, 53.5, 10.0)])
    hour = ExplainedHour(hour=NOON, quantity=1, seq_ranges=SeqRanges.parse('{"7": [[1, 2]]}'), digest="")
    rows = [*records_of_hour(lake, TenantDevice("acme", "eu-1"), hour, 10)]
    assert [row["mapping"] for row in rows] == [mapping, None]
    printed = StringIO()
    Console(width=200, file=printed).print(records_table(NOON, rows, 2))
    text = printed.getvalue()
    assert ("buses@0a1b2c3d" in text, "mapping" in text, "2026-01-05T12:00:01" in text) == (shown, shown, True)
