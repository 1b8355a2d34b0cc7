"""Which rows `cloud-jobs measure` writes for what a device never was in."""

from __future__ import annotations

import numpy as np

from cloud_jobs.measure import MAX_ZERO_ROWS, usage_rows, writes_zeros
from geo.spatial import FenceSet, Fixes, GateSet, TrackSettings
from geo.spatial.gates import Gate
from tests.geo.spatial.worlds import every_fix


def test_gates_and_fences_together_have_rows_of_zeros_up_to_a_number_and_no_more() -> None:
    count, several = 400, 251
    assert count * (several - 1) <= MAX_ZERO_ROWS < count * several
    line = np.array([[1.0, -1.0], [1.0, 1.0]])
    gates = [Gate(f"g{at}", line if at == 7 else np.add(line, (5.0 + at / 100, 40.0))) for at in range(several)]
    device = np.repeat(np.arange(count), 2)
    fixes = Fixes(
        device=device,
        t_ms=np.tile([0, 1000], count),
        lat=np.zeros(2 * count),
        lon=np.where(device == 3, np.tile([0.0, 2.0], count), 3.0),
    )
    devices, tracks, none = tuple(f"d{at}" for at in range(count)), every_fix(fixes), FenceSet(())
    few, many = GateSet(gates[:-1]), GateSet(gates)
    assert (writes_zeros(devices, none, few), writes_zeros(devices, none, many)) == (True, False)
    assert len(list(usage_rows(devices, tracks, none, few, TrackSettings()))) == count * several
    rows = [row for row in usage_rows(devices, tracks, none, many, TrackSettings()) if row[1] != "*"]
    assert [(row[0], row[1], row[4]) for row in rows] == [("d3", "g7", 1)]
