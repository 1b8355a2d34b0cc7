"""The operator of a local stack, beside what else is in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.demo.plan import DemoSettings, plan_demo, write_topology
from deploy.local import stack_operator
from geo.replication import Topology
from waybill.identity.signatures import read_operators
from waybill.settings import SettingsError, load


def test_the_operator_stays_and_is_trusted_again_where_the_file_was_taken_away(tmp_path: Path) -> None:
    first = stack_operator(tmp_path)
    first.operators_file.unlink()
    assert stack_operator(tmp_path).key.key_id == first.key.key_id
    assert list(read_operators(first.operators_file).keys) == [first.key.key_id]


def test_a_file_of_trusted_keys_that_is_none_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "operators.toml").write_text('centre = "hq"\n')
    with pytest.raises(SettingsError, match=r"operators\.toml"):
        stack_operator(tmp_path)


def test_the_demo_s_topology_takes_no_file_of_the_stack(tmp_path: Path) -> None:
    scenario = plan_demo(DemoSettings(vehicles=4)).scenario
    written = write_topology(tmp_path, scenario)
    stack_operator(tmp_path)
    assert {one.tenant for one in scenario.vehicles} <= set(load(Topology, written).operators)
    assert written.name != "topology.toml"
