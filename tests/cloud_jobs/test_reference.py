"""Publications are collected once each, whoever collects, in the order in which they were published."""

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloud_jobs.billing.contracts import Tariff, usable_contract
from cloud_jobs.errors import CommitConflict, ReferenceFileError
from cloud_jobs.lake import appending as shared_append
from cloud_jobs.lake.appending import append_missing
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.checks import check_reference
from cloud_jobs.reference.files import make_version, read_reference
from cloud_jobs.reference.tables import fences_in, in_force, publications_in, quarantined_messages, store
from geo.reference.messages import ANYBODY, MAX_BYTES, Kind, named_message, read_messages
from tests.cloud_jobs.publications import AT, collect_in_parts, message_of, publication_id, rows_of, tariff
from tests.new_lakes import new_lake
from waybill.identity.signatures import ID_PROPERTY, next_publication_id

Message = dict[str, Any]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path / "lake")


def price(lake: Lake) -> str:
    (held,) = in_force(publications_in(lake), usable_contract).held
    assert isinstance(held.made, Tariff)
    return str(held.made.prices[0].unit_amount)


def ids(lake: Lake) -> list[str]:
    return [row["publication_id"] for row in publications_in(lake)]


A, B, AGAIN = tariff("0.45", 0), tariff("4.50", 1), tariff("0.45", 2)


def test_a_price_that_is_set_back_is_in_force_again_whichever_publication_is_collected_first(tmp_path: Path) -> None:
    for number, order in enumerate([(A, B, AGAIN), (A, AGAIN, B), (AGAIN, A, B)]):
        lake = new_lake(tmp_path / str(number))
        for message in order:
            # the topic is read whole each time; what was compacted is not in it any more
            store(lake, {"tariff": [message]}, ANYBODY)
        assert ids(lake) == [publication_id(at) for at in range(3)]
        assert price(lake) == "0.45"


def test_messages_that_are_no_publications_are_quarantined_once_and_block_nothing(lake: Lake) -> None:
    bad = tariff("9", 3, key="u@")
    for place in ("5:5:-1", "1:1:-1"):
        found = store(lake, {"tariff": [bad | {"message_id": place}, A], "account": []}, ANYBODY)
        assert (found.publications, [message.message_id for message in found.quarantined]) == (1, [place])
    (kept,) = quarantined_messages(lake)
    assert (kept["topic"], kept["message_id"], kept["key"]) == ("persistent://fleet/reference/tariffs", "5:5:-1", "u@")
    assert "does not match its content" in kept["reason"]
    assert lake.rows("reference_quarantine", ["payload"]).to_pylist() == [{"payload": bad["value"]}]


def test_another_content_under_a_known_id_is_quarantined_and_changes_nothing(lake: Lake) -> None:
    store(lake, {"tariff": [A]}, ANYBODY)
    for _ in range(2):
        found = store(lake, {"tariff": [tariff("9", 0), B]}, ANYBODY)
        assert len(found.quarantined) == 1
        assert "belongs to other content" in found.quarantined[0].reason
    assert (price(lake), len(ids(lake)), len(quarantined_messages(lake))) == ("4.50", 2, 1)


def test_an_id_far_ahead_is_quarantined_and_what_is_published_after_it_holds(lake: Lake) -> None:
    last = tariff("9", 1, properties=[(ID_PROPERTY, "ffffffff-ffff-7fff-bfff-ffffffffffff")])
    ahead = AT + timedelta(days=365)
    by_clock = next_publication_id(None, round(ahead.timestamp() * 1000), 0)
    wrong = tariff("8", 2, properties=[(ID_PROPERTY, by_clock)], publish_time=ahead)
    found = store(lake, {"tariff": [A, last, wrong, AGAIN]}, ANYBODY, now=lambda: AT)
    reasons = sorted(one.reason for one in found.quarantined)
    assert (price(lake), len(reasons)) == ("0.45", 2)
    assert "more than five minutes after it was published" in reasons[1]
    assert "clock was more than five minutes ahead" in reasons[0]


