"""The source between two data centres: hq burns, dr takes over from the replicated cursor, and back again."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from deploy.local import LocalStack, PulsarCluster
from tests.cloud_jobs.pulsar_source.world import (
    DeliveredBatches,
    LiveCluster,
    MessageSender,
    eventually,
    offsets,
    running_again,
    stream,
)

# minutes of two clusters; the state machine of the source is led through the same losses in every run
pytestmark = [pytest.mark.system, pytest.mark.nightly]

TOPOLOGY = """
centre = "hq"
standby = "dr"
[clusters.eu]
[clusters.hq]
[clusters.dr]
[regions.eu]
cluster = "eu"
[tenants.fleet]
[namespaces."fleet/telemetry-{region}"]
retention = { minutes = 600, size_mb = 1024 }
"""
RATE = 400
SNAPSHOT_S = 1.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("two-centres")
    (folder / "topology.toml").write_text(TOPOLOGY)
    with LocalStack(folder / "stack", topology=folder / "topology.toml") as running_stack:
        yield running_stack


@pytest.fixture
def places(stack: LocalStack) -> Iterator[dict[str, LiveCluster]]:
    for server in stack.pulsar.values():
        server.start()
        server.wait()
    found = {name: LiveCluster.of(server, "fleet/telemetry-eu") for name, server in stack.pulsar.items()}
    yield found
    for place in found.values():
        place.close()


@pytest.fixture
def topic(places: dict[str, LiveCluster]) -> str:
    return places["eu"].new_topic(2, also_in=[places["hq"], places["dr"]])


def centres(places: dict[str, LiveCluster]) -> dict[str, str]:
    return places["hq"].options | {"clusters": ",".join(places[name].text for name in ("hq", "dr"))}


def killed(server: PulsarCluster) -> Callable[[], None]:
    """The power is cut; returns how it comes back."""
    server.kill()

    def back() -> None:
        server.start()
        server.wait()

    return back


def frozen(server: PulsarCluster) -> Callable[[], None]:
    """It takes connections and answers nothing; returns how it comes back."""
    process = psutil.Process(server.pid)
    process.suspend()
    return process.resume


@pytest.mark.parametrize("lost", [killed, frozen])
def test_a_running_query_goes_on_at_dr_and_comes_back_to_hq_without_a_gap(
    stack: LocalStack,
    places: dict[str, LiveCluster],
    topic: str,
    *,
    spark: SparkSession,
    tmp_path: Path,
    lost: Callable[[PulsarCluster], Callable[[], None]],
) -> None:
    collected, state, request = DeliveredBatches(), tmp_path / "active.json", tmp_path / "active.json.switchover"
    frame = stream(spark, centres(places), topics=topic, subscription="ingest", failoverFile=str(state))
    with MessageSender(places["eu"], topic, RATE) as sender, running_again(frame, collected, tmp_path / "checkpoint"):
        eventually("the cursor of dr follows", lambda: travelled(places["dr"], topic))
        eventually("the query reads", collected.sizes)
        time.sleep(3)
        come_back = lost(stack.pulsar["hq"])
        lost_at, known, largest = time.monotonic(), set(collected.numbers()), max(collected.sizes())
        eventually("dr is read", lambda: "dr" in changes(tmp_path / "checkpoint"))
        eventually("records come through dr", lambda: set(collected.numbers()) - known)
        first_s = time.monotonic() - lost_at
        time.sleep(1)
        again = collected.duplicates()
        come_back()
        back_at = places["hq"].cursors(topic, "ingest")
        eventually("the cursor of hq follows", lambda: differ(back_at, places["hq"].cursors(topic, "ingest")))
        request.write_text("dr")
        eventually("a request for where it reads is removed", lambda: not request.exists())
        request.write_text("hq")
        eventually("the cluster is switched", lambda: not request.exists())
        time.sleep(2)
        sender.stop()
        eventually("everything is there", lambda: set(collected.numbers()) >= set(sender.sent))
    assert set(collected.numbers()) == set(sender.sent)
    assert changes(tmp_path / "checkpoint") == ["hq", "dr", "hq"]
    sys.stdout.write(f"first record after {first_s:.1f} s, {again} came again ({RATE} a second)\n")
    assert again <= 2 * largest + RATE * SNAPSHOT_S


def test_a_batch_planned_on_hq_when_it_died_is_completed_after_a_restart(
    stack: LocalStack, places: dict[str, LiveCluster], topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    collected, state = DeliveredBatches(), tmp_path / "active.json"
    frame = stream(spark, centres(places), topics=topic, subscription="ingest", failoverFile=str(state))

    def kill_hq(batch: int) -> None:
        if len(collected.numbers()) > 4 * RATE and travelled(places["dr"], topic):
            collected.before = lambda _: None
            stack.pulsar["hq"].kill()

    with MessageSender(places["eu"], topic, RATE) as sender:
        collected.before = kill_hq
        with running_again(frame, collected, tmp_path / "checkpoint") as supervised:
            eventually("dr is read", lambda: "dr" in changes(tmp_path / "checkpoint"))
            time.sleep(1)
            # hq comes back at once, but the records of the batch that was closed unread must come through dr.
            stack.pulsar["hq"].start()
            stack.pulsar["hq"].wait()
            time.sleep(1)
            sender.stop()
            eventually("everything is there", lambda: set(collected.numbers()) >= set(sender.sent))
    assert set(collected.numbers()) == set(sender.sent)
    assert changes(tmp_path / "checkpoint") == ["hq", "dr"]
    assert supervised.failures


def travelled(where: LiveCluster, topic: str) -> bool:
    return all(position and not position.endswith(":-1") for position in where.cursors(topic, "ingest").values())


def differ(old: dict[str, str | None], new: dict[str, str | None]) -> bool:
    return all(old[partition] != new[partition] for partition in old)


def changes(checkpoint: Path) -> list[str]:
    """The clusters in the order in which they were read."""
    named = [offset["cluster"] for offset in offsets(checkpoint)]
    return [name for index, name in enumerate(named) if index == 0 or named[index - 1] != name]
