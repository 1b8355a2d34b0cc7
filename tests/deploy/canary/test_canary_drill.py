"""What a drill of canaries says of a fault: it holds when it was red in time, at its own hop and at no other."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from deploy.canary.config import Hop
from deploy.drill.canary_drill import CanaryFault, FaultOutcome, faults_as_json, faults_table, small_topology
from deploy.drill.cli import app
from geo.replication import Topology
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fault", "ingest", "--hop", "region"], "it is seen at the hop table, which is not watched"),
        (["--fault", "gateway", "--fault", "tariff", "--hop", "region"], "--fault tariff"),
    ],
)
def test_a_fault_that_no_watched_hop_shows_is_refused_before_anything_is_deleted(
    tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "kept").write_text("years of work")
    done = CliRunner().invoke(app, ["canary", "--folder", str(tmp_path), *options])
    assert (done.exit_code, said in " ".join(done.output.split())) == (2, True), done.output
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]


def test_the_drill_has_one_region_and_the_rights_of_its_canary(tmp_path: Path) -> None:
    topology = load(Topology, small_topology(tmp_path / "topology.toml"))
    assert (set(topology.clusters), set(topology.regions)) == ({"eu", "hq"}, {"eu"})
    assert "consume" in topology.grants("hq", "canary/alerts-eu")["canary/alerts-eu/alerts"]["canary-eu"]
