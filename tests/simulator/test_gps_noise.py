"""Receivers with noise: what is billed of it, beside the same drive without."""

import json

from simulator import drive, generated_scenario
from simulator.scenario import GpsNoise, Scenario


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
