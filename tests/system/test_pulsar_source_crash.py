"""Drivers, Python workers and brokers are killed; the output has every message exactly once.

A message is what the broker stored under an id: a producer whose broker dies sends again what was stored and not yet
acknowledged, so a number may be there twice, under two ids.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from deploy.local import PulsarCluster
from tests.cloud_jobs.pulsar_source.world import LiveCluster, MessageSender, eventually
from tests.system.own_pulsar import own_pulsar
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.system, pytest.mark.own_servers, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    with own_pulsar("hq", tmp_path_factory.mktemp("hq")) as server:
        yield server


@pytest.fixture
def hq(cluster: PulsarCluster) -> Iterator[LiveCluster]:
    place = LiveCluster.of(cluster)
    yield place
    place.close()


class QueryProcess:
    """A streaming query into Parquet files in a process of its own."""

    def __init__(self, folder: Path, place: LiveCluster, topic: str) -> None:
        self._folder = folder
        self._options = {**place.options, "topics": topic, "subscription": "s", "maxMessagesPerTrigger": "20000"}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, available_now: bool = False) -> subprocess.Popen[bytes]:
        spec = {
            "options": self._options,
            "checkpoint": str(self._folder / "checkpoint"),
            "output": str(self._folder / "output"),
            "available_now": available_now,
            "master": "local[2,4]",
        }
        (self._folder / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "tests.cloud_jobs.pulsar_source.query", str(self._folder / "spec.json")]
        with (self._folder / "query.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        return self.process

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20 * PATIENCE)

    def finish(self) -> None:
        """Reads what is left, to the end."""
        assert self.start(available_now=True).wait(180) == 0, (self._folder / "query.log").read_text()[-3000:]

    def numbers(self) -> list[int]:
        return self._column("number")

    def message_ids(self) -> list[str]:
        return self._column("message_id")

    def _column(self, name: str) -> list[Any]:
        files = (self._folder / "output").glob("*.parquet")
        return [value for file in files for value in pq.read_table(file, columns=[name]).column(name).to_pylist()]

    def workers(self) -> list[psutil.Process]:
        """The Python processes that Spark's daemon forked for tasks."""
        assert self.process is not None
        return [
            worker
            for child in _children(psutil.Process(self.process.pid), recursive=True)
            if "pyspark.daemon" in _command(child)
            for worker in _children(child)
            if _command(worker)
        ]


def _children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    try:
        return process.children(recursive=recursive)
    except psutil.Error:  # it has just ended
        return []


def _command(process: psutil.Process) -> str:
    """What it was started with; empty once it has ended, also while nobody has taken its exit status yet."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [1, 12])
def test_every_message_is_in_the_output_once_after_kills_of_driver_worker_and_broker(
    cluster: PulsarCluster, hq: LiveCluster, tmp_path: Path, kills: int
) -> None:
    topic = hq.new_topic(2)
    query = QueryProcess(tmp_path, hq, topic)
    with MessageSender(hq, topic, 200) as sender:
        for _ in range(kills):
            query.start()
            eventually("the query writes", grows(query), 120)
            kill_a_worker(query)
            eventually("the query writes after the worker's death", grows(query), 120)
            cluster.kill()
            cluster.start()
            cluster.wait()
            eventually("the query writes after the broker's death", grows(query), 120)
            query.kill()
    query.finish()
    message_ids = query.message_ids()
    assert len(message_ids) == len(set(message_ids)), "a message is in the output twice"
    assert set(query.numbers()) >= set(sender.sent)


def grows(query: QueryProcess) -> Callable[[], bool]:
    """Whether the output grew since; a query that ended (its planner can be the worker killed) is started again."""
    before = len(query.numbers())

    def grown() -> bool:
        assert query.process is not None
        if query.process.poll() is not None:
            query.start()
        return len(query.numbers()) > before

    return grown


def kill_a_worker(query: QueryProcess) -> None:
    victim = eventually("a Python worker", query.workers)[0]
    time.sleep(0.2)
    victim.kill()
