"""What a drill of canaries says of a fault: it holds when it was red in time, at its own hop and at no other."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from deploy.canary.hops import Hop
from deploy.drill.canary_drill import CanaryFault, FaultOutcome, faults_as_json, faults_at, faults_table
from deploy.drill.canary_environment import small_topology
from geo.replication import Topology
from settings import load


def outcome(red_s: float, *others: Hop) -> FaultOutcome:
    return FaultOutcome(CanaryFault.INGEST, "the ingest is killed", Hop.TABLE, red_s, others, "missing", 40.0)


@pytest.mark.parametrize(
    ("one", "holds"), [(outcome(60.0), True), (outcome(60.1), False), (outcome(9.0, Hop.CENTRE), False)]
)
def test_a_fault_that_was_seen_late_or_elsewhere_too_does_not_hold(one: FaultOutcome, holds: bool) -> None:
    out = StringIO()
    Console(file=out, width=160).print(faults_table([one]))
    assert one.passed is holds
    assert ("NO" in out.getvalue()) is not holds
    (said,) = json.loads(json.dumps(faults_as_json([one])))
    assert (said["passed"], said["hop"], said["others_red"]) == (holds, "table", [*one.others])


def test_each_fault_has_a_hop_of_its_own() -> None:
    assert set(faults_at([*Hop])) == set(CanaryFault)
    assert faults_at([Hop.TABLE, Hop.COVERAGE]) == (CanaryFault.INGEST,)


def test_the_drill_has_one_region_and_the_rights_of_its_canary(tmp_path: Path) -> None:
    topology = load(Topology, small_topology(tmp_path / "topology.toml"))
    assert (set(topology.clusters), set(topology.regions)) == ({"eu", "hq"}, {"eu"})
    assert "consume" in topology.grants("hq", "canary/alerts-eu")["canary-eu"]
