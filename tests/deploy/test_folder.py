"""A folder is marked before it is written to, held by one process at a time, and emptied only when it is ours."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import FolderNotOurs, StackInUse, StackNotRunning
from deploy.local.cli import start_in_background, stop_running
from deploy.local.folder import claim, empty, hold, holder
from tests.waiting import PATIENCE

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom deploy.local.folder import hold\n"
    "with hold(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


def held_by_another(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_folder_is_held_by_one_process_at_a_time_which_is_known(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with hold(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(StackInUse, match="waybill down"), hold(tmp_path):
            pass
    assert holder(tmp_path) is None


def test_a_folder_with_content_of_others_is_neither_taken_nor_emptied_nor_written_to(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    def detach() -> None:
        start_in_background(tmp_path, ["--fresh"], timeout_s=1)

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


def test_a_holder_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    process = held_by_another(tmp_path)
    assert process.stdout is not None
    with process.stdout:
        assert holder(tmp_path) == process.pid
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


def test_a_process_that_got_the_id_of_another_is_never_signalled(tmp_path: Path) -> None:
    claim(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        (tmp_path / ".waybill-lock").write_text(str(other.pid))
        with pytest.raises(StackNotRunning):
            stop_running(tmp_path)
        assert other.poll() is None
        other.kill()


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
        with pytest.raises(FolderNotOurs, match="nothing was written or deleted"):
            attempt(tmp_path / "d")
    assert (tmp_path / "d" / ".waybill-folder").read_bytes() == content
    assert (tmp_path / "d" / "thesis.txt").exists()


def test_a_folder_in_which_another_stack_runs_is_not_emptied(tmp_path: Path) -> None:
    claim(tmp_path)
    process = held_by_another(tmp_path / "a" / "local")
    assert process.stdout is not None
    with process.stdout:
        before = tree(tmp_path / "a")
        with pytest.raises(StackInUse, match="a/local"):
            empty(tmp_path)
        process.kill()
        process.wait(10 * PATIENCE)
    assert tree(tmp_path / "a") == before


def test_nobody_else_on_the_machine_reads_what_a_stack_keeps(tmp_path: Path) -> None:
    folder = tmp_path / "stack"
    folder.mkdir(mode=0o755)
    with hold(folder):
        assert folder.stat().st_mode & 0o777 == 0o700
