"""What a run left out is in its result, counted and one by one."""

from __future__ import annotations

import json

import pytest

from cloud_jobs.geofence.job import GeofenceRun
from cloud_jobs.reference.files import usable
from cloud_jobs.reference.tables import CollectionResult, in_force
from cloud_jobs.run_result import MAX_SHOWN, print_json, print_table, result_of
from cloud_jobs.usage.job import UsageRun
from geo.reference.messages import QuarantinedMessage
from tests.cloud_jobs.publications import publication_id, row_of

REFUSED = in_force([row_of("fence", "flat [a]", {"type": "Feature"}, 7)], usable).refused
QUARANTINED = (QuarantinedMessage("persistent://fleet/reference/fences", "3:9:-1", "x@", "a version is a JSON object"),)


@pytest.mark.parametrize(
    ("job", "run"),
    [("usage", UsageRun(3, 1, 2, 0, 2, 1, 0, 0, REFUSED)), ("geofence", GeofenceRun(3, 1, 2, 1, 2, 1, 0, REFUSED))],
)
def test_refused_fences_are_counted_and_named_with_place_and_reason(
    job: str, run: UsageRun | GeofenceRun, capsys: pytest.CaptureFixture[str]
) -> None:
    result = result_of(job, run, CollectionResult(5, 1, QUARANTINED)).with_published(4)
    print_json(result)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["job"], shown["ingest_number"], shown["published"]) == (job, 3, 4)
    assert (shown["fences_refused"], shown["messages_quarantined"]) == (1, 1)
    (refused,), (message,) = shown["refused_fences"], shown["quarantined_messages"]
    assert (refused["kind"], refused["id"], refused["place"]) == ("fence", "flat [a]", "topic 3:7:-1")
    assert (refused["publication_id"], bool(refused["reason"])) == (publication_id(7), True)
    assert message["reason"] == "a version is a JSON object"
    print_table(result)
    table = capsys.readouterr().out
    assert all(text in table for text in ("fences refused", "flat [a]", "topic 3:7:-1", "3:9:-1", "In quarantine"))


def test_a_table_is_bounded_and_json_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    many = CollectionResult(0, 0, QUARANTINED * (MAX_SHOWN + 5))
    print_table(result_of("usage", UsageRun(1, 0, 0, 0, 0, 0, 0, 0, ()), many))
    assert capsys.readouterr().out.count("3:9:-1") == MAX_SHOWN
    print_json(result_of("usage", UsageRun(1, 0, 0, 0, 0, 0, 0, 0, ()), many))
    assert len(json.loads(capsys.readouterr().out)["quarantined_messages"]) == MAX_SHOWN + 5
