"""Records, coverage, tombstones and heads of a micro-batch become durable together, once, by one writer."""

import hashlib
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError, CommitFailed, Fenced, StoreUnavailable
from cloud_jobs.ingest.job import run_query
from cloud_jobs.ingest.micro_batch import CrashPoint
from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import FileLimits, Rewriter
from cloud_jobs.maintenance.sweeping import table_files
from cloud_jobs.run_metrics import IngestMetrics
from tests.cloud_jobs.ingest.centre import batch, check, coverage, new_ingest, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.upkeep import raw, run
from tests.new_lakes import new_lake
from waybill.daemon.durable_file import create_durably
from waybill.record import IntervalSet, Tombstone


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path / "a lake")


def counted(lake: Lake, column: str) -> int:
    return sum(lake.rows("ingest_batches")[column].to_pylist())


def paths(lake: Lake) -> list[Path]:
    return [Path(unquote(uri)) for uri in lake.open("records").file_uris()]


def conflicts(lake: Lake) -> list[tuple[int, str]]:
    rows = lake.rows("quarantine", where=[("cause", "=", "conflict")]).to_pylist()
    return sorted((row["seq"], json.loads(row["detail"])["name"]) for row in rows)


def test_records_come_out_once_and_coverage_says_what_is_there(lake: Lake) -> None:
    lost = (Tombstone(6, 7, "quota"),)
    take_in(lake, new_ingest(lake), [batch(1, 2, 3), batch(2, 3, 4)], [batch(1, 2, 3), batch(8, head=9, lost=lost)])
    assert check(lake) == IntervalSet([(1, 4), (8, 8)])
    assert (counted(lake, "accepted"), counted(lake, "duplicates"), counted(lake, "conflicts")) == (5, 5, 0)
    known = coverage(lake)
    assert (known.missing, known.declared_lost) == (IntervalSet([(5, 5), (9, 9)]), IntervalSet([(6, 7)]))


@pytest.mark.parametrize("tasks", [1, 2])
def test_the_same_id_with_another_content_goes_to_quarantine_once(lake: Lake, tasks: int) -> None:
    first = [[batch(1, 2), batch(2, 3, word="y")]] if tasks == 1 else [[batch(1, 2)], [batch(2, 3, word="y")]]
    writer = new_ingest(lake)
    take_in(lake, writer, *first)
    take_in(lake, writer, [batch(2, word="y")])
    take_in(lake, writer, [batch(1, 2, 3)])
    assert check(lake) == IntervalSet([(1, 3)])
    assert conflicts(lake) == [(2, "y2"), (3, "x3")]


def test_devices_of_two_tenants_with_one_id_and_epoch_never_meet(lake: Lake) -> None:
    writer = new_ingest(lake)
    take_in(lake, writer, [batch(1, 2, head=5), ("other", batch(2, 3, word="y", lost=(Tombstone(1, 1, "age"),)))])
    # what came again is kept apart by tenant, too: also when the parts are filtered and compared
    take_in(lake, writer, [("other", batch(2, 4, word="y")), batch(2, 3)], [("other", batch(3, word="z"))])
    take_in(lake, new_ingest(lake), [batch(2, 3, 4), ("other", batch(4, word="y"))])
    assert check(lake) == IntervalSet([(1, 4)])
    assert check(lake, tenant="other") == IntervalSet([(2, 4)])
    other = coverage(lake, DeviceStream("other", "d", 7))
    assert (other.head, other.missing) == (4, IntervalSet())
    assert (other.declared_lost, coverage(lake).missing) == (IntervalSet([(1, 1)]), IntervalSet([(5, 5)]))
    (conflict,) = lake.rows("quarantine").to_pylist()
    assert (conflict["cause"], conflict["tenant"], conflict["device"], conflict["seq"]) == ("conflict", "other", "d", 3)


def test_a_message_without_its_tenant_is_kept_and_let_in_when_it_comes_with_one(lake: Lake) -> None:
    writer = new_ingest(lake)
    take_in(lake, writer, [(None, batch(1)), ("no tenant", batch(1)), batch(2)])
    assert check(lake) == IntervalSet([(2, 2)])
    take_in(lake, writer, [batch(1)])
    assert check(lake) == IntervalSet([(1, 2)])
    assert [row["detail"][:7] for row in lake.rows("quarantine").to_pylist()] == ["tenant:"] * 2


