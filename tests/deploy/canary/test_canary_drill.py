"""What a drill of canaries says of a fault: it holds when it was red in time, at its own hop and at no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from deploy.canary.config import Hop
from deploy.canary.ledger import HopColour
from deploy.canary.status import CanaryStatus
from deploy.drill.canary_drill import (
    CanaryEnvironment,
    CanaryFault,
    FaultOutcome,
    chosen_faults,
    faults_as_json,
    faults_at,
    faults_table,
    run_faults,
    small_topology,
)
from deploy.drill.cli import app
from deploy.drill.environment import DrillError
from deploy.local import LocalStackError
from geo.replication import Topology
from tests.deploy.canary.test_canary_status import status
from waybill.settings import load


def outcome(red_s: float | None, *others: Hop, green_s: float | None = 40.0) -> FaultOutcome:
    return FaultOutcome(CanaryFault.INGEST, "the ingest is killed", Hop.TABLE, red_s, others, "overdue", green_s)


@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (outcome(60.0), True),
        (outcome(60.1), False),
        (outcome(9.0, Hop.CENTRE), False),
        (outcome(None), False),
        (outcome(9.0, green_s=None), False),
    ],
)
def test_a_fault_that_was_seen_late_never_or_elsewhere_too_or_is_not_over_does_not_hold(
    one: FaultOutcome, holds: bool
) -> None:
    out = StringIO()
    Console(file=out, width=160).print(faults_table([one]))
    assert one.passed is holds
    assert ("NO" in out.getvalue()) is not holds
    (said,) = json.loads(json.dumps(faults_as_json([one])))
    assert (said["passed"], said["hop"], said["others_red"]) == (holds, "table", [*one.others])


class Scripted(CanaryEnvironment):
    """Answers of an environment, one after the other: an error, or after how many seconds it was so."""

    def __init__(self, *answers: float | Exception) -> None:
        self.answers, self.said = [*answers], list[str]()
        self.say = self.said.append

    def wait_for(self, what: str, true: Callable[[CanaryStatus], bool], timeout_s: float) -> float:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        true(status(HopColour.GREEN))
        return answer

    def status(self) -> CanaryStatus | None:
        return status(HopColour.GREEN)

    def publish_contracts(self, edit: Callable[[str], str] = lambda text: text) -> None:
        edit("")


@pytest.mark.parametrize(
    "error", [DrillError("not within 600 s"), LocalStackError("server usage ended with exit status 1")]
)
def test_what_ends_by_itself_or_is_not_over_is_the_last_line_and_those_before_it_are_kept(error: Exception) -> None:
    environment = Scripted(1.0, 9.0, 1.0, 9.0, error)
    found = run_faults(environment, [CanaryFault.TARIFF] * 3, [*Hop])
    assert [(one.passed, one.green_s is None) for one in found] == [(True, False), (False, True)]
    assert str(error) in environment.said


def test_each_fault_has_a_hop_of_its_own() -> None:
    assert set(faults_at([*Hop])) == set(CanaryFault)
    assert faults_at([Hop.TABLE, Hop.COVERAGE]) == (CanaryFault.INGEST,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fault", "ingest", "--hop", "region"], "it is seen at the hop table, which is not watched"),
        (["--fault", "gateway", "--fault", "tariff", "--hop", "region"], "--fault tariff"),
        (["--hop", "coverage"], "no fault is seen there"),
    ],
)
def test_a_fault_that_no_watched_hop_shows_is_refused_before_anything_is_deleted(
    tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "kept").write_text("years of work")
    done = CliRunner().invoke(app, ["canary", "--folder", str(tmp_path), *options])
    assert (done.exit_code, said in " ".join(done.output.split())) == (2, True), done.output
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]


def test_faults_are_made_in_the_order_asked_for_or_all_that_are_seen() -> None:
    chosen = [CanaryFault.TARIFF, CanaryFault.INGEST]
    assert chosen_faults(chosen, [*Hop]) == tuple(chosen)
    assert chosen_faults((), [Hop.TABLE, Hop.REGION]) == (CanaryFault.GATEWAY, CanaryFault.INGEST)


def test_the_drill_has_one_region_and_the_rights_of_its_canary(tmp_path: Path) -> None:
    topology = load(Topology, small_topology(tmp_path / "topology.toml"))
    assert (set(topology.clusters), set(topology.regions)) == ({"eu", "hq"}, {"eu"})
    assert "consume" in topology.grants("hq", "canary/alerts-eu")["canary/alerts-eu/alerts"]["canary-eu"]
