"""The demo on a real cluster: the truth at the end, with pods killed on the way, and with both charts upgraded."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.kubernetes.real_cluster import running_cluster

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with running_cluster("gateway", "centre", "pulsar"):
        yield


@pytest.mark.parametrize("options", [[], ["--upgrade"]], ids=["killed", "upgraded"])
def test_bills_equal_the_truth_and_no_acknowledgement_is_late(options: list[str]) -> None:
    command = [sys.executable, "-m", "deploy.kubernetes.demo", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert not done.returncode, done.stdout + done.stderr
