"""A folder is marked before it is written to, held by one process at a time, and emptied only when it is ours."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from deploy.local import FolderNotOurs, StackInUse, StackNotRunning, StackState
from deploy.local.cli import start_in_background, stop_running
from deploy.local.folder import ProcessIdentity, claim, empty, hold, holder
from tests.waiting import PATIENCE

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom deploy.local.folder import hold\n"
    "with hold(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait(10 * PATIENCE)


def held_by_another(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_folder_is_held_by_one_process_at_a_time_which_is_known(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with hold(tmp_path):
        assert holder(tmp_path) == ProcessIdentity.mine()
        with pytest.raises(StackInUse, match="waybill down"), hold(tmp_path):
            pass
    assert holder(tmp_path) is None


def test_a_folder_with_content_of_others_is_neither_taken_nor_emptied_nor_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    def detach() -> None:
        start_in_background(tmp_path, ["--fresh"], timeout_s=1, on_state=lambda _: None)

    for attempt in (lambda: claim(tmp_path), lambda: empty(tmp_path), detach):
        with pytest.raises(FolderNotOurs, match="nothing was written or deleted"):
            attempt()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["thesis.txt"]


def test_emptying_our_folder_keeps_what_is_asked_and_never_follows_a_link_out_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("years of work")
    ours = tmp_path / "ours"
    claim(ours)
    (ours / "up.log").write_text("")
    (ours / "pulsar-hq").mkdir()
    (ours / "pulsar-hq" / "data").write_text("")
    (ours / "link").symlink_to(outside, target_is_directory=True)
    empty(ours, keep=frozenset({"up.log"}))
    assert sorted(entry.name for entry in ours.iterdir() if not entry.name.startswith(".")) == ["up.log"]
    assert (outside / "thesis.txt").read_text() == "years of work"


def test_a_folder_in_use_is_not_emptied(tmp_path: Path) -> None:
    with hold(tmp_path):
        (tmp_path / "data").write_text("")
        with pytest.raises(StackInUse):
            empty(tmp_path)
    assert (tmp_path / "data").exists()


def test_a_stack_that_failed_says_so_afterwards(tmp_path: Path) -> None:
    mine = ProcessIdentity.mine()
    StackState(
        supervisor=mine, phase="failed", detail="server mosquitto-eu was ended", started_s=0.0, servers=[], links={}
    ).save(tmp_path)
    for ask in (StackState.load, stop_running):
        with pytest.raises(StackNotRunning, match="the last one failed: server mosquitto-eu was ended"):
            ask(tmp_path)


def test_many_who_claim_a_new_folder_at_once_all_get_it(tmp_path: Path) -> None:
    def claimed(folder: Path) -> None:
        gate.wait(30)
        try:
            claim(folder)
            (folder / f"content-{threading.get_ident()}").write_text("")
        except FolderNotOurs as refused:
            refusals.append(refused)

    refusals: list[FolderNotOurs] = []
    for attempt in range(100):
        gate = threading.Barrier(4)
        threads = [Thread(target=claimed, args=(tmp_path / str(attempt),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert refusals == []


def test_a_holder_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    process = held_by_another(tmp_path)
    assert process.stdout is not None
    with process.stdout:
        known = holder(tmp_path)
        assert known is not None
        assert known.pid == process.pid
        process.kill()
        process.wait(10 * PATIENCE)
    assert holder(tmp_path) is None


def test_down_stops_the_process_that_holds_the_folder(tmp_path: Path) -> None:
    process = held_by_another(tmp_path)
    assert process.stdout is not None
    with process.stdout:
        assert stop_running(tmp_path, timeout_s=10)
        assert process.wait(10 * PATIENCE) == -signal.SIGTERM
    with pytest.raises(StackNotRunning):
        stop_running(tmp_path)


def test_a_process_that_got_the_id_of_another_is_never_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    known = ProcessIdentity.of(sleeper.pid)
    assert known is not None
    for change in ({"start_ticks": known.start_ticks - 1}, {"boot_id": "another"}):
        other = known.model_copy(update=change)
        assert not other.lives
        assert not other.send(signal.SIGKILL)
    assert sleeper.poll() is None
    assert known.send(signal.SIGTERM)
    assert sleeper.wait(10 * PATIENCE) == -signal.SIGTERM
    assert not known.send(signal.SIGTERM)


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def marked_by_hand(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    (folder / ".waybill-folder").write_bytes(content)


@pytest.mark.parametrize("content", [b"", b"\n", b"Made by waybill\n", b"x" * 100_000, b"\x00\xff", b"1\n2\n3\n"])
def test_a_file_of_the_marks_name_with_other_content_makes_no_folder_ours(tmp_path: Path, content: bytes) -> None:
    marked_by_hand(tmp_path / "d", content)
    for attempt in (claim, empty):
        with pytest.raises(FolderNotOurs, match=r"\.waybill-folder.*nothing was written or deleted"):
            attempt(tmp_path / "d")
    assert (tmp_path / "d" / ".waybill-folder").read_bytes() == content
    assert (tmp_path / "d" / "thesis.txt").exists()


def a_link(to: Path, mark: Path) -> None:
    mark.symlink_to(to)


def a_second_name(to: Path, mark: Path) -> None:
    mark.hardlink_to(to)


def a_folder(_: Path, mark: Path) -> None:
    mark.mkdir()


def a_pipe(_: Path, mark: Path) -> None:
    os.mkfifo(mark)


@pytest.mark.parametrize("make", [a_link, a_second_name, a_folder, a_pipe])
@pytest.mark.parametrize("target", ["absent", "empty", "ours"])
def test_a_mark_that_is_no_file_of_its_own_is_refused_and_what_it_leads_to_stays(
    tmp_path: Path, make: Callable[[Path, Path], None], target: str
) -> None:
    other = tmp_path / "other"
    claim(other)
    place = {"absent": tmp_path / "new", "empty": tmp_path / "mine", "ours": other / ".waybill-folder"}[target]
    (tmp_path / "mine").touch()
    if target == "absent" and make is a_second_name:
        pytest.skip("a hard link needs its file")
    for name in ("filled", "bare"):
        (tmp_path / name).mkdir()
        make(place, tmp_path / name / ".waybill-folder")
    (tmp_path / "filled" / "thesis.txt").write_text("years of work")
    before, content = tree(tmp_path), (other / ".waybill-folder").read_bytes()
    for name in ("filled", "bare"):
        for attempt in (claim, empty):
            with pytest.raises(FolderNotOurs, match="a link, or no regular file"):
                attempt(tmp_path / name)
        assert holder(tmp_path / name) is None
    assert tree(tmp_path) == before
    assert (tmp_path / "mine").read_bytes() == b""
    assert (other / ".waybill-folder").read_bytes() == content


def test_a_folder_in_which_another_stack_runs_is_not_emptied(tmp_path: Path) -> None:
    claim(tmp_path)
    process = held_by_another(tmp_path / "a" / "local")
    assert process.stdout is not None
    with process.stdout:
        before = tree(tmp_path)
        with pytest.raises(StackInUse, match="a/local"):
            empty(tmp_path)
        process.kill()
        process.wait(10 * PATIENCE)
    assert tree(tmp_path) == before


def test_nobody_else_on_the_machine_reads_what_a_stack_keeps(tmp_path: Path) -> None:
    folder = tmp_path / "stack"
    folder.mkdir(mode=0o755)
    with hold(folder):
        assert folder.stat().st_mode & 0o777 == 0o700