@pytest.mark.parametrize(
    "pool",
    [lambda: ThreadPoolExecutor(4), lambda: ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))],
    ids=["threads", "processes"],
)
def test_of_collectors_at_once_each_succeeds_and_each_publication_is_there_once(
    lake: Lake, pool: Callable[[], Executor]
) -> None:
    with pool() as running:
        added = list(running.map(collect_in_parts, [Path(str(lake.location))] * 4, range(4)))
    assert ids(lake) == [publication_id(at) for at in range(12)]
    assert sum(added) == 12
    assert len(quarantined_messages(lake)) == 6
    times = [row["collected_at"] for row in publications_in(lake)]
    assert len(times) == len(ids(lake))


def store_rows(message: Message) -> list[dict[str, Any]]:
    return [
        row | {"collected_at": AT, "commit_number": 1}
        for row in read_messages("tariff", [message], ANYBODY).publications
    ]


def test_a_collector_that_loses_each_time_ends_with_a_conflict_and_has_written_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_append, "MAX_ATTEMPTS", 3)
    pauses: list[float] = []

    def missing(table: pa.Table) -> list[dict[str, Any]]:
        monkeypatch.setattr(shared_append, "MAX_ATTEMPTS", 1)
        store(lake, {"tariff": [tariff("1", table.num_rows)]}, ANYBODY)
        return store_rows(tariff("2", 1000))

    with pytest.raises(CommitConflict, match="reference"):
        append_missing(lake, "reference", ["publication_id"], missing, pause=pauses.append)
    assert len(pauses) == 3
    assert ids(lake) == [publication_id(at) for at in range(3)]


def test_fences_are_validated_again_only_when_the_table_is_another_one(lake: Lake) -> None:
    ring = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
    fence = {"type": "Feature", "properties": {"id": "a"}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    store(lake, {"fence": [message_of("fence", fence)]}, ANYBODY, now=lambda: datetime.now(UTC))
    first = fences_in(lake)
    assert len(first.features) == 1
    assert fences_in(lake) is first
    store(lake, {"fence": [message_of("fence", fence | {"geometry": None}, 1)]}, ANYBODY)
    assert fences_in(lake).features == first.features
    (refused,) = fences_in(lake).refused
    assert refused.place == "persistent://fleet/reference/fences 3:1:-1"


GOOD = message_of("fence", {"type": "Feature", "id": "fence-1"})


def feature(**properties: Any) -> dict[str, Any]:
    ring = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
    return {"type": "Feature", "properties": properties, "geometry": {"type": "Polygon", "coordinates": [ring]}}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"key": None}, "a key and a value"),
        ({"key": None, "malformed": "key not UTF-8: ff"}, "key not UTF-8: ff"),
        ({"value": None}, "a key and a value"),
        ({"value": b""}, "Expecting value"),
        ({"value": b"\xff"}, ""),
        ({"value": b"no JSON"}, "Expecting"),
        ({"value": b"[]"}, "must be a JSON object"),
        ({"value": b"[" * 100_000}, ""),
        ({"value": b'"' + b"x" * MAX_BYTES + b'"'}, ""),
        ({"value": b'{"type": "Feature"}'}, "does not match its content"),
        ({"value": b'{"type": "Feature", "id": null, "properties": [1]}'}, "does not match its content"),
        ({"key": "fence-1"}, "does not match its content"),
        ({"key": "FENCE-1@"}, "does not match its content"),
        ({"key": "fence-1@2026-01-01T00:00:00Z"}, "does not match its content"),
        ({"key": "x" * 100_000}, "does not match its content"),
        ({"publish_time": None, "malformed": "publish_time not a time"}, "publish_time"),
        ({"properties": None}, "its property publication_id must be a UUID of version 7, and is none"),
        ({"properties": [(ID_PROPERTY, "7")]}, "and is '7'"),
    ],
)
def test_a_message_that_is_no_publication_is_quarantined_with_its_place_and_stops_no_other(
    wrong: dict[str, Any], reason: str
) -> None:
    message = GOOD | wrong
    read = read_messages("fence", [message | {"message_id": "9:9:-1"}, GOOD], ANYBODY)
    (row,) = read.publications
    assert (row["id"], row["published_at"], row["place"]) == ("fence-1", AT, f"{named_topic()} 3:0:-1")
    (refused,) = map(named_message, read.quarantined)
    assert (refused.topic, refused.message_id, refused.key) == (named_topic(), "9:9:-1", message["key"] or "")
    assert reason in refused.reason
    assert len(str(refused)) < 500
    assert read.quarantined[0]["payload"] == (
        message["value"] if message["value"] is None else message["value"][:MAX_BYTES]
    )


