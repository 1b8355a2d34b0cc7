"""Of the fences that were published each is in force, or is named with the reason, whatever the others are."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.derived.fences import EVERYTHING, FenceChange, changes_between, changes_since
from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.errors import CloudError
from cloud_jobs.geofence.event_revisions import EventRules
from cloud_jobs.lake.schemas import WHOLE_DEVICE
from cloud_jobs.lake.snapshots import fences_number, note_fences
from cloud_jobs.lake.tables import FENCES, Lake
from cloud_jobs.reference.files import usable
from cloud_jobs.reference.tables import in_force, parse_fences
from geo.reference.in_force import InForce, PublishedFences, published_fences
from geo.spatial import TrackSettings
from geo.spatial.activity import FOREVER_MS
from geo.spatial.event_ids import DAY_MS
from tests.cloud_jobs.billing.contracts.makers import account
from tests.cloud_jobs.geofence.centre import GeofenceCentre, rules
from tests.cloud_jobs.geofence.test_event_revisions import THROUGH
from tests.cloud_jobs.publications import publication_id, row_of
from tests.system.lake_of_fixes import lake_of, square
from tests.usage_rows import metered_rows


def feature(width: float = 1.0, **properties: Any) -> dict[str, Any]:
    ring = [[0, 0], [width, 0], [width, 1], [0, 1], [0, 0]]
    return {"type": "Feature", "properties": properties, "geometry": {"type": "Polygon", "coordinates": [ring]}}


def widths_of(found: PublishedFences) -> list[float]:
    return [json.loads(one)["geometry"]["coordinates"][0][1][0] for one in found.features]


def test_a_correction_of_a_version_replaces_it_however_its_instant_is_written() -> None:
    rows = [
        row_of("fence", "a", feature(2.0, id="a", effective_from="2026-01-05T01:00:00+01:00"), 1),
        row_of("fence", "a", feature(1.0, id="a", effective_from="2026-01-05T00:00:00Z")),
        row_of("fence", "a", feature(3.0, id="a", effective_from="2026-01-06T00:00:00Z")),
    ]
    found = published_fences(rows)
    assert widths_of(found) == [2.0, 3.0]
    assert found.refused == ()


@pytest.mark.parametrize(
    "body",
    [
        {"type": "Feature"},
        {"type": "Feature", "properties": []},
        {"type": "Feature", "properties": None, "geometry": None},
        feature(),
        feature(id="bad", effective_from="tomorrow"),
        feature(id="bad", effective_from=["2026-01-05T00:00:00Z"]),
        feature(id="bad", effective_from="2026-01-05T00:00:00"),
        feature(0.0, id="bad"),
        {"id": "bad"},
        {"type": "FeatureCollection", "features": []},
        {"type": "FeatureCollection", "features": [feature(id="x"), feature(id="y")]},
        [feature(id="bad")],
        feature(id="bad", priority="high"),
        "[" * 100_000,
        "nothing",
    ],
)
def test_a_fence_that_cannot_be_used_is_named_and_stops_no_other(body: Any) -> None:
    found = published_fences([row_of("fence", "bad", body), row_of("fence", "good", feature(id="good"))])
    (refused,) = found.refused
    assert (refused.kind, refused.id, refused.place) == ("fence", "bad", "topic 3:0:-1")
    assert refused.reason
    assert [fence.id for fence in parse_fences(found.features).fences] == ["good"]
    assert changes_between((), found.features, 0)


def test_a_correction_that_cannot_be_used_is_named_and_the_version_stays_as_it_was() -> None:
    found = published_fences([row_of("fence", "a", feature(id="a")), row_of("fence", "a", feature(0.0, id="a"), 1)])
    assert [fence.id for fence in parse_fences(found.features).fences] == ["a"]
    assert [refused.publication_id for refused in found.refused] == [publication_id(1)]


TARIFF = {"id": "t", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z", "prices": []}
ACCOUNT = account("t")


def tariff(price: str, **more: Any) -> dict[str, Any]:
    return TARIFF | {"prices": [{"meter": "distance", "unit": "km", "unit_amount": price}]} | more


def found(*bodies: Any, kind: Any = "tariff", id_: str = "t") -> InForce[Any]:
    return in_force([row_of(kind, id_, body, number) for number, body in enumerate(bodies)], usable)


def prices(of: InForce[Any]) -> list[str]:
    return [str(held.made.prices[0].unit_amount) for held in of.held]


@given(st.lists(st.sampled_from(["0.45", "4.50", "7.00"]), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_latest_publication_holds_in_whatever_order_rows_are_read(said: list[str], dice: random.Random) -> None:
    rows = [row_of("tariff", "t", tariff(price), number) for number, price in enumerate(said)]
    dice.shuffle(rows)
    assert prices(in_force(rows, usable)) == [said[-1]]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("tariff", tariff("1"), TARIFF | {"currency": "EURO"}),
        ("tariff", tariff("1"), "[]"),
        ("account", ACCOUNT, ACCOUNT | {"colour": "red"}),
        ("account", ACCOUNT, "[" * 100_000),
    ],
)
def test_what_cannot_be_used_is_not_in_force_and_is_named_until_it_is_corrected(kind: Any, good: Any, bad: Any) -> None:
    before, wrong, corrected = (found(*bodies, kind=kind) for bodies in ((good,), (good, bad), (good, bad, good)))
    assert before.refused == corrected.refused == ()
    (refused,) = wrong.refused
    assert (refused.kind, refused.id, refused.place) == (kind, "t", "topic 3:1:-1")
    assert refused.publication_id in str(refused)
    assert refused.reason
    assert [held.made for held in wrong.held] == [held.made for held in before.held]


def test_what_cannot_be_used_hides_no_other_version_and_no_other_thing() -> None:
    rows = [
        row_of("tariff", "t", tariff("1"), 0),
        row_of("tariff", "t", tariff("x", effective_from="2026-02-01T00:00:00Z"), 1),
        row_of("tariff", "u", tariff("2", id="u"), 2),
        row_of("account", "a", "{}", 3),
        row_of("fence", "f", "{}", 4),
    ]
    made = in_force(rows, usable)
    assert prices(made) == ["1", "2"]
    assert [(refused.kind, refused.id) for refused in made.refused] == [
        ("account", "a"),
        ("fence", "f"),
        ("tariff", "t"),
    ]


OLD, NEW = json.dumps(square("old")), json.dumps(square("new"))
FLAT = square("bad") | {"geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 1], [0, 0]]]}}
TABLES = pytest.mark.parametrize("table", ["usage", "geofence_events"])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "lake")


def apply(lake: Lake, table: str, *features: str) -> None:
    commit_written(next_increment(lake, table), [], states={FENCES: note_fences(lake, features)})


def changes(lake: Lake, table: str, *features: str) -> list[FenceChange]:
    return changes_since(lake, lake.open(table), features, 0)


def note_of(lake: Lake, *features: str) -> Path:
    return Path(lake.path("applied_fences")) / "features" / f"{fences_number(features):016x}.geojson"


@TABLES
def test_what_was_applied_is_noted_and_without_a_note_everything_is_looked_at(lake: Lake, table: str) -> None:
    assert changes(lake, table, OLD) == [EVERYTHING]
    apply(lake, table)
    assert changes(lake, table) == []
    apply(lake, table, OLD)
    assert changes(lake, table, OLD) == []
    assert len(changes(lake, table, OLD, NEW)) == 1
    note_of(lake, OLD).unlink()
    assert changes(lake, table, NEW) == changes(lake, table, OLD) == [EVERYTHING]


@pytest.mark.parametrize("line", [json.dumps(FLAT), "[]", "7", "half a no", "", "[" * 100_000, "{}"])
def test_with_a_note_of_a_fence_that_cannot_be_used_any_more_everything_is_looked_at(lake: Lake, line: str) -> None:
    apply(lake, "usage", OLD, line)
    assert changes(lake, "usage", OLD) == [EVERYTHING]


FIFTH = 20_458  # 2026-01-05
REACH_MS = 12 * 3_600_000
EVER = (FOREVER_MS + REACH_MS) // DAY_MS


def fences(*features: dict[str, Any]) -> tuple[str, ...]:
    return tuple(map(json.dumps, features))


def changed_square(name: str, lon: float = 0.0, **more: Any) -> dict[str, Any]:
    ring = [[lon, 0], [lon + 1, 0], [lon + 1, 1], [lon, 1], [lon, 0]]
    return {
        "type": "Feature",
        "properties": {"id": name, **more},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }


OLD_FENCE = changed_square("old", 5.0)
FIRST: dict[str, Any] = {"effective_from": "2026-01-05T00:00:00Z"}


def test_a_new_fence_matters_from_its_beginning_on_and_where_it_is() -> None:
    (change,) = changes_between(fences(OLD_FENCE), fences(OLD_FENCE, changed_square("new", **FIRST)), REACH_MS)
    # what happens in the first hours may be decided by the hours before
    assert change == FenceChange(FIFTH - 1, EVER, 0.0, 0.0, 1.0, 1.0)
    until = changed_square("new", **FIRST, effective_until="2026-01-07T18:00:00Z")
    (bounded,) = changes_between(fences(OLD_FENCE), fences(OLD_FENCE, until), REACH_MS)
    assert (bounded.first_day, bounded.last_day) == (FIFTH - 1, FIFTH + 3)


def test_a_new_version_matters_where_the_one_before_it_was_too() -> None:
    before = changed_square("a", 3.0)
    (change,) = changes_between(fences(before), fences(before, changed_square("a", **FIRST)), REACH_MS)
    assert change == FenceChange(FIFTH - 1, EVER, 0.0, 0.0, 4.0, 1.0)


@pytest.mark.parametrize(
    ("line", "box"), [([[1, 2], [3, 1]], (1, 1, 3, 2)), ([[179, 2], [-179, 1]], (-180, 1, 180, 2))]
)
def test_a_gate_matters_along_its_line_and_over_the_antimeridian_everywhere(
    line: list[list[int]], box: tuple[int, ...]
) -> None:
    gate = {
        "type": "Feature",
        "properties": {"id": "gate", "gate": True},
        "geometry": {"type": "LineString", "coordinates": line},
    }
    (change,) = changes_between(fences(), fences(gate), REACH_MS)
    assert change[2:] == box


def published_square(name: str, lon: float = 0.0, **more: Any) -> str:
    ring = [[lon, 0], [lon + 0.01, 0], [lon + 0.01, 0.01], [lon, 0.01], [lon, 0]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return json.dumps({"type": "Feature", "properties": {"id": name, **more}, "geometry": geometry})


def rows(*bodies: str) -> list[dict[str, Any]]:
    return [
        row_of("fence", str(json.loads(body)["properties"]["id"]), body, number) for number, body in enumerate(bodies)
    ]


def test_a_fence_that_is_published_again_in_other_words_is_the_same_one() -> None:
    first = published_square("a", title="Hafen")
    again = json.dumps(dict(reversed(json.loads(first).items())), indent=2).replace("Hafen", "\\u0048afen")
    assert again != first
    assert published_fences(rows(first, again)).features == published_fences(rows(first)).features


def usage_zones(fences: tuple[str, ...]) -> set[str]:
    """The zones of a drive through the square at the origin, as the job has them."""
    return {row["zone"] for row in metered_rows((fix._asdict() for fix in THROUGH), fences)} - {WHOLE_DEVICE}


@pytest.mark.parametrize(
    "bad", [published_square("flat").replace("0.01", "0.0"), "half a fe", "[]", published_square("")]
)
def test_with_a_fence_that_cannot_be_used_nothing_is_computed(bad: str) -> None:
    centre = GeofenceCentre(rules(dwell_s=None))
    centre.take(THROUGH)
    assert centre.in_force()
    with pytest.raises(CloudError, match="cannot be used"):
        EventRules.of([published_square("square"), bad], TrackSettings(), centre.rules.events)
    with pytest.raises(CloudError, match="cannot be used"):
        usage_zones((published_square("square"), bad))
