"""Receivers with noise: what is billed of it, beside the same drive without."""

import json
from pathlib import Path

import pytest

from deploy.demo.audit import noise_findings
from simulator import drive, generated_scenario, write_folder
from simulator.messages import driven_line, journal_line
from simulator.scenario import GpsNoise, Scenario
from simulator.truth import Truth


def fleet(noise: GpsNoise | None, interval_s: int = 10) -> Scenario:
    return generated_scenario(
        seed=7, vehicles=3, regions=("eu",), duration_s=3_600, interval_s=interval_s, gps_noise=noise
    )


def test_noise_changes_the_places_and_what_is_said_of_them_alone() -> None:
    messages = list(drive(fleet(GpsNoise(sigma_m=4.0))))
    assert messages == list(drive(fleet(GpsNoise(sigma_m=4.0))))
    plain = list(drive(fleet(None)))
    assert [(one.offset_s, one.topic, one.driven) for one in messages] == [
        (one.offset_s, one.topic, one.driven) for one in plain
    ]
    others = [one for one in messages if not one.driven]
    assert others == [one for one in plain if not one.driven]
    parked = [
        (said["latitude"], said["speed_mps"])
        for one in messages
        if one.driven and (said := json.loads(one.payload)).get("speed_mps", 1.0) < 0.3
    ]
    assert len({latitude for latitude, _ in parked}) == len(parked) > 50


@pytest.mark.parametrize("noise", [GpsNoise(sigma_m=4.0, tau_s=60.0), GpsNoise(sigma_m=4.0, tau_s=0.0)], ids=str)
def test_a_fleet_with_noise_is_billed_its_drive_to_a_per_cent(noise: GpsNoise, tmp_path: Path) -> None:
    write_folder(tmp_path, scenario := fleet(noise, interval_s=5))
    messages = list(drive(scenario))
    for name, line in (("made.jsonl", journal_line), ("driven.jsonl", driven_line)):
        (tmp_path / name).write_text("".join(map(line, messages)))
    driven = Truth.from_folder(tmp_path, "driven.jsonl", "every_fix")
    found = noise_findings(Truth.from_folder(tmp_path), driven)
    assert found.holds, found.found
    assert not noise_findings(Truth.from_folder(tmp_path, rule="every_fix"), driven).holds
