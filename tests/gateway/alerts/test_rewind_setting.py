"""How far back a new owner reads is enough for what is still to be raised, or the settings are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.alerts.config import AlertSettings, EvaluationSettings, warnings
from gateway.alerts.evaluation import LiveEvents
from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix, columns, live_rules
from tests.gateway.alerts.test_alert_checks import TEXT
from waybill.settings import SettingsError, parse

LONG = 40


def settings(rewind_s: float, more: str = "") -> AlertSettings:
    text = f"rewind_s = {rewind_s}\n" + TEXT.format(more="", tenants='["acme"]') + more
    return parse(AlertSettings, text, "alerts.toml")


@pytest.mark.parametrize(
    ("more", "longest_s", "needed_s"),
    [
        ("", 300, 900),
        ("[events]\ndwell_s = 3600", 3600, 4200),
        ("[events]\nmin_stay_s = 400", 400, 1000),
        ("[tracks]\nmax_gap_s = 60\n[events]\ndwell_s = 30", 30, 150),
        ("[tracks]\nmax_gap_s = 86400\n[events]\ndwell_s = 86400", 86_400, 259_200),
    ],
)
def test_a_rewind_that_is_too_short_is_refused_or_a_warning_with_what_is_needed(
    tmp_path: Path, more: str, longest_s: float, needed_s: float
) -> None:
    def warned(rewind_s: float) -> list[str]:
        found = warnings(settings(rewind_s, more), tmp_path / "alerts.toml", 0.0)
        return [one for one in found if one.startswith("rewind_s: ")]

    for short_s in (0, longest_s - 1):
        with pytest.raises(SettingsError, match=rf"rewind_s is {short_s}: .* {needed_s} for devices"):
            settings(short_s, more)
    assert warned(needed_s) == []
    for short_s in (longest_s, needed_s - 1):
        (said,) = warned(short_s)
        assert said.endswith(f"make it {needed_s}")


def stay(step_s: int) -> list[LiveFix]:
    """Into the depot, and a fix there each so many seconds."""
    places = [-0.002, 0.0005, *[0.0006] * LONG]
    return [LiveFix("bus-1", NOON + 1000 * step_s * at, at + 1, 0.0005, east) for at, east in enumerate(places)]


def raised(rewound: Sequence[LiveFix], rest: Sequence[LiveFix]) -> list[str]:
    live = LiveEvents(live_rules(), EvaluationSettings(max_age_s=86_400))
    live.take(columns(rewound), rest[-1].t_ms, report=False)
    return [one.id for one in live.take(columns(rest), rest[-1].t_ms, report=True)]


@pytest.mark.parametrize(
    "step_s", [pytest.param(5, marks=pytest.mark.nightly), pytest.param(50, marks=pytest.mark.nightly), 120]
)
def test_with_what_is_needed_a_takeover_raises_what_the_owner_before_would_have(step_s: int) -> None:
    by = live_rules()
    made = settings(300, f"[tracks]\nmax_gap_s = {by.tracks.max_gap_s}\n[events]\ndwell_s = {by.events.dwell_s}")
    assert made.rewind_needed_s == 300
    fixes = stay(step_s)
    found = []
    for at in range(2, LONG):
        rewound = [one for one in fixes[:at] if one.t_ms >= fixes[at].t_ms - 300_000]
        assert raised(rewound, fixes[at:]) == raised(fixes[:at], fixes[at:])
        short = [one for one in fixes[:at] if one.t_ms >= fixes[at].t_ms - 59_000]
        found.append(bool(short) and raised(short, fixes[at:]) != raised(fixes[:at], fixes[at:]))
    assert any(found) == (step_s < 60), "with less, a dwell is raised again"


def test_an_alert_process_takes_each_place_as_it_is_reported() -> None:
    with pytest.raises(SettingsError, match="every_fix"):
        settings(900, '[tracks]\nrule = "standstill"')
