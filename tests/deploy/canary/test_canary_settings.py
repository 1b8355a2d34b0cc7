"""The settings of a canary, of its agent, and what is published for it."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.reference_files import read_reference
from deploy.canary.agent_file import agent_settings, settings_toml
from deploy.canary.checks import problems
from deploy.canary.hops import Hop
from deploy.canary.reference_texts import contracts_text, fence_text
from edge_agent.config import AgentSettings
from settings import SettingsError, validate
from tests.deploy.canary.canaries import canary_settings


def test_a_hop_can_be_watched_where_it_can_be_looked_at(tmp_path: Path) -> None:
    assert canary_settings(tmp_path).watched == tuple(Hop)
    assert canary_settings(tmp_path, centre=None, watched=["region"]).watched == (Hop.REGION,)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"centre": None}, "centre: is needed to look at centre, alert"),
        ({"lake": None}, "lake: is needed to look at table, coverage, event, usage, rated"),
        ({"script": {"latitude": 0, "longitude": 0, "period_s": 35}}, "period_s"),
        ({"hops": []}, "hops"),
        ({"object_store": {"endpoint": "http://127.0.0.1:1"}}, "object_store is for a lake at s3://"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, more: dict[str, Any], fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        canary_settings(tmp_path, **more)


def test_the_agent_s_file_says_what_the_canary_s_does(tmp_path: Path) -> None:
    uplinks = [{"region": "eu", "host": "127.0.0.1", "backoff_max_s": 2.0}, {"region": "us", "host": "127.0.0.1"}]
    wanted = agent_settings(canary_settings(tmp_path, agent={"uplinks": uplinks}), broker_port=1_884, status_port=9_999)
    assert validate(AgentSettings, tomllib.loads(settings_toml(wanted)), "agent.toml") == wanted


def test_the_fence_and_the_contracts_can_be_published(tmp_path: Path) -> None:
    settings = canary_settings(tmp_path)
    (tmp_path / "fences.geojson").write_text(fence_text(settings))
    (tmp_path / "contracts.toml").write_text(contracts_text(settings, datetime(2026, 3, 1, tzinfo=UTC)))
    assert len(read_reference([tmp_path / "fences.geojson", tmp_path / "contracts.toml"])) == 4


def test_what_is_named_and_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    there = canary_settings(tmp_path, lake=str(tmp_path / "lake"))
    assert problems(there) == []
    enrolment = {"host": "broker.eu.example", "ca": str(tmp_path / "ca.pem"), "token_file": str(tmp_path / "token")}
    absent = canary_settings(
        tmp_path,
        lake=str(tmp_path / "nowhere"),
        agent={"uplinks": [{"region": "eu", "host": "127.0.0.1"}], "enrolment": enrolment},
    )
    found = "\n".join(problems(absent))
    assert "agent.enrolment.ca: cannot be read" in found
    assert f"lake: there is no folder {tmp_path / 'nowhere'}" in found
