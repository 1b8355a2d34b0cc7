"""Publications are collected once each, whoever collects, in the order in which they were published."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cloud_jobs.billing.contracts import Tariff, usable_contract
from cloud_jobs.errors import CommitConflict
from cloud_jobs.lake import appending as shared_append
from cloud_jobs.lake.appending import append_missing
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.tables import fences_in, in_force, publications_in, quarantined_messages, store
from geo.reference.messages import ANYBODY, read_messages
from tests.cloud_jobs.publications import AT, collect_in_parts, message_of, publication_id, tariff
from waybill.identity.publication_id import PROPERTY, next_publication_id

Message = dict[str, Any]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.create()
    return made


def price(lake: Lake) -> str:
    (held,) = in_force(publications_in(lake), usable_contract).held
    assert isinstance(held.made, Tariff)
    return str(held.made.prices[0].unit_amount)


def ids(lake: Lake) -> list[str]:
    return [row["publication_id"] for row in publications_in(lake)]


A, B, AGAIN = tariff("0.45", 0), tariff("4.50", 1), tariff("0.45", 2)


def test_a_price_that_is_set_back_is_in_force_again_whichever_publication_is_collected_first(tmp_path: Path) -> None:
    for number, order in enumerate([(A, B, AGAIN), (A, AGAIN, B), (AGAIN, A, B)]):
        lake = Lake(tmp_path / str(number))
        lake.create()
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
    assert "is not that of its content" in kept["reason"]
    assert lake.rows("reference_quarantine", ["payload"]).to_pylist() == [{"payload": bad["value"]}]


def test_another_content_under_a_known_id_is_quarantined_and_changes_nothing(lake: Lake) -> None:
    store(lake, {"tariff": [A]}, ANYBODY)
    for _ in range(2):
        found = store(lake, {"tariff": [tariff("9", 0), B]}, ANYBODY)
        assert len(found.quarantined) == 1
        assert "is that of another content" in found.quarantined[0].reason
    assert (price(lake), len(ids(lake)), len(quarantined_messages(lake))) == ("4.50", 2, 1)


def test_an_id_far_ahead_is_quarantined_and_what_is_published_after_it_holds(lake: Lake) -> None:
    last = tariff("9", 1, properties=[(PROPERTY, "ffffffff-ffff-7fff-bfff-ffffffffffff")])
    ahead = AT + timedelta(days=365)
    by_clock = next_publication_id(None, round(ahead.timestamp() * 1000), 0)
    wrong = tariff("8", 2, properties=[(PROPERTY, by_clock)], publish_time=ahead)
    found = store(lake, {"tariff": [A, last, wrong, AGAIN]}, ANYBODY, now=lambda: AT)
    reasons = sorted(one.reason for one in found.quarantined)
    assert (price(lake), len(reasons)) == ("0.45", 2)
    assert "more than five minutes after it was published" in reasons[1]
    assert "a clock more than five minutes ahead" in reasons[0]


@pytest.mark.parametrize(
    "pool",
    [
        lambda: ThreadPoolExecutor(4),
        lambda: ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")),
    ],
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
