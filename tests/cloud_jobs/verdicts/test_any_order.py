"""Whatever comes in which order, each announced id has one verdict, and announced = final + withdrawn."""

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.geofence.event_revisions import EventRules
from cloud_jobs.job_settings import VerdictSettings
from geo.alerts import Alert
from geo.alerts.messages import ErrorReason, VerdictKind
from geo.spatial.event_ids import DAY_MS
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
from tests.cloud_jobs.verdicts.centre import VerdictCentre, alert_of
from tests.examples import examples

NOON = 20_000 * DAY_MS + DAY_MS // 2
BOUND = VerdictSettings(max_provisional_s=600.0)
PLACES = st.sampled_from([-0.01, -0.004, 0.002, 0.006, 0.009, 0.013, 0.017])
STEPS = st.sampled_from([20_000, 60_000, 200_000, 700_000])


@st.composite
def drives(draw: st.DrawFn) -> list[GeofenceFix]:
    """A way to and fro through the square and over the gate, at noon or around midnight."""
    t_ms, fixes = NOON + draw(st.sampled_from([0, DAY_MS // 2 - 150_000])), []
    for seq in range(1, draw(st.integers(3, 9))):
        t_ms += draw(STEPS)
        fixes.append(GeofenceFix("d", seq, t_ms, 0.005, draw(PLACES)))
    return fixes


def seen_on_the_way(by: EventRules, fixes: list[GeofenceFix], data: st.DataObject) -> dict[str, Alert]:
    """What a region raised that saw some of the fixes, in their order."""
    seen, alerts = GeofenceCentre(by), dict[str, Alert]()
    for fix in fixes:
        if data.draw(st.booleans(), label="seen"):
            alerts |= {
                row["id"]: alert_of(row, seen_until=((row["epoch"], fix.seq),))
                for row in seen.take([fix])
                if not row["retracted"]
            }
    return alerts


@given(fixes=drives(), data=st.data())
@settings(deadline=None, max_examples=examples(25))
def test_each_announced_id_has_one_verdict_and_announced_are_the_final_and_the_withdrawn(
    fixes: list[GeofenceFix], data: st.DataObject
) -> None:
    by = rules(dwell_s=30.0)
    alerts = seen_on_the_way(by, fixes, data)
    steps = data.draw(
        st.permutations(
            [*(("record", fix) for fix in fixes), *(("alert", one) for one in alerts.values())]
            + [("events", None), ("decide", None)] * 3
            # longer than an alert may be provisional: what comes behind it comes after the bound
            + [("time", None), ("decide", None)] * data.draw(st.integers(0, 2), label="bounds")
        ),
        label="steps",
    )
    if data.draw(st.booleans(), label="all alerts are withdrawn before anything comes"):
        steps = [*(("alert", one) for one in alerts.values()), ("time", None), ("decide", None), *steps]
    repeated = data.draw(st.lists(st.sampled_from(steps), max_size=3), label="repeated")
    with tempfile.TemporaryDirectory() as folder:
        centre = VerdictCentre(Path(folder) / "lake", by, BOUND)
        late = set[str]()
        here, computed = set[int](), set[int]()
        what: str
        which: Any
        for what, which in [*steps, *repeated, ("events", None), ("decide", None)]:
            if what == "record":
                centre.ingest([which])
                here.add(which.seq)
            elif what == "alert":
                centre.collect(which)
            elif what == "events":
                centre.compute_events()
                computed |= here
            elif what == "time":
                centre.now += timedelta(hours=1)
            else:
                centre.decide()
                for row in centre.in_force().values():
                    if row["reason"] == ErrorReason.DID_NOT_OCCUR and row["id"] in alerts:
                        ((_, until),) = alerts[row["id"]].seen_until
                        assert computed >= set(range(1, until + 1)), "withdrawn before all was there that proves it"
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
        at_once = VerdictCentre(Path(folder) / "at-once", by, BOUND)
        at_once.ingest(fixes)
        at_once.compute_events()
        at_once.collect(*alerts.values())
        at_once.decide()
        # what was late for a while is not known to a centre that had all at once
        assert said(centre, {*alerts} | centre.final()) == said(at_once, {*alerts} | centre.final())


def said(centre: VerdictCentre, names: set[str]) -> dict[str, tuple[Any, ...]]:
    of = ("verdict", "reason", "epoch", "seq", "kind", "place", "time", "value")
    return {name: tuple(row[one] for one in of) for name, row in centre.in_force().items() if name in names}
