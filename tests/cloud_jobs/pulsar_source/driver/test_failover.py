import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cloud_jobs.pulsar_source.driver.cluster_monitor import Failover, FailoverFile, FailoverState, QueryIdentity
from cloud_jobs.pulsar_source.errors import FailoverFileError
from cloud_jobs.pulsar_source.options import PulsarOptions
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


@pytest.mark.parametrize("size", range(0, len(json.dumps(GOOD)), 7))
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "failover.json").write_text(json.dumps(GOOD)[:size])
    with pytest.raises(FailoverFileError):
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


def test_a_folder_in_the_place_of_the_file_or_of_the_order_is_an_error_of_ours(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    (tmp_path / "failover.json").mkdir()
    (tmp_path / "failover.json.switchover").mkdir()
    with pytest.raises(FailoverFileError):
        kept.load()
    with pytest.raises(FailoverFileError):
        kept.switchover_request()


def test_a_switchover_request_is_read_and_then_removed(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    assert kept.switchover_request() is None
    (tmp_path / "failover.json.switchover").write_text(" dr\n")
    assert kept.switchover_request() == "dr"
    kept.clear_switchover_request()
    assert kept.switchover_request() is None


@pytest.mark.parametrize("there_at_start", [True, False])
def test_a_request_under_its_former_name_is_refused_once_and_named_as_it_is_called_now(
    tmp_path: Path, there_at_start: bool
) -> None:
    misnamed = tmp_path / "failover.json.order"
    with capture_logs() as lines:
        if there_at_start:
            misnamed.write_text("dr")
        failover = Failover(options(tmp_path))
        misnamed.write_text("dr")
        assert failover.accept_switchover_request() is None
        assert failover.accept_switchover_request() is None
        assert misnamed.exists()
        refused = {
            "event": "the switchover request has a former name",
            "log_level": "error",
            "refused": str(misnamed),
            "rename_to": str(tmp_path / "failover.json.switchover"),
        }
        assert lines == [refused]
        misnamed.rename(tmp_path / "failover.json.switchover")
        assert failover.accept_switchover_request() == "dr"
        misnamed.write_text("dr")
        failover.accept_switchover_request()
        assert lines == [refused, refused]


def test_what_is_kept_is_bounded():
    state = FailoverState("hq")
    for number in range(100):
        state = state.with_abandoned(Offset("hq", {"t": LedgerPosition(number, 0)}))
    assert len(state.abandoned) == 16
    assert state.is_abandoned(Offset("hq", {"t": LedgerPosition(99, 0)}))


def test_when_the_cluster_was_heard_last_is_kept_for_the_next_process(tmp_path: Path) -> None:
    kept = FailoverFile(tmp_path / "failover.json")
    assert kept.last_answer_s() is None
    assert not kept.record_answer(1_767_603_422.5)
    kept.save(MINE, FailoverState("dr"))
    assert kept.record_answer(1_767_603_422.5)
    assert kept.last_answer_s() == 1_767_603_422.5
    assert kept.load() == (MINE, FailoverState("dr"))


HQ, DR = "hq=pulsar://h:1|http://h:2", "dr=pulsar://d:1|http://d:2"


def options(folder: Path | None, clusters: str = f"{HQ},{DR}") -> PulsarOptions:
    file = {"failoverFile": str(folder / "failover.json")} if folder else {}
    return PulsarOptions.parse({"clusters": clusters, "topics": "t", "subscription": "s"} | file)


def bound(folder: Path, wall_s: Callable[[], float]) -> Failover:
    failover = Failover(options(folder), wall_s)
    failover.bind_checkpoint(Offset("hq", {}, query=failover.start_query()))
    return failover


def test_an_answer_of_the_active_cluster_is_noted_once_a_second_for_the_next_process(tmp_path: Path) -> None:
    now = [1000.0]
    failover = bound(tmp_path, lambda: now[-1])
    for moment_s, heard_s in ((1000.5, None), (1001.0, 1001.0), (1001.9, 1001.0), (1002.0, 1002.0)):
        now.append(moment_s)
        failover.on_answer("dr")  # not the active one: it says nothing
        failover.on_answer("hq")
        age_s = Failover(options(tmp_path), lambda: now[-1]).last_answer_age_s()
        assert age_s is not None
        assert heard_s is None or age_s == pytest.approx(moment_s - heard_s)


def test_a_file_that_somebody_removes_while_the_query_runs_is_there_again_with_the_next_answer(tmp_path: Path) -> None:
    now = [1000.0]
    failover = bound(tmp_path, lambda: now[-1])
    failover.switch_to("dr", "lost")
    (tmp_path / "failover.json").unlink()
    now.append(1002.0)
    failover.on_answer("dr")
    assert Failover(options(tmp_path)).state.active == "dr"


def test_a_change_is_on_disk_before_it_counts(tmp_path: Path) -> None:
    failover = bound(tmp_path, lambda: 0.0)
    (tmp_path / "failover.json").unlink()
    (tmp_path / "failover.json").mkdir()  # nothing can be written there
    with pytest.raises(FailoverFileError):
        failover.abandon(ON_HQ)
    assert not failover.state.is_abandoned(ON_HQ)


def test_without_a_file_the_state_is_kept_in_memory_and_nobody_can_ask_for_a_switchover() -> None:
    failover = Failover(options(None, HQ))
    failover.bind_checkpoint(Offset("hq", {}, query=failover.start_query()))
    failover.abandon(ON_HQ)
    failover.clear_switchover_request()
    assert failover.state.is_abandoned(ON_HQ)
    assert failover.accept_switchover_request() is None
    assert failover.last_answer_age_s() is None


def test_a_file_that_names_a_cluster_which_the_options_do_not_know_is_refused(tmp_path: Path) -> None:
    bound(tmp_path, lambda: 0.0).switch_to("dr", "lost")
    with pytest.raises(FailoverFileError, match="the options know only hq"):
        Failover(options(tmp_path, HQ))
