"""The power goes at any write or sync, the disk forgets and tears what was not synced, syncs fail, space runs out."""

import random
import sys
from pathlib import Path

import pytest

from tests.edge_agent.world import SimulatedWorld
from tests.examples import examples

LIVES = 5


@pytest.mark.parametrize("cuts", [examples(500), pytest.param(5_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("faults", [0.0, 0.02], ids=["no-faults", "EIO-ENOSPC"])
@pytest.mark.parametrize("quota", [1 << 30, 1 << 16], ids=["roomy", "full"])
def test_every_acknowledged_record_is_delivered_or_declared_after_any_power_cut(
    tmp_path: Path, cuts: int, faults: float, quota: int
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    sys.stdout.write(f"seed {seed}\n")
    done = 0
    while done < cuts:
        folder = tmp_path / str(seed)
        world = SimulatedWorld(seed, folder, faults=faults, max_bytes=quota)
        world.live(LIVES)
        world.check()
        done += world.cuts
        seed += 1
