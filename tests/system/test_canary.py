"""A real canary on real servers: its records are seen at each hop up to the table, once, and a fault where it is."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from deploy.canary.cli import app
from deploy.canary.config import Hop
from deploy.canary.ledger import HopColour
from deploy.canary.status import CanaryStatus
from deploy.drill.canary_drill import CanaryEnvironment, canary_environment
from deploy.local import LocalStack
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(600)]

WATCHED = (Hop.REGION, Hop.CENTRE, Hop.TABLE)


@pytest.fixture(scope="module")
def environment(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanaryEnvironment]:
    with canary_environment(stack, tmp_path_factory.mktemp("canary"), WATCHED, print) as running:
        yield running


def all_green(status: CanaryStatus) -> bool:
    return set(status.of(HopColour.GREEN)) == set(WATCHED)


def metrics_of(environment: CanaryEnvironment) -> str:
    with urlopen(f"http://127.0.0.1:{environment.canary.status.port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def test_each_watched_hop_becomes_green_and_the_others_are_not_watched(environment: CanaryEnvironment) -> None:
    environment.wait_for("all hops are green", all_green, 180)
    status = environment.status()
    assert status is not None
    assert set(status.of(HopColour.NOT_WATCHED)) == set(Hop) - set(WATCHED)
    table = next(one for one in status.hops if one.hop is Hop.TABLE)
    assert table.wrong == 0
    assert table.p50_s is not None
    done = CliRunner().invoke(app, ["status", "--config", str(environment.config)])
    assert done.exit_code == 0, done.output
    assert "centre" in done.output
    # what is measured follows what is shown by a moment
    wait_until(lambda: 'waybill_canary_healthy{hop="table"} 1.0' in metrics_of(environment))
    text = metrics_of(environment)
    assert 'waybill_canary_healthy{hop="usage"}' not in text
