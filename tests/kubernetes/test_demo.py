"""The demo on a real cluster: the truth at the end, with pods killed, charts upgraded, and nodes that end."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy.kubernetes.demo.acts import What
from tests.kubernetes.real_cluster import running_cluster

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with running_cluster("gateway", "centre", "pulsar", nodes=3):
        yield


@pytest.mark.parametrize("what", [what.value for what in What])
def test_bills_equal_the_truth_whatever_happens_on_the_way(what: str) -> None:
    command = [sys.executable, "-m", "deploy.kubernetes.demo", "--what", what, "--drive-s", "90"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert not done.returncode, done.stdout + done.stderr
