"""Whatever comes in which order, each announced id has one verdict, and announced = final + withdrawn."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.geofence.units import DAY_MS
from geo.alerts.verdict import VerdictKind
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
from tests.cloud_jobs.verdicts.centre import VerdictCentre, alert_of

NOON = 20_000 * DAY_MS + DAY_MS // 2
PLACES = st.sampled_from([-0.01, -0.004, 0.002, 0.006, 0.009, 0.013, 0.017])
STEPS = st.sampled_from([20_000, 60_000, 200_000, 700_000])


@st.composite
def drives(draw: st.DrawFn) -> list[GeofenceFix]:
    """A way to and fro through the square and over the gate."""
    t_ms, fixes = NOON, []
    for seq in range(1, draw(st.integers(3, 9))):
        t_ms += draw(STEPS)
        fixes.append(GeofenceFix("d", seq, t_ms, 0.005, draw(PLACES)))
    return fixes


@given(fixes=drives(), data=st.data())
@settings(deadline=None, max_examples=25)
def test_each_announced_id_has_one_verdict_and_announced_are_the_final_and_the_withdrawn(
    fixes: list[GeofenceFix], data: st.DataObject
) -> None:
    by = rules(dwell_s=30.0)
    # a region that saw some of the fixes, in their order, raised what it found on the way
    seen = GeofenceCentre(by)
    alerts = {}
    for fix in fixes:
        if data.draw(st.booleans(), label="seen"):
            alerts.update({row["id"]: alert_of(row) for row in seen.take([fix]) if not row["retracted"]})
    steps = data.draw(
        st.permutations(
            [*(("record", fix) for fix in fixes), *(("alert", one) for one in alerts.values())]
            + [("events", None), ("decide", None)] * 3
        ),
        label="steps",
    )
    repeated = data.draw(st.lists(st.sampled_from(steps), max_size=3), label="repeated")
    with tempfile.TemporaryDirectory() as folder:
        centre = VerdictCentre(Path(folder) / "lake", by)
        late = set[str]()
        what: str
        which: Any
        for what, which in [*steps, *repeated, ("events", None), ("decide", None)]:
            if what == "record":
                centre.ingest([which])
            elif what == "alert":
                centre.collect(which)
            elif what == "events":
                centre.compute_events()
            else:
                centre.decide()
                late |= {name for name, row in centre.in_force().items() if row["verdict"] == VerdictKind.LATE}
        verdicts = centre.in_force()
        withdrawn = {name for name, row in verdicts.items() if row["verdict"] == VerdictKind.WITHDRAWN}
        assert alerts.keys() <= verdicts.keys()
        assert alerts.keys() | late == centre.final() | withdrawn
        assert not centre.final() & withdrawn
        assert verdicts.keys() == centre.final() | withdrawn
        whole = GeofenceCentre(by)
        whole.take(fixes)
        assert centre.geofence.in_force() == whole.in_force(), "alerts change nothing of what is final"
        assert not centre.decide(), "nothing is said twice"
