"""`make test` with stand-ins for its parts: interrupted, it ends what it started, and shows what was printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.folder import ProcessIdentity

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 60
BESIDE = [
    "tests/system system and not own_servers and not alone and not nightly",
    "tests/system own_servers and not nightly",
    "--ignore=tests/cloud_jobs not system and not nightly",
    "tests/cloud_jobs not system and not nightly",
]
STAND_IN = """
import os, signal, subprocess, sys, time
from pathlib import Path

part = f'{sys.argv[1]} {sys.argv[sys.argv.index("-m") + 1]}'
print("began:", part, flush=True)
if os.environ["STAND_IN"] == "fails":
    sys.exit(1)
# what the tests start: in a session of its own, so that only its part can end it
server = subprocess.Popen(["sleep", "600"], start_new_session=True)
beginning = Path(os.environ["SEEN"], f"{os.getpid()}.part")
beginning.write_text(f"{os.getpid()} {server.pid}")
beginning.rename(beginning.with_suffix(".ready"))
try:
    while True:
        time.sleep(600)
except KeyboardInterrupt:
    server.terminate()
    server.wait()
    print("stopped its server:", part, flush=True)
    sys.exit(2)
"""


@contextmanager
def make_test(folder: Path, stand_in: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "stand_in.py").write_text(STAND_IN)
    for name in ("seen", "tmp"):
        (folder / name).mkdir()
    make = subprocess.Popen(
        [
            "make",
            "--old-file=setup",
            "test",
            f"PYTHON={sys.executable}",
            f"PYTEST={sys.executable} {folder}/stand_in.py",
        ],
        cwd=ROOT,
        env={**os.environ, "STAND_IN": stand_in, "SEEN": str(folder / "seen"), "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield make
    finally:
        if make.poll() is None:
            os.killpg(make.pid, signal.SIGKILL)
            make.communicate()


def when_begun(make: subprocess.Popen[str], folder: Path) -> list[ProcessIdentity]:
    """The parts that run beside each other, and their servers."""
    deadline = time.monotonic() + BOUND_S
    while len(ready := list((folder / "seen").glob("*.ready"))) < len(BESIDE):
        assert make.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found = [ProcessIdentity.of(int(pid)) for file in ready for pid in file.read_text().split()]
    return [one for one in found if one is not None]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_ends_what_it_started_and_shows_what_was_printed(
    tmp_path: Path, number: signal.Signals
) -> None:
    with make_test(tmp_path, "serves") as make:
        begun = when_begun(make, tmp_path)
        assert len(begun) == 2 * len(BESIDE)
        # Ctrl-C reaches everything in the terminal's group, a SIGTERM only whom it is sent to.
        (os.killpg if number == signal.SIGINT else os.kill)(make.pid, number)
        output, _ = make.communicate(timeout=BOUND_S)
    assert make.returncode != 0
    for part in BESIDE:
        assert output.count(f"began: {part}\n") == 1
        assert output.count(f"stopped its server: {part}\n") == 1
    assert output.count("began: ") == len(BESIDE), "the last part must not begin"
    assert [one for one in begun if one.lives] == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_every_part_runs_whatever_fails(tmp_path: Path) -> None:
    with make_test(tmp_path, "fails") as make:
        output, _ = make.communicate(timeout=BOUND_S)
    assert make.returncode == 2, "make's own for a recipe that failed"
    assert output.count("began: ") == len(BESIDE) + 1
