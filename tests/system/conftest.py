"""One real stack for all system tests: Pulsar eu, us and hq, the regional brokers, and cuttable links.

    stack.pulsar["hq"].service_url    pulsar://...   (also .admin_url, .kill(), .start(), .wait())
    stack.brokers["eu"].port          the region's MQTT broker, directly
    stack.links["eu"]                 the same broker over a link: .port, .cut(), .heal(), .delay(seconds)
    stack.links["eu->hq"]             what eu replicates to hq
    stack.add(DaemonProcess.python(name, module, arguments, folder, healthy_when=answers(url)))

The stack is shared, so a test leaves links healed and clusters running, and uses topics and devices of its own. A test
that must break what others use starts a `LocalStack`, or single servers, of its own in `tmp_path`.
"""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.lake import location
from deploy.local import LocalStack, ObjectStore
from tests.cloud_jobs.pulsar_source.world import LiveCluster, session
from tests.pulsar_clients import allow_new_topics
from tests.system.dying_store import DyingStore
from tests.waiting import PATIENCE

# Spark's JVM lives for a few minutes: the quick compiler alone costs less than the other one gains. A Spark that a test
# starts as a command has it too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The limit of a test counts the test alone, and is as patient as its waits.

    Whichever comes first starts the servers, each within a bound of its own, and Spark: minutes on a busy machine.
    """
    usual_s = float(config.getini("timeout"))
    for item in items:
        if item.get_closest_marker("system"):
            limit = item.get_closest_marker("timeout")
            limit_s = limit.args[0] if limit else usual_s
            item.add_marker(pytest.mark.timeout(limit_s * PATIENCE, func_only=True), append=False)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with LocalStack(tmp_path_factory.mktemp("stack")) as running:
        for cluster in running.pulsar.values():
            allow_new_topics(cluster)
        yield running
        for server in running.pulsar.values():
            server.kill()  # nobody needs what it has, and a stop in order may take its 20 s


@pytest.fixture(scope="module")
def hq(stack: LocalStack) -> Iterator[LiveCluster]:
    """The centre's cluster, as the tests of the source speak to it."""
    server = stack.pulsar["hq"]
    place = LiveCluster.of(server)
    yield place
    place.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark with the format `pulsar` for all tests of this process."""
    running = session()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An S3 server of the module's own."""
    running = ObjectStore(tmp_path_factory.mktemp("store") / "s3")
    running.start()
    running.wait()
    yield running
    running.kill()


@pytest.fixture
def dying(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[DyingStore]:
    """A way to the server on which it can be lost."""
    # who is not answered asks no second time: the store is gone for good
    monkeypatch.setattr(location, "_ATTEMPTS", 0)
    monkeypatch.setattr(location, "_ARROW_ATTEMPTS", 1)
    made = DyingStore(store.port)
    yield made
    made.stop()