def named_topic() -> str:
    return "persistent://fleet/reference/fences"


def test_of_two_contents_with_one_id_the_second_is_quarantined() -> None:
    other = message_of("fence", {"type": "Feature", "id": "fence-2"})
    read = read_messages("fence", [GOOD, other, GOOD], ANYBODY)
    assert [row["id"] for row in read.publications] == ["fence-1", "fence-1"]
    (row,) = read.quarantined
    assert row["reason"] == f"its publication id {publication_id(0)} belongs to other content"


NAMES = st.one_of(
    st.text(min_size=1, max_size=5),
    st.sampled_from(["@", "a@b", "a@2026-01-05", "\ud800"]),
    st.integers(-(2**64), 2**64),
    st.just(0.5),
)
BEGINS = st.sampled_from([None, "", "2026-01-05T01:00:00+01:00", "2026-01-05", "soon", 7, "a@b"])


@given(NAMES, BEGINS, BEGINS)
@example(2**63, None, None)
@example("\ud800", None, None)
def test_what_is_published_is_taken_and_what_would_be_refused_is_not_published(
    name: Any, begin: Any, other: Any
) -> None:
    bodies: tuple[tuple[Kind, dict[str, Any]], ...] = (
        ("fence", feature(id=name, effective_from=begin)),
        ("tariff", {"id": name, "effective_from": begin}),
        ("account", {"id": name, "effective_from": other}),
    )
    for kind, body in bodies:
        if name == "\ud800" or (isinstance(name, int) and not -(2**63) <= name < 2**63):
            with pytest.raises(ValueError, match="cannot be published"):
                make_version(kind, body)
            continue
        version = make_version(kind, body)
        found = read_messages(kind, [GOOD | {"key": version.key, "value": version.body.encode()}], ANYBODY)
        assert found.quarantined == []
        assert [row["id"] for row in found.publications] == [str(name)]


RING = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
FENCE = {"type": "Feature", "properties": {"id": "a"}, "geometry": {"type": "Polygon", "coordinates": [RING]}}


def file_of(folder: Path, name: str, content: Any) -> Path:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("fences.geojson", "[1]", "feature 1"),
        ("fences.geojson", {"type": "Feature", "properties": None}, "feature 1"),
        ("fences.geojson", [FENCE, FENCE | {"geometry": None}], "feature 2"),
        ("fences.geojson", "{", "line 1"),
        ("zones.json", {"type": "FeatureCollection", "features": [{"type": "Feature", "id": 3}]}, "feature 1"),
        ("tariffs.json", '[{"id": "t", "prices": []}]', "it has no geometry"),
        ("zones.json", "no JSON", "line 1"),
    ],
)
def test_a_fault_is_named_with_its_file_and_place(tmp_path: Path, name: str, content: Any, fault: str) -> None:
    file = file_of(tmp_path, name, content)
    with pytest.raises(ReferenceFileError) as refused:
        read_reference([file])
    assert any(one.startswith(f"{file}: ") and fault in one for one in refused.value.faults), refused.value
    assert str(refused.value).startswith("nothing was published:\n")