def test_duplicates_are_looked_for_only_in_files_that_can_hold_them(lake: Lake) -> None:
    writer = new_ingest(lake)
    take_in(lake, writer, [batch(1, day=1)])
    take_in(lake, writer, [batch(7, device="e")])
    take_in(lake, writer, [batch(9)])
    needless = paths(lake)
    take_in(lake, writer, [batch(2)])
    for path in needless:
        path.unlink()
    take_in(lake, writer, [batch(2, 3)])
    assert coverage(lake).received == IntervalSet([(1, 3), (9, 9)])


def test_a_message_that_is_no_batch_is_kept_with_its_reason_and_stops_nobody(lake: Lake) -> None:
    writer = new_ingest(lake)
    for _ in range(2):
        take_in(lake, writer, [b"junk", batch(1)])
    assert check(lake) == IntervalSet([(1, 1)])
    (found,) = lake.rows("quarantine").to_pylist()
    assert (found["cause"], found["payload"]) == ("malformed", b"junk")
    assert found["detail"].startswith("not-a-batch")


def test_a_second_ingest_that_begins_between_the_commit_and_its_check_lets_nothing_in_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_ingest(lake)
    steps = ["another comes"]

    def commit(path: Path, content: bytes) -> bool:
        made = create_durably(path, content)
        if steps:
            steps.clear()
            take_in(lake, new_ingest(lake), [batch(2, 3)])
        return made

    monkeypatch.setattr("cloud_jobs.lake.appending.create_durably", commit)
    # its records are in; the counts that it writes after them are a second thing that only one ingest writes
    for again in ([batch(1)], [batch(2, 3)]):
        with pytest.raises(Fenced):
            take_in(lake, first, again)
    assert check(lake) == IntervalSet([(1, 3)])


@pytest.mark.parametrize("step", list(CrashPoint))
def test_whatever_a_crash_leaves_the_next_ingest_makes_whole(lake: Lake, step: CrashPoint) -> None:
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    first = [[batch(2, 3, head=9, lost=(Tombstone(5, 6, "age"),)), b"junk"], [batch(3, 4), batch(1, word="y")]]

    def crash(reached: CrashPoint) -> None:
        if reached is step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_in(lake, new_ingest(lake, crash), *first)
    # table and coverage agree also before anybody goes on
    check(lake)
    # after a crash the messages come in other pieces
    again = new_ingest(lake)
    take_in(lake, again, first[1])
    take_in(lake, again, first[0])
    assert check(lake) == IntervalSet([(1, 4)])
    known = coverage(lake)
    assert (known.head, known.declared_lost, known.missing) == (9, IntervalSet([(5, 6)]), IntervalSet([(7, 9)]))
    assert sorted(row["cause"] for row in lake.rows("quarantine").to_pylist()) == ["conflict", "malformed"]


