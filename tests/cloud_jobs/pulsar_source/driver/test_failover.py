import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_jobs.pulsar_source.cluster_monitor import Failover, FailoverFile, FailoverState, QueryIdentity
from cloud_jobs.pulsar_source.options import FailoverFileError, PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition, Offset

ON_HQ = Offset("hq", {"t": LedgerPosition(7, 3)})
MINE = QueryIdentity("4f", "ingest", "t")
ON_DR = Offset("dr", {"t": LedgerPosition(2, 1)})


def test_reading_goes_on_from_the_offset_in_the_same_cluster_and_from_the_cursor_in_another():
    assert not FailoverState("hq").restarts_at_cursor(ON_HQ)
    assert FailoverState("hq").with_active("dr").restarts_at_cursor(ON_HQ)
    assert not FailoverState("hq").with_active("dr").restarts_at_cursor(ON_DR)


def test_after_a_batch_that_was_closed_unread_reading_begins_at_the_cursor_even_where_it_was_planned():
    #   planned on hq ... hq dies, closed unread ... hq is back and ordered again
    state = FailoverState("hq").with_abandoned(ON_HQ).with_active("dr").with_active("hq")
    assert state.restarts_at_cursor(ON_HQ)
    assert not state.restarts_at_cursor(Offset("hq", {"t": LedgerPosition(8, 0)}))


def test_the_state_outlives_the_process(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "deep" / "failover.json")
    assert kept.load() is None
    state = (
        FailoverState("hq").with_abandoned(ON_HQ).with_active("dr").with_created("dr", ["t"]).with_created("dr", ["u"])
    )
    kept.save(MINE, state)
    assert FailoverFile(tmp_path / "deep" / "failover.json").load() == (MINE, state)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["failover.json"]


GOOD = json.loads('{"version": 2, "query": "q", "subscription": "s", "topics": "t", "active": "hq", "abandoned": []}')


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"active": "hq", "abandoned": []}',
        *(json.dumps({key: value for key, value in GOOD.items() if key != left_out}).encode() for left_out in GOOD),
        *(json.dumps(GOOD | {key: wrong}).encode() for key in GOOD for wrong in (None, 3, "", ["x", 1])),
        *(json.dumps(GOOD | {"created": wrong}).encode() for wrong in (None, 3, ["t"], {"dr": "t"}, {"dr": [1]})),
    ],
)
def test_other_content_is_refused_in_words_that_say_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "failover.json").write_bytes(content)
    with pytest.raises(FailoverFileError, match="remove this one"):
        FailoverFile(tmp_path / "failover.json").load()


def test_a_full_disk_is_an_error_of_ours_and_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    kept.save(MINE, FailoverState("hq"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(FailoverFileError, match="No space left"):
            kept.save(MINE, FailoverState("dr"))
    assert kept.load() == (MINE, FailoverState("hq"))


def test_a_switchover_request_is_read_and_then_removed(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    assert kept.switchover_request() is None
    (tmp_path / "failover.json.switchover").write_text(" dr\n")
    assert kept.switchover_request() == "dr"
    kept.clear_switchover_request()
    assert kept.switchover_request() is None


HQ, DR = "hq=pulsar://h:1|http://h:2", "dr=pulsar://d:1|http://d:2"


def options(folder: Path | None, clusters: str = f"{HQ},{DR}") -> PulsarOptions:
    file = {"failoverFile": str(folder / "failover.json")} if folder else {}
    return PulsarOptions.parse({"clusters": clusters, "topics": "t", "subscription": "s"} | file)


def bound(folder: Path, wall_s: Callable[[], float]) -> Failover:
    failover = Failover(options(folder), wall_s)
    failover.bind_checkpoint(Offset("hq", {}, query=failover.start_query()))
    return failover


def test_a_file_that_names_a_cluster_which_the_options_do_not_know_is_refused(tmp_path: Path) -> None:
    bound(tmp_path, lambda: 0.0).switch_to("dr", "lost")
    with pytest.raises(FailoverFileError, match="the options know only hq"):
        Failover(options(tmp_path, HQ))