def test_all_faults_of_all_files_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    files = [file_of(tmp_path, "a.json", [{}, {}]), tmp_path / "empty", tmp_path / "absent.json"]
    with pytest.raises(ReferenceFileError) as refused:
        read_reference(files)
    assert [fault.split(": ")[0] for fault in refused.value.faults] == [str(files[at]) for at in (0, 0, 1, 2)]


def test_a_folder_stands_for_its_fences_and_contracts_and_a_version_given_twice_is_one(tmp_path: Path) -> None:
    fences = file_of(tmp_path, "fences.geojson", FENCE)
    rates = file_of(tmp_path, "rates.toml", CONTRACT)
    found = read_reference([tmp_path, fences, rates])
    assert [(one.kind, one.key) for one in found] == [
        ("fence", "a@"),
        ("exchange_rate", "usd-eur@2025-12-31T23:00:00Z"),
    ]


def test_two_fences_whose_ids_read_the_same_are_a_fault(tmp_path: Path) -> None:
    """One of them would never be entered, and nobody would see why."""
    alike = [{**FENCE, "properties": {"id": name}} for name in ("K\u00f6ln", "Ko\u0308ln")]
    files = [file_of(tmp_path, f"{at}.geojson", one) for at, one in enumerate(alike)]
    with pytest.raises(ReferenceFileError, match="reads like"):
        read_reference(files)


CONTRACT = """
[[exchange_rate]]
id = "usd-eur"
effective_from = 2026-01-01T00:00:00+01:00
currency = "USD"
into = "EUR"
rate = 0.9
source = "European Central Bank"
"""


def test_contracts_in_toml_are_read_as_what_is_published(tmp_path: Path) -> None:
    (version,) = read_reference([file_of(tmp_path, "rates.toml", CONTRACT)])
    assert (version.kind, version.key) == ("exchange_rate", "usd-eur@2025-12-31T23:00:00Z")
    assert json.loads(version.body)["rate"] == "0.9"
    (row,) = rows_of(version.kind, [json.loads(version.body)])
    assert row["id"] == "usd-eur"


def fence_with(ring: Any = RING, **properties: Any) -> dict[str, Any]:
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return {"type": "Feature", "properties": {"id": "a", **properties}, "geometry": geometry}


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        (fence_with(effective_form="2027-01-01T00:00:00Z"), "did you mean effective_from?"),
        (fence_with(radius=3), "did you mean radius_m?"),
        (fence_with(Priority=3), "did you mean priority?"),
    ],
)
def test_what_a_fence_says_and_may_not_mean_is_a_warning_with_its_place(
    tmp_path: Path, feature: dict[str, Any], said: str
) -> None:
    file = file_of(tmp_path, "fences.geojson", [FENCE | {"id": "b", "properties": {}}, feature])
    (one,) = (notice for notice in check_reference([file], None, datetime.now(UTC)).checked.notices)
    assert one.startswith(f"{file}: feature 2: fence 'a': "), one
    assert said in one


def test_a_japanese_name_is_usable_and_a_warning_says_which_font_its_pdf_needs(tmp_path: Path) -> None:
    account = 'id = "acme"\nname = "東京運輸 Müller"\nparent = "group"\ntariff = "standard"\n'
    file = file_of(tmp_path, "contracts.toml", f"[[account]]\neffective_from = 2026-01-01T00:00:00Z\n{account}")
    checked = check_reference([file], None, datetime.now(UTC)).checked
    [said] = [one for one in checked.notices if "WAYBILL_DOCUMENT_FONT" in one]
    assert "account 'acme': no font has 東京運, so a PDF shows [U+6771]" in said


def test_contracts_in_a_file_of_another_name_are_said_to_need_theirs(tmp_path: Path) -> None:
    for text in (CONTRACT, f"# rates\n\n{CONTRACT}"):
        with pytest.raises(ReferenceFileError) as refused:
            read_reference([file_of(tmp_path, "rates.tml", text)])
        assert "name it .toml" in refused.value.faults[0]
    assert len(read_reference([file_of(tmp_path, "fences.tml", [FENCE])])) == 1