@pytest.mark.parametrize("made", [True, False])
def test_a_commit_whose_outcome_cannot_be_seen_is_found_by_the_next_ingest(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    writer = new_ingest(lake)

    def commit(path: Path, content: bytes) -> bool:
        if made:
            create_durably(path, content)
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr("cloud_jobs.lake.appending.create_durably", commit)
        with pytest.raises(CommitFailed, match="it is unknown whether it was made"):
            take_in(lake, writer, [batch(1, 2)])
    assert seqs_in_table(lake) == ([1, 2] if made else [])
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    assert check(lake) == IntervalSet([(1, 2)])


@pytest.fixture
def lake_of_beside_maintenance(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    writer = new_ingest(made)
    for seq in range(1, 4):
        take_in(made, writer, [b"bad%d" % seq, batch(seq)])
    return made


def test_a_quarantine_that_is_merged_meanwhile_takes_in_what_is_new_once(
    lake_of_beside_maintenance: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_table = Lake.open

    def overtaken(lake: Lake, table: str, version: int | None = None) -> DeltaTable:
        opened = open_table(lake, table, version)
        if table == "quarantine":
            monkeypatch.setattr(Lake, "open", open_table)
            Rewriter(lake, FileLimits(1 << 27, 1 << 20)).rewrite(table, table_files(opened, table))
        return opened

    writer = new_ingest(lake_of_beside_maintenance)
    monkeypatch.setattr(Lake, "open", overtaken)
    take_in(lake_of_beside_maintenance, writer, [b"bad9", b"bad1", batch(9)])
    assert lake_of_beside_maintenance.rows("quarantine").num_rows == 4
    assert lake_of_beside_maintenance.rows("ingest_batches").num_rows == 4
    assert check(lake_of_beside_maintenance) == IntervalSet([(1, 3), (9, 9)])


def test_a_duplicate_is_compared_with_one_of_many_large_payloads(
    lake_of_beside_maintenance: Lake,
) -> None:
    large = bytes(1 << 20)
    take_in(
        lake_of_beside_maintenance,
        new_ingest(lake_of_beside_maintenance),
        [raw(*range(at, at + 7), payload=large) for at in range(10, 220, 7)],
    )
    run(lake_of_beside_maintenance)
    again = [raw(10, payload=b"x"), raw(200, payload=large)]
    take_in(lake_of_beside_maintenance, new_ingest(lake_of_beside_maintenance), again)
    conflicts = lake_of_beside_maintenance.rows("quarantine", ["seq"], where=[("cause", "=", "conflict")])
    assert conflicts["seq"].to_pylist() == [10]


NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Rows of malformed messages, each with a digest as its fingerprint."""
    made = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(first, last))
    return [{"cause": "malformed", "fingerprint": one, "detail": "x", "quarantined_at": NOW} for one in made]


CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}


class Queries:
    """Queries that end as the script says: None in order, an error with how many micro-batches were done before."""

    def __init__(self, *script: tuple[Exception | None, int], fenced: Fenced | None = None) -> None:
        self._script = iter(script)
        self._fenced = fenced
        self.started = self.stopped = 0

    def start(self) -> Any:
        self.started += 1
        failure, completed = next(self._script)
        query = SimpleNamespace(isActive=False, exception=lambda: failure, stop=self._stop)
        micro_batch = SimpleNamespace(completed=completed, fenced=self._fenced)
        return SimpleNamespace(query=query, micro_batch=micro_batch, records_version=0)

    def _stop(self) -> None:
        self.stopped += 1


def settings(tmp_path: Path, restarts: int) -> CloudSettings:
    document = {"lake": tmp_path, "checkpoints": tmp_path, "clusters": [CLUSTER]}
    return CloudSettings.model_validate(document | {"ingest": {"restarts": restarts, "restart_wait_s": 1e-6}})


GONE = OSError("the cluster is gone")


def test_a_micro_batch_that_was_completed_begins_the_count_of_failures_anew(tmp_path: Path) -> None:
    queries = Queries((GONE, 0), (GONE, 0), (GONE, 1), (GONE, 0), (None, 0))
    run_query(queries.start, settings(tmp_path, 2), threading.Event())
    assert (queries.started, queries.stopped) == (5, 5)


def test_more_failures_in_a_row_than_allowed_end_it_with_the_last_one(tmp_path: Path) -> None:
    queries = Queries(*[(GONE, 0)] * 3)
    with pytest.raises(CloudError, match="3 times in a row: the cluster is gone") as failed:
        run_query(queries.start, settings(tmp_path, 2), threading.Event())
    assert failed.value.__cause__ is GONE


def test_a_store_that_does_not_answer_is_asked_again_and_named_when_it_stays_away(tmp_path: Path) -> None:
    lost = StoreUnavailable("http://store:9000", "Connection refused")
    queries = Queries((None, 1))
    absent = iter([lost, lost])

    def start() -> Any:
        for error in absent:
            raise error
        return queries.start()

    run_query(start, settings(tmp_path, 2), threading.Event())
    assert queries.started == 1
    absent = iter([lost] * 3)
    with pytest.raises(StoreUnavailable, match="http://store:9000 does not answer: Connection refused"):
        run_query(start, settings(tmp_path, 2), threading.Event())


def test_each_failure_is_counted_and_the_query_is_up_only_while_it_runs(tmp_path: Path) -> None:
    metrics = IngestMetrics()
    up = list[float | None]()

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name)

    queries = Queries((GONE, 0), (GONE, 1), (None, 0))

    def start() -> Any:
        up.append(value("waybill_ingest_query_up"))
        return queries.start()

    run_query(start, settings(tmp_path, 2), threading.Event(), metrics)
    assert (up, value("waybill_ingest_query_up")) == ([0, 0, 0], 0)
    assert value("waybill_ingest_query_failures_total") == 2
